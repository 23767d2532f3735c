/* SPDX-License-Identifier: Apache-2.0 */
/* hash: whichever variant this processor gets, the results are those of the library. */
#include "store/hash.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <xxhash.h>

Test(hash, every_length_gives_what_the_library_gives)
{
	uint64_t seed = 1;

	for (size_t len = 0; len < 5000; len += len < 600 ? 1 : 61) {
		/* Of exactly this length, so that a sanitizer sees a read beyond. */
		uint8_t *p = malloc(len ? len : 1);
		XXH128_hash_t want;
		struct hash128 h;

		for (size_t i = 0; i < len; i++)
			p[i] = (uint8_t)((seed = seed * 6364136223846793005u + 1) >> 33);
		want = XXH3_128bits(p, len);
		h = hash128(p, len);
		cr_assert_eq(h.lo, want.low64);
		cr_assert_eq(h.hi, want.high64);
		cr_assert_eq(sum64(p, len), XXH3_64bits(p, len));
		cr_assert_eq(sum64_seeded(p, len, seed), XXH3_64bits_withSeed(p, len, seed));
		free(p);
	}
}

/* They are on disks: no library may change them. */
Test(hash, results_never_change)
{
	static const char text[] = "KVfs";

	cr_assert_eq(sum64(text, 0), 0x2d06800538d394c2u);
	cr_assert_eq(hash128(text, 0).lo, 0x6001c324468d497fu);
	cr_assert_eq(hash128(text, 0).hi, 0x99aa06d3014798d8u);
}
