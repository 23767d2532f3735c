/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_rate: how fast the store's device reads, by reading a part of a segment past the page cache.
 */
#include "store/clock.h"
#include "store/segment_impl.h"

#include <errno.h>
#include <unistd.h>

#define DEPTH   8u
#define REQUEST ((size_t)1 << 20)
#define LENGTH  (32 * REQUEST)
#define TRIES   16

/* Of the newest that are full, one whose beginning was not freed since; NULL: there is none. */
static struct read_file *find_long(struct segset *s)
{
	uint32_t n = segset_active(s);

	n -= n > 0;
	for (unsigned k = 0; k < TRIES && n; k++, n--) {
		struct read_file *f;

		if (read_file_get(s, n, &f))
			continue;
		if (lseek(f->fd, 0, SEEK_HOLE) >= (off_t)LENGTH)
			return f;
		read_file_put(s, f);
	}
	return NULL;
}

static int read_all(struct io_ring *ring, int fd, uint8_t *buf)
{
	struct io_request req[DEPTH], *done;
	uint64_t at = 0;
	int r = 0;

	for (unsigned k = 0; k < DEPTH; k++)
		req[k] = (struct io_request){ .fd = fd, .buf = buf + k * REQUEST, .len = REQUEST };
	for (unsigned k = 0; k < DEPTH && !r; k++, at += REQUEST) {
		req[k].off = at;
		r = io_ring_submit(ring, &req[k]);
	}
	while ((done = io_ring_wait(ring))) {
		if (done->result)
			r = done->result;
		if (r || at == LENGTH)
			continue;
		done->off = at;
		at += REQUEST;
		r = io_ring_submit(ring, done);
	}
	return r;
}

int segset_read_rate(struct segset *s, uint64_t *ret)
{
	struct io_ring *ring = NULL;
	int64_t begin, took;
	struct read_file *f;
	uint8_t *buf;
	int r;

	if (!segset_is_direct(s))
		return -EOPNOTSUPP;
	f = find_long(s);
	if (!f)
		return -ENODATA;
	buf = io_buffer_alloc(DEPTH * REQUEST);
	r = buf ? io_ring_new(s->io, DEPTH, &ring) : -ENOMEM;
	begin = now_us();
	if (!r)
		r = read_all(ring, f->fd, buf);
	took = now_us() - begin;
	read_file_put(s, f);
	io_ring_free(ring);
	io_buffer_free(buf, DEPTH * REQUEST);
	if (!r)
		*ret = LENGTH * 1000000 / (uint64_t)(took ? took : 1);
	return r;
}
