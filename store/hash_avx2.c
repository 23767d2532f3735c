/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_avx2: XXH3 compiled for AVX2, whatever the flags of the build are. To be called only where
 * the processor has it.
 */
#if defined(__x86_64__)

#include "store/hash_impl.h"

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

/* The target goes on every function of the header, so that they are inlined into each other. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_VECTOR 2 /* XXH_AVX2 */
#define XXH_INLINE_ALL
#include <xxhash.h>

struct hash128 hash128_avx2(const void *buf, size_t len)
{
	XXH128_hash_t h = XXH3_128bits(buf, len);

	return (struct hash128){ .lo = h.low64, .hi = h.high64 };
}

uint64_t sum64_avx2(const void *buf, size_t len)
{
	return XXH3_64bits(buf, len);
}

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif /* __x86_64__ */
