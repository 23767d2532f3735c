/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data: the content of the benchmark's files.
 *
 * normal: bf16 values of a normal distribution, what K and V look like to a compressor: signs and
 * mantissas are noise, exponents are not. random: noise, which nothing compresses. Both depend only
 * on the seed and the block number, a block being 1 MiB, so any part can be made again to compare,
 * and no two blocks are equal.
 */
#ifndef BENCH_DATA_H
#define BENCH_DATA_H

#include "tests/bench/worker.h"

#include <math.h>

#define DATA_BLOCK MIB

enum data_kind { DATA_NORMAL, DATA_RANDOM };

struct data {
	enum data_kind kind;
	uint64_t seed;
	uint16_t quantile[65536]; /* bf16 values, equally likely */
};

/* The value below which a standard normal variable lies with probability p, by bisection. */
static inline double normal_quantile(double p)
{
	double lo = -8, hi = 8;

	for (int i = 0; i < 40; i++) {
		double mid = (lo + hi) / 2;

		if (0.5 * erfc(-mid * M_SQRT1_2) < p)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

static inline uint16_t to_bf16(double value)
{
	float f = (float)value;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)((bits + 0x8000) >> 16);
}

static inline struct data *data_new(const char *kind, uint64_t seed)
{
	struct data *d = buffer_new(sizeof(*d));

	d->kind = strcmp(kind, "random") ? DATA_NORMAL : DATA_RANDOM;
	d->seed = seed;
	if (d->kind == DATA_NORMAL) {
		for (unsigned i = 0; i < 65536; i++)
			d->quantile[i] = to_bf16(normal_quantile((i + 0.5) / 65536));
	}
	return d;
}

static inline uint64_t splitmix(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* Fills one block. file: the number of the file in its session. */
static inline void data_block(const struct data *d, unsigned file, uint64_t block, void *buf)
{
	uint64_t state = d->seed * 0x2545f4914f6cdd1dull + ((uint64_t)file << 40) + (block << 20);
	uint64_t *word = buf;
	const uint16_t *q = d->quantile;

	splitmix(&state);
	state = splitmix(&state);
	for (size_t i = 0; i < DATA_BLOCK / sizeof(*word); i++) {
		uint64_t r = splitmix(&state);

		if (d->kind == DATA_NORMAL)
			r = q[r & 0xffff] | (uint64_t)q[r >> 16 & 0xffff] << 16 |
			    (uint64_t)q[r >> 32 & 0xffff] << 32 | (uint64_t)q[r >> 48] << 48;
		word[i] = r;
	}
}

#endif
