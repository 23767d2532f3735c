/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extmap: building, cutting and finding extents. A map never changes once it is built, so readers
 * need a reference and no lock.
 */
#include "store/extmap.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static uint64_t end_of(const struct extent *e)
{
	return e->off + e->len;
}

/* With room for n extents and none in it yet. */
static struct extmap *map_alloc(size_t n)
{
	struct extmap *m;

	if (n > (SIZE_MAX - sizeof(*m)) / sizeof(m->e[0]))
		return NULL;
	m = malloc(sizeof(*m) + n * sizeof(m->e[0]));
	if (!m)
		return NULL;
	m->refs = 1;
	m->n = 0;
	return m;
}

struct extmap *extmap_new(const struct extent *e, size_t n)
{
	struct extmap *m = map_alloc(n);

	if (!m)
		return NULL;
	if (n)
		memcpy(m->e, e, n * sizeof(*e));
	m->n = n;
	return m;
}

struct extmap *extmap_ref(struct extmap *m)
{
	__atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED);
	return m;
}

void extmap_unref(struct extmap *m)
{
	if (m && !__atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL))
		free(m);
}

size_t extmap_find(const struct extmap *m, uint64_t off)
{
	size_t lo = 0, hi = m->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (end_of(&m->e[mid]) > off)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

/* Adds the part of e that lies in [from, to). */
static void add_part(struct extmap *m, struct extent e, uint64_t from, uint64_t to)
{
	uint64_t end = end_of(&e) < to ? end_of(&e) : to;

	if (e.off < from) {
		if (end_of(&e) <= from)
			return;
		e.skip += (uint32_t)(from - e.off);
		e.off = from;
	}
	if (e.off >= end)
		return;
	e.len = (uint32_t)(end - e.off);
	m->e[m->n++] = e;
}

struct extmap *extmap_replace(const struct extmap *old, uint64_t from, uint64_t to,
			      const struct extent *e, size_t n, uint64_t limit)
{
	size_t had = old ? old->n : 0;
	/* One more, as an extent that reaches over the whole range becomes two. */
	struct extmap *m = had > SIZE_MAX - n - 1 ? NULL : map_alloc(had + n + 1);
	uint64_t before = from < limit ? from : limit;

	if (!m)
		return NULL;
	for (size_t i = 0; i < had && old->e[i].off < before; i++)
		add_part(m, old->e[i], 0, before);
	for (size_t i = 0; i < n; i++)
		add_part(m, e[i], 0, limit);
	for (size_t i = had ? extmap_find(old, to) : 0; i < had && old->e[i].off < limit; i++)
		add_part(m, old->e[i], to, limit);
	return m;
}

uint64_t extmap_end(const struct extmap *m)
{
	return m->n ? end_of(&m->e[m->n - 1]) : 0;
}
