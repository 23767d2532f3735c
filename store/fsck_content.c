/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck_content: extents, and what follows from them: which chunks are used, by how many, and which ranges of
 * files cannot be read. Two readings: the first counts, and only if something is amiss a second one tells of
 * ranges, once it is known what can be found again.
 */
#include "store/chunker.h"
#include "store/fsck_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SQL_EXTENTS "SELECT ino, packed FROM extents ORDER BY ino"

static int by_id(const void *a, const void *b)
{
	const struct fsck_wanted *x = a, *y = b;

	return (x->id > y->id) - (x->id < y->id);
}

static struct fsck_wanted *wanted_find(const struct fsck *f, uint64_t id)
{
	struct fsck_wanted key = { .id = id };

	/* bsearch(3) wants an array even of nothing. */
	return f->wanteds ? bsearch(&key, f->wanted, f->wanteds, sizeof(key), by_id) : NULL;
}

static int want(struct fsck *f, uint64_t id, const struct fsck_chunk *row, uint32_t need)
{
	int r = fsck_room((void **)&f->wanted, f->wanteds, &f->wanteds_cap, sizeof(*f->wanted));

	if (!r)
		f->wanted[f->wanteds++] =
			(struct fsck_wanted){ .id = id, .row = row, .need = need, .refs = 1 };
	return r;
}

/* Sorted, each once. */
static void merge_wanted(struct fsck *f)
{
	size_t n = 0;

	if (f->wanteds)
		qsort(f->wanted, f->wanteds, sizeof(*f->wanted), by_id);
	for (size_t k = 0; k < f->wanteds; k++) {
		struct fsck_wanted *w = &f->wanted[k], *last = n ? &f->wanted[n - 1] : NULL;

		if (!last || last->id != w->id) {
			f->wanted[n++] = *w;
			continue;
		}
		last->refs += w->refs;
		if (last->need < w->need)
			last->need = w->need;
	}
	f->wanteds = n;
}

/* ---- the files ---- */

/* 1: no content of a file, and said so. */
static int no_file(struct fsck *f, int64_t ino, const struct fsck_inode *i)
{
	if (i && S_ISREG(i->mode))
		return 0;
	fsck_found(f,
		   &(struct fsck_about){ "extents", (uint64_t)ino, .repair = "they are removed" },
		   i ? "extents of what is no file" : "extents of an inode that is not there");
	return fsck_mend(f, "DELETE FROM extents WHERE ino = ?1", ino, 0, 0, NULL, 0) ?: 1;
}

static void unreadable(struct fsck *f, uint64_t ino, const char *why)
{
	f->unreadable = true;
	fsck_found(f,
		   &(struct fsck_about){ "content", ino, .remedy = FSCK_KEPT,
					 .repair = "reads of the file give an error, as before" },
		   "its extents %s", why);
}

static int check_end(struct fsck *f, const struct fsck_inode *i, const struct extmap *m)
{
	uint64_t end = extmap_end(m);

	if (end <= i->size)
		return 0;
	fsck_found(f,
		   &(struct fsck_about){ "size", i->ino, .repair = "the size is set to their end" },
		   "size %" PRIu64 ", but extents up to %" PRIu64, i->size, end);
	return fsck_mend(f, "UPDATE inodes SET size = ?2 WHERE ino = ?1", (int64_t)i->ino,
			 (int64_t)end, 0, NULL, 0);
}

/* Counts what the extents use; *ret_bad: some of it cannot be read. */
static int count_map(struct fsck *f, const struct extmap *m, bool *ret_bad)
{
	size_t hint = 0;
	int r = 0;

	for (size_t k = 0; k < m->n && !r; k++) {
		const struct extent *e = &m->e[k];
		struct fsck_chunk *c = fsck_chunk_find(f, e->chunk, hint);

		f->ret->extents++;
		if (!c) {
			r = want(f, e->chunk, NULL, e->skip + e->len);
			*ret_bad = true;
			continue;
		}
		hint = (size_t)(c - f->chunk) + 1;
		c->found++;
		*ret_bad |= c->fault || (uint64_t)e->skip + e->len > c->info.raw_len;
	}
	return r;
}

