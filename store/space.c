/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space: a full store says so at write(2). Every byte that becomes dirty has room in the store
 * before the write is answered: free space of the file system, plus what the active segment has
 * preallocated, less a slack for metadata and padding, must hold all that is dirty.
 */
#include "store/store_impl.h"

#include <errno.h>
#include <sys/statvfs.h>

#define STALE_MS 100

/* What could be written. */
static uint64_t available(struct store *s)
{
	struct statvfs v;

	if (fstatvfs(s->dir_fd, &v))
		return 0;
	return (uint64_t)v.f_bavail * v.f_frsize + segset_room(s->segs);
}

static uint64_t ask(struct store *s)
{
	uint64_t avail = available(s);

	return avail > s->slack ? avail - s->slack : 0;
}

static uint64_t current(struct store *s, bool fresh)
{
	int64_t now = now_ms();
	uint64_t free_bytes;

	pthread_mutex_lock(&s->space_lock);
	if (fresh || now - s->free_at_ms > STALE_MS) {
		s->free_cached = ask(s);
		s->free_at_ms = now;
	}
	free_bytes = s->free_cached;
	pthread_mutex_unlock(&s->space_lock);
	return free_bytes;
}

void space_refresh(struct store *s)
{
	pthread_mutex_lock(&s->space_lock);
	s->free_at_ms = now_ms() - STALE_MS - 1;
	pthread_mutex_unlock(&s->space_lock);
}

uint64_t space_free(struct store *s)
{
	uint64_t free_bytes = current(s, false), dirty = atomic_load(&s->dirty_bytes);

	return free_bytes > dirty ? free_bytes - dirty : 0;
}

/* What is dirty may need its room and a segment to be preallocated meanwhile. */
bool space_for_copy(struct store *s, uint64_t bytes)
{
	return available(s) >= atomic_load(&s->dirty_bytes) + bytes + s->slack / 2;
}

static bool fits(struct store *s, uint64_t len, bool fresh)
{
	uint64_t need = atomic_load(&s->dirty_bytes) + len;

	/* Passthrough writers may fill the whole hot tier without asking. */
	if (atomic_load(&s->hidden_writers) && need < s->opt.hot_bytes)
		need = s->opt.hot_bytes;
	return need <= current(s, fresh);
}

int space_reserve(struct store *s, uint64_t len)
{
	if (s->read_only)
		return -EROFS;
	if (atomic_load(&s->failed))
		return -EIO;
	if (fits(s, len, false) || fits(s, len, true))
		return 0;
	/* What nothing refers to any more may be all it takes. */
	while (chunk_any_dead(s->chunks) && reap_dead(s, 1024) > 0)
		;
	if (fits(s, len, true))
		return 0;
	gc_wake(s);
	return -ENOSPC;
}

/* Blocks of 4 KiB of so many of the file system's own, with what the active segment has room for and
 * without what is spoken for. */
static uint64_t blocks_free(struct store *s, uint64_t n, uint64_t frsize)
{
	uint64_t taken = s->slack + atomic_load(&s->dirty_bytes);
	uint64_t bytes = n * frsize + segset_room(s->segs);

	return bytes > taken ? (bytes - taken) / 4096 : 0;
}

int store_statvfs(struct store *s, struct statvfs *ret)
{
	uint64_t frsize;

	if (fstatvfs(s->dir_fd, ret))
		return -errno;
	frsize = ret->f_frsize;
	ret->f_blocks = ret->f_blocks * frsize / 4096;
	ret->f_bfree = blocks_free(s, ret->f_bfree, frsize);
	ret->f_bavail = blocks_free(s, ret->f_bavail, frsize);
	ret->f_bsize = ret->f_frsize = 4096;
	ret->f_namemax = 255;
	return 0;
}
