/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_dense: bytes come back whatever they are and wherever elements are said to begin; floats of every
 * width shrink to about their entropy; nothing else decodes outside of its buffers.
 */
#include "store/codec.h"
#include "tests/unit/damage.h"
#include "tests/unit/random.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 600000u /* more than two parts of the widest elements */

enum kind { BF16, FP16, E4M3, F32, BF16_IN_F32, KINDS };

static size_t element(enum kind kind, uint32_t *ret)
{
	float x = normal();
	uint32_t bits;
	int exponent;

	memcpy(&bits, &x, sizeof(bits));
	exponent = (int)(bits >> 23 & 255) - 127;
	*ret = bits;
	switch (kind) {
	case BF16:
		*ret = bits >> 16;
		return 2;
	case FP16:
		exponent = exponent < -15 ? 0 : exponent + 15;
		*ret = (bits >> 31) << 15 | (uint32_t)exponent << 10 | (bits & 0x7fffff) >> 13;
		return 2;
	case E4M3:
		exponent = exponent < -7 ? 0 : exponent + 7;
		*ret = (bits >> 31) << 7 | (uint32_t)exponent << 3 | (bits & 0x7fffff) >> 20;
		return 1;
	case BF16_IN_F32:
		*ret = bits & 0xffff0000;
		return 4;
	default:
		return 4;
	}
}

static void fill(uint8_t *p, size_t len, enum kind kind, size_t phase)
{
	size_t at = phase, size;
	uint32_t e;

	for (size_t k = 0; k < phase && k < len; k++)
		p[k] = (uint8_t)draw(256);
	for (; at < len; at += size) {
		size = element(kind, &e);
		memcpy(p + at, &e, at + size <= len ? size : len - at);
	}
}

/* In buffers of exactly the lengths promised; 0: it would be longer than cap. */
static size_t round_trip(const uint8_t *src, size_t len, size_t cap,
			 const uint8_t params[CODEC_PARAMS])
{
	uint8_t *own = malloc(len), *dst = malloc(cap), *back = malloc(len), *encoded;
	ssize_t n;

	memcpy(own, src, len);
	n = codec_dense.encode(own, len, dst, cap, params);
	cr_assert_geq(n, 0);
	cr_assert_leq((size_t)n, cap);
	if (n) {
		encoded = malloc((size_t)n);
		memcpy(encoded, dst, (size_t)n);
		cr_assert_eq(codec_dense.decode(encoded, (size_t)n, back, len, params), 0);
		cr_assert_eq(memcmp(back, src, len), 0);
		free(encoded);
	}
	free(back);
	free(dst);
	free(own);
	return (size_t)n;
}

Test(codec_dense, floats_shrink_to_their_entropy)
{
	/* Of the last: one byte that is not as all others of its plane costs a bit for each of them. */
	static const double least[KINDS] = { 1.48, 1.17, 1.14, 1.19, 2.7 };
	static const size_t size[KINDS] = { 2, 2, 1, 4, 4 };
	uint8_t *src = malloc(LONGEST), *scratch = malloc(LONGEST);

	seed = 1;
	for (int kind = 0; kind < KINDS; kind++)
		for (size_t phase = 0; phase < size[kind]; phase++) {
			uint8_t params[CODEC_PARAMS] = { 0 };
			size_t len = 65536, estimate, n;

			fill(src, len, kind, phase);
			estimate = codec_dense.estimate(src, len, scratch, params);
			n = round_trip(src, len, len, params);
			cr_log_info(
				"kind %d, phase %zu: form %u.%u, planes %u: %.3f, estimated %.3f",
				kind, phase, params[0], params[1], params[2],
				(double)len / (double)n, (double)len / (double)estimate);
			cr_assert_geq((double)len / (double)n, least[kind]);
			cr_assert_float_eq((double)estimate / (double)n, 1,
					   kind == BF16_IN_F32 ? 0.12 : 0.02);
		}
	free(scratch);
	free(src);
}

Test(codec_dense, noise_is_nothing_for_it)
{
	uint8_t *src = malloc(LONGEST), *scratch = malloc(LONGEST), params[CODEC_PARAMS] = { 0 };

	seed = 2;
	for (size_t i = 0; i < LONGEST; i++)
		src[i] = (uint8_t)draw(256);
	cr_assert_eq(codec_dense.estimate(src, LONGEST, scratch, params), SIZE_MAX);
	free(scratch);
	free(src);
}

Test(codec_dense, any_length_as_any_form)
{
	uint8_t *src = malloc(LONGEST);
	unsigned fitted = 0;

	seed = 3;
	for (int run = 0; run < 400; run++) {
		static const uint8_t size[] = { 1, 2, 2, 4 };
		size_t len = 1 + draw(draw(2) ? 300 : draw(4) ? 70000 : LONGEST);
		uint8_t form = (uint8_t)draw(4);
		uint8_t params[CODEC_PARAMS] = { form, (uint8_t)draw(size[form]),
						 (uint8_t)draw(1u << size[form]) };

		if (len < params[1])
			continue;
		fill(src, len, draw(KINDS), draw(4));
		if (draw(4) == 0)
			memset(src + draw((uint32_t)len), 0, 1);
		if (draw(8) == 0)
			memset(src, (int)draw(256), len);
		fitted += round_trip(src, len, codec_dense.bound(len), params) > 0;
		round_trip(src, len, 1 + draw((uint32_t)len), params);
	}
	cr_assert_gt(fitted, 350);
	free(src);
}

Test(codec_dense, damage_stays_inside_the_buffers)
{
	uint8_t *src = malloc(LONGEST), *dst = malloc(LONGEST);
	unsigned refused = 0;

	seed = 4;
	for (int run = 0; run < 2000; run++) {
		size_t len = 20000 + draw(60000);

		fill(src, len, draw(KINDS), 0);
		refused += damaged_is_refused(&codec_dense, src, len, dst);
	}
	cr_assert_gt(refused, 300);
	free(dst);
	free(src);
}
