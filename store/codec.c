/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec: which codecs there are and which one a chunk gets. What a codec does with the bytes is in
 * its own file.
 */
#include "store/codec.h"

#include <string.h>

/* The first of those that are equally short is taken. */
static const struct codec *const candidates[] = { &codec_lz4, &codec_planes };

const struct codec *codec_by_id(uint8_t id)
{
	switch (id) {
	case CODEC_RAW:
		return &codec_raw;
	case CODEC_LZ4:
		return &codec_lz4;
	case CODEC_PLANES:
		return &codec_planes;
	default:
		return NULL;
	}
}

/* The longest encoded form that is worth its decoding. */
static size_t worthwhile(size_t len)
{
	return len - (len + 63) / 64;
}

const struct codec *codec_encode(const void *src, size_t len, void *dst, size_t *ret_len,
				 uint8_t params[CODEC_PARAMS])
{
	const struct codec *best = NULL;
	size_t least = worthwhile(len) + 1;
	ssize_t n = 0;

	for (size_t i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++) {
		uint8_t own[CODEC_PARAMS] = { 0 };
		size_t estimate = candidates[i]->estimate(src, len, dst, own);

		if (estimate >= least)
			continue;
		least = estimate;
		best = candidates[i];
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
