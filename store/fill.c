/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill: cold and warm bytes become hot.
 *
 * A fill works in windows of blocks that it claims in the object's `filling` map, so any number of
 * threads fill one image together: the opener that waits, and the workers. A reader that needs a
 * range claims just that range. While one window is verified and written to the image, the next is
 * being read.
 */
#include "store/chunker.h"
#include "store/clock.h"
#include "store/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#define WINDOW_BLOCKS (FETCH_MAX / OBJECT_BLOCK)
#define WORKERS       2
#define SPAN_BLOCKS   (4 * WINDOW_BLOCKS) /* one thread's, as windows in a row share chunks */
#define FLIGHTS       1            /* windows of a thread on their way while it works on another */
#define RATE_START    (1ull << 30) /* bytes a second, until measured */
#define RATE_SAMPLE   (32u << 20)  /* bytes */
#define OPEN_COST_US  200

struct fill_pool {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct object **queue; /* a ring: next to fill first */
	size_t head, n, cap;
	pthread_t thread[WORKERS];
	unsigned threads;
	bool stop;
};

/* ---- extents to the image ---- */

/* The rate is that of all fills together, over the time in which any was going on: an opener's fill
 * is done by the workers too. */
static void rate_begin(struct store *s)
{
	pthread_mutex_lock(&s->rate_lock);
	if (!s->rate_active++)
		s->rate_since_us = now_us();
	pthread_mutex_unlock(&s->rate_lock);
}

static void rate_end(struct store *s, uint64_t bytes)
{
	int64_t now = now_us();

	pthread_mutex_lock(&s->rate_lock);
	s->rate_bytes += bytes;
	s->rate_us += now - s->rate_since_us;
	s->rate_since_us = now;
	s->rate_active--;
	if (s->rate_bytes >= RATE_SAMPLE && s->rate_us > 0) {
		uint64_t rate = atomic_load(&s->fill_rate);
		uint64_t seen = s->rate_bytes * 1000000 / s->rate_us;

		atomic_store(&s->fill_rate, (rate * 3 + seen) / 4);
		s->rate_bytes = s->rate_us = 0;
	}
	pthread_mutex_unlock(&s->rate_lock);
	atomic_fetch_add(&s->filled_total, bytes);
}

/* A clean image that became whole can be found again after a kill. mu held. */
static void finish_if_whole(struct object *o)
{
	if (o->image != IMAGE_PARTIAL || o->valid.set != object_blocks(o->size))
		return;
	o->image = IMAGE_COMPLETE;
	blockmap_done(&o->valid);
	image_restore_mtime(o);
	if (o->wgen == o->sgen && !o->dirty.set)
		image_mark_clean(o);
	image_refresh(o);
}

/* Blocks that have been claimed, on their way. */
struct window {
	struct object *o; /* of a filler's window */
	uint64_t first, count;
	uint64_t len; /* bytes */
	int fd;
	struct fetch *fetch;
	int err;
};

/* [first, first + count) of w has been claimed. before: NULL or a window that is finished before this
 * one. rw held until window_finish, mu not. */
static void window_begin(struct object *o, struct window *w, const struct window *before)
{
	uint64_t off = w->first * OBJECT_BLOCK, size;

	pthread_mutex_lock(&o->mu);
	size = o->size;
	w->fd = image_wfd_get(o);
	pthread_mutex_unlock(&o->mu);
	w->len = off >= size ? 0 : size - off;
	if (w->len > w->count * OBJECT_BLOCK)
		w->len = w->count * OBJECT_BLOCK;
	rate_begin(o->store);
	w->fetch = NULL;
	w->err = w->fd < 0 ? w->fd :
			     fetch_begin(o, off, w->len, before ? before->fetch : NULL, &w->fetch);
}

static int window_finish(struct object *o, struct window *w)
{
	int r = w->err ? w->err : fetch_to_file(w->fetch, w->fd);

	fetch_end(w->fetch);
	rate_end(o->store, r ? 0 : w->len);
	pthread_mutex_lock(&o->mu);
	blockmap_clear(&o->filling, w->first, w->count);
	if (!r)
		r = blockmap_set(&o->valid, w->first, w->count);
	else
		o->fill_error = r;
	if (w->fd >= 0) {
		image_note_blocks(o, w->fd);
		image_wfd_put(o);
		/* A kill must not take the time of the fill for that of what is dirty. */
		if (!o->wfd_users && o->dirty.set)
			image_restore_mtime(o);
	}
	finish_if_whole(o);
	pthread_cond_broadcast(&o->filled);
	pthread_mutex_unlock(&o->mu);
	return r;
}

