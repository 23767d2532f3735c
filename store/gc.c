/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gc: compaction. Punching gives back the whole blocks of dead records at once, and a segment without a
 * live one goes at once; what is left of dead bytes (records below a block, ends of blocks, headers) goes
 * when the live records of a segment are copied behind those of the active one and the segment is removed.
 *
 * A copy is the same chunk: same id, same encoded bytes, another place. In this order, so that a kill or a
 * power cut at any step leaves each chunk at a place that its row names: the copies are durable; one
 * durable transaction names their places; the chunk table does, so that who begins to read finds the copy;
 * the segment's row goes, then its file. Who had asked for the old place meanwhile asks again (chunk_loc).
 * Copies that no row names are dead bytes, as after any settle that was not committed.
 *
 * A record that cannot be read stays where it is, and its segment with it. A chunk without a committed
 * row stays too, for the journal alone says where it is.
 */
#include "store/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>

#define MIB         UINT64_C(1048576)
#define TICK_MS     1000
#define QUIET_MS    10000 /* a segment that loses chunks will lose more */
#define BUSY_MS     250   /* between looks for others at work */
#define BUSY_BYTES  MIB   /* done by others in that time */
#define PUT_OFF_MS  10000
#define BATCH_BYTES (8 * MIB) /* of payloads, in one transaction */
#define BATCH_MAX   4096u
#define DEAD_MIN    65536u /* bytes for which a segment is looked at */
#define RATE_SHARE  16     /* of what the device reads; while space is short, a fourth of this */
#define RATE_MIN    (16 * MIB)
#define RATE_MAX    (256 * MIB)
#define RATE_GUESS  (32 * MIB) /* while the device has not been measured */

struct gc {
	struct store *s;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop;  /* lock, to error */
	bool hurry; /* somebody was refused space */
	uint64_t asked, done;
	int error;
	atomic_uint_fast64_t dead, moved, freed, segments, left_segments, left_bytes;
};

/* ---- what to compact ---- */

enum mode {
	AT_LEISURE,
	SHORT, /* of space */
	NOW,   /* somebody waits for it */
};

static uint64_t dead_of(const struct segment_use *u)
{
	return u->held > u->live ? u->held - u->live : 0;
}

/* Copying what is a third alive costs half a byte for each that is freed. What is more alive waits until it
 * has stopped to lose chunks, or until space is short, for it may still become cheaper. */
static bool is_worth_it(const struct segment_use *u, enum mode mode, int64_t now)
{
	uint64_t dead = dead_of(u);

	if (now < u->retry_ms)
		return false;
	if (!u->live)
		return true;
	if (dead < DEAD_MIN)
		return false;
	switch (mode) {
	case AT_LEISURE:
		return dead * 3 >= u->held * 2 ||
		       (dead * 4 >= u->held && now - u->died_ms >= QUIET_MS);
	case SHORT:
		return dead * 4 >= u->held;
	default:
		return dead * 8 >= u->held;
	}
}

/* True if a has the larger share of dead bytes. */
static bool is_deader(const struct segment_use *a, const struct segment_use *b)
{
	return (double)dead_of(a) * (double)b->held > (double)dead_of(b) * (double)a->held;
}

/* What the file occupies; a segment that was just left may not have been cut to what is used. */
static void look(struct store *s, struct segment_use *u)
{
	uint64_t used = segset_used(s->segs, u->segment);
	char name[32];
	struct stat st;

	snprintf(name, sizeof(name), "%08x.seg", u->segment);
	if (fstatat(s->seg_fd, name, &st, AT_SYMLINK_NOFOLLOW))
		return;
	u->held = (uint64_t)st.st_blocks * 512;
	used = (used + IO_ALIGN - 1) & ~(uint64_t)(IO_ALIGN - 1);
	if (used && u->held > used)
		u->held = used;
	seglive_looked(s, u->segment, u->held);
}

