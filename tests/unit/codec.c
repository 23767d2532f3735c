/* SPDX-License-Identifier: Apache-2.0 */
/* codec: every choice decodes to what it was made of, and nothing else decodes to anything. */
#include "store/codec.h"
#include "tests/unit/random.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_LONGEST 262144u

static void fill(uint8_t *p, size_t len, unsigned kind)
{
	for (size_t i = 0; i < len; i++) {
		if (kind == 0)
			p[i] = (uint8_t)draw(256);
		else if (kind == 1)
			p[i] = 0;
		else
			p[i] = (uint8_t)(i % 8 < 6 ? 0 : draw(256)); /* a container too wide */
	}
}

/* Encodes and decodes in buffers of exactly the lengths promised. */
static uint8_t round_trip(const uint8_t *src, size_t len, size_t *ret_len)
{
	uint8_t *dst = malloc(len), *encoded, *back = malloc(len), params[CODEC_PARAMS];
	const struct codec_set fast = codec_set(CODEC_CHOICE_FAST, 0, 1);
	const struct codec *c = codec_encode(&fast, src, len, dst, ret_len, params);

	cr_assert_leq(*ret_len, len);
	cr_assert_eq(codec_by_id(c->id), c);
	encoded = malloc(*ret_len);
	memcpy(encoded, c->id == CODEC_RAW ? src : dst, *ret_len);
	cr_assert_eq(c->decode(encoded, *ret_len, back, len, params), 0);
	cr_assert_eq(memcmp(back, src, len), 0);
	free(back);
	free(encoded);
	free(dst);
	return c->id;
}

Test(codec, random_chunks_come_back)
{
	uint8_t *src = malloc(CHUNK_LONGEST);
	size_t stored;

	seed = 1;
	for (int run = 0; run < 300; run++) {
		size_t len = 1 + draw(draw(2) ? 2000 : 70000);
		unsigned kind = draw(3);

		fill(src, len, kind);
		round_trip(src, len, &stored);
		if (len > 1000) {
			uint8_t id = round_trip(src, len, &stored);

			cr_assert_eq(id == CODEC_RAW, kind == 0);
			cr_assert(kind != 1 || id == CODEC_LZ4);
			cr_assert(kind == 0 || stored < len - len / 64);
		}
	}
	free(src);
}

Test(codec, a_good_sample_in_a_bad_chunk_is_stored_raw)
{
	uint8_t *src = malloc(CHUNK_LONGEST);
	size_t stored, gap = 2000;

	seed = 2;
	fill(src, CHUNK_LONGEST, 0);
	memset(src + CHUNK_LONGEST / 2 - gap / 2, 0, gap);
	cr_assert_eq(round_trip(src, CHUNK_LONGEST, &stored), CODEC_RAW);
	cr_assert_eq(stored, CHUNK_LONGEST);
	free(src);
}

/* What decodes more slowly than the device reads is no codec for auto; all others are asked for by name. */
Test(codec, auto_is_what_keeps_up_with_the_device)
{
	struct codec_set all = codec_set(CODEC_CHOICE_AUTO, 0, 1);
	struct codec_set slow = codec_set(CODEC_CHOICE_AUTO, 1000000, 1);
	struct codec_set fastest = codec_set(CODEC_CHOICE_AUTO, UINT64_MAX / 2, 1);
	uint64_t lz4 = codec_decode_rate(&codec_lz4), planes = codec_decode_rate(&codec_planes);

	cr_log_info("lz4 %.2f GB/s, planes %.2f, dense %.2f", (double)lz4 / 1e9,
		    (double)planes / 1e9, (double)codec_decode_rate(&codec_dense) / 1e9);
	cr_assert_gt(lz4, 1000000);
	cr_assert_gt(planes, 1000000);
	cr_assert_gt(codec_decode_rate(&codec_dense), 1000000);
	cr_assert(all.v[0] == &codec_lz4 && all.v[1] == &codec_planes && !all.v[2]);
	cr_assert_eq(memcmp(&slow, &all, sizeof(all)), 0);
	cr_assert_null(fastest.v[0]);
	/* So many threads keep up. */
	fastest = codec_set(CODEC_CHOICE_AUTO, planes * 3, 4);
	cr_assert(fastest.v[0] == &codec_planes || fastest.v[1] == &codec_planes);
	cr_assert_null(codec_set(CODEC_CHOICE_NONE, 0, 1).v[0]);
	cr_assert_eq(codec_set(CODEC_CHOICE_DENSE, UINT64_MAX / 2, 1).v[2], &codec_dense);
	cr_assert_null(codec_set(CODEC_CHOICE_LZ4, UINT64_MAX / 2, 1).v[1]);
}

