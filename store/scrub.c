/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub: reads every live chunk of a mounted store now and then, at a bounded rate, and says which are
 * damaged: the record, its sums, and that what it decodes to has the length and the hash it should.
 *
 * In the order of chunk ids, which is that of the segments but for what was moved. A pass takes the ids
 * there were when it began; the next begins a day after it, and one that is cut short goes on at the
 * next mount. Nothing is repaired here: what is damaged is not shared any more, so that the same
 * content is stored anew when it is written again.
 *
 * Readers must not notice: reads have the idle I/O priority and go past the page cache, and whatever
 * the rate no more than a fortieth of the processors' time is taken. SCHED_IDLE would not do: it
 * counts within a control group or a session only, and readers are in others.
 */
#include "store/store_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/ioprio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <unistd.h>

#define PASS_S    86400 /* from the beginning of a pass to that of the next */
#define SAVE_S    300   /* the position is written so often */
#define RETRY_MS  60000 /* after an error that says nothing about the chunk */
#define CPU_SHARE 40    /* one part in so many of the processors' time */
#define POLL_MS   1000  /* for the table to be loaded, for the next pass to be due */

#define BATCH       256u       /* chunks read at once */
#define BATCH_BYTES (1u << 20) /* and about as many bytes */
#define KNOWN_MAX   1024u      /* damaged chunks that are remembered and named */
#define USERS_MAX   64u        /* inodes that a line names */

struct scrub {
	struct store *s;
	uint64_t rate; /* bytes/s */
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop;              /* lock */
	struct scrub_status st; /* lock; the thread alone changes it */

	/* the thread's */
	uint8_t *payload, *raw; /* RECORD_MAX bytes each */
	int64_t due_us;         /* when the bytes so far may have been read */
	int64_t saved_ms;
	uint64_t known[KNOWN_MAX];
	size_t known_n;
	bool known_new; /* some were found in this pass */
};