static int count_row(struct fsck *f, sqlite3_stmt *st, bool *ret_bad)
{
	int64_t ino = sqlite3_column_int64(st, 0);
	struct fsck_inode *i = fsck_inode_find(f, (uint64_t)ino);
	const uint8_t *packed = sqlite3_column_blob(st, 1);
	struct extmap *m = NULL;
	int r = no_file(f, ino, i);

	if (r)
		return r < 0 ? r : 0;
	i->extents = true;
	r = extmap_decode(packed, (size_t)sqlite3_column_bytes(st, 1), &m);
	if (r == -EUCLEAN) {
		unreadable(f, i->ino, "cannot be decoded");
		return 0;
	}
	if (!r)
		r = check_end(f, i, m);
	if (!r)
		r = count_map(f, m, ret_bad);
	extmap_unref(m);
	return r;
}

static int count_all(struct fsck *f, bool *ret_bad)
{
	sqlite3_stmt *st;
	int r = fsck_query(f, SQL_EXTENTS, &st);

	while (!r && (r = fsck_step(f, st)) == 1)
		r = count_row(f, st, ret_bad);
	sqlite3_finalize(st);
	return r;
}

/* ---- what can be found again ---- */

/* The record in place of a chunk is its own if the row is wrong in one thing only: in a hash that is not the
 * record's but for a few bits, too, and not if the record is of other content under a number used before. */
static bool is_its_record(const struct record_info *row, const struct record_info *record)
{
	unsigned bits = (unsigned)__builtin_popcountll(row->hash.lo ^ record->hash.lo) +
			(unsigned)__builtin_popcountll(row->hash.hi ^ record->hash.hi);
	unsigned wrong = (bits != 0) + (row->raw_len != record->raw_len) +
			 (row->stored_len != record->stored_len) + (row->tenant != record->tenant) +
			 (row->codec != record->codec) +
			 (memcmp(row->params, record->params, CODEC_PARAMS) != 0);

	return wrong == 1 && bits <= 8;
}

/* A row that says something else than its record: as that says. 1: it is another's after all. */
static int mend_row(struct fsck *f, struct fsck_chunk *c)
{
	struct meta_chunk row = { .loc = c->loc, .refs = c->found };
	struct segset_peek *p;
	int r = segset_peek_open(f->segs, c->loc.segment, &p);

	if (r)
		return r;
	r = segset_peek_record(p, c->loc.offset, &row.info);
	segset_peek_close(p);
	if (r || !is_its_record(&c->info, &row.info)) {
		c->fault = FAULT_OTHER;
		return r == -EBADMSG || r == -EIO || !r ? 1 : r;
	}
	fsck_found(f,
		   &(struct fsck_about){ "chunk",
					 .repair = "the row is set to what the record says" },
		   "chunk %" PRIu64 ": %s", c->info.chunk_id, fsck_fault_text(FAULT_ROW));
	r = fsck_mend_chunk(f, &row);
	c->refs = c->found; /* told, and set with the rest */
	c->info = row.info;
	c->fault = FAULT_NONE;
	return r;
}

static int unused_row(struct fsck *f, const struct fsck_chunk *c)
{
	fsck_found(f, &(struct fsck_about){ "chunk", .repair = "the row is removed" },
		   "chunk %" PRIu64 ", which nothing uses: %s", c->info.chunk_id,
		   fsck_fault_text(c->fault));
	return fsck_mend(f, "DELETE FROM chunks WHERE id = ?1", (int64_t)c->info.chunk_id, 0, 0,
			 NULL, 0);
}

static bool is_misplaced(enum fsck_fault fault)
{
	return fault == FAULT_SEGMENT || fault == FAULT_HEADER || fault == FAULT_OTHER;
}

