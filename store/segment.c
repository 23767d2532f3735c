/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment: the set of segments, and what happens to one as a whole. Which chunks are alive is not
 * known here: nothing is removed or punched but on request.
 */
#include "store/segment_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_UNIT  ((uint64_t)1 << 20)
#define SIZE_LIMIT ((uint64_t)1 << 30)

void segment_name(uint32_t n, char ret[SEGMENT_NAME_MAX])
{
	snprintf(ret, SEGMENT_NAME_MAX, "%08x.seg", n);
}

int segment_open(struct segset *s, uint32_t n, int flags)
{
	bool direct = __atomic_load_n(&s->direct, __ATOMIC_RELAXED);
	char name[SEGMENT_NAME_MAX];
	int fd;

	segment_name(n, name);
	/* A store may come from anywhere: a link would lead out of it, and a FIFO be waited for. */
	flags |= O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	fd = s->io->openat(s->io->arg, s->dirfd, name, flags | (direct ? O_DIRECT : 0), 0600);
	if (fd != -EINVAL || !direct)
		return fd;
	/* O_CREAT may have made the file before O_DIRECT was refused. */
	fd = s->io->openat(s->io->arg, s->dirfd, name, flags & ~O_EXCL, 0600);
	if (fd >= 0)
		__atomic_store_n(&s->direct, false, __ATOMIC_RELAXED);
	return fd;
}

/* Tries O_DIRECT on a file without a name. What cannot be tried is not used. */
static bool probe_direct(struct segset *s)
{
	int flags = O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, fd;
	void *block = io_buffer_alloc(IO_ALIGN);
	ssize_t n;

	if (!block)
		return false;
	fd = s->io->openat(s->io->arg, s->dirfd, ".", flags, 0600);
	/* A full file system says nothing about O_DIRECT. */
	n = fd < 0 ? fd : s->io->pwrite(s->io->arg, fd, block, IO_ALIGN, 0);
	if (fd >= 0)
		s->io->close(s->io->arg, fd);
	io_buffer_free(block, IO_ALIGN);
	return n == IO_ALIGN || n == -ENOSPC || n == -EDQUOT;
}

static bool options_ok(const struct segset_options *opt)
{
	return opt->io && opt->segment_size >= SIZE_UNIT && opt->segment_size <= SIZE_LIMIT &&
	       opt->segment_size % SIZE_UNIT == 0 && strlen(opt->uuid) == 36;
}

/* A run holds it around appends that take it. */
static void init_append_lock(struct segset *s)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&s->append_lock, &attr);
	pthread_mutexattr_destroy(&attr);
}

int segset_open(const struct segset_options *opt, struct segset **ret)
{
	struct segset *s;
	int rc;

	if (!options_ok(opt))
		return -EINVAL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->io = opt->io;
	s->dirfd = opt->dirfd;
	memcpy(s->uuid, opt->uuid, sizeof(s->uuid));
	s->segment_size = opt->segment_size;
	s->next = s->first = opt->next;
	s->read_only = opt->read_only;
	s->direct = s->read_only || probe_direct(s);
	init_append_lock(s);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	pthread_mutex_init(&s->pool_lock, NULL);
	rc = segment_writer_open(s);
	if (rc) {
		segset_close(s);
		return rc;
	}
	*ret = s;
	return 0;
}

void segset_close(struct segset *s)
{
	if (!s)
		return;
	segment_writer_close(s);
	segment_readers_close(s);
	pthread_mutex_destroy(&s->pool_lock);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	pthread_mutex_destroy(&s->append_lock);
	free(s->used);
	free(s);
}

bool segset_is_direct(const struct segset *s)
{
	return __atomic_load_n(&s->direct, __ATOMIC_RELAXED);
}

bool segset_is_uring(const struct segset *s)
{
	return io_ring_is_uring(s->ring);
}

/* 1 when the file has something at off or behind, else 0. */
static int reaches_beyond(struct segset *s, int fd, uint64_t off)
{
	void *block = io_buffer_alloc(IO_ALIGN);
	ssize_t n;

	if (!block)
		return -ENOMEM;
	do
		n = s->io->pread(s->io->arg, fd, block, IO_ALIGN, off);
	while (n == -EINTR);
	io_buffer_free(block, IO_ALIGN);
	return n < 0 ? (int)n : n > 0;
}

int segset_trim(struct segset *s, uint32_t n, uint64_t used)
{
	uint64_t size = align_up(used);
	int fd, rc;

	if (s->read_only)
		return -EROFS;
	if (segment_is_busy(s, n))
		return -EBUSY;
	fd = segment_open(s, n, O_RDWR);
	if (fd < 0)
		return fd;
	rc = reaches_beyond(s, fd, size);
	if (rc > 0)
		rc = s->io->ftruncate(s->io->arg, fd, size);
	s->io->close(s->io->arg, fd);
	return rc;
}

int segset_remove(struct segset *s, uint32_t n)
{
	char name[SEGMENT_NAME_MAX];
	int rc;

	if (s->read_only)
		return -EROFS;
	if (segment_is_busy(s, n))
		return -EBUSY;
	segment_name(n, name);
	rc = s->io->unlinkat(s->io->arg, s->dirfd, name);
	if (!rc)
		read_file_forget(s, n);
	return rc;
}

int segset_punch(struct segset *s, struct segment_loc loc, uint32_t stored_len)
{
	uint64_t off = loc_offset(loc);
	uint64_t from = align_up(off + sizeof(struct record_header));
	uint64_t to = align_down(off + record_size(stored_len));
	int fd, rc;

	if (s->read_only)
		return -EROFS;
	if (from >= to)
		return 0;
	/* Written later, the blocks would have to be found anew, on a file system that may be full. */
	if (segment_is_pending(s, loc.segment, off, record_size(stored_len)))
		return -EBUSY;
	fd = segment_open(s, loc.segment, O_RDWR);
	if (fd < 0)
		return fd;
	rc = s->io->fallocate(s->io->arg, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from,
			      to - from);
	s->io->close(s->io->arg, fd);
	return rc;
}
