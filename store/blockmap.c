/* SPDX-License-Identifier: Apache-2.0 */
/* blockmap: a growing bit set with run iteration. */
#include "store/store_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BITS 64u

static int grow(struct blockmap *b, uint64_t blocks)
{
	uint64_t words = (blocks + BITS - 1) / BITS;
	uint64_t *w;

	if (words <= b->words)
		return 0;
	if (words < b->words * 2)
		words = b->words * 2;
	w = realloc(b->word, words * sizeof(*w));
	if (!w)
		return -ENOMEM;
	memset(w + b->words, 0, (words - b->words) * sizeof(*w));
	b->word = w;
	b->words = words;
	return 0;
}

/* The bits of one word that lie in [first, end), and the word's index. */
static uint64_t word_mask(uint64_t first, uint64_t end, uint64_t *ret_word)
{
	uint64_t base = first / BITS * BITS;
	uint64_t mask = ~0ull << (first - base);

	*ret_word = first / BITS;
	if (end - base < BITS)
		mask &= ~(~0ull << (end - base));
	return mask;
}

int blockmap_set(struct blockmap *b, uint64_t first, uint64_t count)
{
	uint64_t end = first + count, w;
	int r = grow(b, end);

	if (r)
		return r;
	while (first < end) {
		uint64_t mask = word_mask(first, end, &w);

		b->set += __builtin_popcountll(mask & ~b->word[w]);
		b->word[w] |= mask;
		first = (w + 1) * BITS;
	}
	return 0;
}

void blockmap_clear(struct blockmap *b, uint64_t first, uint64_t count)
{
	uint64_t end = first + count, w;

	if (end < first || end > b->words * BITS)
		end = b->words * BITS;
	while (first < end) {
		uint64_t mask = word_mask(first, end, &w);

		b->set -= __builtin_popcountll(mask & b->word[w]);
		b->word[w] &= ~mask;
		first = (w + 1) * BITS;
	}
}

bool blockmap_get(const struct blockmap *b, uint64_t block)
{
	return block / BITS < b->words && (b->word[block / BITS] >> block % BITS & 1);
}

/* The first block from block on whose bit is value; end if there is none before. */
static uint64_t next_bit(const struct blockmap *b, uint64_t block, uint64_t end, bool value)
{
	while (block < end) {
		uint64_t w = block / BITS;
		uint64_t bits;

		if (w >= b->words)
			return value ? end : block;
		bits = (value ? b->word[w] : ~b->word[w]) & (~0ull << block % BITS);
		if (bits) {
			block = w * BITS + __builtin_ctzll(bits);
			return block < end ? block : end;
		}
		block = (w + 1) * BITS;
	}
	return end;
}

uint64_t blockmap_next(const struct blockmap *b, uint64_t block, uint64_t end, bool value,
		       uint64_t *ret_count)
{
	uint64_t first = next_bit(b, block, end, value);

	*ret_count = next_bit(b, first, end, !value) - first;
	return first;
}

void blockmap_done(struct blockmap *b)
{
	free(b->word);
	*b = (struct blockmap){ 0 };
}