static int64_t clock_us(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* False: it is to end. */
static bool sleep_until(struct scrub *x, int64_t until_us)
{
	struct timespec ts = { until_us / 1000000, until_us % 1000000 * 1000 };
	bool stop;
	int r = 0;

	pthread_mutex_lock(&x->lock);
	while (!x->stop && r != ETIMEDOUT)
		r = pthread_cond_timedwait(&x->wake, &x->lock, &ts);
	stop = x->stop;
	pthread_mutex_unlock(&x->lock);
	return !stop;
}

static bool sleep_ms(struct scrub *x, int64_t ms)
{
	return sleep_until(x, clock_us(CLOCK_MONOTONIC) + ms * 1000);
}

/* After a batch of so many bytes, begun at began_us, that took so much of a processor. What is late
 * stays late: a device that was slow is not asked for more afterwards. */
static bool pace(struct scrub *x, uint64_t bytes, int64_t began_us, int64_t cpu_us)
{
	int64_t by_rate = (int64_t)((double)bytes * 1e6 / (double)x->rate);
	int64_t by_cpu = cpu_us * CPU_SHARE / x->s->processors;

	if (x->due_us < began_us)
		x->due_us = began_us;
	x->due_us += by_rate > by_cpu ? by_rate : by_cpu;
	return sleep_until(x, x->due_us);
}

/* ---- what is damaged ---- */

static void report(struct scrub *x, const struct chunk *c, struct segment_loc loc, int err)
{
	uint64_t id = c->info.chunk_id;
	bool known = false;

	for (size_t i = 0; i < x->known_n && !known; i++)
		known = x->known[i] == id;
	pthread_mutex_lock(&x->lock);
	x->st.pass_damaged++;
	x->st.damaged_total += !known;
	pthread_mutex_unlock(&x->lock);
	if (known || x->known_n == KNOWN_MAX)
		return;
	x->known[x->known_n++] = id;
	x->known_new = true;
	store_log(x->s, LOG_ERR,
		  "scrub: chunk %" PRIu64 " in segment %08x at %" PRIu64
		  " is damaged (%s): reads of what uses it give EIO",
		  id, loc.segment, (uint64_t)loc.offset * RECORD_ALIGN, strerror(-err));
	if (x->known_n == KNOWN_MAX)
		store_log(x->s, LOG_ERR, "scrub: %u damaged chunks: further ones are only counted",
			  KNOWN_MAX);
}

/* What a payload with the right sum says. */
static int check_content(struct scrub *x, const struct record_info *info, const void *payload)
{
	const struct codec *codec = codec_by_id(info->codec);

	if (!codec || info->raw_len > RECORD_MAX)
		return -EBADMSG;
	if (info->codec == CODEC_RAW) {
		if (info->stored_len != info->raw_len)
			return -EBADMSG;
	} else {
		if (codec->decode(payload, info->stored_len, x->raw, info->raw_len, info->params))
			return -EBADMSG;
		payload = x->raw;
	}
	return hash128_equal(x->s->hash(payload, info->raw_len), info->hash) ? 0 : -EBADMSG;
}

/* The first look failed: alone, so that no neighbour and no passing failure decides; and where it is now, if
 * compaction has moved it. */
static int look_again(struct scrub *x, const struct chunk *c, struct segment_loc *ret_loc)
{
	int r;

	do {
		*ret_loc = chunk_loc(c);
		r = segset_read(x->s->segs, *ret_loc, &c->info, x->payload);
		if (!r)
			r = check_content(x, &c->info, x->payload);
	} while (r && !chunk_is_at(c, *ret_loc));
	return r;
}

/* ---- a batch ---- */

struct batch {
	struct scrub *x;
	struct chunk *chunk[BATCH];
	struct segset_read_req req[BATCH];
	bool failed[BATCH];
	size_t n;
	uint64_t bytes;
};

static int on_record(void *arg, const struct segset_read_req *req, const void *payload, int err)
{
	struct batch *b = arg;

	if (!err)
		err = check_content(b->x, req->info, payload);
	*(bool *)req->user = err != 0;
	return 0;
}

static int read_batch(struct batch *b)
{
	for (size_t i = 0; i < b->n; i++) {
		struct chunk *c = b->chunk[i];

		b->failed[i] = false;
		b->req[i] = (struct segset_read_req){ chunk_loc(c), &c->info, &b->failed[i] };
	}
	qsort(b->req, b->n, sizeof(*b->req), segset_by_location);
	return segset_read_many(b->x->s->segs, b->req, b->n, on_record, b);
}

static int check_failed(struct batch *b)
{
	struct scrub *x = b->x;
	struct segment_loc loc;
	int r = 0;

	for (size_t i = 0; i < b->n && !r; i++) {
		if (!b->failed[i])
			continue;
		r = look_again(x, b->chunk[i], &loc);
		if (r == -EBADMSG || r == -EIO) {
			report(x, b->chunk[i], loc, r);
			chunk_unshare(x->s->chunks, b->chunk[i]);
			r = 0;
		}
	}
	return r;
}

/* From the position on. *ret_next: where the next one begins. */
static int scrub_batch(struct scrub *x, struct batch *b, uint64_t *ret_next)
{
	struct chunk_table *t = x->s->chunks;
	int r = 0;

	b->x = x;
	b->n = chunk_walk(t, x->st.next, x->st.last, b->chunk, BATCH, BATCH_BYTES, ret_next);
	b->bytes = 0;
	for (size_t i = 0; i < b->n; i++)
		b->bytes += record_size(b->chunk[i]->info.stored_len);
	if (b->n)
		r = read_batch(b);
	if (!r)
		r = check_failed(b);
	for (size_t i = 0; i < b->n; i++)
		chunk_put(t, b->chunk[i]);
	return r;
}

/* ---- who uses it ---- */

struct users {
	const struct scrub *x;
	uint64_t ino[USERS_MAX];
	size_t n, all;
};

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int note_user(void *arg, uint64_t ino, const struct extmap *m)
{
	struct users *u = arg;

	for (size_t i = 0; i < m->n; i++) {
		if (!bsearch(&m->e[i].chunk, u->x->known, u->x->known_n, sizeof(uint64_t),
			     by_number))
			continue;
		if (u->n < USERS_MAX)
			u->ino[u->n++] = ino;
		u->all++;
		break;
	}
	return 0;
}

/* Reads the extents of all files, so only where something new is damaged. */
static void name_users(struct scrub *x)
{
	struct users u = { .x = x };
	char line[USERS_MAX * 21 + 1] = "";
	size_t at = 0;

	if (!x->known_new)
		return;
	x->known_new = false;
	qsort(x->known, x->known_n, sizeof(x->known[0]), by_number);
	if (meta_for_extents(x->s->meta, note_user, &u))
		return;
	for (size_t i = 0; i < u.n; i++)
		at += (size_t)snprintf(line + at, sizeof(line) - at, " %" PRIu64, u.ino[i]);
	store_log(x->s, LOG_ERR,
		  "scrub: %zu files have damaged chunks; inodes%s%s: find -inum tells their names",
		  u.all, line, u.all > u.n ? " and others" : "");
}

/* ---- passes ---- */

static void save(struct scrub *x)
{
	struct meta_txn *t;

	x->saved_ms = now_ms();
	if (x->s->read_only || meta_txn_begin(x->s->meta, x->s, &t))
		return;
	/* What is lost is read again. */
	if (meta_put_scrub(t, &x->st))
		meta_txn_abort(t);
	else
		(void)meta_txn_commit(t, false);
}

static void begin_pass(struct scrub *x)
{
	pthread_mutex_lock(&x->lock);
	x->st.next = 1;
	x->st.last = chunk_last_id(x->s->chunks);
	x->st.pass_damaged = 0;
	x->st.began = time(NULL);
	pthread_mutex_unlock(&x->lock);
	save(x);
}

static void end_pass(struct scrub *x)
{
	pthread_mutex_lock(&x->lock);
	x->st.ended = time(NULL);
	pthread_mutex_unlock(&x->lock);
	name_users(x);
	save(x);
	if (x->st.pass_damaged)
		store_log(x->s, LOG_ERR, "scrub: the pass has found %" PRIu64 " damaged chunks",
			  x->st.pass_damaged);
}

static bool under_way(const struct scrub *x)
{
	return x->st.began && x->st.next <= x->st.last;
}

/* A clock that was set back must not put it off for long. */
static bool is_due(const struct scrub *x)
{
	int64_t now = time(NULL);

	return now >= x->st.began + PASS_S || now < x->st.began;
}

/* One step of a pass. False: it is to end. */
static bool step(struct scrub *x, struct batch *b)
{
	int64_t began_us = clock_us(CLOCK_MONOTONIC);
	int64_t cpu_us = clock_us(CLOCK_THREAD_CPUTIME_ID);
	uint64_t next;

	if (scrub_batch(x, b, &next))
		return sleep_ms(x, RETRY_MS);
	pthread_mutex_lock(&x->lock);
	x->st.next = next;
	x->st.bytes_total += b->bytes;
	x->st.chunks_total += b->n;
	pthread_mutex_unlock(&x->lock);
	if (!under_way(x))
		end_pass(x);
	else if (now_ms() - x->saved_ms >= SAVE_S * 1000)
		save(x);
	return pace(x, b->bytes, began_us, clock_us(CLOCK_THREAD_CPUTIME_ID) - cpu_us);
}

static void *scrub_main(void *arg)
{
	struct scrub *x = arg;
	struct batch *b = malloc(sizeof(*b));
	bool on = b;

	syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0));
	while (on && !loader_done(x->s))
		on = sleep_ms(x, POLL_MS);
	x->saved_ms = now_ms();
	while (on) {
		if (!under_way(x) && !is_due(x)) {
			on = sleep_ms(x, POLL_MS);
			continue;
		}
		if (!under_way(x))
			begin_pass(x);
		on = step(x, b);
	}
	/* Where the next mount goes on. */
	if (b && under_way(x))
		save(x);
	free(b);
	return NULL;
}

