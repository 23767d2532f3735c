/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec: which codecs there are and which one a chunk gets. What a codec does with the bytes is in
 * its own file.
 */
#include "store/codec.h"

#include <string.h>

#define SAMPLE 16384u

/* In order of preference; the first that gains enough is taken. */
static const struct codec *const candidates[] = { &codec_lz4 };

const struct codec *codec_by_id(uint8_t id)
{
	switch (id) {
	case CODEC_RAW:
		return &codec_raw;
	case CODEC_LZ4:
		return &codec_lz4;
	default:
		return NULL;
	}
}

/* The longest encoded form that is worth its decoding. */
static size_t worthwhile(size_t len)
{
	return len - (len + 63) / 64;
}

/* The length of src encoded in dst; 0 when that is not worth it. */
static size_t try_codec(const struct codec *c, const uint8_t *src, size_t len, uint8_t *dst,
			uint8_t params[CODEC_PARAMS])
{
	ssize_t n;

	if (len > SAMPLE) {
		/* On a cache line, which is a multiple of any element. */
		size_t middle = (len - SAMPLE) / 2 & ~(size_t)63;

		n = c->encode(src + middle, SAMPLE, dst, worthwhile(SAMPLE), params);
		if (n <= 0)
			return 0;
	}
	n = c->encode(src, len, dst, worthwhile(len), params);
	return n > 0 ? (size_t)n : 0;
}

const struct codec *codec_encode(const void *src, size_t len, void *dst, size_t *ret_len,
				 uint8_t params[CODEC_PARAMS])
{
	for (size_t i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++) {
		size_t n = try_codec(candidates[i], src, len, dst, params);

		if (n) {
			*ret_len = n;
			return candidates[i];
		}
	}
	memset(params, 0, CODEC_PARAMS);
	*ret_len = len;
	return &codec_raw;
}
