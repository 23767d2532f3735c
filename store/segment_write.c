/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_write: appending records, and new segments for them. Records are copied into the buffers;
 * an append waits for the device only when all of them are in flight.
 */
#include "store/segment_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* ---- Appending. append_lock is held, lock is not. ---- */

/* Makes s->filling a buffer for what comes at the tail. */
static int take_buffer(struct segset *s)
{
	int rc = 0;

	pthread_mutex_lock(&s->lock);
	while (!s->filling && !(rc = s->error)) {
		for (unsigned i = 0; i < SEGMENT_BUFFERS && !s->filling; i++) {
			if (s->buffers[i].state == BUFFER_FREE)
				s->filling = &s->buffers[i];
		}
		if (!s->filling)
			segment_wait(s);
	}
	if (s->filling && s->filling->state == BUFFER_FREE) {
		s->filling->state = BUFFER_FILLING;
		s->filling->segment = s->active->n;
		s->filling->off = s->tail;
		s->filling->fill = 0;
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* Adds bytes at the tail of the active segment; NULL for zeros. */
static int put(struct segset *s, const void *data, size_t len)
{
	const uint8_t *from = data;

	while (len) {
		int rc = s->filling ? 0 : take_buffer(s);
		struct append_buffer *b = s->filling;
		size_t n;

		if (rc)
			return rc;
		n = len < SEGMENT_BUFFER - b->fill ? len : SEGMENT_BUFFER - b->fill;
		/* Above fill the buffer is ours alone. */
		if (from)
			memcpy(b->data + b->fill, from, n);
		else
			memset(b->data + b->fill, 0, n);
		pthread_mutex_lock(&s->lock);
		b->fill += n;
		segment_set_tail(s, s->tail + n);
		if (b->fill == SEGMENT_BUFFER)
			segment_submit(s);
		pthread_mutex_unlock(&s->lock);
		from = from ? from + n : NULL;
		len -= n;
	}
	return 0;
}

/* ---- New segments. append_lock is held, lock is not. ---- */

static int preallocate(struct segset *s, int fd)
{
	int rc = s->io->fallocate(s->io->arg, fd, 0, 0, s->segment_size);

	if (rc == -EOPNOTSUPP)
		rc = s->io->ftruncate(s->io->arg, fd, s->segment_size);
	return rc == -EDQUOT ? -ENOSPC : rc;
}

/* Undoes the creation of a segment. */
void segment_discard(struct segset *s, struct segment_file *f)
{
	char name[SEGMENT_NAME_MAX];

	segment_name(f->n, name);
	(void)s->io->unlinkat(s->io->arg, s->dirfd, name);
	s->io->close(s->io->arg, f->fd);
	free(f);
}

/* Creates the file of the next segment, of a number nobody has. */
static int create_file(struct segset *s, struct segment_file **ret)
{
	struct segment_file *f;
	int rc;

	if (s->next == UINT32_MAX) /* another that is there has the last number */
		return -ENOSPC;
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	f->n = s->next;
	while ((f->fd = segment_open(s, f->n, O_RDWR | O_CREAT | O_EXCL)) == -EEXIST &&
	       f->n < UINT32_MAX - 1)
		f->n++;
	if (f->fd < 0) {
		rc = f->fd;
		free(f);
		return rc;
	}
	rc = preallocate(s, f->fd);
	if (rc)
		segment_discard(s, f);
	else
		*ret = f;
	return rc;
}

/* Room to note how much of segment n is used. */
static int extend_used(struct segset *s, uint32_t n)
{
	size_t count = (size_t)(n - s->first) + 1;
	uint64_t *used = realloc(s->used, count * sizeof(*used));

	if (!used)
		return -ENOMEM;
	memset(used + s->n_used, 0, (count - s->n_used) * sizeof(*used));
	s->used = used;
	s->n_used = (uint32_t)count;
	return 0;
}

void segment_retire(struct segset *s)
{
	if (!s->active)
		return;
	segment_submit(s);
	s->active->next = s->retired;
	s->retired = s->active;
	s->active = NULL;
}

/* The new segment is there before the old one is left, so that running out of space changes
 * nothing. */
static int start_segment(struct segset *s)
{
	uint8_t header[SEGMENT_HEADER];
	struct segment_file *f;
	int rc = create_file(s, &f);

	if (rc)
		return rc;
	pthread_mutex_lock(&s->lock);
	rc = extend_used(s, f->n);
	if (!rc) {
		segment_retire(s);
		s->active = f;
		s->next = f->n + 1;
		s->names_dirty = true;
		segment_set_tail(s, 0);
	}
	pthread_mutex_unlock(&s->lock);
	if (rc) {
		segment_discard(s, f);
		return rc;
	}
	segment_header_pack(header, f->n, s->uuid);
	return put(s, header, sizeof(header));
}

/* ---- The calls. ---- */

static int append_locked(struct segset *s, const struct record_info *info, const void *payload,
			 uint64_t sum, struct segment_loc *ret)
{
	uint64_t size = record_size(info->stored_len);
	struct record_header header;
	struct segment_loc loc;
	int rc = segset_error(s);

	if (!rc && (!s->active || s->tail + size > s->segment_size))
		rc = start_segment(s);
	if (rc)
		return rc;
	loc = (struct segment_loc){ s->active->n, (uint32_t)(s->tail / RECORD_ALIGN) };
	record_pack(&header, info, loc, sum);
	rc = put(s, &header, sizeof(header));
	if (!rc)
		rc = put(s, payload, info->stored_len);
	if (!rc)
		rc = put(s, NULL, size - sizeof(header) - info->stored_len);
	if (rc)
		return rc;
	pthread_mutex_lock(&s->lock);
	s->appended++;
	pthread_mutex_unlock(&s->lock);
	*ret = loc;
	return 0;
}

int segset_append(struct segset *s, const struct record_info *info, const void *payload,
		  struct segment_loc *ret)
{
	uint64_t sum;
	int rc;

	if (s->read_only)
		return -EROFS;
	if (!info->raw_len || info->raw_len > RECORD_MAX || !info->stored_len ||
	    info->stored_len > RECORD_MAX ||
	    record_size(info->stored_len) > s->segment_size - SEGMENT_HEADER)
		return -EINVAL;
	sum = sum64(payload, info->stored_len);
	pthread_mutex_lock(&s->append_lock);
	rc = append_locked(s, info, payload, sum, ret);
	pthread_mutex_unlock(&s->append_lock);
	return rc;
}

void segset_run_begin(struct segset *s)
{
	pthread_mutex_lock(&s->append_lock);
}

void segset_run_end(struct segset *s)
{
	pthread_mutex_unlock(&s->append_lock);
}

uint64_t segset_room(struct segset *s)
{
	uint64_t room;

	pthread_mutex_lock(&s->lock);
	room = s->active ? s->segment_size - s->tail : 0;
	pthread_mutex_unlock(&s->lock);
	return room;
}

uint32_t segset_active(struct segset *s)
{
	uint32_t n;

	pthread_mutex_lock(&s->lock);
	n = s->active ? s->active->n : s->next;
	pthread_mutex_unlock(&s->lock);
	return n;
}

void segset_skip_to(struct segset *s, uint32_t next)
{
	pthread_mutex_lock(&s->append_lock);
	if (s->next < next)
		s->next = next;
	pthread_mutex_unlock(&s->append_lock);
}

uint64_t segset_used(struct segset *s, uint32_t n)
{
	uint64_t used;

	pthread_mutex_lock(&s->lock);
	used = n >= s->first && n - s->first < s->n_used ? s->used[n - s->first] : 0;
	pthread_mutex_unlock(&s->lock);
	return used;
}

bool segset_is_sealed(struct segset *s, uint32_t n)
{
	return !segment_is_busy(s, n);
}

bool segment_is_busy(struct segset *s, uint32_t n)
{
	bool busy;

	pthread_mutex_lock(&s->lock);
	busy = s->active && s->active->n == n;
	for (const struct segment_file *f = s->retired; f && !busy; f = f->next)
		busy = f->n == n;
	pthread_mutex_unlock(&s->lock);
	return busy;
}
