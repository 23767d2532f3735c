/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must be committed together. Each test builds a small namespace in the cache, as operations
 * would have left it, and asks for the closure of one inode. No store is behind it: everything the
 * closure looks at is in memory.
 */
#include "fs/commit.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>

static struct fs *fs;
static struct inode *root;

static struct inode *add_inode(uint64_t ino, uint32_t mode, bool in_db)
{
	struct meta_inode a = { .ino = ino, .mode = mode, .nlink = S_ISDIR(mode) ? 2 : 1 };
	struct inode *i;

	cr_assert_eq(inode_enter(fs, &a, in_db, &i), 0);
	i->refs++; /* nothing goes away in these tests */
	return i;
}

static struct inode *file(uint64_t ino, bool in_db)
{
	return add_inode(ino, S_IFREG | 0600, in_db);
}

static struct inode *dir(uint64_t ino, bool in_db)
{
	return add_inode(ino, S_IFDIR | 0700, in_db);
}

/* A name meta.db has; NULL: a vacant one. */
static struct dentry *name(struct inode *parent, const char *name, struct inode *i)
{
	struct dentry *d;

	cr_assert_eq(dentry_enter(fs, parent, name, i, i ? fs->next_id++ : 0, &d), 0);
	d->refs++;
	return d;
}

static void set(struct dentry *d, struct inode *i)
{
	dentry_change(fs, d, i, fs->next_id++);
}

static struct dentry *made(struct inode *parent, const char *n, struct inode *i)
{
	struct dentry *d = name(parent, n, NULL);

	set(d, i);
	return d;
}

static void setup(void)
{
	fs = calloc(1, sizeof(*fs));
	fs->next_id = DENTRY_FIRST;
	list_init(&fs->dirty);
	list_init(&fs->resting);
	list_init(&fs->vacant);
	root = dir(INO_ROOT, true);
}

TestSuite(fs_closure, .init = setup);

static struct closure c;

static int close_over(struct inode *seed)
{
	closure_begin(&c, fs);
	return closure_add(&c, seed);
}

Test(fs_closure, new_file_alone)
{
	struct inode *f = file(20, false);

	made(root, "f", f);
	cr_assert_eq(close_over(f), 0);
	cr_assert_eq(c.n, 1);
	cr_assert(closure_has(&c, f));
	closure_done(&c);
}

Test(fs_closure, clean_inode_needs_nothing)
{
	struct inode *f = file(20, true);

	name(root, "f", f);
	cr_assert_eq(close_over(f), 0);
	cr_assert_eq(c.n, 0);
	closure_done(&c);
}

Test(fs_closure, new_directories_above_come_along)
{
	struct inode *a = dir(20, false), *b = dir(21, false), *f = file(22, false);

	made(root, "a", a);
	made(a, "b", b);
	made(b, "f", f);
	cr_assert_eq(close_over(f), 0);
	cr_assert_eq(c.n, 3);
	cr_assert(closure_has(&c, a) && closure_has(&c, b) && closure_has(&c, f));
	closure_done(&c);
}

/* Only the moved one, however far above. */
Test(fs_closure, moved_directory_above_comes_along)
{
	struct inode *a = dir(20, true), *b = dir(21, true), *f = file(22, false);
	struct dentry *old = name(root, "a", a);

	name(a, "b", b);
	made(b, "f", f);
	set(old, NULL);
	made(root, "moved", a);
	cr_assert_eq(close_over(f), 0);
	cr_assert(closure_has(&c, a) && closure_has(&c, f));
	cr_assert(!closure_has(&c, b));
	closure_done(&c);
}

/* X/Y becomes Y/Z/X: X below Z alone would be a circle. */
Test(fs_closure, no_circle_through_a_clean_directory)
{
	struct inode *x = dir(20, true), *y = dir(21, true), *z = dir(22, true);
	struct dentry *dx = name(root, "x", x), *dy = name(x, "y", y);

	name(y, "z", z);
	set(dy, NULL);
	made(root, "y", y);
	set(dx, NULL);
	made(z, "x", x);
	cr_assert_eq(close_over(x), 0);
	cr_assert(closure_has(&c, y));
	closure_done(&c);
}

/* After a restart the name of z may not be in memory. */
Test(fs_closure, unknown_path_takes_every_moved_directory)
{
	struct inode *x = dir(20, true), *y = dir(21, true), *z = dir(22, true);
	struct dentry *dx = name(root, "x", x), *dy = name(x, "y", y);

	set(dy, NULL);
	made(root, "y", y);
	set(dx, NULL);
	made(z, "x", x);
	cr_assert_eq(close_over(x), 0);
	cr_assert(closure_has(&c, y));
	closure_done(&c);
}