/*
 * Claims the next run of blocks in [first, end) that nobody fills yet, at most a window, which ends
 * at a window border. Blocks with nothing old in them become valid on the way. mu held. Returns
 * the count; 0 with *ret_busy: others are still at it.
 */
static uint64_t claim(struct object *o, uint64_t first, uint64_t end, uint64_t *ret_first,
		      bool *ret_busy)
{
	uint64_t n, b, run, border;

	*ret_busy = false;
	for (b = first; b < end;) {
		size_t i;
		uint64_t data;

		b = blockmap_next(&o->valid, b, end, false, &n);
		if (!n)
			return 0;
		i = extmap_find(o->under, b * OBJECT_BLOCK);
		data = i < o->under->n ? o->under->e[i].off / OBJECT_BLOCK : end;
		if (data > b) {
			run = (data < b + n ? data : b + n) - b;
			if (blockmap_set(&o->valid, b, run))
				return 0;
			b += run;
			continue;
		}
		if (blockmap_get(&o->filling, b)) {
			*ret_busy = true;
			b++;
			continue;
		}
		border = (b / WINDOW_BLOCKS + 1) * WINDOW_BLOCKS;
		for (run = b; run < b + n && run < border && !blockmap_get(&o->filling, run); run++)
			;
		if (blockmap_set(&o->filling, b, run - b))
			return 0;
		*ret_first = b;
		return run - b;
	}
	return 0;
}

int fill_blocks(struct object *o, uint64_t first, uint64_t count)
{
	struct window w;
	bool busy;
	int r = 0;

	pthread_mutex_lock(&o->mu);
	while (!r && o->image == IMAGE_PARTIAL) {
		w.count = claim(o, first, first + count, &w.first, &busy);
		if (w.count) {
			pthread_mutex_unlock(&o->mu);
			window_begin(o, &w, NULL);
			r = window_finish(o, &w);
			pthread_mutex_lock(&o->mu);
		} else if (busy) {
			pthread_cond_wait(&o->filled, &o->mu);
		} else {
			finish_if_whole(o);
			break;
		}
	}
	pthread_mutex_unlock(&o->mu);
	return r;
}

/* An image to fill, when there is none yet. may_wait: for room, and for the lock; the caller holds no
 * object's rw then. Else -EAGAIN. */
static int start_image(struct object *o, bool may_wait)
{
	struct store *s = o->store;
	uint64_t size;
	bool none;
	int r = 0;

	pthread_mutex_lock(&o->mu);
	none = o->image == IMAGE_NONE;
	size = o->size;
	pthread_mutex_unlock(&o->mu);
	if (!none)
		return 0;
	if (!may_wait)
		r = pool_used(s) + size <= s->opt.hot_bytes ? 0 : -EAGAIN;
	else
		r = pool_make_room(s, size, NULL);
	if (r)
		return r;
	if (!may_wait && pthread_rwlock_trywrlock(&o->rw))
		return -EAGAIN;
	if (may_wait)
		pthread_rwlock_wrlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	if (o->image == IMAGE_NONE && !o->discarded) {
		r = image_create(o, IMAGE_PARTIAL, o->size);
		if (!r && o->mtime.tv_nsec >= 0)
			o->image_mtime = o->mtime;
	}
	pthread_mutex_unlock(&o->mu);
	pthread_rwlock_unlock(&o->rw);
	return r;
}

/* A thread that fills, and its windows: a ring in the order of their begin. */
struct filler {
	struct fill_pool *pool; /* whose queue says what to fill, or NULL: only */
	struct object *only;
	struct object *o; /* of the span */
	uint64_t at, end; /* the blocks of it that are not begun */
	struct window ring[FLIGHTS + 1];
	unsigned begun, done;
};

static struct window *ring_at(struct filler *f, unsigned i)
{
	return &f->ring[i % (FLIGHTS + 1)];
}

/* Claims the next window of the whole file: of the thread's span, of the next span that nobody has,
 * else of whatever is left. mu held. */
static bool claim_next(struct filler *f, struct object *o, struct window *w)
{
	uint64_t blocks = object_blocks(o->size);
	bool busy;

	if (o != f->o)
		f->at = f->end = 0;
	f->o = o;
	for (;;) {
		/* The file may have been cut since. */
		f->end = f->end < blocks ? f->end : blocks;
		w->count = claim(o, f->at, f->end, &w->first, &busy);
		f->at = w->count ? w->first + w->count : f->end;
		if (w->count || o->fill_span >= blocks)
			break;
		f->at = o->fill_span;
		f->end = o->fill_span = f->at + SPAN_BLOCKS;
	}
	if (!w->count)
		w->count = claim(o, 0, blocks, &w->first, &busy);
	return w->count;
}

