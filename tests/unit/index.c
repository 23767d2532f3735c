/* SPDX-License-Identifier: Apache-2.0 */
/* The dedup index: what it finds, what it costs, what it forgets. */
#include "store/index.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdlib.h>

static struct index *x;

static void teardown(void)
{
	index_free(x);
}

TestSuite(index, .fini = teardown);

static uint64_t key(uint64_t n)
{
	return index_key(x, 1, (struct hash128){ n, ~n }, 1000);
}

static struct index_totals totals(void)
{
	struct index_totals t;

	index_totals(x, &t);
	return t;
}

static bool has(uint64_t id)
{
	return index_next(x, key(id), id - 1) == id;
}

Test(index, finds_what_is_in_it_at_every_size)
{
	enum { N = 100000 };

	cr_assert_eq(index_new(UINT64_MAX, &x), 0);
	for (uint64_t i = 1; i <= N; i++) {
		index_add(x, key(i), i);
		/* What was moved, by this one or by the table's growth, and what was there long. */
		cr_assert(has(i));
		cr_assert(has(i / 2 + 1));
		cr_assert(has(i % 97 + 1 > i ? i : i % 97 + 1));
	}
	cr_assert_eq(totals().replaced, 0);
	cr_assert_eq(totals().entries, N);
	for (uint64_t i = 1; i <= N; i++)
		cr_assert(has(i), "%" PRIu64, i);
	cr_assert_eq(index_next(x, key(N + 1), 0), 0);
	/* Every third goes, and nothing else. */
	for (uint64_t i = 3; i <= N; i += 3)
		index_remove(x, key(i), i);
	for (uint64_t i = 1; i <= N; i++)
		cr_assert_eq(has(i), i % 3 != 0, "%" PRIu64, i);
	cr_assert_eq(totals().entries, N - N / 3);
}

/* At every moment, also while it grows and after most of it went; below a few thousand, pages count. */
Test(index, costs_at_most_40_bytes_an_entry)
{
	enum { N = 300000, FEW = 2000 };

	cr_assert_eq(index_new(UINT64_MAX, &x), 0);
	for (uint64_t i = 1; i <= N; i++) {
		index_add(x, key(i), i);
		if (i >= FEW)
			cr_assert(totals().bytes <= 40 * i, "%" PRIu64 " of %" PRIu64,
				  totals().bytes, i);
	}
	for (uint64_t i = N; i > FEW; i--) {
		cr_assert(totals().bytes <= 40 * i, "%" PRIu64 " of %" PRIu64, totals().bytes, i);
		index_remove(x, key(i), i);
	}
	cr_assert_eq(totals().replaced, 0);
	for (uint64_t i = 1; i <= FEW; i++)
		cr_assert(has(i));
}

/* Ten times as many as there is room for: the newest is there, and as many others as fit. */
Test(index, never_takes_more_than_its_budget)
{
	enum { BUDGET = 64 << 10, N = 10 * BUDGET / 16 };
	uint64_t found = 0, newer = 0;

	cr_assert_eq(index_new(BUDGET, &x), 0);
	for (uint64_t i = 1; i <= N; i++) {
		index_add(x, key(i), i);
		cr_assert(has(i), "%" PRIu64, i);
		cr_assert(totals().bytes <= BUDGET);
	}
	for (uint64_t i = 1; i <= N; i++) {
		found += has(i);
		newer += i > N / 2 && has(i);
	}
	cr_assert_eq(found, totals().entries);
	cr_assert_eq(totals().replaced, N - found);
	cr_assert(found > BUDGET / 16 * 95 / 100, "%" PRIu64, found);
	cr_assert(newer > found * 3 / 4, "%" PRIu64 " of %" PRIu64 ": what was added last stays",
		  newer, found);
	/* There is room again. */
	for (uint64_t i = 1; i <= N; i++)
		index_remove(x, key(i), i);
	cr_assert_eq(totals().entries, 0);
	cr_assert(totals().bytes <= 4 * 4096);
	for (uint64_t i = 1; i <= 1000; i++)
		index_add(x, key(i), i);
	for (uint64_t i = 1; i <= 1000; i++)
		cr_assert(has(i));
}

/* In order, INDEX_SAME at most, and others lose nothing but a few by it; the table grows little for it. */
Test(index, of_one_key_keeps_a_few)
{
	enum { N = 5000, OTHERS = 10000 };
	uint64_t k, id = 0, last = 0, bytes;
	unsigned n = 0;

	cr_assert_eq(index_new(UINT64_MAX, &x), 0);
	for (uint64_t i = 1; i <= OTHERS; i++)
		index_add(x, key(i), i);
	bytes = totals().bytes;
	k = key(OTHERS + 1);
	for (uint64_t i = 1; i <= N; i++)
		index_add(x, k, OTHERS + i);
	while ((id = index_next(x, k, id))) {
		cr_assert(id > last);
		last = id;
		n++;
	}
	cr_assert(n >= 4 && n <= INDEX_SAME, "%u", n);
	cr_assert_eq(last, OTHERS + N, "the newest is there");
	cr_assert(totals().bytes <= bytes / 4 * 5);
	n = 0;
	for (uint64_t i = 1; i <= OTHERS; i++)
		n += !has(i);
	cr_assert(n <= INDEX_SAME, "%u others are gone", n);
}

Test(index, tells_tenants_lengths_and_hashes_apart)
{
	struct hash128 h = { 1, 2 };

	cr_assert_eq(index_new(4096, &x), 0);
	cr_assert_eq(index_key(x, 1, h, 3), index_key(x, 1, h, 3));
	cr_assert_neq(index_key(x, 1, h, 3), index_key(x, 2, h, 3));
	cr_assert_neq(index_key(x, 1, h, 3), index_key(x, 1, h, 4));
	cr_assert_neq(index_key(x, 1, h, 3), index_key(x, 1, (struct hash128){ 1, 3 }, 3));
	cr_assert_neq(index_key(x, 1, h, 3), index_key(x, 1, (struct hash128){ 2, 2 }, 3));
	/* A row of a damaged database; and what was never added. */
	index_add(x, key(1), 0);
	index_remove(x, key(1), 0);
	index_remove(x, key(1), 5);
	cr_assert_eq(totals().entries, 0);
}

/* Where a content lies is not to be foreseen from outside. */
Test(index, has_its_own_keys)
{
	struct index *other;

	cr_assert_eq(index_new(4096, &x), 0);
	cr_assert_eq(index_new(4096, &other), 0);
	cr_assert_neq(index_key(x, 1, (struct hash128){ 1, 2 }, 3),
		      index_key(other, 1, (struct hash128){ 1, 2 }, 3));
	index_free(other);
}