/* The best one, and what there is to do in all. False: nothing. */
static bool choose(struct gc *g, enum mode mode, struct segment_use *ret)
{
	struct store *s = g->s;
	struct segment_use *v, *best = NULL;
	uint64_t dead = 0, left = 0, bytes = 0;
	int64_t now = now_ms();
	size_t n;

	/* Between the two halves of a reap live bytes are gone and their blocks are not. */
	pthread_mutex_lock(&s->reap_lock);
	n = seglive_list(s, &v);
	for (size_t i = 0; v && i < n; i++) {
		if (!segset_is_sealed(s->segs, v[i].segment))
			continue;
		if (v[i].look)
			look(s, &v[i]);
		dead += dead_of(&v[i]);
		if (!is_worth_it(&v[i], mode, now))
			continue;
		left++;
		bytes += v[i].live;
		if (!best || is_deader(&v[i], best))
			best = &v[i];
	}
	pthread_mutex_unlock(&s->reap_lock);
	if (best)
		*ret = *best;
	free(v);
	atomic_store(&g->dead, dead);
	atomic_store(&g->left_segments, left);
	atomic_store(&g->left_bytes, bytes);
	return left;
}

/* ---- when ---- */

static enum mode mode_of(struct gc *g)
{
	enum mode mode = AT_LEISURE;

	if (space_free(g->s) < g->s->slack)
		mode = SHORT;
	pthread_mutex_lock(&g->lock);
	if (g->hurry)
		mode = SHORT;
	if (g->asked != g->done)
		mode = NOW;
	pthread_mutex_unlock(&g->lock);
	return mode;
}

/* False: it is time to end. */
static bool wait_ms(struct gc *g, int64_t ms)
{
	struct timespec until;
	bool go;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += ms % 1000 * 1000000;
	until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&g->lock);
	if (!g->stop && ms)
		pthread_cond_timedwait(&g->wake, &g->lock, &until);
	go = !g->stop;
	pthread_mutex_unlock(&g->lock);
	return go;
}

static uint64_t work_of_others(struct store *s)
{
	return atomic_load(&s->filled_total) + atomic_load(&s->settled_total);
}

/* How long so many bytes, read or written, are to take. */
static int64_t time_for(struct gc *g, uint64_t bytes)
{
	uint64_t rate = atomic_load(&g->s->read_rate);
	enum mode mode = mode_of(g);

	if (mode == NOW)
		return 0;
	rate = rate ? rate / RATE_SHARE : RATE_GUESS;
	rate = rate < RATE_MIN ? RATE_MIN : rate > RATE_MAX ? RATE_MAX : rate;
	return (int64_t)(bytes * 1000 / (mode == SHORT ? rate * 4 : rate));
}

/* After so many bytes. Waits, unless somebody waits for the result, as long as they are to take, and, unless
 * space is short, while fills or settles are at work. False: it is time to end. */
static bool pace(struct gc *g, uint64_t bytes)
{
	int64_t begin = now_ms(), left;
	uint64_t before;

	while ((left = begin + time_for(g, bytes) - now_ms()) > 0)
		if (!wait_ms(g, left))
			return false;
	do {
		before = work_of_others(g->s);
		if (!wait_ms(g, mode_of(g) == AT_LEISURE ? BUSY_MS : 0))
			return false;
	} while (mode_of(g) == AT_LEISURE && work_of_others(g->s) - before > BUSY_BYTES);
	return true;
}

/* ---- one batch of records ---- */

struct record {
	uint64_t id;
	struct segment_loc loc;
	uint32_t stored_len;
	bool moved;
};

struct move {
	struct chunk *c; /* with a reference */
	struct record *from;
	struct segment_loc to;
	size_t at; /* of its payload in the buffer */
	bool read;
};

struct batch {
	struct move v[BATCH_MAX];
	size_t n;
	size_t appended;         /* of v, the first */
	size_t used;             /* bytes of the buffer */
	uint64_t bytes;          /* of records, read */
	uint64_t damaged, fixed; /* records of the segment so far; fixed: for now */
	uint8_t buf[BATCH_BYTES];
};