static int check_row(struct fsck *f, struct fsck_chunk *c)
{
	int r = c->fault == FAULT_ROW ? mend_row(f, c) : 0;

	if (r < 0)
		return r;
	if (c->fault == FAULT_SEGMENT && c->loc.segment == 0)
		c->fault = FAULT_LOST;
	if (is_misplaced(c->fault) || c->fault == FAULT_LOST)
		return c->found      ? want(f, c->info.chunk_id, c, c->info.raw_len) :
		       f->unreadable ? 0 :
				       unused_row(f, c);
	if (c->refs == c->found || (f->unreadable && c->refs > c->found))
		return 0;
	fsck_found(f, &(struct fsck_about){ "refs", .repair = "it is set" },
		   "chunk %" PRIu64 ": reference count %" PRIu32 ", but %" PRIu32 " extents use it",
		   c->info.chunk_id, c->refs, c->found);
	return fsck_mend(f, "UPDATE chunks SET refs = ?2 WHERE id = ?1", (int64_t)c->info.chunk_id,
			 c->found, 0, NULL, 0);
}

/* The record of a row without its place has the same content. One without a row counts only if nothing in the
 * segments could be another of that number: never other bytes. */
static bool is_regained(const struct fsck *f, const struct fsck_wanted *w)
{
	if (!w->found)
		return false;
	if (w->row && w->row->fault != FAULT_LOST)
		return w->info.raw_len == w->row->info.raw_len &&
		       w->info.tenant == w->row->info.tenant &&
		       w->info.hash.lo == w->row->info.hash.lo &&
		       w->info.hash.hi == w->row->info.hash.hi;
	return !w->differ && !f->unread && !f->bad_headers && w->info.raw_len >= w->need;
}

/* Stands for a chunk that is lost, so that only its ranges cannot be read, and not the files. */
static void make_lost(const struct fsck_wanted *w, struct meta_chunk *ret)
{
	*ret = (struct meta_chunk){
		.info = { .chunk_id = w->id,
			  .raw_len = w->need < CHUNK_MAX ? w->need : CHUNK_MAX,
			  .stored_len = 1 },
		.refs = w->refs,
	};
}

static int mend_wanted(struct fsck *f, struct fsck_wanted *w)
{
	struct meta_chunk row = { .info = w->info, .loc = w->loc, .refs = w->refs };

	if (w->row)
		row.refs = w->row->found;
	if (is_regained(f, w)) {
		fsck_found(f,
			   &(struct fsck_about){
				   "chunk",
				   .repair = "its record was found, the row is made from it" },
			   "chunk %" PRIu64 ": %s", w->id,
			   w->row ? fsck_fault_text(w->row->fault) : "it has no row");
		return fsck_mend_chunk(f, &row);
	}
	w->found = false;
	if (w->row)
		return 0;
	fsck_found(f,
		   &(struct fsck_about){ "chunk",
					 .repair = "a row is made that reads as an error" },
		   "chunk %" PRIu64 ": it has no row, and no record that is surely its own", w->id);
	make_lost(w, &row);
	return fsck_mend_chunk(f, &row);
}

/* ---- ranges that cannot be read ---- */

struct range {
	uint64_t from, to, chunk;
	const char *why;
};

static void tell_range(struct fsck *f, uint64_t ino, const struct range *r)
{
	if (r->to > r->from)
		fsck_found(f,
			   &(struct fsck_about){ "damage", ino, r->from, r->to - r->from, FSCK_KEPT,
						 "reads of them give EIO, as before" },
			   "bytes %" PRIu64 " to %" PRIu64 " lie in chunk %" PRIu64 "%s: %s",
			   r->from, r->to, r->chunk, "", r->why);
}

/* NULL: it can be read, or will be. */
static const char *fault_of(const struct fsck *f, const struct extent *e, size_t *hint)
{
	const struct fsck_chunk *c = fsck_chunk_find(f, e->chunk, *hint);
	const struct fsck_wanted *w = wanted_find(f, e->chunk);

	if (c)
		*hint = (size_t)(c - f->chunk) + 1;
	if (w && w->found)
		return NULL;
	if (!c)
		return fsck_fault_text(FAULT_LOST);
	if (c->fault)
		return fsck_fault_text(c->fault);
	return (uint64_t)e->skip + e->len > c->info.raw_len ? "they reach beyond it" : NULL;
}

