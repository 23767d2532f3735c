/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill: cold and warm bytes become hot.
 *
 * A fill works in windows of blocks that it claims in the object's `filling` map, so any number of
 * threads fill one image together: the opener that waits, and the workers. A reader that needs a
 * range claims just that range. Each window is read, verified and decoded into a private buffer and
 * goes to the image in one write, which lets the tmpfs take whole huge pages without zeroing them.
 */
#include "store/chunker.h"
#include "store/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#define WINDOW_BLOCKS ((4u << 20) / OBJECT_BLOCK)
_Static_assert(WINDOW_BLOCKS *OBJECT_BLOCK + CHUNK_MAX <= SCRATCH_SIZE, "one buffer holds both");
#define WORKERS      3
#define RATE_START   (1ull << 30) /* bytes a second, until measured */
#define RATE_SAMPLE  (32u << 20)  /* bytes */
#define OPEN_COST_US 200

struct fill_pool {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct object **queue; /* a ring: next to fill first */
	size_t head, n, cap;
	pthread_t thread[WORKERS];
	unsigned threads;
	bool stop;
};

/* ---- extents to memory ---- */

struct piece {
	uint64_t off; /* in the file: the part of the extent that is wanted */
	uint32_t len, skip;
	struct chunk *chunk;
};

struct read_job {
	struct object *o;
	char *buf;
	uint64_t off;
	void *scratch; /* CHUNK_MAX bytes, made when needed */
	int err;
};

static void report_damage(struct object *o, const struct piece *p, int err)
{
	atomic_fetch_add(&o->store->damaged_total, 1);
	store_log(o->store, LOG_ERR,
		  "inode %" PRIu64 ": bytes %" PRIu64 " to %" PRIu64 ": chunk %" PRIu64
		  " in segment %08x at %" PRIu64 " is damaged (%s): reads give EIO",
		  o->ino, p->off, p->off + p->len, p->chunk->info.chunk_id, p->chunk->loc.segment,
		  (uint64_t)p->chunk->loc.offset * RECORD_ALIGN, strerror(-err));
}

/* One chunk's payload into the buffer. */
static int place(struct read_job *j, const struct piece *p, const void *payload)
{
	const struct record_info *info = &p->chunk->info;
	const struct codec *codec = codec_by_id(info->codec);
	char *dst = j->buf + (p->off - j->off);
	int r;

	if (!codec)
		return -EBADMSG;
	if (info->codec == CODEC_RAW) {
		if (info->stored_len != info->raw_len)
			return -EBADMSG;
		memcpy(dst, (const char *)payload + p->skip, p->len);
		return 0;
	}
	if (p->len == info->raw_len)
		return codec->decode(payload, info->stored_len, dst, info->raw_len, info->params);
	if (!j->scratch)
		j->scratch = malloc(CHUNK_MAX);
	if (!j->scratch)
		return -ENOMEM;
	r = codec->decode(payload, info->stored_len, j->scratch, info->raw_len, info->params);
	if (!r)
		memcpy(dst, (char *)j->scratch + p->skip, p->len);
	return r;
}

static int on_payload(void *arg, const struct segset_read_req *req, const void *payload, int err)
{
	struct read_job *j = arg;
	const struct piece *p = req->user;

	if (!err)
		err = place(j, p, payload);
	if (err) {
		report_damage(j->o, p, err);
		j->err = err == -ENOMEM ? err : -EIO;
		return 1;
	}
	return 0;
}

static int by_location(const void *a, const void *b)
{
	const struct segment_loc *x = &((const struct segset_read_req *)a)->loc;
	const struct segment_loc *y = &((const struct segset_read_req *)b)->loc;

	if (x->segment != y->segment)
		return x->segment < y->segment ? -1 : 1;
	return (x->offset > y->offset) - (x->offset < y->offset);
}

/* The pieces of [off, off+len), each with a reference on its chunk. *ret freed by the caller. */
static ssize_t take_pieces(struct object *o, uint64_t off, size_t len, struct piece **ret)
{
	struct chunk_table *t = o->store->chunks;
	uint64_t end = off + len;
	struct extmap *m;
	struct piece *p;
	size_t n = 0, i, last;

	pthread_mutex_lock(&o->mu);
	m = extmap_ref(o->under);
	i = extmap_find(m, off);
	for (last = i; last < m->n && m->e[last].off < end; last++)
		;
	p = calloc(last - i + 1, sizeof(*p));
	for (; p && i < last; i++) {
		const struct extent *e = &m->e[i];
		uint64_t from = e->off > off ? e->off : off;
		uint64_t to = e->off + e->len < end ? e->off + e->len : end;

		p[n].chunk = chunk_get(t, e->chunk);
		if (!p[n].chunk)
			continue;
		p[n].off = from;
		p[n].len = to - from;
		p[n].skip = e->skip + (from - e->off);
		n++;
	}
	pthread_mutex_unlock(&o->mu);
	extmap_unref(m);
	*ret = p;
	return p ? (ssize_t)n : -ENOMEM;
}

