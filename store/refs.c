/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refs: transactions on meta.db with the references of chunks kept in step.
 *
 * A file's row and extents change together with the counts of the chunks that the old and the new
 * extents name. Counts in memory are changed as the files' rows are, and taken back when the
 * transaction does not commit. The counts' own rows are written last, one for each chunk, however many
 * files of the transaction share it.
 */
#include "store/store_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#define SEGMENTS_AT_ONCE 256

struct undo {
	struct object *o; /* a file's committed map was replaced: this was the old one */
	struct extmap *map;
	uint64_t chunk; /* or a chunk's count was changed by delta */
	int delta;
	bool was_new;
};

static int push_undo(struct store *s, struct undo u)
{
	if (s->undo_n == s->undo_cap) {
		size_t cap = s->undo_cap ? s->undo_cap * 2 : 1024;
		struct undo *v = reallocarray(s->undo, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		s->undo = v;
		s->undo_cap = cap;
	}
	s->undo[s->undo_n++] = u;
	return 0;
}

/* Ends the list: with back everything is as it was before the transaction. Frees it. */
static void end_undo(struct chunk_table *chunks, struct undo *undo, size_t n, bool back)
{
	while (n) {
		struct undo *u = &undo[--n];

		if (!u->o && back)
			chunk_db_undo(chunks, u->chunk, u->delta, u->was_new);
		else if (!u->o)
			chunk_db_landed(chunks, u->chunk, u->was_new);
		if (!u->o)
			continue;
		pthread_mutex_lock(&u->o->mu);
		if (back) {
			struct extmap *now = u->o->db;

			u->o->db = u->map;
			u->map = now;
			pending_note(u->o);
		}
		u->o->db_flights--;
		pthread_mutex_unlock(&u->o->mu);
		extmap_unref(u->map);
		object_unref(u->o);
	}
	free(undo);
}

/* The list is guarded by the writer's lock, which goes with the transaction: taken along before. */
static struct undo *take_undo(struct store *s, size_t *ret_n)
{
	struct undo *undo = s->undo;

	*ret_n = s->undo_n;
	s->undo = NULL;
	s->undo_n = s->undo_cap = 0;
	return undo;
}

int meta_begin(struct store *s, struct meta_txn **ret)
{
	return meta_txn_begin(s->meta, s, ret);
}

static int add_ref(struct meta_txn *t, uint64_t chunk, int delta)
{
	struct store *s = meta_txn_store(t);
	struct undo u = { .chunk = chunk, .delta = delta };
	int what, r;

	r = loader_need_id(s, chunk);
	if (!r)
		r = push_undo(s, u);
	if (r)
		return r;
	what = chunk_db_add(s->chunks, chunk, delta);
	if (!what) {
		s->undo_n--;
		return -EUCLEAN;
	}
	s->undo[s->undo_n - 1].was_new = what == 1;
	return 0;
}

/* A count that is wrong already, or of a chunk that has no row, keeps nobody from removing what named it, or nothing
 * would be committed any more: it is for fsck. */
static int drop_ref(struct meta_txn *t, uint64_t chunk)
{
	int r = add_ref(t, chunk, -1);

	return r == -EUCLEAN ? 0 : r;
}

struct touched {
	uint64_t chunk;
	bool is_new;
};

/* The first change of a chunk that is new says so. */
static int by_chunk(const void *a, const void *b)
{
	const struct touched *x = a, *y = b;

	if (x->chunk != y->chunk)
		return x->chunk < y->chunk ? -1 : 1;
	return y->is_new - x->is_new;
}

static struct touched *list_touched(const struct store *s, size_t *ret_n)
{
	struct touched *v = calloc(s->undo_n + 1, sizeof(*v));
	size_t n = 0;

	if (!v)
		return NULL;
	for (size_t i = 0; i < s->undo_n; i++)
		if (!s->undo[i].o)
			v[n++] = (struct touched){ s->undo[i].chunk, s->undo[i].was_new };
	qsort(v, n, sizeof(*v), by_chunk);
	*ret_n = n;
	return v;
}

static int put_counts(struct meta_txn *t)
{
	struct store *s = meta_txn_store(t);
	size_t n = 0;
	struct touched *v = list_touched(s, &n);
	int r = v ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && !r; i++) {
		struct meta_chunk row;

		if (i && v[i].chunk == v[i - 1].chunk)
			continue;
		chunk_db_row(s->chunks, v[i].chunk, &row);
		r = v[i].is_new ? meta_put_chunk(t, &row) : meta_set_refs(t, v[i].chunk, row.refs);
	}
	free(v);
	return r;
}

static bool same_extent(const struct extent *a, const struct extent *b)
{
	return a->off == b->off && a->chunk == b->chunk && a->len == b->len && a->skip == b->skip;
}

/* Counts what the new map has more and the old one had: extents at both ends that are the same in
 * both cost nothing, so an append to a large file is cheap. */
