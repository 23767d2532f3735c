/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in the cache: what makes them dirty, and what a transaction on its way does to names that
 * change meanwhile. Also the tables and lists that need no store: handles.
 */
#include "fs/files.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static struct fs *fs;
static struct inode *root, *f, *g;
static struct dentry *d;

static struct inode *add_inode(uint64_t ino, uint32_t mode)
{
	struct meta_inode a = { .ino = ino, .mode = mode, .nlink = S_ISDIR(mode) ? 2 : 1 };
	struct inode *i;

	cr_assert_eq(inode_enter(fs, &a, true, &i), 0);
	i->refs++;
	return i;
}

static void setup(void)
{
	fs = calloc(1, sizeof(*fs));
	list_init(&fs->dirty);
	list_init(&fs->resting);
	list_init(&fs->vacant);
	root = add_inode(INO_ROOT, S_IFDIR | 0755);
	f = add_inode(20, S_IFREG | 0600);
	g = add_inode(21, S_IFREG | 0600);
	cr_assert_eq(dentry_enter(fs, root, "name", f, 16, &d), 0);
	d->refs++;
}

TestSuite(fs_dentry, .init = setup);

Test(fs_dentry, found_by_parent_and_name)
{
	cr_assert_eq(dentry_find(fs, INO_ROOT, "name"), d);
	cr_assert_null(dentry_find(fs, INO_ROOT, "nam"));
	cr_assert_null(dentry_find(fs, 20, "name"));
	cr_assert(!d->dirty);
	cr_assert_eq(inode_a_name(f), d);
}

Test(fs_dentry, removal_is_dirty_until_it_lands)
{
	dentry_change(fs, d, NULL, 16);
	cr_assert(d->dirty && d->gap);
	cr_assert_eq(fs->n_dirty, 1);
	cr_assert(!list_empty(&f->lost));
	dentry_take_off(fs, d, NULL);
	cr_assert(d->dirty);
	dentry_land(fs, d, true, ++fs->dirty_seq);
	cr_assert(!d->dirty);
	cr_assert(list_empty(&f->lost));
}

/* A removal while the transaction that makes the name is on its way. */
Test(fs_dentry, change_in_flight_stays_dirty)
{
	struct dentry *n;

	cr_assert_eq(dentry_enter(fs, root, "new", NULL, 0, &n), 0);
	n->refs++;
	dentry_change(fs, n, g, 17);
	dentry_take_off(fs, n, g);
	dentry_change(fs, n, NULL, 17);
	cr_assert(n->dirty);
	cr_assert(!list_empty(&g->lost), "meta.db is about to have it");
	dentry_land(fs, n, false, ++fs->dirty_seq);
	cr_assert(n->dirty);
	cr_assert_eq(n->db_inode, g);
}

Test(fs_dentry, change_in_flight_that_turns_back_is_clean)
{
	struct dentry *n;

	cr_assert_eq(dentry_enter(fs, root, "new", NULL, 0, &n), 0);
	n->refs++;
	dentry_change(fs, n, g, 17);
	dentry_take_off(fs, n, g);
	dentry_change(fs, n, NULL, 17);
	dentry_turn_back(fs, n, NULL, false);
	cr_assert(!n->dirty);
	cr_assert(list_empty(&g->lost));
}

/* Taken from its old owner only: the new owner's commit is still to come. */
Test(fs_dentry, taken_but_not_given)
{
	dentry_change(fs, d, NULL, 16);
	dentry_change(fs, d, g, 17);
	dentry_take_off(fs, d, NULL);
	dentry_land(fs, d, true, ++fs->dirty_seq);
	cr_assert(d->dirty);
	cr_assert_eq(d->db_inode, NULL);
	cr_assert_eq(g->n_dirty_names, 1);
}

/* An fsync of the root asks for names by their age, and whoever replaces the owner of one owes what
 * that did. */
Test(fs_dentry, age_goes_with_the_name)
{
	uint64_t since;

	dentry_change(fs, d, g, 17);
	since = d->dirty_since;
	cr_assert(since > 0);
	fs->dirty_seq += 10;
	dentry_change(fs, d, f, 18);
	dentry_change(fs, d, g, 19);
	cr_assert_eq(d->dirty_since, since);
	dentry_take_off(fs, d, g);
	dentry_change(fs, d, f, 20);
	cr_assert_eq(d->dirty_since, since);
	dentry_land(fs, d, false, 100);
	cr_assert(d->dirty);
	cr_assert_eq(d->dirty_since, 100);
}

/* The gap counts from the last take-off. */
Test(fs_dentry, gap_starts_anew)
{
	dentry_change(fs, d, NULL, 16);
	dentry_change(fs, d, g, 17);
	cr_assert(d->gap);
	dentry_take_off(fs, d, g);
	dentry_change(fs, d, f, 18);
	cr_assert(!d->gap);
	dentry_land(fs, d, false, ++fs->dirty_seq);
	cr_assert(!d->gap && d->dirty);
}

Test(fs_dentry, failed_commit_keeps_the_gap)
{
	dentry_change(fs, d, NULL, 16);
	dentry_change(fs, d, g, 17);
	dentry_take_off(fs, d, g);
	dentry_turn_back(fs, d, f, true);
	cr_assert(d->gap && d->dirty);
	cr_assert_eq(d->db_inode, f);
	cr_assert(!list_empty(&f->lost));
}

Test(fs_dentry, vacant_names_are_few)
{
	char name[16];

	for (int k = 0; k < 5000; k++) {
		struct dentry *n;

		snprintf(name, sizeof(name), "%d", k);
		cr_assert_eq(dentry_enter(fs, root, name, NULL, 0, &n), 0);
		n->refs++;
		dentry_put(fs, n);
	}
	cr_assert_leq(HASH_COUNT(fs->dentries), 1100);
}

Test(fs_handle, numbers_are_used_again)
{
	struct handles t = { 0 };
	uint64_t fh[1000], again;

	handles_init(&t);
	for (int k = 0; k < 1000; k++)
		cr_assert_eq(handle_add(&t, handle_new(HANDLE_TEXT, NULL), &fh[k]), 0);
	cr_assert_eq(handles_used(&t), 1000);
	handle_free(handle_take(&t, fh[500]));
	cr_assert_null(handle_get(&t, fh[500]));
	cr_assert_null(handle_take(&t, fh[500]));
	cr_assert_eq(handle_add(&t, handle_new(HANDLE_TEXT, NULL), &again), 0);
	cr_assert_eq(again, fh[500]);
	for (struct handle *h; (h = handle_take_any(&t));)
		handle_free(h);
	cr_assert_eq(handles_used(&t), 0);
	cr_assert_null(handle_get(&t, 0));
	cr_assert_null(handle_get(&t, UINT64_MAX));
	handles_done(&t);
}
