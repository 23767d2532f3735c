/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunk table. An open-addressing table of pointers by id costs 12 to 24 bytes a chunk, and 36 while it
 * grows, beside the struct itself; by content, the index names candidates.
 */
#include "store/chunk.h"
#include "store/chunker.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

struct warm {
	TAILQ_ENTRY(warm) lru;
	struct chunk *chunk;
	unsigned char payload[];
};

struct ptable {
	struct chunk **slot;
	size_t size; /* a power of two */
	size_t used; /* tombstones included */
	size_t live;
};

#define TOMBSTONE ((struct chunk *)-1)

#define WALK_IDS 1024u /* that one step of a walk looks at */

struct chunk_table {
	pthread_mutex_t lock;
	struct ptable by_id;
	struct index *index;
	uint64_t next_id;
	bool recovered;
	LIST_HEAD(, chunk) dead;
	struct chunk_totals totals;
	uint64_t warm_budget;
	TAILQ_HEAD(, warm) warm_lru; /* oldest first */
};

/* Fibonacci hashing: ids are sequential, so spread them. */
static uint64_t key_id(uint64_t id)
{
	return id * 0x9e3779b97f4a7c15ull >> 16;
}

static uint64_t key_content(const struct chunk_table *t, const struct chunk *c)
{
	return index_key(t->index, c->info.tenant, c->info.hash, c->info.raw_len);
}

static int ptable_grow(struct ptable *p)
{
	size_t size = p->size;
	struct chunk **slot;

	while (size < 1024 || (p->live + 1) * 2 > size)
		size = size ? size * 2 : 1024;
	slot = calloc(size, sizeof(*slot));
	if (!slot)
		return -ENOMEM;
	for (size_t i = 0; i < p->size; i++) {
		struct chunk *c = p->slot[i];
		size_t k;

		if (!c || c == TOMBSTONE)
			continue;
		for (k = key_id(c->info.chunk_id) & (size - 1); slot[k]; k = (k + 1) & (size - 1))
			;
		slot[k] = c;
	}
	free(p->slot);
	p->slot = slot;
	p->size = size;
	p->used = p->live;
	return 0;
}

/* Makes sure that one more fits, so that an insert cannot fail. */
static int ptable_reserve(struct ptable *p)
{
	return (p->used + 1) * 3 > p->size * 2 ? ptable_grow(p) : 0;
}

static void ptable_insert(struct ptable *p, struct chunk *c)
{
	size_t k = key_id(c->info.chunk_id) & (p->size - 1);

	while (p->slot[k] && p->slot[k] != TOMBSTONE)
		k = (k + 1) & (p->size - 1);
	if (!p->slot[k])
		p->used++;
	p->slot[k] = c;
	p->live++;
}

static void ptable_remove(struct ptable *p, struct chunk *c)
{
	size_t k = key_id(c->info.chunk_id) & (p->size - 1);

	while (p->slot[k] != c)
		k = (k + 1) & (p->size - 1);
	p->slot[k] = TOMBSTONE;
	p->live--;
}

static struct chunk *find_id(struct chunk_table *t, uint64_t id)
{
	struct ptable *p = &t->by_id;

	if (!p->size)
		return NULL;
	for (size_t k = key_id(id) & (p->size - 1); p->slot[k]; k = (k + 1) & (p->size - 1))
		if (p->slot[k] != TOMBSTONE && p->slot[k]->info.chunk_id == id)
			return p->slot[k];
	return NULL;
}

int chunk_table_new(uint64_t warm_budget, uint64_t index_budget, struct chunk_table **ret)
{
	struct chunk_table *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	r = index_new(index_budget, &t->index);
	if (r) {
		free(t);
		return r;
	}
	pthread_mutex_init(&t->lock, NULL);
	TAILQ_INIT(&t->warm_lru);
	LIST_INIT(&t->dead);
	t->warm_budget = warm_budget;
	t->next_id = 1;
	*ret = t;
	return 0;
}

