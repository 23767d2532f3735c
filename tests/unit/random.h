/* SPDX-License-Identifier: Apache-2.0 */
/* random: the same numbers in every run, and normally distributed ones, for the tests of codecs. */
#ifndef UNIT_RANDOM_H
#define UNIT_RANDOM_H

#include <math.h>
#include <stdint.h>

static uint64_t seed;

static inline uint32_t draw(uint32_t below)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((seed >> 33) % below);
}

static inline float normal(void)
{
	double u = (draw(1u << 30) + 1) / (double)(1u << 30),
	       v = draw(1u << 30) / (double)(1u << 30);

	return (float)(sqrt(-2 * log(u)) * cos(2 * M_PI * v));
}

#endif
