/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checksum that a GPU and a CPU compute alike, in any order: the sum over all 8-byte words of a
 * mix of the word and its place. Finds every single wrong, missing or moved word; it is no hash to
 * identify content with. Compiled by nvcc and by the host's compiler.
 */
#ifndef KVFS_GPU_CHECKSUM_H
#define KVFS_GPU_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define GPU_AND_HOST __host__ __device__
#else
#define GPU_AND_HOST
#endif

/* Odd multipliers make each step reversible, so one changed word always changes the sum. */
static inline GPU_AND_HOST uint64_t checksum_word(uint64_t word, uint64_t index)
{
	uint64_t x = word + index * 0x9e3779b97f4a7c15ULL;

	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ULL;
	return x ^ (x >> 32);
}

/* What the words' sum lacks: the bytes after the last whole word, zeros behind them, and the
 * length. */
static inline uint64_t checksum_finish(uint64_t sum, const void *mem, size_t len)
{
	uint64_t tail = 0;

	if (len % 8) {
		memcpy(&tail, (const char *)mem + len / 8 * 8, len % 8);
		sum += checksum_word(tail, len / 8);
	}
	return sum + checksum_word(len, ~0ULL);
}

/* The twin of the kernel. mem may be unaligned. */
static inline uint64_t checksum_bytes(const void *mem, size_t len)
{
	uint64_t sum = 0, word;

	for (size_t i = 0; i < len / 8; i++) {
		memcpy(&word, (const char *)mem + i * 8, 8);
		sum += checksum_word(word, i);
	}
	return checksum_finish(sum, mem, len);
}

#endif
