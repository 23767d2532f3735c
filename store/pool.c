/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool: the budget of the hot tier, and the thread that moves what is idle or too much.
 *
 * Room is made by whoever needs it, in this order: idle images go warm, oldest first; blocks that
 * are settled already leave images that only the daemon reads; then dirty objects are settled, so
 * that the next round can let them go. A writer thus waits for the device exactly when it outruns
 * it.
 */
#include "store/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <syslog.h>
#include <unistd.h>

#define TIER_PERIOD_MS 500
#define REAP_BATCH     4096
#define ROUNDS         256
#define STUCK_ROUNDS   5
#define WRITER_ROUNDS  100
#define STUCK_WAIT_MS  20
#define EVICT_BATCH    64
#define SPARE          8 /* part of the pool that is not granted to several writers */

uint64_t pool_used(struct store *s)
{
	struct statfs f, small;
	uint64_t used, overhead;

	if (!s->own_tmpfs || fstatfs(s->img_fd[IMAGE_HUGE], &f) ||
	    fstatfs(s->img_fd[IMAGE_SMALL], &small))
		return atomic_load(&s->image_bytes);
	used = (f.f_blocks - f.f_bfree) * (uint64_t)f.f_bsize;
	if (s->small_mounted)
		used += (small.f_blocks - small.f_bfree) * (uint64_t)small.f_bsize;
	overhead = atomic_load(&s->run_overhead);
	return used > overhead ? used - overhead : 0;
}

static bool has_room(struct store *s, uint64_t want)
{
	return pool_used(s) + want <= s->opt.hot_bytes;
}

/* ---- blocks that the store has too ---- */

/* Nobody but the daemon reads this image, and all it may do is wait. mu and rw (exclusive) held. */
static bool only_ours(struct object *o)
{
	if (o->image == IMAGE_NONE || o->backed || o->all_dirty || o->settling || o->wfd_users)
		return false;
	if (o->wfd >= 0)
		close(o->wfd);
	o->wfd = -1;
	image_unmap(o);
	return image_unused(o, false);
}

/* mu and rw (exclusive) held. */
static int make_partial(struct object *o)
{
	int r;

	if (o->image == IMAGE_PARTIAL)
		return 0;
	r = blockmap_set(&o->valid, 0, object_blocks(o->size));
	if (r)
		return r;
	o->image = IMAGE_PARTIAL;
	o->fill_span = 0;
	/* Before the first block goes: a restart must not take the image for whole. One that is clean
	 * and has lost its mark is not taken at all. */
	r = o->wgen != o->sgen || o->dirty.set ? j_put_image(o) : 0;
	if (r) {
		o->image = IMAGE_COMPLETE;
		blockmap_done(&o->valid);
	}
	return r;
}

/* Everything but the dirty blocks goes; also what was never valid, since one small write takes a
 * whole huge page. */
static int punch_clean(struct object *o)
{
	uint64_t end = object_blocks(o->size), b = 0, n;
	int fd = image_wfd_get(o);

	if (fd < 0)
		return fd;
	while (b < end) {
		b = blockmap_next(&o->dirty, b, end, false, &n);
		if (!n)
			break;
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, b * OBJECT_BLOCK,
			  n * OBJECT_BLOCK);
		blockmap_clear(&o->valid, b, n);
		b += n;
	}
	image_wfd_put(o);
	image_restore_mtime(o);
	image_refresh(o);
	return 0;
}

static void drop_clean_blocks(struct object *o)
{
	pthread_rwlock_wrlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	if (only_ours(o) && !object_is_only_copy(o) && o->dirty.set < object_blocks(o->size)) {
		image_unmark(o);
		if (make_partial(o) == 0)
			punch_clean(o);
	}
	pthread_mutex_unlock(&o->mu);
	pthread_rwlock_unlock(&o->rw);
}

/* ---- making room ---- */

