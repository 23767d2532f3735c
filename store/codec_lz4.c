/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_lz4: one lz4 block, no frame. KV elements themselves do not shrink so; padding, repeats and
 * values in wider containers do.
 */
#include "store/codec.h"

#include <errno.h>
#include <lz4.h>

#define SAMPLE 16384u

static size_t lz4_bound(size_t len)
{
	return len > LZ4_MAX_INPUT_SIZE ? 0 : (size_t)LZ4_compressBound((int)len);
}

static ssize_t lz4_encode(const void *src, size_t len, void *dst, size_t cap,
			  const uint8_t params[CODEC_PARAMS])
{
	(void)params;
	if (len > LZ4_MAX_INPUT_SIZE)
		return -EINVAL;
	if (cap > lz4_bound(len))
		cap = lz4_bound(len);
	return LZ4_compress_default(src, dst, (int)len, (int)cap);
}

/* 16 KiB from its middle, all of it when it is smaller. */
static size_t lz4_estimate(const void *src, size_t len, void *scratch, uint8_t params[CODEC_PARAMS])
{
	/* On a cache line, which is a multiple of any element. */
	size_t at = len > SAMPLE ? (len - SAMPLE) / 2 & ~(size_t)63 : 0;
	size_t n = len > SAMPLE ? SAMPLE : len;
	ssize_t got = lz4_encode((const uint8_t *)src + at, n, scratch, n, params);

	return got > 0 ? (size_t)got * len / n : SIZE_MAX;
}

static int lz4_decode(const void *src, size_t len, void *dst, size_t raw_len,
		      const uint8_t params[CODEC_PARAMS])
{
	(void)params;
	if (raw_len > LZ4_MAX_INPUT_SIZE || len > lz4_bound(raw_len))
		return -EBADMSG;
	if (LZ4_decompress_safe(src, dst, (int)len, (int)raw_len) != (int)raw_len)
		return -EBADMSG;
	return 0;
}

const struct codec codec_lz4 = {
	.id = CODEC_LZ4,
	.name = "lz4",
	.bound = lz4_bound,
	.estimate = lz4_estimate,
	.encode = lz4_encode,
	.decode = lz4_decode,
};
