/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck_chunks: rows of chunks, and what stands in their places. Rows are loaded by id and looked at by
 * place, a segment at a time, several threads taking the next segment in turn; what they find is told when all
 * are done, in the order of ids.
 */
#include "store/chunker.h"
#include "store/fsck_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SQL_CHUNKS                                                                                 \
	"SELECT id, hash, tenant, segment, offset, raw, stored, codec, params, refs FROM chunks"   \
	" ORDER BY id"
#define THREADS_MAX  16u
#define DEEP_AT_ONCE 256u /* requests handed to the reader at a time */

const char *fsck_fault_text(enum fsck_fault fault)
{
	static const char *const text[] = {
		[FAULT_NONE] = "nothing",
		[FAULT_SEGMENT] = "its segment is missing or ends before it",
		[FAULT_HEADER] = "no record begins at its place",
		[FAULT_OTHER] = "the record at its place is another chunk's",
		[FAULT_ROW] = "its row says something else than its record",
		[FAULT_PAYLOAD] = "its bytes are damaged",
		[FAULT_DECODE] = "its bytes do not decode to what it was",
		[FAULT_LOST] = "its record is lost",
	};

	return text[fault];
}

struct fsck_chunk *fsck_chunk_find(const struct fsck *f, uint64_t id, size_t hint)
{
	size_t lo = 0, hi = f->chunks;

	if (hint < f->chunks && f->chunk[hint].info.chunk_id == id)
		return &f->chunk[hint];
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (f->chunk[mid].info.chunk_id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < f->chunks && f->chunk[lo].info.chunk_id == id ? &f->chunk[lo] : NULL;
}

/* ---- rows ---- */

static bool lengths_ok(const struct record_info *i)
{
	return i->raw_len && i->raw_len <= CHUNK_MAX && i->stored_len &&
	       i->stored_len <= RECORD_MAX;
}

/* What cannot be a row is taken away; whoever uses the chunk gets it anew from its record. */
static int load_chunk(struct fsck *f, sqlite3_stmt *st)
{
	struct meta_chunk c = { 0 };
	int r = meta_column_chunk(st, &c);

	if (r == -EUCLEAN || (!r && (!lengths_ok(&c.info) || c.info.chunk_id == 0))) {
		fsck_found(f,
			   &(struct fsck_about){
				   "chunk", .repair = "it is made anew from the record, if used" },
			   "row of chunk %lld cannot be", (long long)sqlite3_column_int64(st, 0));
		return fsck_mend(f, "DELETE FROM chunks WHERE id = ?1", sqlite3_column_int64(st, 0),
				 0, 0, NULL, 0);
	}
	if (!r)
		r = fsck_room((void **)&f->chunk, f->chunks, &f->chunks_cap, sizeof(*f->chunk));
	if (!r)
		f->chunk[f->chunks++] =
			(struct fsck_chunk){ .info = c.info, .loc = c.loc, .refs = c.refs };
	return r;
}

int fsck_chunks_load(struct fsck *f)
{
	sqlite3_stmt *st;
	int r = fsck_query(f, SQL_CHUNKS, &st);

	while (!r && (r = fsck_step(f, st)) == 1)
		r = load_chunk(f, st);
	sqlite3_finalize(st);
	if (!r && f->chunks >= UINT32_MAX)
		r = -EFBIG;
	f->ret->chunks = f->chunks;
	return r;
}

/* ---- a segment ---- */

struct walk {
	struct fsck *f;
	size_t *first; /* indexes in f->place where a segment begins, and the end */
	size_t segments;
	bool deep;
	atomic_size_t next;
	atomic_uint_fast64_t done; /* bytes of records */
	atomic_int error;
	atomic_uint running;
};

static int by_place(const void *a, const void *b, void *arg)
{
	const struct fsck *f = arg;
	const struct segment_loc *x = &f->chunk[*(const uint32_t *)a].loc;
	const struct segment_loc *y = &f->chunk[*(const uint32_t *)b].loc;

	if (x->segment != y->segment)
		return x->segment < y->segment ? -1 : 1;
	return (x->offset > y->offset) - (x->offset < y->offset);
}

static bool same_content(const struct record_info *a, const struct record_info *b)
{
	return a->hash.lo == b->hash.lo && a->hash.hi == b->hash.hi && a->raw_len == b->raw_len &&
	       a->stored_len == b->stored_len && a->codec == b->codec &&
	       !memcmp(a->params, b->params, CODEC_PARAMS);
}

/* What the header in a chunk's place says of its row. */
static enum fsck_fault compare(struct segset_peek *p, const struct fsck_chunk *c, int *ret_error)
{
	uint64_t end = (uint64_t)c->loc.offset * RECORD_ALIGN + record_size(c->info.stored_len);
	struct record_info found;
	int r = segset_peek_record(p, c->loc.offset, &found);