static void tell_map(struct fsck *f, uint64_t ino, const struct extmap *m)
{
	struct range r = { 0 };
	size_t hint = 0;

	for (size_t k = 0; k < m->n; k++) {
		const struct extent *e = &m->e[k];
		const char *why = fault_of(f, e, &hint);

		if (why && r.to == e->off && r.why == why && r.to > r.from) {
			r.to = e->off + e->len;
			continue;
		}
		tell_range(f, ino, &r);
		r = why ? (struct range){ e->off, e->off + e->len, e->chunk, why } :
			  (struct range){ 0 };
	}
	tell_range(f, ino, &r);
}

static int tell_ranges(struct fsck *f)
{
	sqlite3_stmt *st;
	int r = fsck_query(f, SQL_EXTENTS, &st);

	while (!r && (r = fsck_step(f, st)) == 1) {
		uint64_t ino = (uint64_t)sqlite3_column_int64(st, 0);
		const struct fsck_inode *i = fsck_inode_find(f, ino);
		struct extmap *m;

		r = 0;
		if (!i || !S_ISREG(i->mode))
			continue;
		r = extmap_decode(sqlite3_column_blob(st, 1), (size_t)sqlite3_column_bytes(st, 1),
				  &m);
		if (!r) {
			tell_map(f, ino, m);
			extmap_unref(m);
		}
		r = r == -EUCLEAN ? 0 : r;
	}
	sqlite3_finalize(st);
	return r;
}

/* ---- the counters ---- */

static int check_counter(struct fsck *f, const char *key, int64_t want, bool at_least)
{
	char sql[128];
	int64_t have;
	int r;

	sqlite3_snprintf(sizeof(sql), sql, "SELECT value FROM meta WHERE key = '%s'", key);
	r = fsck_number(f, sql, &have);
	if (r && r != -ENOENT)
		return r;
	if (!r && (have == want || (at_least && have > want)))
		return 0;
	fsck_found(f, &(struct fsck_about){ "counter", .repair = "it is set" },
		   "counter %s is %lld, should be %s%" PRId64, key, r ? -1LL : (long long)have,
		   at_least ? "at least " : "", want);
	return fsck_mend(f, "INSERT OR REPLACE INTO meta(key, value) VALUES(CAST(?4 AS TEXT), ?1)",
			 want, 0, 0, key, strlen(key));
}

static int check_counters(struct fsck *f)
{
	int64_t max_ino = f->inodes ? (int64_t)f->inode[f->inodes - 1].ino : 1;
	int r;

	for (size_t k = 0; k < f->inodes; k++)
		if (S_ISREG(f->inode[k].mode))
			f->ret->logical_bytes += f->inode[k].size;
	r = check_counter(f, "logical_bytes", (int64_t)f->ret->logical_bytes, false);
	if (!r)
		r = check_counter(f, "files", (int64_t)f->ret->files, false);
	if (!r)
		r = check_counter(f, "inodes", (int64_t)f->inodes, false);
	if (!r)
		r = check_counter(f, "max_ino", max_ino, true);
	if (!r)
		r = check_counter(f, "max_dentry_id", (int64_t)f->max_dentry_id, true);
	return r ? r : check_counter(f, "epoch", 1, true);
}

static void count_bytes(struct fsck *f)
{
	for (size_t k = 0; k < f->chunks; k++) {
		uint64_t size = record_size(f->chunk[k].info.stored_len);

		if (f->chunk[k].found)
			f->ret->stored_bytes += size;
		else
			f->ret->dead_bytes += size;
	}
}

int fsck_content_check(struct fsck *f)
{
	bool bad = false;
	int r = count_all(f, &bad);

	for (size_t k = 0; k < f->chunks && !r; k++)
		r = check_row(f, &f->chunk[k]);
	merge_wanted(f);
	if (!r && f->wanteds)
		r = fsck_segments_scan(f);
	for (size_t k = 0; k < f->wanteds && !r; k++)
		r = mend_wanted(f, &f->wanted[k]);
	if (!r && bad)
		r = tell_ranges(f);
	count_bytes(f);
	return r ? r : check_counters(f);
}