Test(codec, choices_have_names)
{
	enum codec_choice c;

	for (unsigned k = 0; k < CODEC_CHOICES; k++) {
		cr_assert_eq(codec_choice_parse(codec_choice_name(k), &c), 0);
		cr_assert_eq(c, k);
	}
	cr_assert_eq(codec_choice_parse("", &c), -EINVAL);
	cr_assert_eq(codec_choice_parse("lz", &c), -EINVAL);
}

Test(codec, real_kv_comes_back)
{
	const char *tests = getenv("TESTS");
	uint8_t *src = malloc(CHUNK_LONGEST);
	char path[PATH_MAX];
	size_t stored;
	int fd;

	snprintf(path, sizeof(path), "%s/data/story_000.ggsq2", tests ? tests : "tests");
	fd = open(path, O_RDONLY);
	cr_assert_geq(fd, 0, "no %s", path);
	cr_assert_eq(read(fd, src, CHUNK_LONGEST), CHUNK_LONGEST);
	close(fd);
	seed = 3;
	for (int run = 0; run < 100; run++) {
		size_t off = draw(CHUNK_LONGEST), len = 1 + draw(CHUNK_LONGEST - (uint32_t)off);

		round_trip(src + off, len, &stored);
	}
	free(src);
}

Test(codec, an_encoder_keeps_to_its_bounds)
{
	static const uint8_t ids[] = { CODEC_RAW, CODEC_LZ4 };
	uint8_t src[3000], params[CODEC_PARAMS] = { 0 };

	seed = 4;
	for (int run = 0; run < 1000; run++) {
		const struct codec *c = codec_by_id(ids[draw(2)]);
		size_t len = 1 + draw(sizeof(src)), cap = 1 + draw((uint32_t)c->bound(len));
		uint8_t *dst = malloc(cap), *whole = malloc(c->bound(len));
		ssize_t n, full;

		fill(src, len, draw(3));
		full = c->encode(src, len, whole, c->bound(len), params);
		cr_assert_gt(full, 0);
		n = c->encode(src, len, dst, cap, params);
		cr_assert_leq(n, (ssize_t)cap);
		if ((size_t)full <= cap / 2)
			cr_assert_gt(n, 0);
		free(whole);
		free(dst);
	}
}

Test(codec, wrong_lengths_are_refused)
{
	uint8_t src[1000] = { 1, 2, 3 }, dst[1100], back[1100], params[CODEC_PARAMS] = { 0 };
	ssize_t n = codec_lz4.encode(src, sizeof(src), dst, sizeof(dst), params);

	cr_assert_gt(n, 0);
	cr_assert_eq(codec_lz4.decode(dst, (size_t)n, back, 999, params), -EBADMSG);
	cr_assert_eq(codec_lz4.decode(dst, (size_t)n, back, 1001, params), -EBADMSG);
	cr_assert_eq(codec_lz4.decode(dst, (size_t)n - 1, back, 1000, params), -EBADMSG);
	cr_assert_eq(codec_lz4.decode(dst, SIZE_MAX, back, 1000, params), -EBADMSG);
	cr_assert_eq(codec_lz4.decode(dst, (size_t)n, back, SIZE_MAX, params), -EBADMSG);
	cr_assert_eq(codec_raw.decode(src, 999, back, 1000, params), -EBADMSG);
	cr_assert_eq(codec_raw.decode(src, 1000, back, 999, params), -EBADMSG);
	cr_assert_null(codec_by_id(CODEC_QUANTS + 1));
	cr_assert_null(codec_by_id(255));
}

Test(codec, decoding_damage_stays_inside_the_buffers)
{
	uint8_t src[2000], dst[2100], params[CODEC_PARAMS] = { 0 };

	seed = 5;
	for (int run = 0; run < 5000; run++) {
		size_t len = 100 + draw(1900), raw = len;
		ssize_t n;
		uint8_t *encoded, *back;

		fill(src, len, 1 + draw(2));
		n = codec_lz4.encode(src, len, dst, sizeof(dst), params);
		cr_assert_gt(n, 0);
		encoded = malloc((size_t)n);
		memcpy(encoded, dst, (size_t)n);
		for (unsigned k = 1 + draw(4); k; k--)
			encoded[draw((uint32_t)n)] = (uint8_t)draw(256);
		if (draw(2))
			raw = 1 + draw(2000);
		back = malloc(raw);
		codec_lz4.decode(encoded, (size_t)n, back, raw, params);
		free(back);
		free(encoded);
	}
}