static bool is_idle(struct object *o)
{
	bool idle;

	pthread_mutex_lock(&o->mu);
	idle = !o->handles && !o->fill_queued;
	pthread_mutex_unlock(&o->mu);
	return idle;
}

/* Of those not used after before_ms, oldest first, until there is room for want bytes. What cannot go
 * stands behind all others then, so that it is not looked at again and again. */
static void evict_oldest(struct store *s, int64_t before_ms, uint64_t want)
{
	uint64_t left = atomic_load(&s->images);
	struct object *v[EVICT_BATCH];
	size_t n;

	while (left && !has_room(s, want) && (n = object_oldest(s, before_ms, v, EVICT_BATCH))) {
		left -= n < left ? n : left;
		for (size_t i = 0; i < n; i++) {
			if (!has_room(s, want) && (!is_idle(v[i]) || object_evict(v[i], TIER_WARM)))
				object_requeue(v[i]);
			object_unref(v[i]);
		}
	}
}

static bool is_large(struct object *o)
{
	bool large;

	pthread_mutex_lock(&o->mu);
	large = o->handles && o->blocks >= o->store->opt.hot_bytes / 64;
	pthread_mutex_unlock(&o->mu);
	return large;
}

/* Settles the object with the most to gain. False when there was none. */
static bool settle_one(struct object **v, size_t n, struct object *self)
{
	struct object *best = NULL;
	uint64_t most = 0;

	for (size_t i = 0; i < n; i++) {
		uint64_t dirty;

		pthread_mutex_lock(&v[i]->mu);
		/* Settling what a hidden writer holds frees nothing. */
		dirty = v[i]->all_dirty && v[i]->hidden ? 0 : object_dirty_bytes(v[i]);
		dirty += v[i] == self ? dirty : 0;
		if (v[i]->resettle_ms > now_ms())
			dirty = 0;
		pthread_mutex_unlock(&v[i]->mu);
		if (dirty > most) {
			most = dirty;
			best = v[i];
		}
	}
	if (!best)
		return false;
	if (object_settle(best) == 0)
		return true;
	/* One that cannot be settled must not be all that is ever tried. */
	pthread_mutex_lock(&best->mu);
	best->resettle_ms = now_ms() + 5000;
	pthread_mutex_unlock(&best->mu);
	return true;
}

static bool one_round(struct store *s, uint64_t want, struct object *self)
{
	struct object **v;
	bool more = true;
	size_t n;

	evict_oldest(s, INT64_MAX, want);
	if (has_room(s, want))
		return true;
	v = object_list(s, &n);
	if (!v)
		return false;
	for (size_t i = 0; i < n && !has_room(s, want); i++)
		if (is_large(v[i]))
			drop_clean_blocks(v[i]);
	if (!has_room(s, want))
		more = settle_one(v, n, self);
	object_list_free(v, n);
	return more;
}

int pool_make_room(struct store *s, uint64_t want, struct object *self)
{
	/* A fill can be done without; a writer who is told ENOSPC has lost. */
	int stuck = 0, patience = self ? WRITER_ROUNDS : STUCK_ROUNDS;

	if (want > s->opt.hot_bytes)
		return -ENOSPC;
	for (int i = 0; i < ROUNDS && stuck < patience; i++) {
		if (has_room(s, want))
			return 0;
		if (s->opt.hooks.pressure)
			s->opt.hooks.pressure(s->opt.hooks.arg);
		if (one_round(s, want, self)) {
			stuck = 0;
			continue;
		}
		/* Another thread may have the objects that could go in its hands just now. */
		stuck++;
		nanosleep(&(struct timespec){ .tv_nsec = STUCK_WAIT_MS * 1000000L }, NULL);
	}
	return has_room(s, want) ? 0 : -ENOSPC;
}

