/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_planes: every element comes back with every bit, whatever it is and wherever it begins; the two
 * compilations write the same bytes; nothing else decodes outside of its buffers.
 */
#include "store/codec.h"
#include "store/codec_planes.h"
#include "tests/unit/random.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 262144u

/* The last three are kept in 4 bytes. */
enum kind { BF16, FP16, E4M3, E5M2, F32, BF16_WIDE, FP16_WIDE, E4M3_WIDE, KINDS };
static const size_t size_of[KINDS] = { 2, 2, 1, 1, 4, 4, 4, 4 };

/* The float's bits with the exponent rebased and the mantissa cut: what a cast does but for the rounding. */
static uint32_t narrow(float x, int exponent_bits, int mantissa_bits)
{
	int bias = (1 << (exponent_bits - 1)) - 1, exponent;
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	exponent = (int)(bits >> 23 & 255) - 127 + bias;
	if (exponent < 0)
		exponent = 0;
	if (exponent >= 1 << exponent_bits)
		exponent = (1 << exponent_bits) - 1;
	return (bits >> 31) << (exponent_bits + mantissa_bits) |
	       (uint32_t)exponent << mantissa_bits | (bits & 0x7fffff) >> (23 - mantissa_bits);
}

static uint32_t element(enum kind kind, float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	switch (kind) {
	case BF16:
		return narrow(x, 8, 7);
	case FP16:
		return narrow(x, 5, 10);
	case E4M3:
		return narrow(x, 4, 3);
	case E5M2:
		return narrow(x, 5, 2);
	case BF16_WIDE:
		return bits & ~0xffffu;
	case FP16_WIDE:
		return bits & ~0x1fffu;
	case E4M3_WIDE:
		return bits & ~0xfffffu;
	default:
		return bits;
	}
}

/* Values of 128 channels, some of which are ten times as large as others; the first byte is the phase's. */
static void fill(uint8_t *p, size_t len, enum kind kind, size_t phase)
{
	size_t size = size_of[kind], i = 0;

	for (size_t k = 0; k < phase && k < len; k++)
		p[k] = (uint8_t)draw(256);
	for (size_t at = phase; at < len; at += size, i++) {
		float scale = i % 128 % 16 == 5 ? 10 : 1;
		uint32_t e = element(kind, normal() * scale);

		memcpy(p + at, &e, at + size <= len ? size : len - at);
	}
}

/* In buffers of exactly the lengths promised. Returns the encoded length. */
static size_t round_trip(const uint8_t *src, size_t len, const struct codec **ret)
{
	uint8_t *own = malloc(len), *dst = malloc(len), *back = malloc(len), *encoded;
	const struct codec_set fast = codec_set(CODEC_CHOICE_FAST, 0, 1);
	uint8_t params[CODEC_PARAMS];
	size_t n;

	memcpy(own, src, len);
	*ret = codec_encode(&fast, own, len, dst, &n, params);
	encoded = malloc(n);
	memcpy(encoded, (*ret)->id == CODEC_RAW ? own : dst, n);
	cr_assert_eq((*ret)->decode(encoded, n, back, len, params), 0);
	cr_assert_eq(memcmp(back, src, len), 0);
	free(encoded);
	free(back);
	free(dst);
	free(own);
	return n;
}

Test(codec_planes, gains_by_kind)
{
	static const double least[KINDS] = { 1.36, 1.09, 1.05, 1.05, 1.15, 2.7, 2.15, 4 };
	uint8_t *src = malloc(LONGEST);

	seed = 1;
	for (int kind = 0; kind < KINDS; kind++)
		for (size_t phase = 0; phase < size_of[kind]; phase++) {
			const struct codec *c;
			size_t n;

			fill(src, LONGEST, kind, phase);
			n = round_trip(src, LONGEST, &c);
			cr_log_info("kind %d, phase %zu: %s, %.3f", kind, phase, c->name,
				    (double)LONGEST / (double)n);
			cr_assert_eq(c->id, CODEC_PLANES);
			cr_assert_geq((double)LONGEST / (double)n, least[kind]);
		}
	free(src);
}