/* Those of the records that live, as many as fit. Returns how many records it looked at. */
static ssize_t batch_fill(struct store *s, struct batch *b, struct record *rec, size_t n)
{
	size_t i;

	b->n = b->appended = b->used = b->bytes = 0;
	for (i = 0; i < n && b->n < BATCH_MAX; i++) {
		struct chunk *c = NULL;
		int r;

		if (b->used + rec[i].stored_len > BATCH_BYTES)
			break;
		r = loader_need_id(s, rec[i].id);
		if (!r)
			r = chunk_hold_at(s->chunks, rec[i].id, rec[i].loc, &c);
		if (r && r != -EBUSY)
			return r;
		b->fixed += r == -EBUSY;
		if (!c)
			continue;
		b->v[b->n++] = (struct move){ .c = c, .from = &rec[i], .at = b->used };
		b->used += rec[i].stored_len;
	}
	return i;
}

static void batch_drop(struct store *s, struct batch *b)
{
	for (size_t i = 0; i < b->n; i++)
		chunk_put(s->chunks, b->v[i].c);
	b->n = 0;
}

static int take(void *arg, const struct segset_read_req *req, const void *payload, int err)
{
	struct batch *b = arg;
	struct move *m = req->user;

	if (err == -EBADMSG || err == -EIO)
		b->damaged++;
	else if (err)
		return err;
	m->read = !err;
	if (err)
		return 0;
	memcpy(b->buf + m->at, payload, req->info->stored_len);
	b->bytes += record_size(req->info->stored_len);
	return 0;
}

static int batch_read(struct store *s, struct batch *b)
{
	struct segset_read_req *req = calloc(b->n + 1, sizeof(*req));
	int r;

	if (!req)
		return -ENOMEM;
	for (size_t i = 0; i < b->n; i++)
		req[i] = (struct segset_read_req){ b->v[i].from->loc, &b->v[i].c->info, &b->v[i] };
	r = segset_read_many(s->segs, req, b->n, take, b);
	free(req);
	return r;
}

static int append_one(struct store *s, const struct batch *b, struct move *m)
{
	const struct record_info *info = &m->c->info;
	int r = segset_append(s->segs, info, b->buf + m->at, &m->to);
	int broken = r ? segset_error(s->segs) : 0;

	if (broken)
		segments_failed(s, broken);
	return r ? r : seglive_add(s, m->to.segment, (int64_t)record_size(info->stored_len));
}

/* In one run, so that what a file had together stays so. */
static int batch_append(struct store *s, struct batch *b)
{
	int r = 0;

	segset_run_begin(s->segs);
	for (; b->appended < b->n && !r; b->appended += !r)
		if (b->v[b->appended].read)
			r = append_one(s, b, &b->v[b->appended]);
	segset_run_end(s->segs);
	return r ? r : store_sync_data(s);
}

/* The bytes of those that were copied: in the old places, or in the new ones. */
static void uncount(struct store *s, const struct batch *b, bool old)
{
	for (size_t i = 0; i < b->appended; i++) {
		const struct move *m = &b->v[i];

		if (m->read)
			seglive_add(s, old ? m->from->loc.segment : m->to.segment,
				    -(int64_t)record_size(m->c->info.stored_len));
	}
}

static int batch_commit(struct store *s, struct batch *b)
{
	struct meta_txn *t;
	int r = meta_begin(s, &t);

	if (r)
		return r;
	for (size_t i = 0; i < b->n && !r; i++)
		if (b->v[i].read)
			r = meta_move_chunk(t, b->v[i].c->info.chunk_id, b->v[i].to);
	if (r) {
		meta_abort(t);
		return r;
	}
	return meta_commit(t, true);
}

/* Copies the batch. Only now may the old segment be found empty. */
static int batch_move(struct gc *g, struct batch *b)
{
	struct store *s = g->s;
	int r = batch_read(s, b);

	if (!r && b->bytes)
		r = batch_append(s, b);
	if (!r && b->bytes)
		r = batch_commit(s, b);
	for (size_t i = 0; i < b->n && !r; i++) {
		if (b->v[i].read)
			chunk_move(b->v[i].c, b->v[i].to);
		b->v[i].from->moved = b->v[i].read;
	}
	uncount(s, b, !r);
	if (!r)
		atomic_fetch_add(&g->moved, b->bytes);
	return r;
}

