/* SPDX-License-Identifier: Apache-2.0 */
/* The table of let-go files against a plain array, over many random changes. */
#include "fs/known.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define INOS 4096u

static struct known known;
static uint64_t model[INOS + 1]; /* nlookup by inode number; 0: not in the table */

static void check(uint64_t ino)
{
	struct known_file f = { 0 };
	bool there = known_find(&known, ino, &f);

	cr_assert_eq(there, model[ino] != 0, "inode %lu", (unsigned long)ino);
	if (!there)
		return;
	cr_assert_eq(f.ino, ino);
	cr_assert_eq(f.nlookup, model[ino]);
	cr_assert_eq(f.parent, ino * 3);
	cr_assert_eq(f.id, ino * 5);
	cr_assert_eq(f.idle_since, 7);
}

static void change(uint64_t ino, unsigned n)
{
	struct known_file f = { ino, ino * 3, ino * 5, n + 1, 7 };

	if (!model[ino]) {
		cr_assert_eq(known_add(&known, &f), 0);
		model[ino] = n + 1;
	} else if (n & 1) {
		known_forget(&known, ino, n);
		model[ino] = model[ino] > n ? model[ino] - n : 0;
	} else {
		cr_assert(known_take(&known, ino, &f));
		cr_assert_eq(f.nlookup, model[ino]);
		model[ino] = 0;
	}
	check(ino);
}

/* Consecutive numbers, as inodes have, and few enough shards' worth that runs form and wrap. */
Test(known, model)
{
	srandom(11);
	for (unsigned round = 0; round < 300000; round++)
		change(1 + (unsigned)random() % INOS, (unsigned)random() % 4);
	for (uint64_t ino = 1; ino <= INOS; ino++)
		check(ino);
	known_free(&known);
	for (uint64_t ino = 1; ino <= INOS; ino++)
		cr_assert_not(known_find(&known, ino, &(struct known_file){ 0 }));
}

/* What is not there is no error. */
Test(known, empty)
{
	struct known_file f;

	known_forget(&known, 7, 1);
	cr_assert_not(known_find(&known, 7, &f));
	cr_assert_not(known_take(&known, 7, &f));
}
