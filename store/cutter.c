/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cutter: a chunk ends where a page of zeros begins, and zeros at a chunk's start become holes, so that
 * holes lie in the same places whatever is around them. A slab is cut as if there were nothing before it.
 */
#include "store/cutter.h"

#include <string.h>

#define HOLE_MIN 4096u /* zeros at the start of a chunk become a hole from here on */

static size_t zero_run(const char *p, size_t n)
{
	uint64_t first = 1;
	size_t i = 0;

	if (n >= sizeof(first))
		memcpy(&first, p, sizeof(first));
	if (!first) {
		/* Overlapping compare: as long as each byte equals the one before it. */
		while (i + 4096 <= n && !p[i] && !memcmp(p + i, p + i + 1, 4095))
			i += 4096;
		while (i < n && !p[i])
			i++;
	}
	return i;
}

/* Where the first page of zeros at or after at begins, pages being those of the file; the window's end
 * if there is none. */
static size_t next_zero_page(const struct cutter *c)
{
	size_t at = c->at;

	for (at += -(c->off + at) & (HOLE_MIN - 1); at + HOLE_MIN <= c->len; at += HOLE_MIN)
		if (zero_run(c->window + at, HOLE_MIN) == HOLE_MIN)
			return at;
	return c->len;
}

/* Where the slab that at is in ends, the window's end at the latest. */
static size_t slab_end(struct cutter *c)
{
	if (c->slab_end <= c->at) {
		uint64_t next = slabs_next(c->slabs, c->off + c->at);

		c->slab_end = next - c->off < c->len ? next - c->off : c->len;
	}
	return c->slab_end;
}

/* Passes over zeros that are a hole; those of another slab are another one. */
static void skip_hole(struct cutter *c)
{
	size_t end, left, zeros;

	do {
		end = slab_end(c);
		left = end - c->at;
		zeros = zero_run(c->window + c->at, left);
		/* A hole ends at a multiple of 4, where chunks may begin. */
		if (zeros < left || (end == c->len && !c->last))
			zeros &= ~(size_t)3;
		if (zeros >= HOLE_MIN || zeros == left)
			c->at += zeros;
	} while (c->at == end && end < c->len);
}

size_t cutter_next(struct cutter *c, size_t *ret_at)
{
	size_t n, end;

	skip_hole(c);
	if (c->at == c->len)
		return 0;
	if (c->zero_page <= c->at)
		c->zero_page = next_zero_page(c);
	end = slab_end(c) < c->zero_page ? c->slab_end : c->zero_page;
	n = chunker_next(&c->chunker, c->window + c->at, end - c->at, c->last || end < c->len);
	*ret_at = c->at;
	c->at += n;
	return n;
}
