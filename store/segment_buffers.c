/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_buffers: the last stretch of the active segment, in memory. A few large buffers fill one
 * after the other and are written behind the appender's back; readers find in them what the device
 * does not have yet. Nothing that failed to be written is written again: what the device has of it
 * is unknown, and so is what the kernel still has.
 */
#include "store/segment_impl.h"

#include <string.h>

void segment_fail(struct segset *s, int error)
{
	if (!s->error)
		s->error = error;
}

void segment_set_tail(struct segset *s, uint64_t tail)
{
	s->tail = tail;
	s->used[s->active->n - s->first] = tail;
}

void segment_submit(struct segset *s)
{
	struct append_buffer *b = s->filling;
	size_t len;
	int rc;

	if (!b || !b->fill)
		return;
	len = align_up(b->fill);
	memset(b->data + b->fill, 0, len - b->fill);
	b->fill = len;
	b->state = BUFFER_WRITING;
	b->seq = ++s->seq;
	b->req = (struct io_request){
		.fd = s->active->fd,
		.write = true,
		.buf = b->data,
		.len = len,
		.off = b->off,
		.user = b,
	};
	s->filling = NULL;
	s->active->dirty = true;
	s->active->end = b->off + len;
	segment_set_tail(s, s->active->end);
	rc = io_ring_submit(s->ring, &b->req);
	if (rc) {
		b->state = BUFFER_FAILED;
		segment_fail(s, rc);
	}
}

/* Of several who wait, one asks the ring and wakes the others. */
void segment_wait(struct segset *s)
{
	struct io_request *req;
	struct append_buffer *b;

	if (s->reaping) {
		pthread_cond_wait(&s->changed, &s->lock);
		return;
	}
	s->reaping = true;
	pthread_mutex_unlock(&s->lock);
	req = io_ring_wait(s->ring);
	pthread_mutex_lock(&s->lock);
	s->reaping = false;
	if (req) {
		b = req->user;
		b->state = req->result ? BUFFER_FAILED : BUFFER_FREE;
		if (req->result)
			segment_fail(s, req->result);
	}
	pthread_cond_broadcast(&s->changed);
}

static bool is_writing(const struct segset *s, uint64_t seq)
{
	for (unsigned i = 0; i < SEGMENT_BUFFERS; i++) {
		if (s->buffers[i].state == BUFFER_WRITING && s->buffers[i].seq <= seq)
			return true;
	}
	return false;
}

void segment_wait_written(struct segset *s, uint64_t seq)
{
	while (is_writing(s, seq))
		segment_wait(s);
}

int segset_error(struct segset *s)
{
	int rc;

	pthread_mutex_lock(&s->lock);
	rc = s->error;
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* ---- For readers. ---- */

/* The buffer with the least offset that has some of [off, end) of segment n; NULL if none. */
static const struct append_buffer *first_pending(const struct segset *s, uint32_t n, uint64_t off,
						 uint64_t end)
{
	const struct append_buffer *first = NULL;

	for (unsigned i = 0; i < SEGMENT_BUFFERS; i++) {
		const struct append_buffer *b = &s->buffers[i];

		if (b->state == BUFFER_FREE || b->segment != n || b->off >= end ||
		    align_up(b->off + b->fill) <= off)
			continue;
		if (!first || b->off < first->off)
			first = b;
	}
	return first;
}

bool segment_is_pending(struct segset *s, uint32_t n, uint64_t off, uint64_t len)
{
	bool pending;

	pthread_mutex_lock(&s->lock);
	pending = first_pending(s, n, off, off + len);
	pthread_mutex_unlock(&s->lock);
	return pending;
}

/* Copies the buffer's part of [off, end) to dst, where off goes to its start; behind what it has
 * come zeros. Returns where the part ends. */
static uint64_t copy_part(const struct append_buffer *b, uint64_t off, uint64_t end, uint8_t *dst)
{
	uint64_t filled = b->off + b->fill, part = align_up(filled);

	if (part > end)
		part = end;
	if (filled > part)
		filled = part;
	if (filled > off)
		memcpy(dst, b->data + (off - b->off), filled - off);
	else
		filled = off;
	memset(dst + (filled - off), 0, part - filled);
	return part;
}

size_t segment_copy_pending(struct segset *s, uint32_t n, uint64_t off, uint64_t len, uint8_t *dst,
			    struct segment_gap gaps[SEGMENT_BUFFERS + 1])
{
	uint64_t start = off, end = off + len;
	size_t n_gaps = 0;

	pthread_mutex_lock(&s->lock);
	while (off < end) {
		const struct append_buffer *b = first_pending(s, n, off, end);
		uint64_t to = b ? b->off : end;

		if (off < to) {
			gaps[n_gaps++] = (struct segment_gap){ off, to - off };
			off = to;
		}
		if (b)
			off = copy_part(b, off, end, dst + (off - start));
	}
	pthread_mutex_unlock(&s->lock);
	return n_gaps;
}
