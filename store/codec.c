/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec: which codecs there are and which one a chunk gets. What a codec does with the bytes is in
 * its own file.
 */
#include "store/codec.h"

#include <errno.h>
#include <string.h>

/* Of those that are equally short the first is taken. */
static const struct codec_set sets[CODEC_CHOICES] = {
	[CODEC_CHOICE_STORE] = { { &codec_lz4, &codec_planes } },
	[CODEC_CHOICE_AUTO] = { { &codec_lz4, &codec_planes } },
	[CODEC_CHOICE_FAST] = { { &codec_lz4, &codec_planes } },
	[CODEC_CHOICE_DENSE] = { { &codec_lz4, &codec_planes, &codec_dense, &codec_quants } },
	[CODEC_CHOICE_LZ4] = { { &codec_lz4 } },
};

static const char *const names[CODEC_CHOICES] = {
	[CODEC_CHOICE_STORE] = "store", [CODEC_CHOICE_AUTO] = "auto", [CODEC_CHOICE_FAST] = "fast",
	[CODEC_CHOICE_DENSE] = "dense", [CODEC_CHOICE_LZ4] = "lz4",   [CODEC_CHOICE_NONE] = "none",
};

const char *codec_choice_name(enum codec_choice choice)
{
	return names[choice];
}

int codec_choice_parse(const char *name, enum codec_choice *ret)
{
	for (unsigned i = 0; i < CODEC_CHOICES; i++)
		if (!strcmp(name, names[i])) {
			*ret = (enum codec_choice)i;
			return 0;
		}
	return -EINVAL;
}

const struct codec *codec_by_id(uint8_t id)
{
	switch (id) {
	case CODEC_RAW:
		return &codec_raw;
	case CODEC_LZ4:
		return &codec_lz4;
	case CODEC_PLANES:
		return &codec_planes;
	case CODEC_DENSE:
		return &codec_dense;
	case CODEC_QUANTS:
		return &codec_quants;
	default:
		return NULL;
	}
}

/* The longest encoded form that is worth its decoding. */
static size_t worthwhile(size_t len)
{
	return len - (len + 63) / 64;
}

struct codec_set codec_set(enum codec_choice choice, uint64_t read_rate, unsigned threads)
{
	struct codec_set all = sets[choice], fast = { { NULL } };
	size_t n = 0;

	if (choice != CODEC_CHOICE_AUTO || !read_rate)
		return all;
	for (size_t i = 0; i < CODEC_CANDIDATES && all.v[i]; i++)
		if (codec_decode_rate(all.v[i]) > read_rate / threads)
			fast.v[n++] = all.v[i];
	return fast;
}

const struct codec *codec_encode(const struct codec_set *set, const void *src, size_t len,
				 void *dst, size_t *ret_len, uint8_t params[CODEC_PARAMS])
{
	const struct codec *best = NULL;
	size_t least = worthwhile(len) + 1;
	ssize_t n = 0;

	for (size_t i = 0; i < CODEC_CANDIDATES && set->v[i]; i++) {
		uint8_t own[CODEC_PARAMS] = { 0 };
		size_t estimate = set->v[i]->estimate(src, len, dst, own);

		if (estimate >= least)
			continue;
		least = estimate;
		best = set->v[i];
		memcpy(params, own, CODEC_PARAMS);
	}
	if (best)
		n = best->encode(src, len, dst, worthwhile(len), params);
	if (n > 0) {
		*ret_len = (size_t)n;
		return best;
	}
	memset(params, 0, CODEC_PARAMS);
	*ret_len = len;
	return &codec_raw;
}
