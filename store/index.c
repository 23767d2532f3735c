/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index: a cuckoo table of entries of 16 bytes, four in a bucket of a cache line, that grows by linear
 * hashing.
 *
 * An entry lies in one of the two buckets that the halves of its key name; where both are full, one of
 * theirs moves to its other bucket, and so on. The table grows and shrinks a bucket at a time, in place:
 * bucket n is made of what moves there from the one bucket whose entries belong there now. So there is
 * never a second table beside the first, nobody waits for one to be made, and the load, which a table
 * that doubles halves, stays where it is: 25 to 27 bytes an entry with the pages that are mapped
 * ahead, 36 at most after entries went. Only at the budget it fills up.
 */
#include "store/index.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#define SLOTS 4u  /* of a bucket */
#define FULL  65u /* per cent of the slots: above, it grows; at 70, one of 250,000 finds no place */
#define ROOMY 60u /* below, one that finds no place is of a key that has too many */
#define EMPTY 50u /* below, it shrinks */
#define TIGHT                                                                                      \
	90u /* above, which the budget alone brings about, few are moved: one is to go anyway */
#define KICKS      32u /* entries moved for a new one */
#define KICKS_LESS 4u
#define STEP       64u /* buckets: a page of 4 KiB */
#define MOST       (UINT64_C(1) << 31)
#define SPARE(n)   ((n) / 16 / STEP * STEP + STEP) /* buckets mapped ahead */
#define SURPLUS(n) ((n) / 8 + 2 * STEP)            /* given back */

struct entry {
	uint64_t key, id; /* id 0: free */
};

struct bucket {
	struct entry slot[SLOTS];
};

_Static_assert(sizeof(struct bucket) == 64, "a cache line");
_Static_assert(2 * SLOTS == INDEX_SAME, "a key has two buckets");

struct index {
	struct bucket *bucket;
	uint64_t n;    /* in use */
	uint64_t room; /* mapped */
	uint64_t most; /* that the budget has room for */
	uint64_t entries, replaced;
	uint64_t seed, random;
};

