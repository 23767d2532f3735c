/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_sync: what is durable, what is lost, and the end. One caller of sync leads and syncs for
 * all who wait; whatever fails, fails everybody from then on.
 */
#include "store/segment_impl.h"

#include <errno.h>
#include <stdlib.h>

int segset_flush(struct segset *s)
{
	int rc;

	pthread_mutex_lock(&s->append_lock);
	pthread_mutex_lock(&s->lock);
	segment_submit(s);
	pthread_mutex_unlock(&s->append_lock);
	segment_wait_written(s, s->seq);
	rc = s->error;
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* What one sync makes durable. */
struct batch {
	uint64_t records;
	struct segment_file *retired;
	struct segment_file *active; /* NULL when nothing was written to it */
	bool names;
};

/* Sends everything appended on its way and says what that is. syncing is set. */
static void begin_batch(struct segset *s, struct batch *ret)
{
	pthread_mutex_lock(&s->append_lock);
	pthread_mutex_lock(&s->lock);
	segment_submit(s);
	*ret = (struct batch){ .records = s->appended, .names = s->names_dirty };
	ret->retired = s->retired;
	s->retired = NULL;
	s->names_dirty = false;
	if (s->active && s->active->dirty) {
		s->active->dirty = false;
		ret->active = s->active;
	}
	pthread_mutex_unlock(&s->append_lock);
	segment_wait_written(s, s->seq);
	pthread_mutex_unlock(&s->lock);
}

/* Gives back what was preallocated and is not used. Not being able to costs space only. */
static void seal(struct segset *s, struct segment_file *f)
{
	(void)s->io->ftruncate(s->io->arg, f->fd, f->end);
}

static void free_files(struct segset *s, struct segment_file *f)
{
	while (f) {
		struct segment_file *next = f->next;

		s->io->close(s->io->arg, f->fd);
		free(f);
		f = next;
	}
}

static int sync_batch(struct segset *s, const struct batch *b)
{
	int rc = 0;

	for (struct segment_file *f = b->retired; f && !rc; f = f->next) {
		seal(s, f);
		rc = s->io->fdatasync(s->io->arg, f->fd);
	}
	if (!rc && b->active)
		rc = s->io->fdatasync(s->io->arg, b->active->fd);
	if (!rc && b->names)
		rc = s->io->fsync(s->io->arg, s->dirfd);
	return rc;
}

/* Syncs for everybody who waits. Called and returns with lock held. */
static void lead_sync(struct segset *s)
{
	struct batch b;
	int rc;

	s->syncing = true;
	pthread_mutex_unlock(&s->lock);
	begin_batch(s, &b);
	rc = segset_error(s);
	if (!rc)
		rc = sync_batch(s, &b);
	free_files(s, b.retired);
	pthread_mutex_lock(&s->lock);
	if (rc)
		segment_fail(s, rc);
	else
		s->synced = b.records;
	s->syncing = false;
	pthread_cond_broadcast(&s->changed);
}

int segset_sync(struct segset *s)
{
	uint64_t want;
	int rc;

	pthread_mutex_lock(&s->lock);
	want = s->appended;
	while (!(rc = s->error) && s->synced < want) {
		if (s->syncing)
			pthread_cond_wait(&s->changed, &s->lock);
		else
			lead_sync(s);
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

int segset_seal(struct segset *s)
{
	int rc;

	pthread_mutex_lock(&s->append_lock);
	pthread_mutex_lock(&s->lock);
	segment_retire(s);
	pthread_mutex_unlock(&s->append_lock);
	while (!(rc = s->error) && s->retired) {
		if (s->syncing)
			pthread_cond_wait(&s->changed, &s->lock);
		else
			lead_sync(s);
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

int segment_writer_open(struct segset *s)
{
	for (unsigned i = 0; i < SEGMENT_BUFFERS && !s->read_only; i++) {
		s->buffers[i].data = io_buffer_alloc(SEGMENT_BUFFER);
		if (!s->buffers[i].data)
			return -ENOMEM;
	}
	return io_ring_new(s->io, SEGMENT_BUFFERS, &s->ring);
}

void segment_writer_close(struct segset *s)
{
	if (s->ring) {
		pthread_mutex_lock(&s->lock);
		segment_wait_written(s, s->seq);
		s->filling = NULL;
		segment_retire(s);
		pthread_mutex_unlock(&s->lock);
	}
	while (s->retired) {
		struct segment_file *f = s->retired;

		s->retired = f->next;
		if (!f->end) {
			segment_discard(s, f);
			continue;
		}
		seal(s, f);
		f->next = NULL;
		free_files(s, f);
	}
	io_ring_free(s->ring);
	for (unsigned i = 0; i < SEGMENT_BUFFERS; i++)
		io_buffer_free(s->buffers[i].data, SEGMENT_BUFFER);
}
