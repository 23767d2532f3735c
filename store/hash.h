/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash: the hash that finds equal chunks and the sums that detect damage. Both are XXH3, so results
 * may be kept on disk. Neither resists an attacker: bytes decide what is equal.
 */
#ifndef STORE_HASH_H
#define STORE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hash128 {
	uint64_t lo, hi;
};

/* XXH3_128bits. */
struct hash128 hash128(const void *buf, size_t len);

static inline bool hash128_equal(struct hash128 a, struct hash128 b)
{
	return a.lo == b.lo && a.hi == b.hi;
}

/* XXH3_64bits. */
uint64_t sum64(const void *buf, size_t len);

/* XXH3_64bits_withSeed: a sum that holds in one place only. */
uint64_t sum64_seeded(const void *buf, size_t len, uint64_t seed);

#endif