int index_new(uint64_t budget, struct index **ret)
{
	struct index *x = calloc(1, sizeof(*x));

	if (!x)
		return -ENOMEM;
	x->most = budget / sizeof(struct bucket) / STEP * STEP;
	x->most = x->most < STEP ? STEP : x->most > MOST ? MOST : x->most;
	x->n = x->room = STEP;
	x->bucket = mmap(NULL, x->room * sizeof(struct bucket), PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* Without a seed the table is as right, and only easier to guess. */
	if (getrandom(&x->seed, sizeof(x->seed), GRND_NONBLOCK) < 0)
		x->seed = (uintptr_t)x;
	x->random = x->seed | 1;
	if (x->bucket == MAP_FAILED) {
		free(x);
		return -ENOMEM;
	}
	*ret = x;
	return 0;
}

void index_free(struct index *x)
{
	if (!x)
		return;
	munmap(x->bucket, x->room * sizeof(struct bucket));
	free(x);
}

void index_totals(const struct index *x, struct index_totals *ret)
{
	*ret = (struct index_totals){
		.bytes = x->room * sizeof(struct bucket),
		.budget = x->most * sizeof(struct bucket),
		.entries = x->entries,
		.replaced = x->replaced,
	};
}

uint64_t index_key(const struct index *x, uint32_t tenant, struct hash128 hash, uint32_t raw_len)
{
	const struct {
		uint64_t lo, hi;
		uint32_t tenant, raw_len;
	} of = { hash.lo, hash.hi, tenant, raw_len };

	return sum64_seeded(&of, sizeof(of), x->seed);
}

/* ---- places ---- */

/* Linear hashing: as many low bits as name n buckets, and one less where that one is not there yet. */
static uint64_t place(uint64_t n, uint32_t half)
{
	uint64_t mask = UINT64_MAX >> __builtin_clzll(n - 1);
	uint64_t at = half & mask;

	return at < n ? at : half & mask >> 1;
}

/* The bucket that bucket at of a table of more than at is split off from. */
static uint64_t parent(uint64_t at)
{
	return at ^ UINT64_C(1) << (63 - __builtin_clzll(at));
}

static struct bucket *first(const struct index *x, uint64_t key)
{
	return &x->bucket[place(x->n, (uint32_t)key)];
}

static struct bucket *second(const struct index *x, uint64_t key)
{
	return &x->bucket[place(x->n, (uint32_t)(key >> 32))];
}

static bool put_free(struct bucket *b, struct entry e)
{
	for (unsigned i = 0; i < SLOTS; i++)
		if (!b->slot[i].id) {
			b->slot[i] = e;
			return true;
		}
	return false;
}

static uint32_t next_random(struct index *x)
{
	x->random ^= x->random << 13;
	x->random ^= x->random >> 7;
	x->random ^= x->random << 17;
	return (uint32_t)(x->random >> 32);
}

static bool above(const struct index *x, unsigned percent)
{
	return x->entries * 100 > x->n * SLOTS * percent;
}

/* Of the entries that are moved for it the last may find no place, but never that of id: false, and it is in
 * *ret. */
static bool place_by_moving(struct index *x, struct entry *ret, uint64_t id)
{
	struct entry e = *ret;
	unsigned kicks = above(x, TIGHT) ? KICKS_LESS : KICKS;

	for (;;) {
		struct bucket *a = first(x, e.key), *b = second(x, e.key);
		struct entry *out, was;
		uint32_t random;

		if (put_free(a, e) || put_free(b, e))
			return true;
		if (!kicks--)
			break;
		random = next_random(x);
		out = &(random & SLOTS ? a : b)->slot[random % SLOTS];
		if (out->id == id)
			out = &(random & SLOTS ? a : b)->slot[(random + 1) % SLOTS];
		was = *out;
		*out = e;
		e = was;
	}
	*ret = e;
	return false;
}

static void put(struct index *x, struct entry e)
{
	if (place_by_moving(x, &e, e.id))
		return;
	x->entries--;
	x->replaced++;
}

/* ---- growing and shrinking ---- */

static bool map_buckets(struct index *x, uint64_t room)
{
	void *p = mremap(x->bucket, x->room * sizeof(struct bucket), room * sizeof(struct bucket),
			 MREMAP_MAYMOVE);

	if (p == MAP_FAILED)
		return false;
	x->bucket = p;
	x->room = room;
	return true;
}

/* Whether there is another bucket. */
static bool have_room(struct index *x)
{
	uint64_t room = x->room + SPARE(x->room);

	if (x->n < x->room)
		return true;
	if (x->n >= x->most)
		return false;
	if (map_buckets(x, room < x->most ? room : x->most))
		return true;
	/* What the system does not give is not asked for again and again. */
	x->most = x->room;
	return false;
}

/* One bucket more: what belongs there now comes from its parent. */
static void split(struct index *x)
{
	uint64_t at = x->n++, old = parent(at);
	struct bucket *from = &x->bucket[old], *to = &x->bucket[at];

	for (unsigned i = 0; i < SLOTS; i++) {
		uint64_t key = from->slot[i].key;

		if (!from->slot[i].id || first(x, key) == from || second(x, key) == from)
			continue;
		to->slot[i] = from->slot[i];
		from->slot[i].id = 0;
	}
}

/* One bucket less: what lies there belongs to its parent, or to where it belongs beside. */
static void merge(struct index *x)
{
	struct bucket *last = &x->bucket[--x->n], was = *last;

	memset(last, 0, sizeof(*last));
	for (unsigned i = 0; i < SLOTS; i++)
		if (was.slot[i].id)
			put(x, was.slot[i]);
}

/* ---- entries ---- */

void index_add(struct index *x, uint64_t key, uint64_t id)
{
	struct entry e = { key, id };

	if (!id)
		return;
	x->entries++;
	while (above(x, FULL) && have_room(x))
		split(x);
	/* One of some millions finds no place even so, as buckets not split yet are fuller. */
	while (!place_by_moving(x, &e, id)) {
		if (!above(x, ROOMY) || !have_room(x)) {
			x->entries--;
			x->replaced++;
			break;
		}
		for (unsigned i = 0; i < STEP && have_room(x); i++)
			split(x);
	}
}

static bool remove_from(struct bucket *b, uint64_t key, uint64_t id)
{
	for (unsigned i = 0; i < SLOTS; i++)
		if (b->slot[i].id == id && b->slot[i].key == key) {
			b->slot[i].id = 0;
			return true;
		}
	return false;
}

void index_remove(struct index *x, uint64_t key, uint64_t id)
{
	if (!id || (!remove_from(first(x, key), key, id) && !remove_from(second(x, key), key, id)))
		return;
	x->entries--;
	while (x->n > STEP && !above(x, EMPTY))
		merge(x);
	/* What cannot be given back is used again. */
	if (x->room - x->n > SURPLUS(x->n))
		map_buckets(x, (x->n + STEP - 1) / STEP * STEP);
}

static void lowest(const struct bucket *b, uint64_t key, uint64_t after, uint64_t *id)
{
	for (unsigned i = 0; i < SLOTS; i++) {
		const struct entry *e = &b->slot[i];

		if (e->key == key && e->id > after && (!*id || e->id < *id))
			*id = e->id;
	}
}

uint64_t index_next(const struct index *x, uint64_t key, uint64_t after)
{
	uint64_t id = 0;

	lowest(first(x, key), key, after, &id);
	lowest(second(x, key), key, after, &id);
	return id;
}
