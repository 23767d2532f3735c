/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash: XXH3 as the compiler's baseline has it, and the choice of a faster variant at run time. The
 * library is not asked to choose, as not every distribution builds that part of it.
 */
#include "store/hash.h"
#include "store/hash_impl.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#if defined(__x86_64__)
/* Short input takes no vectors. The test costs a load: the compiler's run time has asked the
 * processor at start. */
#define USE_AVX2(len) ((len) > 240u && __builtin_cpu_supports("avx2"))
#endif

struct hash128 hash128(const void *buf, size_t len)
{
	XXH128_hash_t h;

#if defined(__x86_64__)
	if (USE_AVX2(len))
		return hash128_avx2(buf, len);
#endif
	h = XXH3_128bits(buf, len);
	return (struct hash128){ .lo = h.low64, .hi = h.high64 };
}

uint64_t sum64(const void *buf, size_t len)
{
#if defined(__x86_64__)
	if (USE_AVX2(len))
		return sum64_avx2(buf, len);
#endif
	return XXH3_64bits(buf, len);
}

uint64_t sum64_seeded(const void *buf, size_t len, uint64_t seed)
{
	return XXH3_64bits_withSeed(buf, len, seed);
}