static void warm_drop(struct chunk_table *t, struct chunk *c)
{
	struct warm *w = c->state == CHUNK_LIVE ? c->warm : NULL;

	if (!w)
		return;
	TAILQ_REMOVE(&t->warm_lru, w, lru);
	t->totals.warm_bytes -= c->info.stored_len;
	c->warm = NULL;
	free(w);
}

void chunk_table_free(struct chunk_table *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->by_id.size; i++) {
		struct chunk *c = t->by_id.slot[i];

		if (!c || c == TOMBSTONE)
			continue;
		if (c->state == CHUNK_LIVE)
			free(c->warm);
		free(c);
	}
	free(t->by_id.slot);
	index_free(t->index);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

void chunk_table_totals(struct chunk_table *t, struct chunk_totals *ret)
{
	pthread_mutex_lock(&t->lock);
	*ret = t->totals;
	index_totals(t->index, &ret->index);
	pthread_mutex_unlock(&t->lock);
}

static void count(struct chunk_table *t, const struct chunk *c, int sign)
{
	t->totals.chunks += sign;
	t->totals.unique_bytes += sign * (int64_t)c->info.raw_len;
	t->totals.stored_bytes += sign * (int64_t)record_size(c->info.stored_len);
}

/* Lock held. */
static void die_if_unused(struct chunk_table *t, struct chunk *c)
{
	if (c->refs_db || c->refs_mem || c->in_txn || c->state != CHUNK_LIVE)
		return;
	warm_drop(t, c);
	c->state = CHUNK_DEAD;
	LIST_INSERT_HEAD(&t->dead, c, dead);
	count(t, c, -1);
}

/* Lock held. */
static void revive(struct chunk_table *t, struct chunk *c)
{
	if (c->state != CHUNK_DEAD)
		return;
	LIST_REMOVE(c, dead);
	c->state = CHUNK_LIVE;
	c->warm = NULL;
	count(t, c, 1);
}

/* Lock held. Takes over c. */
static int insert(struct chunk_table *t, struct chunk *c)
{
	if (ptable_reserve(&t->by_id)) {
		free(c);
		return -ENOMEM;
	}
	ptable_insert(&t->by_id, c);
	index_add(t->index, key_content(t, c), c->info.chunk_id);
	if (c->info.chunk_id >= t->next_id)
		t->next_id = c->info.chunk_id + 1;
	count(t, c, 1);
	return 0;
}

/* What a row or the journal says that no chunk can be. Lengths are those of buffers. */
static bool can_be(const struct record_info *info)
{
	return info->chunk_id && info->chunk_id <= META_NUMBER_MAX && info->raw_len &&
	       info->raw_len <= CHUNK_MAX && info->stored_len && info->stored_len <= CHUNK_MAX;
}

int chunk_load(struct chunk_table *t, const struct meta_chunk *m, bool persisted)
{
	struct chunk *c;
	int r = -EEXIST;

	if (!can_be(&m->info))
		return -EUCLEAN;

	pthread_mutex_lock(&t->lock);
	if (!find_id(t, m->info.chunk_id)) {
		c = calloc(1, sizeof(*c));
		r = -ENOMEM;
		if (c) {
			c->info = m->info;
			c->loc = m->loc;
			c->refs_db = m->refs;
			c->persisted = persisted;
			r = insert(t, c);
		}
		if (!r && t->recovered)
			die_if_unused(t, c);
	}
	pthread_mutex_unlock(&t->lock);
	return r;
}

void chunk_settle_dead(struct chunk_table *t)
{
	pthread_mutex_lock(&t->lock);
	t->recovered = true;
	for (size_t i = 0; i < t->by_id.size; i++)
		if (t->by_id.slot[i] && t->by_id.slot[i] != TOMBSTONE)
			die_if_unused(t, t->by_id.slot[i]);
	pthread_mutex_unlock(&t->lock);
}

void chunk_expect_ids(struct chunk_table *t, uint64_t max)
{
	pthread_mutex_lock(&t->lock);
	if (max >= t->next_id)
		t->next_id = max + 1;
	pthread_mutex_unlock(&t->lock);
}

