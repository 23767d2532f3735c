/* SPDX-License-Identifier: Apache-2.0 */
/* extmap against a model that keeps a chunk and a place in it for every byte. */
#include "store/extmap.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FILE_SIZE 512u

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % below;
}

struct model {
	uint64_t chunk[FILE_SIZE]; /* 0: hole */
	uint32_t at[FILE_SIZE];
};

static void model_replace(struct model *m, uint64_t from, uint64_t to, const struct extent *e,
			  size_t n, uint64_t limit)
{
	for (uint64_t i = from; i < to && i < FILE_SIZE; i++)
		m->chunk[i] = 0;
	for (size_t k = 0; k < n; k++) {
		for (uint32_t i = 0; i < e[k].len; i++) {
			m->chunk[e[k].off + i] = e[k].chunk;
			m->at[e[k].off + i] = e[k].skip + i;
		}
	}
	for (uint64_t i = limit; i < FILE_SIZE; i++)
		m->chunk[i] = 0;
}

static void check_same(const struct extmap *m, const struct model *model)
{
	uint64_t end = 0, i = 0;

	for (size_t k = 0; k < m->n; k++) {
		const struct extent *e = &m->e[k];

		cr_assert_geq(e->off, end);
		cr_assert_gt(e->len, 0);
		for (; i < e->off; i++)
			cr_assert_eq(model->chunk[i], 0);
		for (uint32_t j = 0; j < e->len; j++, i++) {
			cr_assert_eq(model->chunk[i], e->chunk);
			cr_assert_eq(model->at[i], e->skip + j);
		}
		end = e->off + e->len;
	}
	for (; i < FILE_SIZE; i++)
		cr_assert_eq(model->chunk[i], 0);
	cr_assert_eq(extmap_end(m), end);
}

static void check_find(const struct extmap *m)
{
	for (uint64_t off = 0; off < FILE_SIZE + 2; off++) {
		size_t i = 0;

		while (i < m->n && m->e[i].off + m->e[i].len <= off)
			i++;
		cr_assert_eq(extmap_find(m, off), i);
	}
}

static void check_packing(const struct extmap *m)
{
	struct extmap *back;
	uint8_t *packed;
	ssize_t len = extmap_encode(m, &packed);

	cr_assert_gt(len, 0);
	cr_assert_eq(extmap_decode(packed, (size_t)len, &back), 0);
	cr_assert_eq(back->n, m->n);
	cr_assert_eq(memcmp(back->e, m->e, m->n * sizeof(m->e[0])), 0);
	extmap_unref(back);
	free(packed);
}

/* Random extents within [from, to), sorted, some touching. */
static size_t draw_extents(struct extent *e, uint64_t from, uint64_t to)
{
	size_t n = 0;

	while (from < to && draw(4)) {
		uint64_t off = from + (draw(2) ? draw(to - from) : 0), left = to - off;

		e[n++] = (struct extent){
			.off = off,
			.len = (uint32_t)(1 + draw(left)),
			.skip = (uint32_t)draw(1000),
			.chunk = 1 + draw(1000),
		};
		from = off + e[n - 1].len;
	}
	return n;
}

Test(extmap, replace_does_what_a_byte_map_does)
{
	seed = 1;
	for (int run = 0; run < 300; run++) {
		struct model model = { 0 };
		struct extmap *m = NULL;

		for (int i = 0; i < 20; i++) {
			uint64_t from = draw(FILE_SIZE), to = from + draw(FILE_SIZE - from + 1);
			uint64_t limit = draw(4) ? FILE_SIZE : draw(FILE_SIZE + 1);
			struct extent e[FILE_SIZE];
			size_t n = draw_extents(e, from, to);
			struct extmap *next = extmap_replace(m, from, to, e, n, limit);

			model_replace(&model, from, to, e, n, limit);
			check_same(next, &model);
			check_find(next);
			check_packing(next);
			extmap_unref(m);
			m = next;
		}
		extmap_unref(m);
	}
}

Test(extmap, old_maps_stay_as_they_were)
{
	struct extent e = { .off = 10, .len = 20, .chunk = 7 };
	struct extmap *a = extmap_new(&e, 1), *again = extmap_ref(a);
	struct extmap *b = extmap_replace(a, 15, 20, NULL, 0, UINT64_MAX);

	cr_assert_eq(a->n, 1);
	cr_assert_eq(b->n, 2);
	extmap_unref(a);
	cr_assert_eq(again->e[0].len, 20);
	extmap_unref(again);
	extmap_unref(b);
	extmap_unref(NULL);
}

Test(extmap, neighbours_pack_into_five_bytes)
{
	struct extent e[1000];
	struct extmap *m;
	uint8_t *packed;

	for (size_t i = 0; i < 1000; i++)
		e[i] = (struct extent){ .off = i * 1000, .len = 1000, .chunk = 1000000 + i };
	m = extmap_new(e, 1000);
	cr_assert_leq(extmap_encode(m, &packed), 5 * 1000 + 10);
	free(packed);
	extmap_unref(m);
}

Test(extmap, the_largest_numbers_survive_packing)
{
	struct extent e[] = {
		{ .off = 0, .len = UINT32_MAX, .chunk = UINT64_MAX },
		{ .off = 1ull << 40, .len = 1, .skip = UINT32_MAX - 1, .chunk = 0 },
		{ .off = INT64_MAX - 5, .len = 5, .chunk = 1ull << 63 },
	};
	struct extmap *m = extmap_new(e, 3);

	check_packing(m);
	extmap_unref(m);
}

static void expect_unclean(const char *bytes, size_t len)
{
	/* Of exactly this length, so that a sanitizer sees a read beyond. */
	uint8_t *copy = malloc(len ? len : 1);
	struct extmap *m = NULL;

	memcpy(copy, bytes, len);
	cr_assert_eq(extmap_decode(copy, len, &m), -EUCLEAN);
	cr_assert_null(m);
	free(copy);
}

Test(extmap, decode_refuses_what_cannot_be)
{
	expect_unclean("", 0);
	expect_unclean("\2", 1);                          /* version */
	expect_unclean("\1\0\1\0", 4);                    /* cut off */
	expect_unclean("\1\0\0\0\0", 5);                  /* no length */
	expect_unclean("\1\0\200\0\0\0", 6);              /* a number longer than it needs to be */
	expect_unclean("\1\0\200\200\200\200\20\0\0", 9); /* 2^32 bytes long */
	expect_unclean("\1\0\1\377\377\377\377\17\0", 9); /* chunk of more than 4 GiB */
	/* Beyond what a file offset can say. */
	expect_unclean("\1\377\377\377\377\377\377\377\377\177\1\0\0", 13);
	/* More than 64 bits. */
	expect_unclean("\1\377\377\377\377\377\377\377\377\377\2\1\0\0", 14);
}

Test(extmap, decode_survives_random_bytes)
{
	seed = 2;
	for (int run = 0; run < 20000; run++) {
		size_t len = 1 + draw(40);
		uint8_t *bytes = malloc(len);
		struct extmap *m;

		for (size_t i = 0; i < len; i++)
			bytes[i] = (uint8_t)(draw(3) ? draw(256) : draw(4));
		bytes[0] = 1;
		if (!extmap_decode(bytes, len, &m)) {
			check_packing(m);
			extmap_unref(m);
		}
		free(bytes);
	}
}
