/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lets Criterion run under ThreadSanitizer; linked into the unit tests of SAN=thread only.
 *
 * BoxFort, the sandbox under Criterion, maps its arena at 0x200000000000 + rand_r() * 16 MiB and
 * gives up after ten addresses that are taken. ThreadSanitizer's shadow takes nearly all of them,
 * but leaves 0x550000000000 to 0x568000000000 to programs: answer with numbers that land there.
 * Nothing else in the test binary may call rand_r().
 */
#include <stdlib.h>

#define ARENA_FIRST ((0x550000000000 - 0x200000000000) >> 24)
#define ARENA_COUNT ((0x568000000000 - 0x550000000000) >> 24)

int rand_r(unsigned int *seed)
{
	*seed = *seed * 1103515245u + 12345u;
	return ARENA_FIRST + (*seed >> 8) % ARENA_COUNT;
}