/* ---- one segment ---- */

struct records {
	struct record *v;
	size_t n, cap;
};

static int add_record(void *arg, struct segment_loc loc, const struct record_info *info)
{
	struct records *l = arg;

	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 4096;
		struct record *v = reallocarray(l->v, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		l->v = v;
		l->cap = cap;
	}
	l->v[l->n++] = (struct record){ info->chunk_id, loc, info->stored_len, false };
	return 0;
}

/* Its row goes first: one without a file would tell of bytes that are not there. */
static int remove_empty(struct gc *g, const struct segment_use *u)
{
	struct store *s = g->s;
	struct meta_txn *t;
	int r = meta_begin(s, &t);

	if (r)
		return r;
	r = meta_del_segment(t, u->segment);
	if (r)
		meta_abort(t);
	else
		r = meta_commit(t, true);
	if (!r)
		r = segset_remove(s->segs, u->segment);
	if (r && r != -ENOENT) /* the reaper may have been first */
		return r;
	seglive_forget(s, u->segment);
	atomic_fetch_add(&g->freed, u->held);
	return 0;
}

/* What stays keeps the segment; the blocks of what was moved go. */
static void keep(struct store *s, uint32_t segment, const struct records *l, const struct batch *b,
		 uint64_t damaged_bytes)
{
	bool damaged = !b->fixed && (b->damaged || damaged_bytes);

	for (size_t i = 0; i < l->n; i++)
		if (l->v[i].moved)
			segset_punch(s->segs, l->v[i].loc, l->v[i].stored_len);
	seglive_put_off(s, segment, damaged ? INT64_MAX : now_ms() + PUT_OFF_MS);
	if (damaged)
		store_log(s, LOG_WARNING,
			  "%s/segments/%08x.seg: damaged: what could be read of it was moved, "
			  "the rest stays, %" PRIu64 " bytes",
			  s->path, segment, seglive_get(s, segment));
}

static int move_all(struct gc *g, struct batch *b, const struct records *l)
{
	int r = 0;

	for (size_t at = 0; at < l->n && !r;) {
		ssize_t n = batch_fill(g->s, b, l->v + at, l->n - at);

		r = n < 0 ? (int)n : batch_move(g, b);
		at += n < 0 ? 0 : (size_t)n;
		batch_drop(g->s, b);
		if (!r && !pace(g, b->bytes * 2))
			r = -ECANCELED;
	}
	return r;
}

static int compact(struct gc *g, const struct segment_use *u)
{
	struct store *s = g->s;
	struct batch *b = malloc(sizeof(*b));
	struct records l = { 0 };
	uint64_t damaged;
	int r;

	if (!b)
		return -ENOMEM;
	b->damaged = b->fixed = 0;
	r = segset_scan(s->segs, u->segment, add_record, &l, &damaged);
	if (!r && !pace(g, u->held))
		r = -ECANCELED;
	if (!r)
		r = move_all(g, b, &l);
	if (!r && !seglive_get(s, u->segment))
		r = remove_empty(g, u);
	else if (!r)
		keep(s, u->segment, &l, b, damaged);
	atomic_fetch_add(&g->segments, !r);
	free(l.v);
	free(b);
	return r;
}

/* ---- a pass ---- */

static int collect(struct gc *g, const struct segment_use *u)
{
	if (!u->live)
		return remove_empty(g, u);
	return space_for_copy(g->s, u->live) ? compact(g, u) : -ENOSPC;
}

/* Until nothing is worth it. One that cannot be compacted now is put off, and the others go on. */
static int pass(struct gc *g)
{
	struct segment_use u;
	int r = 0;

	while (r != -ECANCELED && !atomic_load(&g->s->failed) && choose(g, mode_of(g), &u)) {
		int e = collect(g, &u);

		if (e)
			seglive_put_off(g->s, u.segment, now_ms() + PUT_OFF_MS);
		r = e == -ECANCELED || !r ? e : r;
		space_refresh(g->s);
	}
	return atomic_load(&g->s->failed) ? -EIO : r;
}

