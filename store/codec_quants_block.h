/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of codec_quants.c taken apart and put together, compiled twice: as it is, and with AVX2
 * (codec_quants_avx2.c). */
#include "store/codec_quants.h"

#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>

/* ret[k] becomes from[table[k]]. */
static inline void permute(const uint8_t from[QUANTS_COLUMNS], const uint8_t table[QUANTS_COLUMNS],
			   unsigned columns, uint8_t ret[QUANTS_COLUMNS])
{
	__m256i v = _mm256_loadu_si256((const __m256i *)from);
	__m256i t = _mm256_loadu_si256((const __m256i *)table);
	__m256i low = _mm256_shuffle_epi8(_mm256_permute2x128_si256(v, v, 0x00), t);
	__m256i high = _mm256_shuffle_epi8(_mm256_permute2x128_si256(v, v, 0x11), t);

	(void)columns;
	_mm256_storeu_si256((__m256i *)ret, _mm256_blendv_epi8(low, high, _mm256_slli_epi16(t, 3)));
}
#else
static inline void permute(const uint8_t from[QUANTS_COLUMNS], const uint8_t table[QUANTS_COLUMNS],
			   unsigned columns, uint8_t ret[QUANTS_COLUMNS])
{
	for (unsigned k = 0; k < columns; k++)
		ret[k] = from[table[k]];
}
#endif

static inline __attribute__((always_inline)) void
split_by_class(const uint8_t *order, unsigned columns, const uint8_t *src, size_t n, uint8_t *low,
	       uint8_t *high, uint8_t *quants)
{
	unsigned per = columns / QUANTS_CLASSES;
	uint8_t block[QUANTS_COLUMNS] = { 0 }, sorted[QUANTS_COLUMNS];

	for (size_t i = 0; i < n; i++, src += QUANTS_SCALE + columns) {
		low[i] = src[0];
		high[i] = src[1];
		memcpy(block, src + QUANTS_SCALE, columns);
		permute(block, order, columns, sorted);
		for (unsigned k = 0; k < QUANTS_CLASSES; k++)
			memcpy(quants + (k * n + i) * per, sorted + k * per, per);
	}
}

static inline __attribute__((always_inline)) void
join_by_class(const uint8_t *place, unsigned columns, const uint8_t *low, const uint8_t *high,
	      const uint8_t *quants, size_t n, uint8_t *dst)
{
	unsigned per = columns / QUANTS_CLASSES;
	uint8_t block[QUANTS_COLUMNS], sorted[QUANTS_COLUMNS] = { 0 };

	for (size_t i = 0; i < n; i++, dst += QUANTS_SCALE + columns) {
		dst[0] = low[i];
		dst[1] = high[i];
		for (unsigned k = 0; k < QUANTS_CLASSES; k++)
			memcpy(sorted + k * per, quants + (k * n + i) * per, per);
		permute(sorted, place, columns, block);
		memcpy(dst + QUANTS_SCALE, block, columns);
	}
}

static void split(const struct quants_shape *s, const uint8_t *src, size_t n, uint8_t *low,
		  uint8_t *high, uint8_t *quants)
{
	if (s->classes != 1 && s->columns == 32)
		return split_by_class(s->order, 32, src, n, low, high, quants);
	if (s->classes != 1)
		return split_by_class(s->order, 16, src, n, low, high, quants);
	for (size_t i = 0; i < n; i++, src += s->size) {
		low[i] = src[0];
		high[i] = src[1];
		memcpy(quants + i * s->columns, src + QUANTS_SCALE, s->columns);
	}
}

static void join(const struct quants_shape *s, const uint8_t *low, const uint8_t *high,
		 const uint8_t *quants, size_t n, uint8_t *dst)
{
	uint8_t place[QUANTS_COLUMNS] = { 0 };

	for (uint8_t k = 0; k < s->columns; k++)
		place[s->order[k]] = k;
	if (s->classes != 1 && s->columns == 32)
		return join_by_class(place, 32, low, high, quants, n, dst);
	if (s->classes != 1)
		return join_by_class(place, 16, low, high, quants, n, dst);
	for (size_t i = 0; i < n; i++, dst += s->size) {
		dst[0] = low[i];
		dst[1] = high[i];
		memcpy(dst + QUANTS_SCALE, quants + i * s->columns, s->columns);
	}
}
