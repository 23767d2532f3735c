/* SPDX-License-Identifier: Apache-2.0 */
/* Every codec's decoder on any bytes, in buffers of exactly the lengths; what encoders make comes back. */
#include "store/codec.h"
#include "tests/fuzz/fuzz.h"

#define CODECS (CODEC_QUANTS + 1)

struct head {
	uint8_t codec; /* and choice of codecs */
	uint8_t params[CODEC_PARAMS];
	uint8_t raw_len[3];
};

static void decode(const struct head *h, const uint8_t *data, size_t len)
{
	const struct codec *c = codec_by_id(h->codec % CODECS);
	size_t raw_len = h->raw_len[0] | (size_t)h->raw_len[1] << 8 |
			 (size_t)(h->raw_len[2] & 3) << 16;
	uint8_t *in = copy_of(data, len), *out = malloc(raw_len);

	c->decode(in, len, out, raw_len, h->params);
	free(out);
	free(in);
}

static void round_trip(const struct head *h, const uint8_t *data, size_t len)
{
	struct codec_set set = codec_set(1 + h->codec / CODECS % (CODEC_CHOICES - 1), 0, 1);
	uint8_t *in = copy_of(data, len), *out = malloc(len), *back = malloc(len);
	uint8_t params[CODEC_PARAMS];
	const struct codec *c;
	size_t n;

	c = codec_encode(&set, in, len, out, &n, params);
	must(n <= len);
	must(!c->decode(c->id == CODEC_RAW ? in : out, n, back, len, params));
	must(!memcmp(in, back, len));
	free(back);
	free(out);
	free(in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct head h;

	if (len <= sizeof(h))
		return 0;
	memcpy(&h, data, sizeof(h));
	decode(&h, data + sizeof(h), len - sizeof(h));
	round_trip(&h, data + sizeof(h), len - sizeof(h));
	return 0;
}