/* What is dead already goes first. */
static int reap_all(struct store *s)
{
	int r = 1;

	while (r > 0 && chunk_any_dead(s->chunks))
		r = reap_dead(s, BATCH_MAX);
	return r < 0 ? r : 0;
}

/* The active segment can be compacted once it is left. */
static int leave_active(struct store *s)
{
	uint32_t n = segset_active(s->segs);
	uint64_t used = segset_used(s->segs, n), live = seglive_get(s, n);
	int r;

	if (used < live + DEAD_MIN || (used - live) * 8 < used)
		return 0;
	r = segset_seal(s->segs);
	if (r)
		segments_failed(s, r);
	return r;
}

static void carry_out(struct gc *g)
{
	uint64_t asked;
	int r = 0;

	pthread_mutex_lock(&g->lock);
	asked = g->asked;
	pthread_mutex_unlock(&g->lock);
	if (asked != g->done) { /* which only this thread changes */
		seglive_retry(g->s);
		r = reap_all(g->s);
		if (!r)
			r = leave_active(g->s);
	}
	if (!r)
		r = pass(g);
	pthread_mutex_lock(&g->lock);
	if (asked != g->done)
		g->error = r;
	g->done = asked;
	g->hurry = false;
	pthread_mutex_unlock(&g->lock);
}

/* ---- the thread ---- */

static void *gc_main(void *arg)
{
	struct gc *g = arg;

	while (wait_ms(g, TICK_MS))
		if (loader_done(g->s))
			carry_out(g);
	return NULL;
}

int gc_start(struct store *s)
{
	pthread_condattr_t attr;
	struct gc *g;
	int r;

	if (s->read_only)
		return 0;
	g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	g->s = s;
	pthread_mutex_init(&g->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&g->wake, &attr);
	pthread_condattr_destroy(&attr);
	s->gc = g;
	r = -pthread_create(&g->thread, NULL, gc_main, g);
	if (r) {
		s->gc = NULL;
		free(g);
	}
	return r;
}

void gc_stop(struct store *s)
{
	struct gc *g = s->gc;

	if (!g)
		return;
	pthread_mutex_lock(&g->lock);
	g->stop = true;
	pthread_cond_broadcast(&g->wake);
	pthread_mutex_unlock(&g->lock);
	pthread_join(g->thread, NULL);
	pthread_cond_destroy(&g->wake);
	pthread_mutex_destroy(&g->lock);
	free(g);
	s->gc = NULL;
}

void gc_wake(struct store *s)
{
	struct gc *g = s->gc;

	if (!g)
		return;
	pthread_mutex_lock(&g->lock);
	g->hurry = true;
	pthread_cond_broadcast(&g->wake);
	pthread_mutex_unlock(&g->lock);
}

int store_gc(struct store *s)
{
	struct gc *g = s->gc;

	if (!g)
		return -EROFS;
	pthread_mutex_lock(&g->lock);
	g->asked++;
	pthread_cond_broadcast(&g->wake);
	pthread_mutex_unlock(&g->lock);
	return 0;
}

void gc_status(struct store *s, struct store_gc_status *ret)
{
	struct gc *g = s->gc;

	*ret = (struct store_gc_status){ 0 };
	if (!g)
		return;
	ret->dead_bytes = atomic_load(&g->dead);
	ret->moved_bytes_total = atomic_load(&g->moved);
	ret->freed_bytes_total = atomic_load(&g->freed);
	ret->segments_total = atomic_load(&g->segments);
	ret->left_segments = atomic_load(&g->left_segments);
	ret->left_bytes = atomic_load(&g->left_bytes);
	pthread_mutex_lock(&g->lock);
	ret->asked = g->asked;
	ret->done = g->done;
	ret->error = g->error;
	pthread_mutex_unlock(&g->lock);
}