uint64_t chunk_next_id(struct chunk_table *t)
{
	uint64_t id;

	pthread_mutex_lock(&t->lock);
	id = t->next_id++;
	pthread_mutex_unlock(&t->lock);
	return id;
}

struct chunk *chunk_get(struct chunk_table *t, uint64_t id)
{
	struct chunk *c;

	pthread_mutex_lock(&t->lock);
	c = find_id(t, id);
	if (c && c->state == CHUNK_REAPED)
		c = NULL;
	if (c) {
		revive(t, c);
		c->refs_mem++;
	}
	pthread_mutex_unlock(&t->lock);
	return c;
}

void chunk_put(struct chunk_table *t, struct chunk *c)
{
	pthread_mutex_lock(&t->lock);
	c->refs_mem--;
	die_if_unused(t, c);
	pthread_mutex_unlock(&t->lock);
}

int chunk_hold_at(struct chunk_table *t, uint64_t id, struct segment_loc loc, struct chunk **ret)
{
	struct chunk *c;
	int r = 0;

	pthread_mutex_lock(&t->lock);
	c = find_id(t, id);
	if (c && (c->state != CHUNK_LIVE || !chunk_is_at(c, loc)))
		c = NULL;
	if (c && (!c->persisted || c->flight))
		r = -EBUSY;
	if (c && !r)
		c->refs_mem++;
	pthread_mutex_unlock(&t->lock);
	if (!r)
		*ret = c;
	return r;
}

void chunk_move(struct chunk *c, struct segment_loc loc)
{
	__atomic_store(&c->loc, &loc, __ATOMIC_RELEASE);
}

struct chunk *chunk_add(struct chunk_table *t, const struct record_info *info,
			struct segment_loc loc)
{
	struct chunk *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->info = *info;
	c->loc = loc;
	c->refs_mem = 1;
	pthread_mutex_lock(&t->lock);
	if (insert(t, c))
		c = NULL;
	pthread_mutex_unlock(&t->lock);
	return c;
}

static bool same_content(const struct chunk *c, uint32_t tenant, struct hash128 h, uint32_t len)
{
	return c->info.hash.lo == h.lo && c->info.hash.hi == h.hi && c->info.tenant == tenant &&
	       c->info.raw_len == len && c->state != CHUNK_REAPED;
}

struct chunk *chunk_find(struct chunk_table *t, uint32_t tenant, struct hash128 hash,
			 uint32_t raw_len, struct chunk *prev)
{
	uint64_t key = index_key(t->index, tenant, hash, raw_len);
	uint64_t id = prev ? prev->info.chunk_id : 0;
	struct chunk *found = NULL;

	pthread_mutex_lock(&t->lock);
	while (!found && (id = index_next(t->index, key, id))) {
		struct chunk *c = find_id(t, id);

		if (c && same_content(c, tenant, hash, raw_len))
			found = c;
	}
	if (found) {
		revive(t, found);
		found->refs_mem++;
	}
	if (prev) {
		prev->refs_mem--;
		die_if_unused(t, prev);
	}
	pthread_mutex_unlock(&t->lock);
	return found;
}

void chunk_unshare(struct chunk_table *t, struct chunk *c)
{
	pthread_mutex_lock(&t->lock);
	index_remove(t->index, key_content(t, c), c->info.chunk_id);
	pthread_mutex_unlock(&t->lock);
}

size_t chunk_walk(struct chunk_table *t, uint64_t from, uint64_t last, struct chunk **ret,
		  size_t max, uint64_t bytes, uint64_t *ret_next)
{
	/* Ids may have large gaps, which are not gone over under the lock at once. */
	uint64_t id = from, end = last - from < WALK_IDS ? last + 1 : from + WALK_IDS, sum = 0;
	size_t n = 0;

	if (from > last) {
		*ret_next = from;
		return 0;
	}
	pthread_mutex_lock(&t->lock);
	for (; id < end && n < max && sum < bytes; id++) {
		struct chunk *c = find_id(t, id);

		if (!c || c->state != CHUNK_LIVE)
			continue;
		c->refs_mem++;
		sum += c->info.stored_len;
		ret[n++] = c;
	}
	pthread_mutex_unlock(&t->lock);
	*ret_next = id;
	return n;
}