/* Nobody makes room for a passthrough writer, who asks nobody. */
static void want_room(struct store *s, uint64_t want)
{
	atomic_store(&s->room_wanted, want);
	pthread_mutex_lock(&s->tier_lock);
	pthread_cond_signal(&s->tier_wake);
	pthread_mutex_unlock(&s->tier_lock);
}

/* need: for all grants. Clean images make room when they must, so what counts is what cannot go. */
static bool fits(struct store *s, uint64_t need)
{
	uint64_t stuck = atomic_load(&s->dirty_bytes);

	return stuck + need <= s->opt.hot_bytes && space_free(s) >= s->opt.hot_bytes;
}

bool store_admits_writer(struct store *s, uint64_t want)
{
	return fits(s, atomic_load(&s->granted_bytes) + want);
}

bool store_grant(struct store *s, uint64_t want, uint64_t keep, bool unseen)
{
	uint64_t others = atomic_fetch_add(&s->granted_bytes, keep);
	/* Beside several there must be room for those who were not let in. */
	uint64_t need = others + want + (others ? s->opt.hot_bytes / SPARE : 0);

	if (fits(s, need)) {
		if (!unseen || has_room(s, need))
			return true;
		want_room(s, need);
	}
	store_grant_end(s, keep);
	return false;
}

void store_grant_end(struct store *s, uint64_t granted)
{
	atomic_fetch_sub(&s->granted_bytes, granted);
}

/* ---- the reaper ---- */

/* t is ended in any case. */
static int delete_rows(struct store *s, struct meta_txn *t, struct chunk **c, size_t n)
{
	int r = 0;

	for (size_t i = 0; i < n; i++) /* the last of a segment takes the segment's row along */
		seglive_add(s, c[i]->loc.segment, -(int64_t)record_size(c[i]->info.stored_len));
	for (size_t i = 0; i < n && !r; i++) {
		r = meta_del_chunk(t, c[i]->info.chunk_id);
		if (!r && !seglive_get(s, c[i]->loc.segment) &&
		    c[i]->loc.segment != segset_active(s->segs))
			r = meta_del_segment(t, c[i]->loc.segment);
	}
	if (r)
		meta_txn_abort(t);
	else
		r = meta_txn_commit(t, true);
	return r;
}

static int by_place(const void *a, const void *b)
{
	const struct segment_loc *x = &(*(struct chunk *const *)a)->loc;
	const struct segment_loc *y = &(*(struct chunk *const *)b)->loc;

	if (x->segment != y->segment)
		return x->segment < y->segment ? -1 : 1;
	return (x->offset > y->offset) - (x->offset < y->offset);
}

/* How many chunks from c on lie one behind the other; *ret_len: the bytes from the first payload to
 * the last. Punched one by one, each would keep the blocks it shares. A gap up to a whole block may
 * be the padding of a flush, or records that live: it ends the run. */
static size_t run_of(struct chunk **c, size_t n, uint32_t *ret_len)
{
	uint64_t start = (uint64_t)c[0]->loc.offset * RECORD_ALIGN;
	uint64_t end = start + record_size(c[0]->info.stored_len);
	size_t i = 1;

	for (; i < n && c[i]->loc.segment == c[0]->loc.segment; i++) {
		if ((uint64_t)c[i]->loc.offset * RECORD_ALIGN != end)
			break;
		end += record_size(c[i]->info.stored_len);
	}
	*ret_len = end - start - sizeof(struct record_header);
	return i;
}

static void free_bytes(struct store *s, struct chunk **c, size_t n)
{
	size_t run;

	qsort(c, n, sizeof(*c), by_place);
	for (size_t i = 0; i < n; i += run) {
		uint32_t seg = c[i]->loc.segment, len;

		run = run_of(c + i, n - i, &len);
		/* Gone already when another run of it was the first to see it empty. */
		if (seglive_get(s, seg) || seg == segset_active(s->segs)) {
			segset_punch(s->segs, c[i]->loc, len);
		} else if (!seglive_gone(s, seg)) {
			/* One that was just left has to be synced before it can go. */
			if (segset_remove(s->segs, seg) == -EBUSY && !store_sync_data(s))
				segset_remove(s->segs, seg);
			seglive_forget(s, seg);
		}
	}
}

