/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_read: records by location. Requests are read in pieces, a piece being one aligned stretch
 * of a segment with whole records in it; several pieces are in flight, and their records are handed
 * out in order. No byte is handed out that does not carry the sums its writer gave it.
 */
#include "store/segment_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GAP_MAX 65536u /* bytes between two records that are read rather than skipped */

struct piece {
	const struct segset_read_req *req; /* its first request */
	size_t n;
	uint64_t start, end; /* in the segment; multiples of IO_ALIGN */
	uint8_t *buf;
	struct read_file *file; /* while it is in flight */
	bool flying;
	int err;
	struct io_request io;
};

/* ---- Contexts: what one reader needs, kept for the next. ---- */

static void context_free(struct read_context *c)
{
	if (!c)
		return;
	io_ring_free(c->ring);
	io_buffer_free(c->buffers, PIECES * PIECE_MAX);
	free(c);
}

static struct read_context *context_new(struct segset *s)
{
	struct read_context *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->buffers = io_buffer_alloc(PIECES * PIECE_MAX);
	if (!c->buffers || io_ring_new(s->io, PIECES, &c->ring)) {
		context_free(c);
		return NULL;
	}
	return c;
}

static struct read_context *context_get(struct segset *s)
{
	struct read_context *c;

	pthread_mutex_lock(&s->pool_lock);
	c = s->idle;
	if (c) {
		s->idle = c->next;
		s->n_idle--;
	}
	pthread_mutex_unlock(&s->pool_lock);
	return c ? c : context_new(s);
}

static void context_put(struct segset *s, struct read_context *c)
{
	pthread_mutex_lock(&s->pool_lock);
	if (s->n_idle < IDLE_READS) {
		c->next = s->idle;
		s->idle = c;
		s->n_idle++;
		c = NULL;
	}
	pthread_mutex_unlock(&s->pool_lock);
	context_free(c);
}

/* ---- Pieces. ---- */

static bool length_ok(const struct segset_read_req *r)
{
	return r->info->stored_len && r->info->stored_len <= RECORD_MAX;
}

/* The piece that begins with r[0], of at most n requests. */
static void plan(struct piece *p, const struct segset_read_req *r, size_t n)
{
	uint64_t off = loc_offset(r->loc);

	p->req = r;
	p->n = 1;
	p->err = length_ok(r) ? 0 : -EBADMSG;
	if (p->err)
		return;
	p->start = align_down(off);
	p->end = align_up(off + record_size(r->info->stored_len));
	for (; p->n < n && length_ok(&r[p->n]); p->n++) {
		const struct segset_read_req *next = &r[p->n];
		uint64_t from = loc_offset(next->loc), to;

		to = align_up(from + record_size(next->info->stored_len));
		if (next->loc.segment != r->loc.segment || from < p->start ||
		    from > p->end + GAP_MAX || to > p->start + PIECE_MAX)
			break;
		if (to > p->end)
			p->end = to;
	}
}

/* A record that should be there and is not is as damaged as one that is not what it should be. */
static int read_error(int rc)
{
	return rc == -ENODATA || rc == -ENOENT ? -EBADMSG : rc;
}

/* Reads [start, end) of segment n to buf at once. gaps: what of it is not in memory already. */
static int read_gaps(struct segset *s, const struct read_file *f, const struct segment_gap *gaps,
		     size_t n_gaps, uint64_t start, uint8_t *buf)
{
	int rc = 0;

	for (size_t i = 0; i < n_gaps && !rc; i++)
		rc = io_read_full(s->io, f->fd, buf + (gaps[i].off - start), gaps[i].len,
				  gaps[i].off);
	return rc;
}

/* Sends the piece on its way; what is still in append buffers is copied from there. */
static void launch(struct segset *s, struct read_context *c, struct piece *p)
{
	struct segment_gap gaps[SEGMENT_BUFFERS + 1];
	uint32_t n = p->req->loc.segment;
	size_t n_gaps;

	if (p->err)
		return;
	n_gaps = segment_copy_pending(s, n, p->start, p->end - p->start, p->buf, gaps);
	if (!n_gaps)
		return;
	p->err = read_file_get(s, n, &p->file);
	if (p->err)
		return;
	if (n_gaps > 1 || gaps[0].len < p->end - p->start) {
		p->err = read_gaps(s, p->file, gaps, n_gaps, p->start, p->buf);
	} else {
		p->io = (struct io_request){
			.fd = p->file->fd,
			.buf = p->buf,
			.len = p->end - p->start,
			.off = p->start,
			.user = p,
		};
		p->err = io_ring_submit(c->ring, &p->io);
		p->flying = !p->err;
	}
	if (!p->flying)
		read_file_put(s, p->file);
}

