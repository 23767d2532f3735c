/* SPDX-License-Identifier: Apache-2.0 */
/* chunker against its definition, and on real slot files that share a prefix. */
#include "store/chunker.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % below;
}

static uint8_t *random_bytes(size_t len)
{
	uint8_t *p = malloc(len);

	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)draw(256);
	return p;
}

/* The header's words, nothing skipped. */
static size_t chunk_by_definition(const struct chunker *c, const uint8_t *p, size_t len)
{
	uint64_t h = 0;

	for (size_t i = 0; i + 4 <= len && i < c->max; i += 4) {
		uint32_t w = p[i] | p[i + 1] << 8 | p[i + 2] << 16 | (uint32_t)p[i + 3] << 24;

		h = (h << 1) + w * 0x9e3779b97f4a7c15u;
		if (i + 4 >= c->min && (h & c->mask) == c->mask)
			return i + 4;
	}
	return len < c->max ? len : c->max;
}

static const uint64_t file_sizes[] = { 100000, 5u << 20, 1u << 30 };

Test(chunker, cuts_where_the_definition_does)
{
	seed = 1;
	for (int run = 0; run < 60; run++) {
		struct chunker c = chunker_for(file_sizes[draw(3)]);
		size_t len = 1 + draw(1000000), pos = 0;
		uint8_t *p = random_bytes(len);

		if (draw(2))
			memset(p + len / 2, 0, draw(len / 2 + 1));
		while (pos < len) {
			size_t n = chunker_next(&c, p + pos, len - pos, true);

			cr_assert_eq(n, chunk_by_definition(&c, p + pos, len - pos));
			pos += n;
		}
		free(p);
	}
}

Test(chunker, sizes_are_kept)
{
	seed = 2;
	for (int k = 0; k < 3; k++) {
		struct chunker c = chunker_for(file_sizes[k]);
		size_t len = (size_t)c.average * 400, pos = 0, chunks = 0;
		uint8_t *p = random_bytes(len);

		cr_assert_eq(c.min, c.average / 2);
		cr_assert_eq(c.max, c.average * 4);
		cr_assert_leq(c.max, CHUNK_MAX);
		for (; pos < len; chunks++) {
			size_t n = chunker_next(&c, p + pos, len - pos, true);

			cr_assert_leq(n, c.max);
			cr_assert(n >= c.min || pos + n == len);
			cr_assert(n % 4 == 0 || pos + n == len);
			pos += n;
		}
		cr_assert_gt(chunks, 300);
		cr_assert_lt(chunks, 530);
		free(p);
	}
}

Test(chunker, a_window_gives_the_cuts_of_the_whole)
{
	seed = 3;
	for (int run = 0; run < 30; run++) {
		struct chunker c = chunker_for(file_sizes[draw(2)]);
		size_t len = 200000 + draw(300000), pos = 0;
		uint8_t *p = random_bytes(len);

		while (pos < len) {
			size_t whole = chunker_next(&c, p + pos, len - pos, true);
			size_t some = 1 + draw(c.max), n;

			if (some > len - pos)
				some = len - pos;
			n = chunker_next(&c, p + pos, some, false);
			cr_assert(n == whole || (!n && some < c.max && some <= whole));
			cr_assert(len - pos < c.max ||
				  chunker_next(&c, p + pos, c.max, false) == whole);
			pos += whole;
		}
		free(p);
	}
}

Test(chunker, zeros_make_the_longest_chunks)
{
	uint8_t *p = calloc(1, CHUNK_MAX * 3);

	for (int k = 0; k < 3; k++) {
		struct chunker c = chunker_for(file_sizes[k]);

		cr_assert_eq(chunker_next(&c, p, CHUNK_MAX * 3, false), c.max);
	}
	free(p);
}

