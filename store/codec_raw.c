/* SPDX-License-Identifier: Apache-2.0 */
/* codec_raw: bytes as they are, for what does not compress. */
#include "store/codec.h"

#include <errno.h>
#include <string.h>

static size_t raw_bound(size_t len)
{
	return len;
}

static ssize_t raw_encode(const void *src, size_t len, void *dst, size_t cap,
			  const uint8_t params[CODEC_PARAMS])
{
	(void)params;
	if (len > cap)
		return 0;
	memcpy(dst, src, len);
	return (ssize_t)len;
}

static int raw_decode(const void *src, size_t len, void *dst, size_t raw_len,
		      const uint8_t params[CODEC_PARAMS])
{
	(void)params;
	if (len != raw_len)
		return -EBADMSG;
	memcpy(dst, src, len);
	return 0;
}

const struct codec codec_raw = {
	.id = CODEC_RAW,
	.name = "raw",
	.bound = raw_bound,
	.encode = raw_encode,
	.decode = raw_decode,
};