/*
 * Begins a window of o, if one is left: 1, else 0. rw is shared until its end. -EAGAIN: somebody changes
 * o or waits to; who has windows of others under way must not wait for that.
 */
static int begin_window(struct filler *f, struct object *o)
{
	struct window *w = ring_at(f, f->begun);
	bool alone = f->begun == f->done, found = false;

	if (alone)
		pthread_rwlock_rdlock(&o->rw);
	else if (pthread_rwlock_tryrdlock(&o->rw))
		return -EAGAIN;
	pthread_mutex_lock(&o->mu);
	if (o->image == IMAGE_PARTIAL && !o->fill_error && !o->discarded) {
		found = claim_next(f, o, w);
		if (!found)
			finish_if_whole(o);
	}
	pthread_mutex_unlock(&o->mu);
	if (!found) {
		pthread_rwlock_unlock(&o->rw);
		return 0;
	}
	object_ref(o);
	w->o = o;
	window_begin(o, w, alone ? NULL : ring_at(f, f->begun - 1));
	f->begun++;
	return 1;
}

static bool begin_queued(struct filler *f);

static bool begin_next(struct filler *f)
{
	return f->pool ? begin_queued(f) : begin_window(f, f->only) > 0;
}

static void finish_oldest(struct filler *f)
{
	struct window *w = ring_at(f, f->done);
	struct object *o = w->o;

	window_finish(o, w);
	pthread_rwlock_unlock(&o->rw);
	object_unref(o);
	f->done++;
}

/* Fills what there is to fill. The next windows are on their way while one is verified and written, of
 * the next file too, so that the device is never idle for that. */
static void fill_windows(struct filler *f)
{
	for (;;) {
		struct window *w;

		while (f->begun - f->done < FLIGHTS && begin_next(f))
			;
		if (f->begun == f->done)
			return;
		w = ring_at(f, f->done);
		if (!w->err)
			fetch_wait(w->fetch);
		begin_next(f);
		finish_oldest(f);
	}
}

int fill_whole(struct object *o)
{
	struct filler f = { .only = o };
	uint64_t n;
	int r = start_image(o, true);

	if (r)
		return r;
	fill_enqueue(o);
	fill_windows(&f);
	pthread_mutex_lock(&o->mu);
	for (;;) {
		blockmap_next(&o->filling, 0, UINT64_MAX / OBJECT_BLOCK, true, &n);
		if (!n)
			break;
		pthread_cond_wait(&o->filled, &o->mu);
	}
	finish_if_whole(o);
	r = o->image == IMAGE_COMPLETE ? 0 : o->fill_error ? o->fill_error : -EAGAIN;
	pthread_mutex_unlock(&o->mu);
	return r;
}

uint64_t fill_estimate_us(struct object *o)
{
	uint64_t rate = atomic_load(&o->store->fill_rate);
	uint64_t have = o->valid.set * OBJECT_BLOCK;
	uint64_t bytes = o->size > have ? o->size - have : 0;

	return OPEN_COST_US + bytes / (rate / 1000000 ? rate / 1000000 : 1);
}

/* ---- for opens ---- */

static bool fits_hot(const struct object *o)
{
	return o->size <= o->store->opt.hot_bytes / 2;
}

/* An empty file, or one that is about to be: its image is whole at once. mu held. */
static int whole_at_once(struct object *o)
{
	if (o->image == IMAGE_NONE && !o->size && !o->under->n)
		return image_create(o, IMAGE_COMPLETE, 0);
	return 0;
}

int object_image_prepare(struct object *o, bool create_empty)
{
	bool fill;
	int r = 0;

	pthread_rwlock_wrlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	if (create_empty)
		r = whole_at_once(o);
	fill = o->image != IMAGE_COMPLETE && fits_hot(o) && o->size &&
	       fill_estimate_us(o) <= (uint64_t)o->store->opt.open_wait_ms * 1000;
	if (fill)
		o->handles++; /* keeps it from being evicted half way */
	pthread_mutex_unlock(&o->mu);
	pthread_rwlock_unlock(&o->rw);
	if (fill)
		fill_whole(o);
	pthread_mutex_lock(&o->mu);
	if (fill) {
		o->handles--;
		image_close_idle(o);
	}
	if (!r)
		r = o->image == IMAGE_COMPLETE;
	pthread_mutex_unlock(&o->mu);
	return r;
}

