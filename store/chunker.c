/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunker: the scan for cuts. Its speed bounds that of settling, so it looks at nothing it need
 * not: it starts one window before the shortest chunk would end, and takes a word a step.
 */
#include "store/chunker.h"

#include <endian.h>
#include <string.h>

#define WORD     4u
#define WINDOW   (64u * WORD) /* bytes that h depends on: a word leaves it after 64 shifts */
#define UNROLLED 8u

/* 2^64 divided by the golden ratio. Odd, so that no two words are taken for one. */
static const uint64_t multiplier = 0x9e3779b97f4a7c15u;

static inline uint64_t step(uint64_t h, const uint8_t *p)
{
	uint32_t w;

	memcpy(&w, p, sizeof(w));
	return (h << 1) + (uint64_t)le32toh(w) * multiplier;
}

/* The place after the first word that ends a chunk, from from on; to when there is none. As the mask
 * is the top bits, h has them all when it is not below the mask: one compare a word. */
static size_t scan(const uint8_t *d, size_t from, size_t to, uint64_t mask)
{
	uint64_t h = 0;
	size_t i = from - WINDOW;

	/* The last word of the window is the first that may end the chunk. */
	for (; i < from - WORD; i += WORD)
		h = step(h, d + i);
	for (; i + UNROLLED * WORD <= to; i += UNROLLED * WORD) {
		for (size_t k = 0; k < UNROLLED; k++) {
			h = step(h, d + i + k * WORD);
			if (h >= mask)
				return i + (k + 1) * WORD;
		}
	}
	for (; i + WORD <= to; i += WORD) {
		h = step(h, d + i);
		if (h >= mask)
			return i + WORD;
	}
	return to;
}

struct chunker chunker_for(uint64_t file_size)
{
	uint32_t average = CHUNK_MAX_AVERAGE;
	unsigned bits;

	if (file_size < 1u << 20)
		average = CHUNK_MIN_AVERAGE;
	else if (file_size < 4u << 20)
		average = CHUNK_MIN_AVERAGE * 8;

	/* A cut every 2^bits words behind min gives the other half of the average. */
	bits = (unsigned)__builtin_ctz(average / 2 / WORD);
	return (struct chunker){
		.min = average / 2,
		.average = average,
		.max = average * 4,
		.mask = ~(uint64_t)0 << (64 - bits),
	};
}

size_t chunker_next(const struct chunker *c, const void *data, size_t len, bool last)
{
	size_t end = len < c->max ? len : c->max;
	size_t cut;

	if (len <= c->min)
		return last ? len : 0;
	cut = scan(data, c->min, end, c->mask);
	return cut < end || end == c->max || last ? cut : 0;
}
