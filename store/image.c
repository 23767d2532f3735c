/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image: the plain file in the run directory that holds a hot object's bytes.
 *
 * Its size is the object's size at any moment, so size and mtime survive a kill without a record.
 * Rules of the kernel it keeps: no writable descriptor and no mapping stays open on an idle image,
 * else the lease probe would see the daemon itself; an image goes by unlink only.
 */
#include "store/hash.h"
#include "store/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define HUGE_PAGE (2u << 20)
/* trusted.* for root, user.* (tmpfs has them since Linux 6.6) for everybody else. */
#define MARK_ROOT "trusted.kvfs.clean"
#define MARK_USER "user.kvfs.clean"

uint64_t object_blocks(uint64_t size)
{
	return size / OBJECT_BLOCK + (size % OBJECT_BLOCK != 0);
}

void image_name(uint64_t ino, char ret[32])
{
	snprintf(ret, 32, "%" PRIx64, ino);
}

const char *const image_place_name[IMAGE_PLACES] = { "images", "small" };

int image_dir(const struct object *o)
{
	return o->store->img_fd[o->place];
}

int image_open(struct object *o, int flags)
{
	char name[32];
	int fd;

	image_name(o->ino, name);
	fd = openat(image_dir(o), name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	return fd < 0 ? -errno : fd;
}

int image_fd(struct object *o)
{
	int fd;

	if (o->fd < 0) {
		fd = image_open(o, O_RDONLY);
		if (fd < 0)
			return fd;
		o->fd = fd;
	}
	return o->fd;
}

int image_wfd_get(struct object *o)
{
	int fd;

	if (o->wfd < 0) {
		fd = image_open(o, O_RDWR);
		if (fd < 0)
			return fd;
		o->wfd = fd;
	}
	o->wfd_users++;
	return o->wfd;
}

void image_wfd_put(struct object *o)
{
	o->wfd_users--;
	image_close_idle(o);
}

/* Longer than the file is now, so that it need not be mapped anew while readers use the mapping. */
bool image_map(struct object *o)
{
	size_t len = (o->size * 2 + (64u << 20)) & ~(size_t)(HUGE_PAGE - 1);
	int fd;
	char *p;

	if (o->map)
		return true;
	fd = image_fd(o);
	p = fd < 0 ? MAP_FAILED : mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return false;
	o->map = p;
	o->map_len = len;
	return true;
}

void image_unmap(struct object *o)
{
	if (o->map)
		munmap(o->map, o->map_len);
	o->map = NULL;
}

/* A daemon-mode writer keeps the writable descriptor, so that each write need not open it; but
 * while somebody may write unseen the probe must not meet it. */
void image_close_idle(struct object *o)
{
	if (o->wfd >= 0 && !o->wfd_users && (!o->writers || o->all_dirty)) {
		close(o->wfd);
		o->wfd = -1;
	}
	if (!o->handles)
		image_unmap(o);
	if (o->fd >= 0 && !o->handles && !o->settling) {
		close(o->fd);
		o->fd = -1;
	}
}

void image_update_blocks(struct object *o, const uint64_t *bytes)
{
	uint64_t dirty = object_dirty_bytes(o);

	atomic_fetch_add(&o->store->image_bytes, *bytes - o->blocks);
	o->blocks = *bytes;
	object_account(o, dirty);
}

void image_note_blocks(struct object *o, int fd)
{
	struct stat st;
	uint64_t bytes;

	if (fstat(fd, &st))
		return;
	bytes = (uint64_t)st.st_blocks * 512;
	image_update_blocks(o, &bytes);
}

static int image_stat(struct object *o, struct stat *st)
{
	char name[32];

	if (o->fd >= 0)
		return fstat(o->fd, st) ? -errno : 0;
	image_name(o->ino, name);
	return fstatat(image_dir(o), name, st, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

void image_refresh(struct object *o)
{
	struct stat st;
	uint64_t bytes, dirty;

	if (o->image == IMAGE_NONE || image_stat(o, &st))
		return;
	dirty = object_dirty_bytes(o);
	o->size = st.st_size;
	object_account(o, dirty);
	bytes = (uint64_t)st.st_blocks * 512;
	image_update_blocks(o, &bytes);
	if (st.st_mtim.tv_sec != o->image_mtime.tv_sec ||
	    st.st_mtim.tv_nsec != o->image_mtime.tv_nsec) {
		o->image_mtime = st.st_mtim;
		o->mtime = st.st_mtim;
	}
}

int image_create(struct object *o, enum image_state state, uint64_t size)
{
	struct stat st;
	int fd, r = 0;
	char name[32];

	o->place = (size ? size : o->expected) <= SMALL_MAX && (size || o->expected) ? IMAGE_SMALL :
										       IMAGE_HUGE;
	image_name(o->ino, name);
	fd = image_open(o, O_RDWR | O_CREAT | O_EXCL);
	/* What a killed daemon left and nobody took. */
	if (fd == -EEXIST && !unlinkat(image_dir(o), name, 0))
		fd = image_open(o, O_RDWR | O_CREAT | O_EXCL);
	if (fd < 0)
		return fd;
	if (size && ftruncate(fd, size))
		r = -errno;
	if (!r && fstat(fd, &st))
		r = -errno;
	close(fd);
	if (r) {
		unlinkat(image_dir(o), name, 0);
		return r;
	}
	o->image = state;
	o->image_mtime = st.st_mtim;
	o->clean_mark = false;
	o->fill_span = 0;
	atomic_fetch_add(&o->store->images, 1);
	object_lru_add(o);
	return 0;
}

void image_drop(struct object *o)
{
	uint64_t none = 0;
	char name[32];

	if (o->image == IMAGE_NONE)
		return;
	if (o->wfd >= 0)
		close(o->wfd);
	if (o->fd >= 0)
		close(o->fd);
	o->wfd = o->fd = -1;
	image_unmap(o);
	image_name(o->ino, name);
	unlinkat(image_dir(o), name, 0);
	o->image = IMAGE_NONE;
	o->clean_mark = false;
	blockmap_done(&o->valid);
	image_update_blocks(o, &none);
	atomic_fetch_sub(&o->store->images, 1);
	object_lru_remove(o);
}

/* What the mark says: exactly this content. A map and a size that give the same sum are the same
 * chunks in the same places. */
static uint64_t content_sum(const struct extmap *map, uint64_t size)
{
	uint8_t *packed;
	ssize_t n = extmap_encode(map, &packed);
	uint64_t sum;

	if (n < 0)
		return 0;
	sum = sum64(packed, n) ^ (size * 0x9e3779b97f4a7c15ull);
	free(packed);
	return sum ? sum : 1;
}

static const char *mark_name(void)
{
	return geteuid() == 0 ? MARK_ROOT : MARK_USER;
}

void image_mark_clean(struct object *o)
{
	uint64_t sum = content_sum(o->under, o->size);
	int fd = image_fd(o);

	/* Without the mark the image is not found again after a kill: a loss of warmth only. */
	if (sum && fd >= 0 && fsetxattr(fd, mark_name(), &sum, sizeof(sum), 0) == 0)
		o->clean_mark = true;
	image_close_idle(o);
}

void image_unmark(struct object *o)
{
	int fd;

	if (!o->clean_mark)
		return;
	fd = image_fd(o);
	if (fd >= 0)
		fremovexattr(fd, mark_name());
	o->clean_mark = false;
}

bool image_is_marked(int fd, const struct extmap *map, uint64_t size)
{
	uint64_t sum;

	return fgetxattr(fd, mark_name(), &sum, sizeof(sum)) == sizeof(sum) &&
	       sum == content_sum(map, size);
}

bool image_unused(struct object *o, bool by_writers_only)
{
	int fd = image_open(o, O_RDONLY), r;

	if (fd < 0)
		return fd == -ENOENT;
	/* The daemon's own descriptors would count. */
	if (o->fd >= 0 && !by_writers_only) {
		close(o->fd);
		o->fd = -1;
	}
	r = fcntl(fd, F_SETLEASE, by_writers_only ? F_RDLCK : F_WRLCK);
	if (r == 0)
		fcntl(fd, F_SETLEASE, F_UNLCK);
	close(fd);
	return r == 0;
}

/* Huge pages give every file 2 MiB: what lies behind the end goes back. */
void image_punch_tail(struct object *o)
{
	uint64_t end = (o->size + 4095) & ~4095ull;
	uint64_t page = (o->size + HUGE_PAGE - 1) & ~(uint64_t)(HUGE_PAGE - 1);
	int fd;

	if (end == page || o->place == IMAGE_SMALL)
		return;
	fd = image_wfd_get(o);
	if (fd < 0)
		return;
	fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, end, page - end);
	image_wfd_put(o);
	image_restore_mtime(o);
}

/* The content changed now, by the clock that stamps the image's writes: another could be ahead of
 * it, and the next write would seem to be older. */
void image_touch(struct object *o)
{
	struct timespec t[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_nsec = UTIME_NOW } };
	char name[32];

	image_name(o->ino, name);
	utimensat(image_dir(o), name, t, AT_SYMLINK_NOFOLLOW);
	image_refresh(o);
}

/* After the daemon itself wrote to the image without a change of content. */
void image_restore_mtime(struct object *o)
{
	struct timespec t[2] = { { .tv_nsec = UTIME_OMIT }, o->image_mtime };
	char name[32];

	image_name(o->ino, name);
	utimensat(image_dir(o), name, t, AT_SYMLINK_NOFOLLOW);
}