Test(codec_planes, any_length_from_any_byte)
{
	uint8_t *src = malloc(LONGEST);
	const struct codec *c;

	seed = 2;
	for (int kind = 0; kind < KINDS; kind++) {
		fill(src, LONGEST, kind, 0);
		for (int run = 0; run < 60; run++) {
			size_t at = draw(5000), len = 1 + draw(draw(2) ? 3000 : 70000);

			round_trip(src + at, len, &c);
		}
	}
	free(src);
}

/* Zeros, denormals, infinities, NaNs with their payloads, and bits without meaning. */
Test(codec_planes, specials_keep_every_bit)
{
	static const uint16_t special[] = { 0,      0x8000, 1,      0x8001, 0x7f,   0x7f80, 0xff80,
					    0x7f81, 0xffff, 0x7fc0, 0x7c00, 0xfc01, 0x7e55, 0x03ff };
	uint8_t *src = malloc(LONGEST);
	const struct codec *c;

	seed = 3;
	for (int run = 0; run < 200; run++) {
		size_t len = 2 * (1 + draw(20000));
		uint32_t often = 1 + draw(200);

		fill(src, len, draw(KINDS), 0);
		for (size_t at = 0; at + 2 <= len; at += 2) {
			uint16_t v = special[draw(14)];

			if (draw(often) == 0)
				memcpy(src + at, &v, 2);
		}
		round_trip(src, len, &c);
	}
	memset(src, 0, LONGEST);
	round_trip(src, LONGEST, &c);
	cr_assert_eq(c->id, CODEC_LZ4);
	free(src);
}

/* Mantissas that need all their bits cost their own block, and no other. */
Test(codec_planes, a_wide_value_costs_its_block)
{
	uint8_t *src = malloc(LONGEST);
	const struct codec *c;
	size_t before, after;

	seed = 7;
	fill(src, LONGEST, BF16_WIDE, 0);
	before = round_trip(src, LONGEST, &c);
	src[LONGEST / 2 + 4] = 1;
	after = round_trip(src, LONGEST, &c);
	cr_assert_eq(c->id, CODEC_PLANES);
	cr_assert_eq(after - before, 2 * PLANES_BLOCK);
	free(src);
}

Test(codec_planes, more_than_a_mantissa_is_refused)
{
	uint8_t src[1024], dst[2048], back[1024], params[CODEC_PARAMS] = { 4 };
	ssize_t n;

	seed = 8;
	fill(src, sizeof(src), F32, 0);
	n = codec_planes.encode(src, sizeof(src), dst, sizeof(dst), params);
	cr_assert_gt(n, 0);
	cr_assert_eq(codec_planes.decode(dst, (size_t)n, back, sizeof(back), params), 0);
	cr_assert_eq(memcmp(back, src, sizeof(src)), 0);
	for (unsigned kept = 0; kept < 256; kept++) {
		dst[3] = (uint8_t)kept;
		/* With the length that it would need. */
		cr_assert_eq(codec_planes.decode(dst, (size_t)n + (kept - 23) * 32, back,
						 sizeof(back), params),
			     kept == 23 ? 0 : -EBADMSG, "%u", kept);
	}
	params[1] = 4;
	cr_assert_eq(codec_planes.decode(dst, (size_t)n, back, sizeof(back), params), -EBADMSG);
}