/* What the warm tier has is placed at once; requests are made for the rest. */
static size_t place_warm(struct read_job *j, struct piece *p, size_t n, struct segset_read_req *req)
{
	struct chunk_table *t = j->o->store->chunks;
	void *buf = NULL;
	size_t reqs = 0;

	for (size_t i = 0; i < n; i++) {
		struct chunk *c = p[i].chunk;
		bool got = false;

		if (c->warm) { /* a hint; warm_get looks under the lock */
			if (!buf)
				buf = malloc(CHUNK_MAX);
			got = buf && warm_get(t, c, buf) && place(j, &p[i], buf) == 0;
		}
		if (!got)
			req[reqs++] = (struct segset_read_req){ c->loc, &c->info, &p[i] };
	}
	free(buf);
	return reqs;
}

/* Gaps between the pieces read zeros. */
static void zero_gaps(char *buf, uint64_t off, size_t len, const struct piece *p, size_t n)
{
	uint64_t at = off;

	for (size_t i = 0; i < n; i++) {
		memset(buf + (at - off), 0, p[i].off - at);
		at = p[i].off + p[i].len;
	}
	memset(buf + (at - off), 0, off + len - at);
}

int fill_read_extents(struct object *o, void *buf, size_t len, uint64_t off)
{
	struct read_job j = { .o = o, .buf = buf, .off = off };
	struct segset_read_req *req;
	struct piece *p;
	ssize_t n = take_pieces(o, off, len, &p);
	size_t reqs;
	int r = 0;

	if (n < 0)
		return n;
	zero_gaps(buf, off, len, p, n);
	req = calloc(n + 1, sizeof(*req));
	if (req) {
		reqs = place_warm(&j, p, n, req);
		qsort(req, reqs, sizeof(*req), by_location);
		r = reqs ? segset_read_many(o->store->segs, req, reqs, on_payload, &j) : 0;
	} else {
		r = -ENOMEM;
	}
	if (j.err)
		r = j.err;
	for (ssize_t i = 0; i < n; i++)
		chunk_put(o->store->chunks, p[i].chunk);
	free(j.scratch);
	free(req);
	free(p);
	return r > 0 ? -EIO : r;
}

/* ---- extents to the image ---- */

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

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

/* Blocks [first, first + count) have been claimed. rw held, mu not. */
static int fill_window(struct object *o, uint64_t first, uint64_t count)
{
	uint64_t off = first * OBJECT_BLOCK, size, len;
	char *buf;
	int fd, r;

	pthread_mutex_lock(&o->mu);
	size = o->size;
	fd = image_wfd_get(o);
	pthread_mutex_unlock(&o->mu);
	len = off >= size ? 0 : size - off;
	if (len > count * OBJECT_BLOCK)
		len = count * OBJECT_BLOCK;
	rate_begin(o->store);
	buf = scratch_get(o->store);
	r = fd < 0 ? fd : !buf ? -ENOMEM : fill_read_extents(o, buf, len, off);
	if (!r)
		r = io_write_full(&io_system, fd, buf, len, off);
	scratch_put(o->store, buf);
	rate_end(o->store, r ? 0 : len);
	pthread_mutex_lock(&o->mu);
	blockmap_clear(&o->filling, first, count);
	if (!r)
		r = blockmap_set(&o->valid, first, count);
	else
		o->fill_error = r;
	if (fd >= 0) {
		image_note_blocks(o, fd);
		image_wfd_put(o);
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
	uint64_t b = 0, n;
	bool busy;
	int r = 0;

	pthread_mutex_lock(&o->mu);
	while (!r && o->image == IMAGE_PARTIAL) {
		n = claim(o, first, first + count, &b, &busy);
		if (n) {
			pthread_mutex_unlock(&o->mu);
			r = fill_window(o, b, n);
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

/* An image to fill, when there is none yet. */
static int start_image(struct object *o)
{
	int r = 0;
	uint64_t size;
	bool none;

	pthread_mutex_lock(&o->mu);
	none = o->image == IMAGE_NONE;
	size = o->size;
	pthread_mutex_unlock(&o->mu);
	if (!none)
		return 0;
	r = pool_make_room(o->store, size, NULL);
	if (r)
		return r;
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

/* One window of the background's. 1: done something; 0: nothing left to claim. */
static int fill_step(struct object *o)
{
	uint64_t b = 0, n = 0;
	bool busy;

	pthread_rwlock_rdlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	if (o->image == IMAGE_PARTIAL && !o->fill_error && !o->discarded) {
		n = claim(o, 0, object_blocks(o->size), &b, &busy);
		if (!n)
			finish_if_whole(o);
	}
	pthread_mutex_unlock(&o->mu);
	if (n)
		fill_window(o, b, n);
	pthread_rwlock_unlock(&o->rw);
	return n != 0;
}

int fill_whole(struct object *o)
{
	uint64_t n;
	int r = start_image(o);

	if (r)
		return r;
	fill_enqueue(o);
	while (fill_step(o))
		;
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
static struct object *queue_peek(struct fill_pool *p)
{
	struct object *o = NULL;

	pthread_mutex_lock(&p->lock);
	while (!p->stop && !p->n)
		pthread_cond_wait(&p->wake, &p->lock);
	if (!p->stop) {
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

static void *fill_worker(void *arg)
{
	struct store *s = arg;
	struct object *o;

	while ((o = queue_peek(s->fill))) {
		if (start_image(o) || !fill_step(o))
			queue_remove(s->fill, o);
		object_unref(o);
	}
	return NULL;
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
