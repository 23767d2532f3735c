/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_rate: how fast this machine decodes, on what the codecs are made for: bf16 whose exponents fall off
 * geometrically, and for lz4 the same in a container twice as wide.
 */
#include "store/clock.h"
#include "store/codec.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH 65536u
#define ROUNDS 4 /* the fastest counts: the others met somebody else's work */

static const struct codec *const measured[] = { &codec_lz4, &codec_planes, &codec_dense };
#define MEASURED (sizeof(measured) / sizeof(measured[0]))

static uint64_t rates[MEASURED];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_sample(uint8_t *raw, bool wide)
{
	uint64_t seed = 1;

	for (unsigned i = 0; i < LENGTH; i += 2) {
		uint32_t r;
		uint16_t v;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		r = (uint32_t)(seed >> 32);
		v = (uint16_t)((r & 0x807f) | (126u - (unsigned)__builtin_ctz(r >> 8 | 1u << 20))
						      << 7);
		if (wide && i & 2)
			v = 0;
		memcpy(raw + i, &v, sizeof(v));
	}
}

/* scratch: three times LENGTH. */
static uint64_t measure(const struct codec *c, uint8_t *scratch)
{
	uint8_t *raw = scratch, *encoded = scratch + LENGTH, *back = encoded + LENGTH;
	uint8_t params[CODEC_PARAMS] = { 0 };
	uint64_t least = UINT64_MAX;
	ssize_t n;

	make_sample(raw, c == &codec_lz4);
	if (c->estimate(raw, LENGTH, back, params) == SIZE_MAX)
		return UINT64_MAX;
	n = c->encode(raw, LENGTH, encoded, LENGTH, params);
	for (unsigned i = 0; n > 0 && i < ROUNDS; i++) {
		int64_t begin = now_ns();
		uint64_t took;

		if (c->decode(encoded, (size_t)n, back, LENGTH, params))
			return UINT64_MAX;
		took = (uint64_t)(now_ns() - begin);
		least = took < least ? took : least;
	}
	return n > 0 ? LENGTH * UINT64_C(1000000000) / (least ? least : 1) : UINT64_MAX;
}

static void measure_all(void)
{
	uint8_t *scratch = calloc(3, LENGTH);

	for (size_t i = 0; i < MEASURED; i++)
		rates[i] = scratch ? measure(measured[i], scratch) : UINT64_MAX;
	free(scratch);
}

uint64_t codec_decode_rate(const struct codec *c)
{
	pthread_once(&once, measure_all);
	for (size_t i = 0; i < MEASURED; i++)
		if (measured[i] == c)
			return rates[i];
	return UINT64_MAX;
}
