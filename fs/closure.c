/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closure: which inodes must be committed in one transaction, so that whatever is in meta.db after
 * a power cut is a tree in which every name names something whole.
 *
 * To commit an inode means: its row, all names that are its own now, and the removal of the names
 * meta.db has for it that are not. So it takes along
 *  - every directory above its names that is new or has itself moved, up to the root;
 *  - who had one of its names in meta.db, and loses it (other names of the loser are put in the
 *    same transaction, else it would be lost; without any its row is deleted);
 *  - who has replaced it under a name by rename, without a gap: a reader sees one of the two;
 *  - of who has no name any more, who took the last one over;
 *  - of a removed directory, whoever meta.db has in it.
 * A file whose names wait for content that is not settled stops the whole closure.
 */
#include "fs/commit.h"

#include <errno.h>
#include <stdlib.h>

#define AMENDED (64u << 20) /* bytes; of a file that meta.db has, no more are counted */

void closure_begin(struct closure *c, struct fs *fs)
{
	*c = (struct closure){ .fs = fs, .mark = ++fs->mark };
}

void closure_done(struct closure *c)
{
	free(c->v);
	free(c->blocked);
}

static int push(struct inode ***v, size_t *n, size_t *cap, struct inode *i)
{
	if (*n == *cap) {
		size_t more = *cap ? *cap * 2 : 16;
		struct inode **w = realloc(*v, more * sizeof(*w));

		if (!w)
			return -ENOMEM;
		*v = w;
		*cap = more;
	}
	(*v)[(*n)++] = i;
	return 0;
}

static void add(struct closure *c, struct inode *i)
{
	if (closure_has(c, i))
		return;
	if (push(&c->v, &c->n, &c->cap, i))
		c->error = -ENOMEM;
	else
		i->mark = c->mark;
}

static bool moved(const struct inode *dir)
{
	return !dir->in_db || dir->n_dirty_names || !list_empty(&dir->lost);
}

/* After a restart a directory may be in memory without its name, and what is above it unknown.
 * Then every directory that has moved goes along. */
static void add_all_moved(struct closure *c)
{
	struct list *l;

	list_for_each(l, &c->fs->dirty)
	{
		struct inode *i = list_entry(l, struct inode, dirty_link);

		if (inode_is_dir(i) && moved(i))
			add(c, i);
	}
}

static void add_above(struct closure *c, struct inode *dir)
{
	/* A way up without an end, which only a store or a journal from elsewhere can make, is none. */
	for (unsigned left = HASH_COUNT(c->fs->inodes); left; left--) {
		struct dentry *d = inode_a_name(dir);

		if (moved(dir))
			add(c, dir);
		if (dir->ino == INO_ROOT)
			return;
		if (!d)
			break;
		dir = d->parent;
	}
	add_all_moved(c);
}

static bool is_settled(const struct inode *i, const struct dentry *d)
{
	if (d->need <= i->file.settle_done)
		return true;
	return i->file.o && !object_is_dirty(i->file.o);
}

static void check_content(struct closure *c, struct inode *i)
{
	struct list *l;

	/* Between settle and sync its extents must not be put. */
	if (i->file.settling)
		c->busy = true;
	list_for_each(l, &i->names)
	{
		struct dentry *d = list_entry(l, struct dentry, names);

		if (!d->dirty || is_settled(i, d))
			continue;
		if (push(&c->blocked, &c->n_blocked, &c->cap_blocked, i))
			c->error = -ENOMEM;
		return;
	}
}

static void visit_names(struct closure *c, struct inode *i)
{
	struct list *l;

	list_for_each(l, &i->names)
	{
		struct dentry *d = list_entry(l, struct dentry, names);

		add_above(c, d->parent);
		if (d->dirty && d->db_inode)
			add(c, d->db_inode);
	}
}

/* Who lost its last name to another is deleted with that in place, not before: between the two
 * there was never nothing, even if meta.db has not heard of that name yet. */
static void add_successor(struct closure *c, const struct inode *i)
{
	struct inode *next = i->replaced_by ? inode_find(c->fs, i->replaced_by) : NULL;

	if (next && inode_is_dirty(next))
		add(c, next);
}

static void visit(struct closure *c, struct inode *i)
{
	struct list *l;

	if (inode_is_file(i) && i->a.nlink)
		check_content(c, i);
	visit_names(c, i);
	list_for_each(l, &i->lost)
	{
		struct dentry *d = list_entry(l, struct dentry, lost);

		if (d->inode && !d->gap)
			add(c, d->inode);
	}
	if (!i->a.nlink)
		add_successor(c, i);
	if (!inode_is_dir(i) || i->a.nlink)
		return;
	list_for_each(l, &i->dir.dirty_names)
	{
		struct dentry *d = list_entry(l, struct dentry, child);

		if (d->db_inode)
			add(c, d->db_inode);
	}
}

/* An amendment of a large file, or an append, changes few of its extents. */
static uint64_t extents_told(const struct inode *i)
{
	uint64_t size = i->a.size;

	if (!inode_is_file(i) || (i->a.nlink && !(i->dirty & INODE_DATA)))
		return 0;
	if (i->a.nlink && i->in_db && size > AMENDED)
		size = AMENDED;
	return store_chunks_of(size);
}

int closure_add(struct closure *c, struct inode *seed)
{
	size_t before = c->n;
	int r = 0;

	c->busy = false;
	c->n_blocked = 0;
	c->error = 0;
	/* Of a clean one only what is above it can be missing. */
	if (inode_is_dirty(seed))
		add(c, seed);
	else
		visit_names(c, seed);
	for (; c->visited < c->n && !c->error; c->visited++)
		visit(c, c->v[c->visited]);
	if (c->error)
		r = c->error;
	else if (c->n_blocked)
		r = -EAGAIN;
	else if (c->busy)
		r = -EBUSY;
	if (!r) {
		for (size_t k = before; k < c->n; k++)
			c->extents += extents_told(c->v[k]);
		return 0;
	}
	while (c->n > before)
		c->v[--c->n]->mark = 0;
	c->visited = before;
	return r;
}