uint64_t chunk_last_id(struct chunk_table *t)
{
	uint64_t last;

	pthread_mutex_lock(&t->lock);
	last = t->next_id - 1;
	pthread_mutex_unlock(&t->lock);
	return last;
}

int chunk_ref_map(struct chunk_table *t, const struct extmap *m)
{
	size_t i;

	pthread_mutex_lock(&t->lock);
	for (i = 0; i < m->n; i++) {
		struct chunk *c = find_id(t, m->e[i].chunk);

		if (!c || c->state == CHUNK_REAPED ||
		    (uint64_t)m->e[i].skip + m->e[i].len > c->info.raw_len)
			break;
		revive(t, c);
		c->refs_mem++;
	}
	if (i < m->n)
		for (size_t k = 0; k < i; k++) {
			struct chunk *c = find_id(t, m->e[k].chunk);

			c->refs_mem--;
			die_if_unused(t, c);
		}
	pthread_mutex_unlock(&t->lock);
	return i < m->n ? -EUCLEAN : 0;
}

void chunk_unref_map(struct chunk_table *t, const struct extmap *m)
{
	if (!m)
		return;
	pthread_mutex_lock(&t->lock);
	for (size_t i = 0; i < m->n; i++) {
		struct chunk *c = find_id(t, m->e[i].chunk);

		c->refs_mem--;
		die_if_unused(t, c);
	}
	pthread_mutex_unlock(&t->lock);
}

uint64_t chunk_map_stored(struct chunk_table *t, const struct extmap *m)
{
	uint64_t sum = 0;

	pthread_mutex_lock(&t->lock);
	for (size_t i = 0; i < m->n; i++) {
		const struct chunk *c = find_id(t, m->e[i].chunk);

		if (c)
			sum += c->info.stored_len;
	}
	pthread_mutex_unlock(&t->lock);
	return sum;
}

uint64_t chunk_range_stored(struct chunk_table *t, const struct extmap *m, uint64_t from,
			    uint64_t to)
{
	uint64_t sum = 0;

	pthread_mutex_lock(&t->lock);
	for (size_t i = extmap_find(m, from); i < m->n && m->e[i].off < to; i++) {
		const struct extent *e = &m->e[i];
		const struct chunk *c = find_id(t, e->chunk);
		uint64_t begin = e->off > from ? e->off : from;
		uint64_t end = e->off + e->len < to ? e->off + e->len : to;

		if (c)
			sum += c->info.stored_len * (end - begin) / e->len;
	}
	pthread_mutex_unlock(&t->lock);
	return sum;
}

int chunk_db_add(struct chunk_table *t, uint64_t id, int delta)
{
	struct chunk *c;
	int what = 0;

	pthread_mutex_lock(&t->lock);
	c = find_id(t, id);
	if (c && c->state != CHUNK_REAPED) {
		revive(t, c);
		c->in_txn++;
		c->refs_db += delta;
		what = c->persisted ? 2 : 1;
		c->flight |= !c->persisted;
		c->persisted = true;
	}
	pthread_mutex_unlock(&t->lock);
	return what;
}

void chunk_db_row(struct chunk_table *t, uint64_t id, struct meta_chunk *ret)
{
	const struct chunk *c;

	pthread_mutex_lock(&t->lock);
	c = find_id(t, id);
	*ret = (struct meta_chunk){ .info = c->info, .loc = chunk_loc(c), .refs = c->refs_db };
	pthread_mutex_unlock(&t->lock);
}

void chunk_db_undo(struct chunk_table *t, uint64_t id, int delta, bool was_new)
{
	struct chunk *c;

	pthread_mutex_lock(&t->lock);
	c = find_id(t, id);
	if (c) {
		c->in_txn--;
		c->refs_db -= delta;
		if (was_new)
			c->persisted = c->flight = false;
		die_if_unused(t, c);
	}
	pthread_mutex_unlock(&t->lock);
}

