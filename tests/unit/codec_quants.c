/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_quants: blocks as llama.cpp quantises shrink, wherever they begin; bytes come back whatever they are;
 * the two compilations do the same; nothing else decodes outside of its buffers.
 */
#include "store/codec.h"
#include "store/codec_quants.h"
#include "tests/unit/damage.h"
#include "tests/unit/random.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 200000u /* more than two parts */
#define CHUNK   65536u

enum { Q8_0, Q4_0, FORMS };
static const size_t block_size[FORMS] = { 34, 18 };

static void put_half(uint8_t *p, float x)
{
	uint32_t bits;
	uint16_t half;
	int e;

	memcpy(&bits, &x, sizeof(bits));
	e = (int)(bits >> 23 & 255) - 127 + 15;
	e = e < 0 ? 0 : e > 30 ? 30 : e;
	half = (uint16_t)(bits >> 31 << 15 | (uint32_t)e << 10 | (bits >> 13 & 1023));
	memcpy(p, &half, sizeof(half));
}

static float from_half(uint16_t half)
{
	float x = ldexpf((float)(half & 1023) + (half & 0x7c00 ? 1024 : 0),
			 (half >> 10 & 31) - 25 + !(half & 0x7c00));

	return half & 0x8000 ? -x : x;
}

/* The block as llama.cpp makes it of 32 values. */
static void quantise(int form, const float x[32], uint8_t *p)
{
	float largest = 0, scale, inverse;

	for (int i = 0; i < 32; i++)
		largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
	scale = form == Q8_0 ? fabsf(largest) / 127 : largest / -8;
	inverse = scale != 0 ? 1 / scale : 0;
	put_half(p, scale);
	for (int i = 0; i < 32 && form == Q8_0; i++)
		p[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
	for (int i = 0; i < 16 && form == Q4_0; i++) {
		uint8_t low = (uint8_t)(x[i] * inverse + 8.5f);
		uint8_t high = (uint8_t)(x[i + 16] * inverse + 8.5f);

		p[2 + i] = (uint8_t)((low > 15 ? 15 : low) | (high > 15 ? 15 : high) << 4);
	}
}

/* Channels: one in 16 is ten times as large as others. */
static void fill(uint8_t *p, size_t len, int form, bool channels, size_t phase)
{
	uint8_t block[34];
	float x[32];

	for (size_t k = 0; k < phase && k < len; k++)
		p[k] = (uint8_t)draw(256);
	for (size_t at = phase; at < len; at += block_size[form]) {
		for (unsigned i = 0; i < 32; i++)
			x[i] = normal() * (channels && i % 16 == 5 ? 10 : 1);
		quantise(form, x, block);
		memcpy(p + at, block, at + block_size[form] <= len ? block_size[form] : len - at);
	}
}

/* In buffers of exactly the lengths promised; 0: it would be longer than cap. */
static size_t round_trip(const uint8_t *src, size_t len, size_t cap,
			 const uint8_t params[CODEC_PARAMS])
{
	uint8_t *own = malloc(len), *dst = malloc(cap), *back = malloc(len), *encoded;
	ssize_t n;

	memcpy(own, src, len);
	n = codec_quants.encode(own, len, dst, cap, params);
	cr_assert_geq(n, 0);
	cr_assert_leq((size_t)n, cap);
	if (n) {
		encoded = malloc((size_t)n);
		memcpy(encoded, dst, (size_t)n);
		cr_assert_eq(codec_quants.decode(encoded, (size_t)n, back, len, params), 0);
		cr_assert_eq(memcmp(back, src, len), 0);
		free(encoded);
	}
	free(back);
	free(dst);
	free(own);
	return (size_t)n;
}

/* What dense makes of it. */
static size_t dense_length(const uint8_t *src, size_t len)
{
	uint8_t *dst = malloc(len), params[CODEC_PARAMS] = { 0 };
	ssize_t n = 0;

	if (codec_dense.estimate(src, len, dst, params) != SIZE_MAX)
		n = codec_dense.encode(src, len, dst, len, params);
	free(dst);
	return n > 0 ? (size_t)n : len;
}

Test(codec_quants, blocks_shrink_wherever_they_begin)
{
	static const double least[FORMS][2] = { { 1.05, 1.27 }, { 1.08, 1.64 } };
	uint8_t *src = malloc(CHUNK), *scratch = malloc(CHUNK);

	seed = 1;
	for (int k = 0; k < FORMS * 2; k++)
		for (size_t phase = 0; phase < block_size[k / 2]; phase += 1 + draw(4)) {
			uint8_t params[CODEC_PARAMS] = { 0 };
			size_t estimate, n;

			fill(src, CHUNK, k / 2, k % 2, phase);
			estimate = codec_quants.estimate(src, CHUNK, scratch, params);
			cr_assert_neq(estimate, SIZE_MAX);
			cr_assert_eq(params[0], k / 2);
			cr_assert_eq(params[1], phase, "phase %u, not %zu", params[1], phase);
			cr_assert_eq(params[3], 0);
			n = round_trip(src, CHUNK, CHUNK, params);
			cr_log_info(
				"form %d, channels %d, phase %zu, %u classes: %.3f, estimated %.3f",
				k / 2, k % 2, phase, params[2], (double)CHUNK / (double)n,
				(double)CHUNK / (double)estimate);
			cr_assert_geq((double)CHUNK / (double)n, least[k / 2][k % 2]);
			cr_assert_float_eq((double)estimate / (double)n, 1, 0.05);
			cr_assert_lt(n, dense_length(src, CHUNK) * 63 / 64);
		}
	free(scratch);
	free(src);
}

/* The first slab of a slot file quantised; returns its length. */
static size_t real_blocks(int form, uint8_t *dst)
{
	const char *tests = getenv("TESTS");
	uint32_t head[3], cells, skip[2];
	char path[PATH_MAX];
	uint8_t row_head[12];
	uint16_t row[32];
	FILE *f;

	snprintf(path, sizeof(path), "%s/data/story_000.ggsq2", tests ? tests : "tests");
	f = fopen(path, "rb");
	cr_assert_not_null(f, "no %s", path);
	cr_assert_eq(fread(head, sizeof(head), 1, f), 1);
	cr_assert_eq(fseek(f, 4 * (long)head[2], SEEK_CUR), 0);
	cr_assert_eq(fread(&cells, sizeof(cells), 1, f), 1);
	cr_assert_eq(fseek(f, 8 * (long)cells, SEEK_CUR), 0);
	cr_assert_eq(fread(skip, sizeof(skip), 1, f), 1);
	cr_assert_eq(fread(row_head, sizeof(row_head), 1, f), 1);
	cr_assert_eq(row_head[4], sizeof(row));
	for (uint32_t i = 0; i < cells; i++) {
		float x[32];

		cr_assert_eq(fread(row, sizeof(row), 1, f), 1);
		for (int k = 0; k < 32; k++)
			x[k] = from_half(row[k]);
		quantise(form, x, dst + i * block_size[form]);
	}
	fclose(f);
	return cells * block_size[form];
}

Test(codec_quants, real_keys_shrink)
{
	static const double least[FORMS] = { 1.15, 1.4 };
	const struct codec_set dense = codec_set(CODEC_CHOICE_DENSE, 0, 1);

	for (int form = 0; form < FORMS; form++) {
		uint8_t *src = malloc(CHUNK), *dst = malloc(CHUNK), params[CODEC_PARAMS];
		size_t len = real_blocks(form, src), n;
		const struct codec *c = codec_encode(&dense, src, len, dst, &n, params);

		cr_log_info("%s, %u classes: %zu of %zu, %.3f; dense %zu", c->name, params[2], n,
			    len, (double)len / (double)n, dense_length(src, len));
		cr_assert_eq(c->id, CODEC_QUANTS);
		cr_assert_geq((double)len / (double)n, least[form]);
		free(dst);
		free(src);
	}
}

Test(codec_quants, other_elements_are_nothing_for_it)
{
	uint8_t *src = malloc(CHUNK), *scratch = malloc(CHUNK), params[CODEC_PARAMS];

	seed = 2;
	for (unsigned kind = 0; kind < 5; kind++) {
		for (size_t at = 0; at < CHUNK; at += 4) {
			float x = normal();
			uint32_t v;

			memcpy(&v, &x, sizeof(v));
			v = kind == 0 ? draw(1u << 31) << 1 | draw(2) : kind == 1 ? v : v >> 16;
			if (kind == 3)
				put_half((uint8_t *)&v, x);
			memcpy(src + at, &v, sizeof(v));
			if (kind == 4)
				memset(src + at, 0, sizeof(v));
		}
		cr_assert_eq(codec_quants.estimate(src, CHUNK, scratch, params), SIZE_MAX,
			     "kind %u", kind);
	}
	free(scratch);
	free(src);
}

Test(codec_quants, any_length_as_any_form)
{
	uint8_t *src = malloc(LONGEST);
	unsigned fitted = 0;

	seed = 3;
	for (int run = 0; run < 400; run++) {
		size_t len = 1 + draw(draw(2) ? 300 : draw(4) ? 70000 : LONGEST);
		uint8_t form = (uint8_t)draw(FORMS);
		uint8_t params[CODEC_PARAMS] = { form, (uint8_t)draw((uint32_t)block_size[form]),
						 draw(2) ? 4 : 1 };

		if (len < params[1])
			continue;
		fill(src, len, draw(4) ? form : 1 - form, draw(2), draw(34));
		for (unsigned k = draw(4) ? 0 : draw(2000); k; k--)
			src[draw((uint32_t)len)] = (uint8_t)draw(256);
		if (draw(8) == 0)
			memset(src, (int)draw(256), len);
		fitted += round_trip(src, len, codec_quants.bound(len), params) > 0;
		round_trip(src, len, 1 + draw((uint32_t)len), params);
	}
	cr_assert_gt(fitted, 350);
	free(src);
}

Test(codec_quants, both_compilations_agree)
{
#ifdef __x86_64__
	static uint8_t src[340], back[340], low[2][10], high[2][10], quants[2][320];

	if (!__builtin_cpu_supports("avx2"))
		cr_skip("this processor has no AVX2");
	seed = 4;
	for (int run = 0; run < 5000; run++) {
		uint8_t columns = draw(2) ? 32 : 16, classes = draw(4) ? 4 : 1;
		struct quants_shape s = {
			columns, columns + 2, 0, classes, columns / classes, { 0 }
		};
		size_t n = draw(11), len = n * s.size;

		for (uint8_t k = 0; k < columns; k++) {
			uint32_t at = draw(k + 1u);

			s.order[k] = s.order[at];
			s.order[at] = k;
		}
		for (size_t k = 0; k < sizeof(src); k++)
			src[k] = (uint8_t)draw(256);
		if (classes == 1)
			for (uint8_t k = 0; k < columns; k++)
				s.order[k] = k;
		quants_portable.split(&s, src, n, low[0], high[0], quants[0]);
		quants_avx2.split(&s, src, n, low[1], high[1], quants[1]);
		cr_assert(!memcmp(low[0], low[1], n) && !memcmp(high[0], high[1], n));
		cr_assert_eq(memcmp(quants[0], quants[1], n * columns), 0);
		memset(back, 0, sizeof(back));
		quants_portable.join(&s, low[0], high[0], quants[0], n, back);
		cr_assert_eq(memcmp(back, src, len), 0);
		memset(back, 0, sizeof(back));
		quants_avx2.join(&s, low[0], high[0], quants[0], n, back);
		cr_assert_eq(memcmp(back, src, len), 0);
		for (size_t k = len; k < sizeof(back); k++)
			cr_assert_eq(back[k], 0);
	}
#endif
}

Test(codec_quants, damage_stays_inside_the_buffers)
{
	uint8_t *src = malloc(LONGEST), *dst = malloc(LONGEST);
	unsigned refused = 0;

	seed = 5;
	for (int run = 0; run < 700; run++) {
		size_t len = 8000 + draw(60000);

		fill(src, len, (int)draw(FORMS), draw(2), draw(34));
		refused += damaged_is_refused(&codec_quants, src, len, dst);
	}
	cr_assert_gt(refused, 300);
	free(dst);
	free(src);
}

/* Two columns too many of one class would leave bytes unwritten. */
Test(codec_quants, classes_of_unequal_size_are_refused)
{
	uint8_t *src = malloc(CHUNK), *dst = malloc(CHUNK), *back = malloc(CHUNK);
	uint8_t params[CODEC_PARAMS] = { Q8_0, 0, 4 };
	ssize_t n;

	seed = 6;
	fill(src, CHUNK, Q8_0, true, 0);
	n = codec_quants.encode(src, CHUNK, dst, CHUNK, params);
	cr_assert_gt(n, 0);
	cr_assert_eq(codec_quants.decode(dst, (size_t)n, back, CHUNK, params), 0);
	for (unsigned k = 1; k < 4; k++) {
		dst[0] ^= (uint8_t)k;
		cr_assert_eq(codec_quants.decode(dst, (size_t)n, back, CHUNK, params), -EBADMSG);
		dst[0] ^= (uint8_t)k;
	}
	params[2] = 2;
	cr_assert_eq(codec_quants.decode(dst, (size_t)n, back, CHUNK, params), -EBADMSG);
	cr_assert_eq(codec_quants.encode(src, CHUNK, dst, CHUNK, params), -EINVAL);
	free(back);
	free(dst);
	free(src);
}
