/* SPDX-License-Identifier: Apache-2.0 */
/* seglive: how many bytes of each segment belong to chunks that live, and which segments have news
 * for meta.db. */
#include "store/store_impl.h"

#include <errno.h>
#include <stdlib.h>

struct seg_live {
	UT_hash_handle hh;
	uint32_t n;
	uint64_t live;
	uint64_t end;     /* of the last record that was loaded */
	uint64_t held;    /* bytes its file occupied when gc.c looked; 0: it has not yet */
	int64_t died_ms;  /* when a chunk of it died last */
	int64_t retry_ms; /* not to be compacted before */
	bool look;        /* its file may occupy less than that */
	bool touched;     /* appended to since its row was written */
	bool fresh;       /* has chunks that meta.db did not know when the store was opened */
};

/* seg_lock held. */
static struct seg_live *find(struct store *s, uint32_t segment)
{
	struct seg_live *v;

	HASH_FIND(hh, s->seg_live, &segment, sizeof(segment), v);
	return v;
}

/* By number, not an array: a row may name any. seg_lock held. NULL when out of memory. */
static struct seg_live *get(struct store *s, uint32_t segment)
{
	struct seg_live *v = find(s, segment);

	if (v)
		return v;
	v = calloc(1, sizeof(*v));
	if (!v)
		return NULL;
	v->n = segment;
	v->look = true;
	HASH_ADD(hh, s->seg_live, n, sizeof(v->n), v);
	if (v->hh.tbl)
		return v;
	free(v);
	return NULL;
}

/* seg_lock held. NULL when out of memory. */
static struct seg_live *add(struct store *s, uint32_t segment, int64_t bytes)
{
	struct seg_live *v = get(s, segment);

	if (v) {
		v->live += (uint64_t)bytes;
		v->touched |= bytes > 0;
	}
	if (v && bytes < 0) {
		v->look = true;
		v->died_ms = now_ms();
	}
	return v;
}

/* What meta.db knows already is no news for it. */
int seglive_load(struct store *s, struct segment_loc loc, uint32_t stored_len, bool fresh)
{
	uint64_t end = (uint64_t)loc.offset * RECORD_ALIGN + record_size(stored_len);
	struct seg_live *v;

	pthread_mutex_lock(&s->seg_lock);
	v = get(s, loc.segment);
	if (v) {
		v->live += record_size(stored_len);
		v->fresh |= fresh;
		v->touched |= fresh;
		if (v->end < end)
			v->end = end;
	}
	pthread_mutex_unlock(&s->seg_lock);
	return v ? 0 : -ENOMEM;
}

uint64_t seglive_end(struct store *s, uint32_t segment, bool *ret_fresh)
{
	struct seg_live *v;
	uint64_t end;

	pthread_mutex_lock(&s->seg_lock);
	v = find(s, segment);
	end = v ? v->end : 0;
	*ret_fresh = v && v->fresh;
	pthread_mutex_unlock(&s->seg_lock);
	return end;
}

int seglive_add(struct store *s, uint32_t segment, int64_t bytes)
{
	bool done;

	pthread_mutex_lock(&s->seg_lock);
	done = add(s, segment, bytes);
	pthread_mutex_unlock(&s->seg_lock);
	return done ? 0 : -ENOMEM;
}

uint64_t seglive_get(struct store *s, uint32_t segment)
{
	struct seg_live *v;
	uint64_t live;

	pthread_mutex_lock(&s->seg_lock);
	v = find(s, segment);
	live = v ? v->live : 0;
	pthread_mutex_unlock(&s->seg_lock);
	return live;
}

bool seglive_gone(struct store *s, uint32_t segment)
{
	bool gone;

	pthread_mutex_lock(&s->seg_lock);
	gone = !find(s, segment);
	pthread_mutex_unlock(&s->seg_lock);
	return gone;
}

size_t seglive_segments(struct store *s, uint32_t *ret, size_t max)
{
	size_t n = 0;

	pthread_mutex_lock(&s->seg_lock);
	for (struct seg_live *v = s->seg_live; v && n < max; v = v->hh.next)
		if (v->touched) {
			v->touched = false;
			ret[n++] = v->n;
		}
	pthread_mutex_unlock(&s->seg_lock);
	return n;
}

uint32_t seglive_highest(struct store *s)
{
	uint32_t highest = 0;

	pthread_mutex_lock(&s->seg_lock);
	for (struct seg_live *v = s->seg_live; v; v = v->hh.next)
		if (v->n > highest)
			highest = v->n;
	pthread_mutex_unlock(&s->seg_lock);
	return highest;
}

size_t seglive_count(struct store *s)
{
	size_t n;

	pthread_mutex_lock(&s->seg_lock);
	n = HASH_COUNT(s->seg_live);
	pthread_mutex_unlock(&s->seg_lock);
	return n;
}

/* seg_lock held, or nobody else left. */
static void drop(struct store *s, struct seg_live *v)
{
	HASH_DEL(s->seg_live, v);
	free(v);
}

void seglive_forget(struct store *s, uint32_t segment)
{
	struct seg_live *v;

	pthread_mutex_lock(&s->seg_lock);
	v = find(s, segment);
	if (v)
		drop(s, v);
	pthread_mutex_unlock(&s->seg_lock);
}

size_t seglive_list(struct store *s, struct segment_use **ret)
{
	struct segment_use *u;
	size_t n = 0;

	pthread_mutex_lock(&s->seg_lock);
	u = calloc(HASH_COUNT(s->seg_live) + 1, sizeof(*u));
	for (struct seg_live *v = s->seg_live; u && v; v = v->hh.next)
		u[n++] = (struct segment_use){
			.segment = v->n,
			.look = v->look,
			.live = v->live,
			.held = v->held,
			.died_ms = v->died_ms,
			.retry_ms = v->retry_ms,
		};
	pthread_mutex_unlock(&s->seg_lock);
	*ret = u;
	return n;
}

void seglive_looked(struct store *s, uint32_t segment, uint64_t held)
{
	struct seg_live *v;

	pthread_mutex_lock(&s->seg_lock);
	v = find(s, segment);
	if (v) {
		v->held = held;
		v->look = false;
	}
	pthread_mutex_unlock(&s->seg_lock);
}

void seglive_put_off(struct store *s, uint32_t segment, int64_t until_ms)
{
	struct seg_live *v;

	pthread_mutex_lock(&s->seg_lock);
	v = find(s, segment);
	if (v)
		v->retry_ms = until_ms;
	pthread_mutex_unlock(&s->seg_lock);
}

void seglive_retry(struct store *s)
{
	pthread_mutex_lock(&s->seg_lock);
	for (struct seg_live *v = s->seg_live; v; v = v->hh.next)
		if (v->retry_ms != INT64_MAX)
			v->retry_ms = 0;
	pthread_mutex_unlock(&s->seg_lock);
}

void seglive_free(struct store *s)
{
	struct seg_live *v, *next;

	HASH_ITER(hh, s->seg_live, v, next)
		drop(s, v);
}