bool chunk_needs_journal(struct chunk_table *t, const struct chunk *c)
{
	bool needs;

	pthread_mutex_lock(&t->lock);
	needs = !c->persisted || c->flight;
	pthread_mutex_unlock(&t->lock);
	return needs;
}

void chunk_db_landed(struct chunk_table *t, uint64_t id, bool was_new)
{
	struct chunk *c;

	pthread_mutex_lock(&t->lock);
	c = find_id(t, id);
	if (c) {
		c->in_txn--;
		if (was_new)
			c->flight = false;
		die_if_unused(t, c);
	}
	pthread_mutex_unlock(&t->lock);
}

size_t chunk_reap(struct chunk_table *t, struct chunk **ret, size_t max)
{
	size_t n = 0;

	pthread_mutex_lock(&t->lock);
	while (n < max && !LIST_EMPTY(&t->dead)) {
		struct chunk *c = LIST_FIRST(&t->dead);

		LIST_REMOVE(c, dead);
		c->state = CHUNK_REAPED;
		ret[n++] = c;
	}
	pthread_mutex_unlock(&t->lock);
	return n;
}

void chunk_reap_done(struct chunk_table *t, struct chunk **c, size_t n, bool done)
{
	pthread_mutex_lock(&t->lock);
	for (size_t i = 0; i < n; i++) {
		if (done) {
			ptable_remove(&t->by_id, c[i]);
			index_remove(t->index, key_content(t, c[i]), c[i]->info.chunk_id);
			free(c[i]);
		} else {
			c[i]->state = CHUNK_DEAD;
			LIST_INSERT_HEAD(&t->dead, c[i], dead);
		}
	}
	pthread_mutex_unlock(&t->lock);
}

bool chunk_any_dead(struct chunk_table *t)
{
	bool any;

	pthread_mutex_lock(&t->lock);
	any = !LIST_EMPTY(&t->dead);
	pthread_mutex_unlock(&t->lock);
	return any;
}

bool warm_put(struct chunk_table *t, struct chunk *c, const void *payload)
{
	struct warm *w = NULL;
	bool fits = c->info.stored_len <= t->warm_budget;

	if (fits)
		w = malloc(sizeof(*w) + c->info.stored_len);
	if (!w)
		return false;
	memcpy(w->payload, payload, c->info.stored_len);
	w->chunk = c;
	pthread_mutex_lock(&t->lock);
	warm_drop(t, c);
	while (t->totals.warm_bytes + c->info.stored_len > t->warm_budget)
		warm_drop(t, TAILQ_FIRST(&t->warm_lru)->chunk);
	c->warm = w;
	TAILQ_INSERT_TAIL(&t->warm_lru, w, lru);
	t->totals.warm_bytes += c->info.stored_len;
	pthread_mutex_unlock(&t->lock);
	return true;
}

bool warm_get(struct chunk_table *t, struct chunk *c, void *buf)
{
	bool found;

	pthread_mutex_lock(&t->lock);
	found = c->warm != NULL;
	if (found) {
		memcpy(buf, c->warm->payload, c->info.stored_len);
		TAILQ_REMOVE(&t->warm_lru, c->warm, lru);
		TAILQ_INSERT_TAIL(&t->warm_lru, c->warm, lru);
	}
	pthread_mutex_unlock(&t->lock);
	return found;
}

void warm_drop_map(struct chunk_table *t, const struct extmap *m)
{
	pthread_mutex_lock(&t->lock);
	for (size_t i = 0; i < m->n; i++) {
		struct chunk *c = find_id(t, m->e[i].chunk);

		if (c)
			warm_drop(t, c);
	}
	pthread_mutex_unlock(&t->lock);
}

bool warm_has_map(struct chunk_table *t, const struct extmap *m)
{
	bool all = m->n > 0;

	pthread_mutex_lock(&t->lock);
	for (size_t i = 0; all && i < m->n; i++) {
		const struct chunk *c = find_id(t, m->e[i].chunk);

		all = c && c->state == CHUNK_LIVE && c->warm;
	}
	pthread_mutex_unlock(&t->lock);
	return all;
}
