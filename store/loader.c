/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader: the chunk table is read from meta.db. What takes about a second is read before the store is
 * open; of a larger table the rest follows in the background, a block of ids at a time, and at
 * once where a file needs one.
 *
 * The rows of a block that has not been read do not change: whoever is to change one needs its chunk in the
 * table first. Until all have been read, dedup finds what is there so far, and nothing dies: the live bytes
 * of a segment are not known before.
 */
#include "store/store_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#define BLOCK_IDS UINT64_C(4096)
#define AT_ONCE   1000000u /* rows */

/* By number, not in a bitmap: a row may have any id. */
struct block {
	UT_hash_handle hh;
	uint64_t n;
	bool loading;
};

struct loader {
	struct store *s;
	uint64_t max_id;           /* later chunks were never in meta.db when the table was read */
	atomic_uint_fast64_t rows; /* read so far */
	pthread_mutex_t lock;
	pthread_cond_t loaded_one;
	struct block *blocks; /* uthash by n, those that are loaded or being loaded; lock */
	atomic_bool all;
	atomic_bool stop;
	pthread_t thread;
	bool running;
};

static int load_chunk(void *arg, const struct meta_chunk *c)
{
	struct loader *l = arg;
	struct store *s = l->s;
	int r = chunk_load(s->chunks, c, true);

	atomic_fetch_add(&l->rows, 1);
	/* The journal had it, or a read that failed half way. */
	if (r == -EEXIST)
		return 0;
	return r ? r : seglive_load(s, c->loc, c->info.stored_len, false);
}

/* lock held, or nobody else left. */
static void drop(struct loader *l, struct block *b)
{
	HASH_DEL(l->blocks, b);
	free(b);
}

/* lock held. NULL when out of memory. */
static struct block *add(struct loader *l, uint64_t n)
{
	struct block *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->n = n;
	b->loading = true;
	HASH_ADD(hh, l->blocks, n, sizeof(b->n), b);
	if (b->hh.tbl)
		return b;
	free(b);
	return NULL;
}

/* The lock is held, and given up meanwhile. */
static int load_block(struct loader *l, uint64_t n)
{
	uint64_t last = n * BLOCK_IDS + BLOCK_IDS - 1;
	struct block *b = add(l, n);
	int r;

	if (!b)
		return -ENOMEM;
	pthread_mutex_unlock(&l->lock);
	r = meta_for_chunks(l->s->meta, n * BLOCK_IDS, last < l->max_id ? last : l->max_id,
			    load_chunk, l);
	pthread_mutex_lock(&l->lock);
	b->loading = false;
	if (r)
		drop(l, b);
	pthread_cond_broadcast(&l->loaded_one);
	return r;
}

static int need_block(struct loader *l, uint64_t n)
{
	struct block *b;
	int r = 0;

	pthread_mutex_lock(&l->lock);
	for (;;) {
		HASH_FIND(hh, l->blocks, &n, sizeof(n), b);
		if (!b || !b->loading)
			break;
		pthread_cond_wait(&l->loaded_one, &l->lock);
	}
	if (!b)
		r = load_block(l, n);
	pthread_mutex_unlock(&l->lock);
	return r;
}

int loader_need_id(struct store *s, uint64_t id)
{
	struct loader *l = s->loader;

	if (atomic_load(&l->all) || id > l->max_id)
		return 0;
	return need_block(l, id / BLOCK_IDS);
}

int loader_need(struct store *s, const struct extmap *m)
{
	uint64_t last = UINT64_MAX;
	int r = 0;

	if (atomic_load(&s->loader->all))
		return 0;
	for (size_t i = 0; i < m->n && !r; i++) {
		/* A file's chunks follow each other. */
		if (m->e[i].chunk / BLOCK_IDS != last)
			r = loader_need_id(s, m->e[i].chunk);
		last = m->e[i].chunk / BLOCK_IDS;
	}
	return r;
}

bool loader_done(struct store *s)
{
	return atomic_load(&s->loader->all);
}

/* From the first block on, until all are there, or so many rows, or the stop. 1: more are left. */
static int load_on(struct loader *l, uint64_t rows)
{
	uint64_t id = 0, max;
	int r;

	while (!(r = meta_next_chunk(l->s->meta, id, &id, &max))) {
		if (id > l->max_id)
			return 0;
		if (atomic_load(&l->rows) >= rows || atomic_load(&l->stop))
			return 1;
		r = need_block(l, id / BLOCK_IDS);
		if (r)
			return r;
		id = (id / BLOCK_IDS + 1) * BLOCK_IDS;
	}
	return r == -ENOENT ? 0 : r;
}

int loader_open(struct store *s)
{
	struct loader *l = calloc(1, sizeof(*l));
	uint64_t first;
	int r;

	if (!l)
		return -ENOMEM;
	l->s = s;
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->loaded_one, NULL);
	s->loader = l;
	r = meta_next_chunk(s->meta, 0, &first, &l->max_id);
	if (r && r != -ENOENT)
		return r;
	chunk_expect_ids(s->chunks, l->max_id);
	r = load_on(l, AT_ONCE);
	atomic_store(&l->all, !r);
	return r < 0 ? r : 0;
}

static void *load_rest(void *arg)
{
	struct loader *l = arg;
	struct store *s = l->s;
	int r = load_on(l, UINT64_MAX);

	if (!r && !s->read_only)
		segments_tidy(s);
	if (r < 0)
		store_log(
			s, LOG_ERR,
			"%s/meta.db: the chunk table cannot be read to its end: %s: no space is freed "
			"until then; restore the store from a copy",
			s->path, strerror(-r));
	if (!r)
		atomic_store(&l->all, true);
	return NULL;
}

int loader_start(struct store *s)
{
	struct loader *l = s->loader;
	int r;

	if (atomic_load(&l->all))
		return 0;
	r = -pthread_create(&l->thread, NULL, load_rest, l);
	l->running = !r;
	return r;
}

void loader_close(struct store *s)
{
	struct loader *l = s->loader;
	struct block *b, *next;

	if (!l)
		return;
	atomic_store(&l->stop, true);
	if (l->running)
		pthread_join(l->thread, NULL);
	HASH_ITER(hh, l->blocks, b, next)
		drop(l, b);
	pthread_cond_destroy(&l->loaded_one);
	pthread_mutex_destroy(&l->lock);
	free(l);
	s->loader = NULL;
}
