/* SPDX-License-Identifier: Apache-2.0 */
/* clock: CLOCK_MONOTONIC, for measuring. */
#ifndef STORE_CLOCK_H
#define STORE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int64_t now_us(void)
{
	return now_ns() / 1000;
}

#endif
