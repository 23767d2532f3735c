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
	uint64_t at;         /* its place in the buffer, counted without wrapping */
	uint8_t *buf;
	struct read_file *file; /* while it is in flight */
	bool flying;
	int err;
	struct io_request io;
};

/* One reader, and what it needs; kept for the next when it ends. */
struct segset_read {
	struct segset *set;
	struct io_ring *ring;
	uint8_t *buffer; /* READ_BUFFER bytes, given to pieces in turn as a ring */
	const struct segset_read_req *req;
	size_t n, next; /* requests, and those planned */
	struct piece pieces[PIECES];
	size_t launched, delivered;
	uint64_t head; /* where the next piece goes, counted without wrapping */
	struct segset_read *next_idle;
};

static void read_free(struct segset_read *r)
{
	if (!r)
		return;
	io_ring_free(r->ring);
	io_buffer_free(r->buffer, READ_BUFFER);
	free(r);
}

static struct segset_read *read_new(struct segset *s)
{
	struct segset_read *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->set = s;
	r->buffer = io_buffer_alloc(READ_BUFFER);
	if (!r->buffer || io_ring_new(s->io, PIECES, &r->ring)) {
		read_free(r);
		return NULL;
	}
	return r;
}

static struct segset_read *read_get(struct segset *s)
{
	struct segset_read *r;

	pthread_mutex_lock(&s->pool_lock);
	r = s->idle;
	if (r) {
		s->idle = r->next_idle;
		s->n_idle--;
	}
	pthread_mutex_unlock(&s->pool_lock);
	return r ? r : read_new(s);
}

static void read_put(struct segset_read *r)
{
	struct segset *s = r->set;

	pthread_mutex_lock(&s->pool_lock);
	if (s->n_idle < IDLE_READS) {
		r->next_idle = s->idle;
		s->idle = r;
		s->n_idle++;
		r = NULL;
	}
	pthread_mutex_unlock(&s->pool_lock);
	read_free(r);
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
static void launch(struct segset_read *r, struct piece *p)
{
	struct segset *s = r->set;
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
		p->err = io_ring_submit(r->ring, &p->io);
		p->flying = !p->err;
	}
	if (!p->flying)
		read_file_put(s, p->file);
}

static void await(struct segset_read *r, const struct piece *p)
{
	while (p->flying) {
		struct io_request *io = io_ring_wait(r->ring);
		struct piece *landed = io->user;

		landed->flying = false;
		landed->err = io->result;
		read_file_put(r->set, landed->file);
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

/* Reads a record again, alone, of a piece that failed as a whole, and hands it out. It goes where it
 * would have been; the others in flight belong to pieces whose turn comes later. */
static int retry_record(struct segset_read *r, const struct piece *p,
			const struct segset_read_req *req, const struct delivery *d)
{
	struct piece one = { .buf = p->buf + (align_down(loc_offset(req->loc)) - p->start) };

	plan(&one, req, 1);
	launch(r, &one);
	await(r, &one);
	return deliver_record(&one, req, d);
}

static int deliver(struct segset_read *r, const struct piece *p, const struct delivery *d)
{
	int rc = 0;

	for (size_t i = 0; i < p->n && !rc; i++) {
		if (p->err && p->n > 1)
			rc = retry_record(r, p, &p->req[i], d);
		else
			rc = deliver_record(p, &p->req[i], d);
	}
	return rc;
}

/* A place in the buffer for the next piece: behind the last one, at the start again where it would
 * reach over the end, and never into what is not delivered yet. */
static bool place(struct segset_read *r, struct piece *p)
{
	uint64_t len = p->end - p->start, at = r->head;
	uint64_t oldest = r->launched == r->delivered ? at : r->pieces[r->delivered % PIECES].at;

	if (at % READ_BUFFER + len > READ_BUFFER)
		at += READ_BUFFER - at % READ_BUFFER;
	if (r->launched == r->delivered)
		oldest = at;
	if (at + len - oldest > READ_BUFFER)
		return false;
	p->at = at;
	p->buf = r->buffer + at % READ_BUFFER;
	r->head = at + len;
	return true;
}

/* Sends what there is room for on its way. */
static void launch_more(struct segset_read *r)
{
	while (r->next < r->n && r->launched - r->delivered < PIECES) {
		struct piece *p = &r->pieces[r->launched % PIECES];

		*p = (struct piece){ 0 };
		plan(p, r->req + r->next, r->n - r->next);
		if (!place(r, p))
			return;
		launch(r, p);
		r->next += p->n;
		r->launched++;
	}
}

/* ---- The calls. ---- */

int segset_by_location(const void *a, const void *b)
{
	const struct segment_loc *x = &((const struct segset_read_req *)a)->loc;
	const struct segment_loc *y = &((const struct segset_read_req *)b)->loc;

	if (x->segment != y->segment)
		return x->segment < y->segment ? -1 : 1;
	return (x->offset > y->offset) - (x->offset < y->offset);
}

int segset_read_begin(struct segset *s, const struct segset_read_req *req, size_t n,
		      struct segset_read **ret)
{
	struct segset_read *r = read_get(s);

	if (!r)
		return -ENOMEM;
	r->req = req;
	r->n = n;
	r->next = r->launched = r->delivered = 0;
	r->head = 0;
	launch_more(r);
	*ret = r;
	return 0;
}

bool segset_read_holds(const struct segset_read *r)
{
	return r->next == r->n && r->delivered == 0;
}

void segset_read_wait(struct segset_read *r)
{
	for (size_t i = r->delivered; i < r->launched; i++)
		await(r, &r->pieces[i % PIECES]);
}

int segset_read_finish(struct segset_read *r,
		       int (*done)(void *arg, const struct segset_read_req *req,
				   const void *payload, int err),
		       void *arg)
{
	struct delivery d = { done, arg };
	int rc = 0;

	while (!rc && r->delivered < r->launched) {
		const struct piece *p = &r->pieces[r->delivered % PIECES];

		await(r, p);
		rc = deliver(r, p, &d);
		r->delivered++;
		if (!rc)
			launch_more(r);
	}
	return rc;
}

void segset_read_end(struct segset_read *r)
{
	if (!r)
		return;
	segset_read_wait(r);
	read_put(r);
}

int segset_read_many(struct segset *s, const struct segset_read_req *req, size_t n,
		     int (*done)(void *arg, const struct segset_read_req *req, const void *payload,
				 int err),
		     void *arg)
{
	struct segset_read *r;
	int rc = segset_read_begin(s, req, n, &r);

	if (rc)
		return rc;
	rc = segset_read_finish(r, done, arg);
	segset_read_end(r);
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
		struct segset_read *r = s->idle;

		s->idle = r->next_idle;
		read_free(r);
	}
	read_files_close(s);
}
