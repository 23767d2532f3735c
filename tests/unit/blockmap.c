/* SPDX-License-Identifier: Apache-2.0 */
/* The bit set against an array of bools. */
#include "store/store_impl.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define N 1000

static void compare(const struct blockmap *b, const bool *m)
{
	uint64_t set = 0;

	for (size_t i = 0; i < N; i++) {
		cr_assert_eq(blockmap_get(b, i), m[i], "bit %zu", i);
		set += m[i];
	}
	cr_assert_eq(b->set, set);
}

static void compare_runs(const struct blockmap *b, const bool *m, bool value)
{
	size_t at = random() % N, end = at + random() % (N - at), first;
	uint64_t n, found = blockmap_next(b, at, end, value, &n);

	for (first = at; first < end && m[first] != value; first++)
		;
	cr_assert_eq(found, first);
	for (at = first; at < end && m[at] == value; at++)
		;
	cr_assert_eq(n, at - first);
}

Test(blockmap, model)
{
	struct blockmap b = { 0 };
	bool m[N] = { 0 };

	srandom(1);
	for (int i = 0; i < 3000; i++) {
		size_t first = random() % N, n = random() % (random() % 4 ? 9 : N - first);
		bool value = random() % 2;

		if (first + n > N)
			n = N - first;
		if (value)
			cr_assert_eq(blockmap_set(&b, first, n), 0);
		else
			blockmap_clear(&b, first, n);
		for (size_t k = first; k < first + n; k++)
			m[k] = value;
		compare(&b, m);
		compare_runs(&b, m, true);
		compare_runs(&b, m, false);
	}
	blockmap_done(&b);
}

Test(blockmap, past_the_end_is_clear)
{
	struct blockmap b = { 0 };
	uint64_t n;

	cr_assert_eq(blockmap_next(&b, 5, 1ull << 40, false, &n), 5);
	cr_assert_eq(n, (1ull << 40) - 5);
	blockmap_clear(&b, 7, UINT64_MAX - 3);
	cr_assert_eq(blockmap_set(&b, 70, 1), 0);
	blockmap_clear(&b, 70, UINT64_MAX / 2);
	cr_assert_eq(b.set, 0);
	blockmap_done(&b);
}