static void await(struct segset *s, struct read_context *c, const struct piece *p)
{
	while (p->flying) {
		struct io_request *io = io_ring_wait(c->ring);
		struct piece *landed = io->user;

		landed->flying = false;
		landed->err = io->result;
		read_file_put(s, landed->file);
	}
}

/* ---- Records. ---- */

static bool info_equal(const struct record_info *a, const struct record_info *b)
{
	return a->chunk_id == b->chunk_id && a->hash.lo == b->hash.lo && a->hash.hi == b->hash.hi &&
	       a->tenant == b->tenant && a->raw_len == b->raw_len &&
	       a->stored_len == b->stored_len && a->codec == b->codec &&
	       !memcmp(a->params, b->params, CODEC_PARAMS);
}

/* 0 when at p, where the whole record is at hand, is the record that is asked for. */
static int verify(const struct segset_read_req *r, const uint8_t *p)
{
	struct record_info found;
	uint64_t sum;
	int rc = record_parse(p, r->loc, &found, &sum);

	if (rc)
		return rc;
	if (!info_equal(&found, r->info) || !codec_by_id(found.codec))
		return -EBADMSG;
	return sum64(p + sizeof(struct record_header), found.stored_len) == sum ? 0 : -EBADMSG;
}

struct delivery {
	int (*done)(void *arg, const struct segset_read_req *req, const void *payload, int err);
	void *arg;
};

/* Hands out one record of a piece that has landed. */
static int deliver_record(const struct piece *p, const struct segset_read_req *r,
			  const struct delivery *d)
{
	const uint8_t *record;
	int err = p->err;

	if (err)
		return d->done(d->arg, r, NULL, read_error(err));
	record = p->buf + (loc_offset(r->loc) - p->start);
	err = verify(r, record);
	return d->done(d->arg, r, err ? NULL : record + sizeof(struct record_header), err);
}

/* Reads a record again, alone, of a piece that failed as a whole, and hands it out. The others in
 * flight belong to pieces whose turn comes later. */
static int retry_record(struct segset *s, struct read_context *c, const struct piece *p,
			const struct segset_read_req *r, const struct delivery *d)
{
	struct piece one = { .buf = p->buf };

	plan(&one, r, 1);
	launch(s, c, &one);
	await(s, c, &one);
	return deliver_record(&one, r, d);
}

static int deliver(struct segset *s, struct read_context *c, const struct piece *p,
		   const struct delivery *d)
{
	int rc = 0;

	for (size_t i = 0; i < p->n && !rc; i++) {
		if (p->err && p->n > 1)
			rc = retry_record(s, c, p, &p->req[i], d);
		else
			rc = deliver_record(p, &p->req[i], d);
	}
	return rc;
}

static int read_pieces(struct segset *s, struct read_context *c, const struct segset_read_req *req,
		       size_t n, const struct delivery *d)
{
	struct piece pieces[PIECES] = { 0 };
	size_t launched = 0, delivered = 0, next = 0;
	int rc = 0;

	for (unsigned i = 0; i < PIECES; i++)
		pieces[i].buf = c->buffers + i * PIECE_MAX;
	while (!rc && (next < n || delivered < launched)) {
		struct piece *p = &pieces[launched % PIECES];

		if (next < n && launched - delivered < PIECES) {
			plan(p, req + next, n - next);
			launch(s, c, p);
			next += p->n;
			launched++;
			continue;
		}
		p = &pieces[delivered % PIECES];
		await(s, c, p);
		rc = deliver(s, c, p, d);
		delivered++;
	}
	for (; delivered < launched; delivered++)
		await(s, c, &pieces[delivered % PIECES]);
	return rc;
}

int segset_read_many(struct segset *s, const struct segset_read_req *req, size_t n,
		     int (*done)(void *arg, const struct segset_read_req *req, const void *payload,
				 int err),
		     void *arg)
{
	struct delivery d = { done, arg };
	struct read_context *c;
	int rc;

	if (!n)
		return 0;
	c = context_get(s);
	if (!c)
		return -ENOMEM;
	rc = read_pieces(s, c, req, n, &d);
	context_put(s, c);
	return rc;
}

static int copy_payload(void *arg, const struct segset_read_req *req, const void *payload, int err)
{
	if (!err)
		memcpy(arg, payload, req->info->stored_len);
	return err;
}

int segset_read(struct segset *s, struct segment_loc loc, const struct record_info *info,
		void *payload)
{
	struct segset_read_req req = { .loc = loc, .info = info };

	return segset_read_many(s, &req, 1, copy_payload, payload);
}

void segment_readers_close(struct segset *s)
{
	while (s->idle) {
		struct read_context *c = s->idle;

		s->idle = c->next;
		context_free(c);
	}
	read_files_close(s);
}