Test(fs_closure, replaced_and_replacing_go_together)
{
	struct inode *old = file(20, true), *new = file(21, false);
	struct dentry *d = name(root, "f", old), *tmp = name(root, "tmp", NULL);

	set(tmp, new);
	set(tmp, NULL);
	set(d, new);
	old->a.nlink = 0;
	inode_update_dirty(fs, old);
	cr_assert(!d->gap);
	cr_assert_eq(close_over(new), 0);
	cr_assert(closure_has(&c, old));
	closure_done(&c);
	cr_assert_eq(close_over(old), 0);
	cr_assert(closure_has(&c, new));
	closure_done(&c);
}

/* Removed, then made anew: the removal needs nobody, the new one still evicts the old. */
Test(fs_closure, a_gap_parts_them)
{
	struct inode *old = file(20, true), *new = file(21, false);
	struct dentry *d = name(root, "f", old);

	set(d, NULL);
	old->a.nlink = 0;
	inode_update_dirty(fs, old);
	set(d, new);
	cr_assert(d->gap);
	cr_assert_eq(close_over(old), 0);
	cr_assert(!closure_has(&c, new));
	closure_done(&c);
	cr_assert_eq(close_over(new), 0);
	cr_assert(closure_has(&c, old));
	closure_done(&c);
}

/* The loser's other new name must be put with it, and what that needs. */
Test(fs_closure, loser_with_another_name)
{
	struct inode *old = file(20, true), *new = file(21, false), *a = dir(22, false);
	struct dentry *d = name(root, "f", old);

	made(root, "a", a);
	made(a, "link", old);
	set(d, new);
	cr_assert_eq(close_over(new), 0);
	cr_assert(closure_has(&c, old) && closure_has(&c, a));
	closure_done(&c);
}

Test(fs_closure, exchange_goes_together)
{
	struct inode *f = file(20, true), *g = file(21, true);
	struct dentry *df = name(root, "f", f), *dg = name(root, "g", g);

	set(df, g);
	set(dg, f);
	cr_assert_eq(close_over(f), 0);
	cr_assert(closure_has(&c, g));
	closure_done(&c);
}

Test(fs_closure, removed_directory_takes_what_meta_has_in_it)
{
	struct inode *a = dir(20, true), *f = file(21, true), *g = file(22, true);
	struct dentry *da = name(root, "a", a), *df = name(a, "f", f), *dg = name(a, "g", g);

	set(df, NULL);
	f->a.nlink = 0;
	inode_update_dirty(fs, f);
	set(dg, NULL);
	made(root, "g", g);
	set(da, NULL);
	a->a.nlink = 0;
	inode_update_dirty(fs, a);
	cr_assert_eq(close_over(a), 0);
	cr_assert(closure_has(&c, f) && closure_has(&c, g));
	closure_done(&c);
	/* But not the other way round. */
	cr_assert_eq(close_over(f), 0);
	cr_assert(!closure_has(&c, a));
	closure_done(&c);
}

Test(fs_closure, unsettled_content_blocks)
{
	struct inode *f = file(20, false);
	struct dentry *d = made(root, "f", f);

	d->need = 1;
	cr_assert_eq(close_over(f), -EAGAIN);
	cr_assert_eq(c.n, 0);
	cr_assert_eq(c.n_blocked, 1);
	cr_assert_eq(c.blocked[0], f);
	closure_done(&c);
	f->file.settle_done = 1;
	cr_assert_eq(close_over(f), 0);
	closure_done(&c);
}

/* An old file whose attributes changed needs no content. */
Test(fs_closure, attributes_do_not_wait_for_content)
{
	struct inode *f = file(20, true);

	name(root, "f", f);
	f->dirty = INODE_ATTR;
	inode_update_dirty(fs, f);
	cr_assert_eq(close_over(f), 0);
	cr_assert_eq(c.n, 1);
	closure_done(&c);
}

Test(fs_closure, a_settle_at_work_is_waited_for)
{
	struct inode *f = file(20, true);

	name(root, "f", f);
	f->dirty = INODE_DATA;
	inode_update_dirty(fs, f);
	f->file.settling = 1;
	cr_assert_eq(close_over(f), -EBUSY);
	closure_done(&c);
}

/* What fails takes nothing of what was there before along. */
Test(fs_closure, failure_leaves_what_was_added)
{
	struct inode *f = file(20, false), *g = file(21, false), *a = dir(22, false);
	struct dentry *d;

	made(root, "f", f);
	made(root, "a", a);
	d = made(a, "g", g);
	d->need = 1;
	closure_begin(&c, fs);
	cr_assert_eq(closure_add(&c, f), 0);
	cr_assert_eq(closure_add(&c, g), -EAGAIN);
	cr_assert_eq(c.n, 1);
	cr_assert(closure_has(&c, f) && !closure_has(&c, g) && !closure_has(&c, a));
	closure_done(&c);
}
