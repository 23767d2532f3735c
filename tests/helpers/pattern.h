/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Content that is a function of a seed and an offset, so that a test can ask for "the bytes of seed 7
 * from 1 MiB on" without keeping them. Seed 0 is zeros. No seed's bytes compress or deduplicate
 * against another's, and a byte moved to another offset is wrong there.
 */
#ifndef PATTERN_H
#define PATTERN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t pattern_mix(uint64_t x)
{
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	return x ^ (x >> 32);
}

static inline uint64_t pattern_word(uint64_t seed, uint64_t index)
{
	return seed ? pattern_mix(index * 0x9e3779b97f4a7c15u + seed * 0xff51afd7ed558ccdu) : 0;
}

static inline void pattern_fill(void *buf, size_t len, uint64_t seed, uint64_t off)
{
	unsigned char *p = buf;

	while (len) {
		uint64_t w = pattern_word(seed, off / 8);
		size_t skip = off % 8;
		size_t n = 8 - skip < len ? 8 - skip : len;

		memcpy(p, (unsigned char *)&w + skip, n);
		p += n;
		off += n;
		len -= n;
	}
}

/* The index in buf of the first byte that is not the pattern's, or len. */
static inline size_t pattern_check(const void *buf, size_t len, uint64_t seed, uint64_t off)
{
	const unsigned char *p = buf;
	size_t done = 0;

	while (done < len) {
		uint64_t w = pattern_word(seed, (off + done) / 8);
		size_t skip = (off + done) % 8;
		size_t n = 8 - skip < len - done ? 8 - skip : len - done;

		if (memcmp(p + done, (unsigned char *)&w + skip, n)) {
			while (p[done] == ((unsigned char *)&w)[skip]) {
				done++;
				skip++;
			}
			return done;
		}
		done += n;
	}
	return len;
}

#endif