Test(chunker, masks_nest_and_short_data_is_final_only_at_the_end)
{
	struct chunker a = chunker_for(0), b = chunker_for(5u << 20), c = chunker_for(UINT64_MAX);
	uint8_t p[100] = { 0 };

	cr_assert_eq(a.mask & b.mask, a.mask);
	cr_assert_eq(b.mask & c.mask, b.mask);
	cr_assert_eq(a.average, CHUNK_MIN_AVERAGE);
	cr_assert_eq(c.average, CHUNK_MAX_AVERAGE);
	cr_assert_eq(chunker_next(&a, p, 0, true), 0);
	cr_assert_eq(chunker_next(&a, p, 7, true), 7);
	cr_assert_eq(chunker_next(&a, p, 7, false), 0);
}

/* ---- Real slot files; their layout is in tests/data/README.md. ---- */

#define SLABS  10u
#define SHARED (300u * 64u) /* bytes at the start of each slab */

struct slot {
	uint8_t *data;
	size_t len;
	size_t slab[SLABS]; /* offsets */
	size_t cut[4096], cuts;
};

static uint32_t get32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static void slot_load(struct slot *s, const char *name)
{
	const char *tests = getenv("TESTS");
	char path[PATH_MAX];
	size_t pos, cells;
	int fd;

	snprintf(path, sizeof(path), "%s/data/%s", tests ? tests : "tests", name);
	fd = open(path, O_RDONLY);
	cr_assert_geq(fd, 0, "no %s", path);
	s->data = malloc(1 << 20);
	s->len = (size_t)read(fd, s->data, 1 << 20);
	close(fd);
	pos = 12 + 4 * get32(s->data + 8);
	cells = get32(s->data + pos);
	pos += 4 + 8 * cells + 8;
	for (unsigned i = 0; i < SLABS; i++) {
		size_t row = get32(s->data + pos + 4);

		s->slab[i] = pos + 12;
		pos = s->slab[i] + row * cells;
	}
	cr_assert_eq(pos, s->len);
}

static void slot_cut(struct slot *s)
{
	struct chunker c = chunker_for(s->len);

	s->cuts = 0;
	for (size_t pos = 0; pos < s->len; s->cut[s->cuts++] = pos)
		pos += chunker_next(&c, s->data + pos, s->len - pos, true);
}

static size_t chunk_start(const struct slot *s, size_t i)
{
	return i ? s->cut[i - 1] : 0;
}

static bool has_chunk(const struct slot *s, const uint8_t *p, size_t len)
{
	for (size_t i = 0; i < s->cuts; i++) {
		size_t start = chunk_start(s, i);

		if (s->cut[i] - start == len && !memcmp(s->data + start, p, len))
			return true;
	}
	return false;
}

/* Bytes of [start, end) in the shared part of a slab. */
static size_t shared_bytes(const struct slot *s, size_t start, size_t end)
{
	size_t n = 0;

	for (unsigned i = 0; i < SLABS; i++) {
		size_t from = s->slab[i] > start ? s->slab[i] : start;
		size_t to = s->slab[i] + SHARED < end ? s->slab[i] + SHARED : end;

		n += to > from ? to - from : 0;
	}
	return n;
}

/* Per cent of the shared bytes of b that are in chunks of a. */
static double share(const char *a_name, const char *b_name)
{
	struct slot *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));
	size_t found = 0;

	slot_load(a, a_name);
	slot_load(b, b_name);
	slot_cut(a);
	slot_cut(b);
	for (size_t i = 0; i < b->cuts; i++) {
		size_t start = chunk_start(b, i), end = b->cut[i];

		if (has_chunk(a, b->data + start, end - start))
			found += shared_bytes(b, start, end);
	}
	free(a->data);
	free(b->data);
	free(a);
	free(b);
	return 100.0 * (double)found / (SLABS * SHARED);
}

Test(chunker, a_shared_prefix_is_found_in_real_slots)
{
	cr_assert_geq(share("prefix300_a_400tok.ggsq2", "prefix300_c_350tok.ggsq2"), 85);
	cr_assert_geq(share("prefix300_b_400tok.ggsq2", "prefix300_c_350tok.ggsq2"), 85);
	cr_assert_geq(share("prefix300_a_400tok.ggsq2", "prefix300_b_400tok.ggsq2"), 85);
}
