/* SPDX-License-Identifier: Apache-2.0 */
/*
 * element: what bytes are made of, by the entropy of the bytes at each place of an element. Keys and values
 * spread over a few powers of two, so an exponent has 2 to 4 bits of information, and mantissas are noise:
 * of bf16 and f32 the highest byte, rotated left by a bit, is the exponent; of fp16 it has three bits of the
 * mantissa too; bytes of fp8 have all of it.
 */
#include "store/codec.h"
#include "store/element.h"

#include <math.h>
#include <string.h>

#define ELEMENTS_MAX 4096u /* looked at */
#define EXPONENT     4.3   /* bits; more is no exponent alone */
#define MANTISSA     7.5   /* bits of a byte; less is no noise */

/* Bits of the bytes at p, p + step and on, n of them; after their rotation with what is below them. */
static double entropy(const uint8_t *p, size_t n, size_t step, bool rotated)
{
	uint32_t count[256] = { 0 };
	double bits = 0;

	for (size_t i = 0; i < n; i++) {
		unsigned v = p[i * step];

		if (rotated)
			v = (v << 1 | p[i * step - 1] >> 7) & 0xff;
		count[v]++;
	}
	for (unsigned k = 0; k < 256; k++)
		if (count[k])
			bits -= count[k] * log2((double)count[k] / (double)n);
	return bits / (double)n;
}

static bool is_float(const uint8_t *p, size_t n, size_t size, size_t phase, double least,
		     double most)
{
	double top = entropy(p + phase + size - 1, n, size, true);

	return top >= least && top < most &&
	       entropy(p + phase + size - 2, n, size, false) >= MANTISSA;
}

static bool any_phase(const uint8_t *p, size_t n, size_t size, double least, double most)
{
	for (size_t phase = 0; phase < size; phase++)
		if (is_float(p, n, size, phase, least, most))
			return true;
	return false;
}

enum analyze_element element_of(const void *src, size_t len, void *scratch)
{
	size_t n = len / 4 < ELEMENTS_MAX + 1 ? len / 4 - 1 : ELEMENTS_MAX;
	uint8_t params[CODEC_PARAMS];
	const uint8_t *p = src;
	double bits;

	if (len < 1024)
		return ELEMENT_OTHER;
	/* From the middle: a file's head is something else. */
	p += (len - 4 * (n + 1)) / 2 & ~(size_t)63;
	if (any_phase(p, n, 2, 1, EXPONENT))
		return ELEMENT_BF16;
	if (any_phase(p, n, 4, 1, EXPONENT))
		return ELEMENT_F32;
	if (any_phase(p, n, 2, EXPONENT, 7.4))
		return ELEMENT_FP16;
	if (codec_lz4.estimate(src, len, scratch, params) < len - len / 8)
		return ELEMENT_OTHER;
	bits = entropy(p, n, 1, false);
	if (bits >= 6.1 && bits < 7.2)
		return ELEMENT_E4M3;
	return bits >= 5 && bits < 6.1 ? ELEMENT_E5M2 : ELEMENT_NOISE;
}