int object_prefetch(struct object *o)
{
	bool want;

	pthread_mutex_lock(&o->mu);
	want = o->image != IMAGE_COMPLETE && fits_hot(o) && o->size && !o->fill_error;
	pthread_mutex_unlock(&o->mu);
	if (want)
		fill_enqueue(o);
	return 0;
}

/* ---- the workers ---- */

static int queue_push(struct fill_pool *p, struct object *o)
{
	if (p->n == p->cap) {
		size_t cap = p->cap ? p->cap * 2 : 64;
		struct object **q = calloc(cap, sizeof(*q));

		if (!q)
			return -ENOMEM;
		for (size_t i = 0; i < p->n; i++)
			q[i] = p->queue[(p->head + i) % p->cap];
		free(p->queue);
		p->queue = q;
		p->cap = cap;
		p->head = 0;
	}
	p->queue[(p->head + p->n++) % p->cap] = o;
	return 0;
}

void fill_enqueue(struct object *o)
{
	struct fill_pool *p = o->store->fill;
	bool queued;

	pthread_mutex_lock(&o->mu);
	queued = o->fill_queued;
	o->fill_queued = true;
	if (o->fill_error != -EIO) /* a lack of room may be over; damage is not */
		o->fill_error = 0;
	pthread_mutex_unlock(&o->mu);
	if (queued || !p)
		return;
	object_ref(o);
	pthread_mutex_lock(&p->lock);
	queued = !p->stop && queue_push(p, o) == 0;
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
	if (!queued)
		object_unref(o);
}

/* The object at the head stays there while there is something to claim, so that all workers and
 * the opener work on it together. */
static struct object *queue_peek(struct fill_pool *p, bool may_wait)
{
	struct object *o = NULL;

	pthread_mutex_lock(&p->lock);
	while (may_wait && !p->stop && !p->n)
		pthread_cond_wait(&p->wake, &p->lock);
	if (!p->stop && p->n) {
		o = p->queue[p->head];
		object_ref(o);
	}
	pthread_mutex_unlock(&p->lock);
	return o;
}

static void queue_remove(struct fill_pool *p, struct object *o)
{
	bool was_head;

	pthread_mutex_lock(&p->lock);
	was_head = p->n && p->queue[p->head] == o;
	if (was_head) {
		p->head = (p->head + 1) % p->cap;
		p->n--;
	}
	pthread_mutex_unlock(&p->lock);
	if (!was_head)
		return;
	pthread_mutex_lock(&o->mu);
	o->fill_queued = false;
	pthread_mutex_unlock(&o->mu);
	object_unref(o);
}

/* Begins a window of the first in the queue that has one left. Waits for one only when nothing is
 * under way. */
static bool begin_queued(struct filler *f)
{
	bool alone = f->begun == f->done;
	struct object *o;
	int r = 0;

	while (r <= 0 && (o = queue_peek(f->pool, alone))) {
		r = start_image(o, alone);
		if (!r)
			r = begin_window(f, o);
		if (r <= 0 && (alone || r != -EAGAIN))
			queue_remove(f->pool, o);
		object_unref(o);
		if (r == -EAGAIN && !alone)
			break;
	}
	return r > 0;
}

static void *fill_worker(void *arg)
{
	struct store *s = arg;
	struct filler f = { .pool = s->fill };

	fill_windows(&f); /* until the pool stops */
	return NULL;
}

unsigned fill_threads(struct store *s)
{
	return s->processors < WORKERS + 1 ? s->processors : WORKERS + 1;
}

int fill_start(struct store *s)
{
	struct fill_pool *p = calloc(1, sizeof(*p));
	int r = 0;

	if (!p)
		return -ENOMEM;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, NULL);
	atomic_store(&s->fill_rate, RATE_START);
	s->fill = p;
	while (p->threads < WORKERS && !r) {
		r = -pthread_create(&p->thread[p->threads], NULL, fill_worker, s);
		p->threads += !r;
	}
	if (r)
		fill_stop(s);
	return r;
}

void fill_stop(struct store *s)
{
	struct fill_pool *p = s->fill;

	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < p->threads; i++)
		pthread_join(p->thread[i], NULL);
	while (p->n) {
		object_unref(p->queue[p->head]);
		p->head = (p->head + 1) % p->cap;
		p->n--;
	}
	s->fill = NULL;
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->wake);
	free(p->queue);
	free(p);
}