static int move_refs(struct meta_txn *t, const struct extmap *from, const struct extmap *to)
{
	size_t head = 0, tail = 0;
	int r = 0;

	while (head < from->n && head < to->n && same_extent(&from->e[head], &to->e[head]))
		head++;
	while (tail < from->n - head && tail < to->n - head &&
	       same_extent(&from->e[from->n - 1 - tail], &to->e[to->n - 1 - tail]))
		tail++;
	for (size_t i = head; i < to->n - tail && !r; i++)
		r = add_ref(t, to->e[i].chunk, 1);
	for (size_t i = head; i < from->n - tail && !r; i++)
		r = drop_ref(t, from->e[i].chunk);
	return r;
}

/* Sets what meta.db holds of o, for the time after the commit. Takes map over. */
static int replace_db(struct store *s, struct object *o, struct extmap *map)
{
	int r = push_undo(s, (struct undo){ .o = o, .map = o->db });

	if (r) {
		extmap_unref(map);
		return r;
	}
	object_ref(o);
	pthread_mutex_lock(&o->mu);
	o->db = map;
	o->db_flights++;
	pthread_mutex_unlock(&o->mu);
	return 0;
}

static int put_extents(struct meta_txn *t, struct object *o, struct extmap *map)
{
	uint8_t *packed;
	ssize_t len;
	int r = move_refs(t, o->db, map);

	if (r)
		return r;
	len = extmap_encode(map, &packed);
	if (len < 0)
		return len;
	r = meta_put_extents(t, o->ino, packed, len);
	free(packed);
	return r ? r : replace_db(o->store, o, extmap_ref(map));
}

int meta_put_file(struct meta_txn *t, const struct meta_inode *i, struct object *o,
		  uint64_t *ret_gen)
{
	struct meta_inode row = *i;
	struct extmap *map;
	uint64_t gen;
	int r;

	pthread_mutex_lock(&o->mu);
	map = extmap_ref(o->snap.map);
	/* The store may settle it again meanwhile: what this map names must not die before it counts. */
	r = chunk_ref_map(o->store->chunks, map);
	row.size = o->snap.size;
	if (o->snap.mtime.tv_nsec >= 0)
		row.mtime = o->snap.mtime;
	gen = o->snap.gen;
	pthread_mutex_unlock(&o->mu);
	if (r) {
		extmap_unref(map);
		return r;
	}
	r = meta_row_put_inode(t, &row);
	/* The same map, or one that says the same: the rows are there already. */
	if (!r && map != o->db)
		r = put_extents(t, o, map);
	chunk_unref_map(o->store->chunks, map);
	extmap_unref(map);
	if (!r)
		*ret_gen = gen;
	return r;
}

int meta_del_inode(struct meta_txn *t, uint64_t ino)
{
	struct store *s = meta_txn_store(t);
	struct object *o = object_find(s, ino);
	struct extmap *old = NULL, *none = extmap_new(NULL, 0);
	uint64_t size;
	int r = none ? 0 : -ENOMEM;

	if (!r && o)
		old = extmap_ref(o->db);
	else if (!r)
		r = meta_get_extents(s->meta, ino, &old, &size);
	if (r == -ENOENT) { /* never committed, or no file */
		r = 0;
		old = extmap_ref(none);
	}
	if (!r)
		r = move_refs(t, old, none);
	if (!r && o)
		r = replace_db(s, o, extmap_ref(none));
	if (!r)
		r = meta_row_del_inode(t, ino);
	extmap_unref(old);
	extmap_unref(none);
	object_unref(o);
	return r;
}

/* Of one that this daemon appended to, or of one that the journal of a dead one tells of. */
static uint64_t used_bytes(struct store *s, uint32_t segment)
{
	uint64_t used = segset_used(s->segs, segment);
	bool fresh;

	return used ? used : seglive_end(s, segment, &fresh);
}

/* Segments that grew since the last transaction. */
static int put_segments(struct meta_txn *t)
{
	struct store *s = meta_txn_store(t);
	uint32_t seg[SEGMENTS_AT_ONCE];
	size_t n;
	int r = 0;

	do {
		n = seglive_segments(s, seg, SEGMENTS_AT_ONCE);
		for (size_t i = 0; i < n && !r; i++)
			r = meta_put_segment(t, seg[i], used_bytes(s, seg[i]));
	} while (!r && n == SEGMENTS_AT_ONCE);
	return r;
}

void meta_abort(struct meta_txn *t)
{
	struct store *s = meta_txn_store(t);
	size_t n;
	struct undo *undo = take_undo(s, &n);

	end_undo(s->chunks, undo, n, true);
	meta_txn_abort(t);
}

int meta_commit(struct meta_txn *t, bool durable)
{
	struct store *s = meta_txn_store(t);
	struct undo *undo;
	size_t n;
	int r;

	/* Data before the metadata that names it: the store settles on its own under pressure, so
	 * what is put may be younger than the caller's sync. Costs nothing when there is nothing. */
	r = store_sync_data(s);
	if (!r)
		r = put_counts(t);
	if (!r)
		r = put_segments(t);
	if (r) {
		meta_abort(t);
		return r;
	}
	undo = take_undo(s, &n);
	r = meta_txn_commit(t, durable);
	end_undo(s->chunks, undo, n, r != 0);
	return r;
}