/* reap_lock held. */
static int reap(struct store *s, struct chunk **c, size_t max)
{
	struct meta_txn *t;
	size_t n;
	/* The writer's lock first: no transaction that may yet be taken back is under way. */
	int r = meta_txn_begin(s->meta, s, &t);

	if (r)
		return r;
	n = chunk_reap(s->chunks, c, max);
	if (!n) {
		meta_txn_abort(t);
		return 0;
	}
	r = delete_rows(s, t, c, n);
	if (r)
		for (size_t i = 0; i < n; i++)
			seglive_add(s, c[i]->loc.segment,
				    (int64_t)record_size(c[i]->info.stored_len));
	else
		free_bytes(s, c, n);
	chunk_reap_done(s->chunks, c, n, !r);
	space_refresh(s);
	return r ? r : (int)n;
}

int reap_dead(struct store *s, size_t max)
{
	struct chunk **c;
	int r;

	/* A segment may hold chunks that have not been loaded yet. */
	if (!loader_done(s))
		return 0;
	c = calloc(max, sizeof(*c));
	if (!c)
		return -ENOMEM;
	/* One at a time: what another has taken out of the live bytes may not be durably dead yet. */
	pthread_mutex_lock(&s->reap_lock);
	r = reap(s, c, max);
	pthread_mutex_unlock(&s->reap_lock);
	free(c);
	return r;
}

/* ---- the thread ---- */

/* Idle images make way for the next passthrough writer; nothing is settled for it. */
static void make_wanted_room(struct store *s)
{
	uint64_t want = atomic_exchange(&s->room_wanted, 0);

	if (want)
		evict_oldest(s, INT64_MAX, want);
}

/* Once there is something to measure by; a device that fails is not asked again. */
static void measure_device(struct store *s)
{
	uint64_t rate;
	int r;

	if (s->rate_known || s->read_only)
		return;
	r = segset_read_rate(s->segs, &rate);
	if (r == 0)
		atomic_store(&s->read_rate, rate);
	s->rate_known = r != -ENODATA;
}

static void *tier_main(void *arg)
{
	struct store *s = arg;
	struct timespec until;

	pthread_mutex_lock(&s->tier_lock);
	while (!s->stopping) {
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += TIER_PERIOD_MS * 1000000L;
		until.tv_sec += until.tv_nsec / 1000000000L;
		until.tv_nsec %= 1000000000L;
		pthread_cond_timedwait(&s->tier_wake, &s->tier_lock, &until);
		if (s->stopping)
			break;
		pthread_mutex_unlock(&s->tier_lock);
		rundir_measure(s);
		if (s->opt.idle_s)
			evict_oldest(s, now_ms() - (int64_t)s->opt.idle_s * 1000,
				     s->opt.hot_bytes + 1);
		/* A sixteenth stays free, so that an opener seldom has to make room itself. */
		pool_make_room(s, s->opt.hot_bytes / 16, NULL);
		make_wanted_room(s);
		measure_device(s);
		while (!s->read_only && chunk_any_dead(s->chunks) && reap_dead(s, REAP_BATCH) > 0)
			;
		pthread_mutex_lock(&s->tier_lock);
	}
	pthread_mutex_unlock(&s->tier_lock);
	return NULL;
}

int tier_start(struct store *s)
{
	return -pthread_create(&s->tier_thread, NULL, tier_main, s);
}

void tier_stop(struct store *s)
{
	pthread_mutex_lock(&s->tier_lock);
	s->stopping = true;
	pthread_cond_broadcast(&s->tier_wake);
	pthread_mutex_unlock(&s->tier_lock);
	pthread_join(s->tier_thread, NULL);
}