Test(codec_planes, both_compilations_agree)
{
#ifdef __x86_64__
	static const struct planes_form forms[] = {
		{ "bf16", 2, true, 0, 255, 8, { 0 }, 0 },
		{ "fp16", 2, false, 2, 31, 5, { 0, 1, 7 }, 3 },
		{ "e4m3", 1, false, 3, 15, 4, { 0, 1, 2, 7 }, 4 },
		{ "f32", 4, false, 0, 255, 8, { 0 }, 0 },
	};
	uint8_t src[1024], a[PLANES_BLOCK_MAX + PLANES_BEYOND], b[PLANES_BLOCK_MAX + PLANES_BEYOND],
		back[1024];

	if (!__builtin_cpu_supports("avx2"))
		cr_skip("this processor has no AVX2");
	seed = 4;
	for (int run = 0; run < 5000; run++) {
		unsigned kind = draw(4);
		size_t len = forms[kind].size * PLANES_BLOCK, n, m;
		struct planes_code x, y;

		fill(src, len, kind < 3 ? kind : F32 + draw(4), 0);
		for (unsigned k = draw(2) ? draw(300) : 0; k; k--)
			src[draw((uint32_t)len)] = (uint8_t)draw(256);
		n = planes_portable.encode_block(&forms[kind], src, a, &x);
		m = planes_avx2.encode_block(&forms[kind], src, b, &y);
		cr_assert(n == m && !memcmp(a, b, n) && !memcmp(&x, &y, sizeof(x)));
		cr_assert(planes_portable.decode_block(&forms[kind], &x, b, back));
		cr_assert_eq(memcmp(back, src, len), 0);
		cr_assert(planes_avx2.decode_block(&forms[kind], &x, a, back));
		cr_assert_eq(memcmp(back, src, len), 0);
	}
#endif
}

Test(codec_planes, pairs_come_apart_and_together)
{
#ifdef __x86_64__
	static const struct planes_ops *const both[] = { &planes_portable, &planes_avx2 };
	uint8_t src[2000], back[2000], high[2][1000], low[2][1000];

	if (!__builtin_cpu_supports("avx2"))
		cr_skip("this processor has no AVX2");
	seed = 6;
	for (int run = 0; run < 300; run++) {
		size_t n = draw(1001);
		bool rotate = draw(2);

		fill(src, sizeof(src), draw(KINDS), 0);
		for (int k = 0; k < 2; k++)
			both[k]->split_pairs(src, n, rotate, high[k], low[k]);
		cr_assert_eq(memcmp(high[0], high[1], n), 0);
		cr_assert_eq(memcmp(low[0], low[1], n), 0);
		if (n && rotate)
			cr_assert_eq(high[0][n - 1],
				     (uint8_t)(src[2 * n - 1] << 1 | src[2 * n - 2] >> 7));
		for (int k = 0; k < 2; k++) {
			memset(back, 0, sizeof(back));
			both[k]->join_pairs(high[0], low[0], n, rotate, back);
			cr_assert_eq(memcmp(src, back, 2 * n), 0);
		}
	}
#endif
}

Test(codec_planes, damage_stays_inside_the_buffers)
{
	const struct codec_set fast = codec_set(CODEC_CHOICE_FAST, 0, 1);
	uint8_t *src = malloc(LONGEST), *dst = malloc(LONGEST);
	unsigned refused = 0;

	seed = 5;
	for (int run = 0; run < 3000; run++) {
		size_t len = 1000 + draw(6000), raw = len, n;
		uint8_t params[CODEC_PARAMS], *encoded, *back;
		const struct codec *c;

		fill(src, len, draw(KINDS), 0);
		c = codec_encode(&fast, src, len, dst, &n, params);
		if (c->id != CODEC_PLANES)
			continue;
		encoded = malloc(n);
		memcpy(encoded, dst, n);
		for (unsigned k = draw(4); k; k--)
			encoded[draw(draw(2) ? 60 : (uint32_t)n)] = (uint8_t)draw(256);
		if (draw(4) == 0)
			params[draw(2)] = (uint8_t)draw(256);
		if (draw(4) == 0)
			raw = 1 + draw(7000);
		back = malloc(raw);
		refused += c->decode(encoded, draw(4) ? n : draw((uint32_t)n), back, raw, params) !=
			   0;
		free(back);
		free(encoded);
	}
	cr_assert_gt(refused, 300);
	free(dst);
	free(src);
}