/* ---- the calls ---- */

static void scrub_free(struct scrub *x)
{
	pthread_cond_destroy(&x->wake);
	pthread_mutex_destroy(&x->lock);
	free(x->payload);
	free(x->raw);
	free(x);
}

static struct scrub *scrub_new(struct store *s)
{
	struct scrub *x = calloc(1, sizeof(*x));
	pthread_condattr_t attr;

	if (!x)
		return NULL;
	x->s = s;
	x->rate = s->opt.scrub_rate;
	pthread_mutex_init(&x->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&x->wake, &attr);
	pthread_condattr_destroy(&attr);
	x->payload = malloc(RECORD_MAX);
	x->raw = malloc(RECORD_MAX);
	if (x->payload && x->raw)
		return x;
	scrub_free(x);
	return NULL;
}

int scrub_start(struct store *s)
{
	struct scrub *x;
	int r;

	if (!s->opt.scrub_rate)
		return 0;
	x = scrub_new(s);
	if (!x)
		return -ENOMEM;
	r = meta_get_scrub(s->meta, &x->st);
	if (!r)
		r = -pthread_create(&x->thread, NULL, scrub_main, x);
	if (r) {
		scrub_free(x);
		return r;
	}
	s->scrub = x;
	return 0;
}

void scrub_stop(struct store *s)
{
	struct scrub *x = s->scrub;

	if (!x)
		return;
	pthread_mutex_lock(&x->lock);
	x->stop = true;
	pthread_cond_signal(&x->wake);
	pthread_mutex_unlock(&x->lock);
	pthread_join(x->thread, NULL);
	s->scrub = NULL;
	scrub_free(x);
}

void scrub_get_status(struct store *s, struct scrub_status *ret)
{
	struct scrub *x = s->scrub;

	*ret = (struct scrub_status){ 0 };
	if (!x)
		return;
	pthread_mutex_lock(&x->lock);
	*ret = x->st;
	ret->rate = x->rate;
	pthread_mutex_unlock(&x->lock);
}