	if (r && r != -EBADMSG && r != -EIO)
		*ret_error = r;
	if (r)
		return end > segset_peek_size(p) ? FAULT_SEGMENT : FAULT_HEADER;
	if (found.chunk_id != c->info.chunk_id)
		return FAULT_OTHER;
	if (!same_content(&found, &c->info) || found.tenant != c->info.tenant)
		return FAULT_ROW;
	return end > segset_peek_size(p) ? FAULT_SEGMENT : FAULT_NONE;
}

static void walk_fail(struct walk *w, int r)
{
	int none = 0;

	atomic_compare_exchange_strong(&w->error, &none, r);
}

static int look_at_headers(struct walk *w, size_t from, size_t to)
{
	struct fsck *f = w->f;
	struct segset_peek *p = NULL;
	int r = segset_peek_open(f->segs, f->chunk[f->place[from]].loc.segment, &p);

	if (r && r != -ENOENT)
		return r;
	r = 0;
	for (size_t k = from; k < to && !r; k++) {
		struct fsck_chunk *c = &f->chunk[f->place[k]];

		c->fault = p ? compare(p, c, &r) : FAULT_SEGMENT;
		if (!w->deep)
			atomic_fetch_add(&w->done, record_size(c->info.stored_len));
		if (fsck_cancelled(f))
			r = -ECANCELED;
	}
	segset_peek_close(p);
	return r;
}

struct deep {
	struct walk *w;
	char *raw; /* CHUNK_MAX bytes */
};

/* One payload, whose header and sum are right. */
static int decode(void *arg, const struct segset_read_req *req, const void *payload, int err)
{
	struct deep *d = arg;
	struct fsck_chunk *c = req->user;
	const struct record_info *i = &c->info;
	const struct codec *codec = codec_by_id(i->codec);
	struct hash128 h;

	atomic_fetch_add(&d->w->done, record_size(i->stored_len));
	if (err && err != -EBADMSG && err != -EIO)
		return err;
	if (err || !codec) {
		c->fault = FAULT_PAYLOAD;
	} else if ((codec->id == CODEC_RAW && i->stored_len != i->raw_len) ||
		   codec->decode(payload, i->stored_len, d->raw, i->raw_len, i->params)) {
		c->fault = FAULT_DECODE;
	} else {
		h = hash128(d->raw, i->raw_len);
		if (!hash128_equal(h, i->hash))
			c->fault = FAULT_DECODE;
	}
	return fsck_cancelled(d->w->f) ? -ECANCELED : 0;
}

static int look_at_payloads(struct walk *w, size_t from, size_t to)
{
	struct segset_read_req *req = calloc(DEEP_AT_ONCE, sizeof(*req));
	struct deep d = { w, malloc(CHUNK_MAX) };
	struct fsck *f = w->f;
	int r = req && d.raw ? 0 : -ENOMEM;

	while (from < to && !r) {
		size_t n = 0;

		for (; from < to && n < DEEP_AT_ONCE; from++) {
			struct fsck_chunk *c = &f->chunk[f->place[from]];

			if (c->fault == FAULT_NONE)
				req[n++] = (struct segset_read_req){ c->loc, &c->info, c };
		}
		if (n)
			r = segset_read_many(f->segs, req, n, decode, &d);
	}
	free(d.raw);
	free(req);
	return r;
}

static void *walker(void *arg)
{
	struct walk *w = arg;
	size_t k;

	while (!atomic_load(&w->error) && (k = atomic_fetch_add(&w->next, 1)) < w->segments) {
		int r = look_at_headers(w, w->first[k], w->first[k + 1]);

		if (!r && w->deep)
			r = look_at_payloads(w, w->first[k], w->first[k + 1]);
		if (r)
			walk_fail(w, r);
	}
	atomic_fetch_sub(&w->running, 1);
	return NULL;
}

static unsigned thread_count(const struct fsck *f)
{
	long n = f->opt->threads ? (long)f->opt->threads : sysconf(_SC_NPROCESSORS_ONLN);

	return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (unsigned)n;
}

static void tell_progress(struct walk *w, uint64_t total)
{
	if (w->f->opt->progress && !w->f->quiet)
		w->f->opt->progress(w->f->opt->arg, atomic_load(&w->done), total);
}

static int walk_segments(struct walk *w, uint64_t total)
{
	unsigned want = thread_count(w->f), n = 0;
	pthread_t thread[THREADS_MAX];
	int r = 0;

	for (; n < want && n < w->segments; n++) {
		atomic_fetch_add(&w->running, 1);
		r = -pthread_create(&thread[n], NULL, walker, w);
		if (r)
			break;
	}
	if (r) {
		atomic_fetch_sub(&w->running, 1);
		walk_fail(w, r);
	}
	while (atomic_load(&w->running)) {
		usleep(w->f->quiet ? 2000 : 20000);
		tell_progress(w, total);
	}
	while (n)
		pthread_join(thread[--n], NULL);
	return atomic_load(&w->error);
}

/* ---- all of them ---- */

static int sort_by_place(struct fsck *f)
{
	f->place = calloc(f->chunks + 1, sizeof(*f->place));
	if (!f->place)
		return -ENOMEM;
	for (size_t k = 0; k < f->chunks; k++)
		f->place[k] = (uint32_t)k;
	qsort_r(f->place, f->chunks, sizeof(*f->place), by_place, f);
	return 0;
}

static uint32_t segment_at(const struct fsck *f, size_t k)
{
	return f->chunk[f->place[k]].loc.segment;
}

static int find_segments(struct fsck *f, struct walk *w)
{
	size_t cap = 0;
	int r = 0;

	for (size_t k = 0; k <= f->chunks && !r; k++) {
		if (k && k < f->chunks && segment_at(f, k) == segment_at(f, k - 1))
			continue;
		r = fsck_room((void **)&w->first, w->segments, &cap, sizeof(*w->first));
		if (!r)
			w->first[w->segments++] = k;
	}
	w->segments--;
	return r;
}

/* A record that reaches into the next one: at most one of the two rows can be right, and the headers say which. */
static void tell_overlaps(struct fsck *f)
{
	for (size_t k = 1; k < f->chunks; k++) {
		const struct fsck_chunk *a = &f->chunk[f->place[k - 1]];
		const struct fsck_chunk *b = &f->chunk[f->place[k]];
		uint64_t end =
			(uint64_t)a->loc.offset * RECORD_ALIGN + record_size(a->info.stored_len);

		if (a->loc.segment != b->loc.segment ||
		    (uint64_t)b->loc.offset * RECORD_ALIGN >= end || a->fault || b->fault)
			continue;
		fsck_found(f,
			   &(struct fsck_about){ "overlap", .remedy = FSCK_KEPT,
						 .repair = "nothing is done" },
			   "chunks %" PRIu64 " and %" PRIu64 " overlap in segment %08x at %" PRIu64,
			   a->info.chunk_id, b->info.chunk_id, b->loc.segment,
			   (uint64_t)b->loc.offset * RECORD_ALIGN);
	}
}

int fsck_chunks_check(struct fsck *f)
{
	struct walk w = { .f = f, .deep = f->opt->deep && !f->quiet };
	uint64_t total = 0;
	int r = sort_by_place(f);

	for (size_t k = 0; k < f->chunks; k++)
		total += record_size(f->chunk[k].info.stored_len);
	if (!r)
		r = find_segments(f, &w);
	if (!r && f->chunks)
		r = walk_segments(&w, total);
	free(w.first);
	if (!r)
		tell_overlaps(f);
	if (w.deep)
		f->ret->payload_bytes = atomic_load(&w.done);
	return r;
}
