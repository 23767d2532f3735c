/* SPDX-License-Identifier: Apache-2.0 */
/* cutter: chunks and holes cover a file exactly, none goes over from one slab to the next, and a slab is cut
 * the same wherever it lies. */
#include "store/cutter.h"
#include "tests/unit/random.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define PIECES 20000u

struct piece {
	uint64_t off;
	size_t len;
};

/* Random bytes with runs of zeros among them. */
static char *content(size_t len)
{
	char *p = malloc(len + 1);

	for (size_t i = 0; i < len; i++)
		p[i] = (char)draw(256);
	for (unsigned k = draw(6); k && len; k--) {
		size_t at = draw((uint32_t)len), n = draw(40000);

		memset(p + at, 0, n < len - at ? n : len - at);
	}
	return p;
}

static struct slabs random_slabs(size_t size)
{
	struct slabs s = { .size = size, .n = draw(12), .start = malloc(12 * sizeof(uint64_t)) };
	uint64_t at = 0;
	size_t n = 0;

	for (size_t i = 0; i < s.n; i++) {
		at += 1 + draw((uint32_t)(size / 5 + 1)) / (draw(3) ? 1 : 64);
		if (at < size)
			s.start[n++] = at;
	}
	s.n = n;
	return s;
}

/* As settle does: windows of so many bytes, what is left of one begins the next. Number of chunks. */
static size_t cut(const char *data, size_t size, const struct slabs *slabs, size_t window,
		  struct piece *ret)
{
	struct cutter c = { .chunker = chunker_for(size), .slabs = slabs };
	size_t n = 0, at, len;

	while (c.off < size) {
		c.window = data + c.off;
		c.len = size - c.off < window ? size - c.off : window;
		c.last = c.off + c.len == size;
		c.at = c.zero_page = c.slab_end = 0;
		while ((len = cutter_next(&c, &at))) {
			cr_assert_lt(n, PIECES);
			ret[n++] = (struct piece){ c.off + at, len };
		}
		cr_assert_gt(c.at, 0, "no progress at %zu", (size_t)c.off);
		cr_assert(!c.last || c.at == c.len);
		c.off += c.at;
	}
	return n;
}

Test(cutter, chunks_and_holes_cover_the_file_and_keep_to_slabs)
{
	struct piece *p = malloc(PIECES * sizeof(*p));

	seed = 1;
	for (int run = 0; run < 300; run++) {
		size_t size = 1 + draw(run % 10 ? 300000 : 6u << 20);
		size_t window = CHUNK_MAX_AVERAGE * 4 + draw(200000), n;
		struct slabs s = random_slabs(size);
		char *data = content(size);
		uint64_t end = 0;

		n = cut(data, size, &s, window, p);
		for (size_t i = 0; i <= n; i++) {
			uint64_t off = i < n ? p[i].off : size;

			cr_assert_geq(off, end);
			for (uint64_t k = end; k < off; k++)
				cr_assert_eq(data[k], 0, "byte %zu is in no chunk", (size_t)k);
			if (i == n)
				break;
			end = off + p[i].len;
			cr_assert_leq(end, size);
			cr_assert_geq(slabs_next(&s, off), end, "chunk %zu has two slabs", i);
		}
		free(data);
		slabs_done(&s);
	}
	free(p);
}

/* The pieces that begin in [from, to), from its start on. */
static size_t pieces_of(struct piece *p, size_t n, uint64_t from, uint64_t to, struct piece **ret)
{
	size_t first = 0, count = 0;

	while (first < n && p[first].off < from)
		first++;
	*ret = p + first;
	for (; first + count < n && p[first + count].off < to; count++)
		p[first + count].off -= from;
	return count;
}

Test(cutter, a_slab_is_cut_the_same_wherever_it_lies)
{
	struct piece *p = malloc(PIECES * sizeof(*p)), *q = malloc(PIECES * sizeof(*q)), *a, *b;

	seed = 2;
	for (int run = 0; run < 100; run++) {
		size_t slab = 5000 + draw(200000), before = 1 + draw(5000), other = 1 + draw(5000);
		size_t behind = 1 + draw(300000), n, m;
		uint64_t start[2] = { before, before + slab };
		struct slabs s = { .size = before + slab + behind, .n = 2, .start = start };
		char *data = malloc(s.size), *moved = malloc(s.size);

		for (size_t i = 0; i < s.size; i++)
			data[i] = (char)draw(256);
		for (size_t i = 0; i < s.size; i++)
			moved[i] = (char)draw(256);
		memcpy(moved + other, data + before, slab);
		n = cut(data, s.size, &s, CHUNK_MAX_AVERAGE * 4, p);
		n = pieces_of(p, n, before, before + slab, &a);
		start[0] = other;
		start[1] = other + slab;
		m = cut(moved, s.size, &s, CHUNK_MAX_AVERAGE * 5, q);
		m = pieces_of(q, m, other, other + slab, &b);
		cr_assert_eq(n, m);
		cr_assert(n && !a->off && !memcmp(a, b, n * sizeof(*a)), "run %d", run);
		free(data);
		free(moved);
	}
	free(p);
	free(q);
}

Test(cutter, zeros_on_both_sides_of_a_border_stay_a_hole)
{
	struct piece *p = malloc(PIECES * sizeof(*p));
	uint64_t start[] = { 66000 };
	struct slabs s = { .size = 200000, .n = 1, .start = start };
	char *data = malloc(s.size);
	uint64_t covered = 0;
	size_t n;

	memset(data, 1, s.size);
	memset(data + 60000, 0, 20000);
	n = cut(data, s.size, &s, CHUNK_MAX_AVERAGE * 4, p);
	for (size_t i = 0; i < n; i++)
		covered += p[i].len;
	/* All but the zeros before the first page of them. */
	cr_assert_eq(covered, s.size - 20000 + (61440 - 60000));
	free(data);
	free(p);
}
