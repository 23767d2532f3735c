/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dentry: the cache of names. A name stays in memory as long as the inode it names, or while it
 * differs from meta.db; a few clean vacant ones are kept, because a create follows a failed lookup.
 *
 * A dirty name is on up to three lists: its directory's, that of the inode it names, and that of
 * the inode meta.db has under it. unlist() and enlist() keep them in step: every change of a field
 * the lists depend on lies between the two.
 */
#include "fs/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define VACANT_KEPT 1024u
#define LOAD_TRIES  3

/* The key as uthash wants it: parent and name in one piece. */
struct key {
	uint64_t parent;
	char name[NAME_LIMIT + 1];
};

struct dentry *dentry_find(struct fs *fs, uint64_t parent, const char *name)
{
	struct key key = { .parent = parent };
	size_t len = strlen(name);
	struct dentry *d;

	memcpy(key.name, name, len);
	HASH_FIND(hh, fs->dentries, &key, sizeof(parent) + len, d);
	return d;
}

static bool is_vacant(const struct dentry *d)
{
	return !d->inode && !d->dirty;
}

static void enlist(struct fs *fs, struct dentry *d)
{
	if (d->dirty)
		list_add_tail(&d->parent->dir.dirty_names, &d->child);
	if (d->inode)
		list_add_tail(&d->inode->names, &d->names);
	if (d->dirty && d->inode)
		d->inode->n_dirty_names++;
	if (d->db_inode && d->db_inode != d->inode)
		list_add_tail(&d->db_inode->lost, &d->lost);
	if (d->inode)
		inode_update_dirty(fs, d->inode);
	if (d->db_inode)
		inode_update_dirty(fs, d->db_inode);
}

static void unlist(struct fs *fs, struct dentry *d)
{
	if (is_vacant(d) && !list_empty(&d->child))
		fs->n_vacant--;
	list_del(&d->child);
	list_del(&d->names);
	list_del(&d->lost);
	if (d->dirty && d->inode)
		d->inode->n_dirty_names--;
}

int dentry_enter(struct fs *fs, struct inode *parent, const char *name, struct inode *db_inode,
		 uint64_t id, struct dentry **ret)
{
	size_t len = strlen(name);
	struct dentry *d = calloc(1, sizeof(*d) + len + 1);

	if (!d)
		return -ENOMEM;
	memcpy(d->name, name, len + 1);
	d->len = (uint16_t)len;
	d->parent_ino = parent->ino;
	list_init(&d->names);
	list_init(&d->lost);
	list_init(&d->child);
	HASH_ADD(hh, fs->dentries, parent_ino, sizeof(d->parent_ino) + len, d);
	if (!d->hh.tbl) {
		free(d);
		return -ENOMEM;
	}
	d->parent = parent;
	parent->refs++;
	d->inode = d->db_inode = db_inode;
	d->id = id;
	enlist(fs, d);
	*ret = d;
	return 0;
}

/* What meta.db says about a name, and the row of the inode it names. */
struct row {
	struct meta_dentry d;
	struct meta_inode a;
};

static int read_row(struct fs *fs, uint64_t parent, const char *name, struct row *row)
{
	int r = meta_lookup(fs->store, parent, name, &row->d);

	if (r)
		return r;
	r = meta_get_inode(fs->store, row->d.ino, &row->a);
	/* Both are read in turn: the second may be gone with the name. */
	return r == -ENOENT ? 1 : r;
}

static bool named_in_db(const struct inode *i)
{
	struct list *l;

	list_for_each(l, &i->names) if (list_entry(l, struct dentry, names)->db_inode ==
					i) return true;
	return false;
}

/* In meta.db a directory has one name, the root and what is not there none: else ways up would go round in
 * circles. It may have been renamed since: a journal that was rewritten tells of names in any order. */
static bool may_name(const struct inode *parent, uint64_t ino, const struct inode *i)
{
	if (ino < INO_FIRST || ino == parent->ino)
		return false;
	return !i || !inode_is_dir(i) || !named_in_db(i);
}

static int enter_row(struct fs *fs, struct inode *parent, const char *name, struct row *row,
		     struct dentry **ret)
{
	struct inode *i = inode_find(fs, row->d.ino);
	int r = may_name(parent, row->d.ino, i) ? 0 : -EUCLEAN;

	if (r == 0 && !i)
		r = inode_enter(fs, &row->a, true, &i);
	if (r)
		return r;
	r = dentry_enter(fs, parent, name, i, row->d.id, ret);
	if (r)
		inode_rest(fs, i);
	return r;
}

/* One try; 1: what was read may be stale. */
static int load_once(struct fs *fs, struct inode *parent, const char *name, bool locked,
		     struct dentry **ret)
{
	uint64_t seq = fs->commit_seq;
	struct row row = { 0 };
	int r;

	if (!locked)
		ns_unlock(fs);
	r = read_row(fs, parent->ino, name, &row);
	if (!locked)
		ns_lock(fs);
	*ret = dentry_find(fs, parent->ino, name);
	if (*ret)
		r = 0;
	else if (seq != fs->commit_seq && !locked)
		r = 1;
	else if (r == -ENOENT)
		r = dentry_enter(fs, parent, name, NULL, 0, ret);
	else if (r == 0)
		r = enter_row(fs, parent, name, &row, ret);
	else if (r == 1 && locked)
		r = -EIO; /* a name whose inode has no row */
	meta_inode_done(&row.a);
	return r;
}

/* A held name is not on the list of those that may go. */
static void hold(struct fs *fs, struct dentry *d)
{
	if (is_vacant(d) && !list_empty(&d->child)) {
		list_del(&d->child);
		fs->n_vacant--;
	}
	d->refs++;
}

int dentry_load(struct fs *fs, struct inode *parent, const char *name, struct dentry **ret)
{
	struct dentry *d = dentry_find(fs, parent->ino, name);
	int r = d ? 0 : 1;

	/* Nothing below a directory that meta.db does not know. */
	if (!d && !parent->in_db)
		r = dentry_enter(fs, parent, name, NULL, 0, &d);
	for (int tries = 0; r == 1; tries++)
		r = load_once(fs, parent, name, tries >= LOAD_TRIES, &d);
	if (r)
		return r;
	hold(fs, d);
	*ret = d;
	return 0;
}

void dentry_drop(struct fs *fs, struct dentry *d)
{
	struct inode *parent = d->parent;

	unlist(fs, d);
	HASH_DEL(fs->dentries, d);
	free(d);
	inode_put(fs, parent);
}

/* Keeps the newest vacant names. */
static void keep_vacant(struct fs *fs, struct dentry *d)
{
	list_del(&d->child);
	list_add_tail(&fs->vacant, &d->child);
	if (++fs->n_vacant > VACANT_KEPT)
		dentry_drop(fs, list_entry(fs->vacant.next, struct dentry, child));
}

static void rest(struct fs *fs, struct dentry *d)
{
	if (d->refs)
		return;
	if (is_vacant(d) && list_empty(&d->child))
		keep_vacant(fs, d);
	else if (d->inode)
		inode_rest(fs, d->inode);
}

void dentry_put(struct fs *fs, struct dentry *d)
{
	d->refs--;
	rest(fs, d);
}

void dentry_change(struct fs *fs, struct dentry *d, struct inode *inode, uint64_t id)
{
	struct inode *old = d->inode;
	bool was_dirty = d->dirty;

	dirlist_forget(fs, d->parent);
	unlist(fs, d);
	if (old && inode && old != inode)
		old->replaced_by = inode->ino;
	d->inode = inode;
	d->id = id;
	d->version++;
	if (!inode)
		d->gap = true;
	d->dirty = d->inode || d->db_inode || d->flight;
	if (!was_dirty)
		d->dirty_since = ++fs->dirty_seq;
	if (!d->dirty)
		d->gap = false;
	enlist(fs, d);
	if (old)
		inode_update_dirty(fs, old);
}

/* Moves the name between the lists of who has it in meta.db. */
static void rebase(struct fs *fs, struct dentry *d, struct inode *db_inode, bool dirty)
{
	struct inode *old = d->db_inode;

	unlist(fs, d);
	d->db_inode = db_inode;
	d->dirty = dirty;
	if (!dirty)
		d->gap = false;
	enlist(fs, d);
	if (old)
		inode_update_dirty(fs, old);
}

void dentry_take_off(struct fs *fs, struct dentry *d, struct inode *to)
{
	d->flight = true;
	d->gap = false;
	rebase(fs, d, to, true);
}

void dentry_land(struct fs *fs, struct dentry *d, bool unchanged, uint64_t seq)
{
	d->flight = false;
	d->dirty_since = seq;
	/* One that was only taken from its old owner is still to be given to the new one. */
	rebase(fs, d, d->db_inode,
	       (d->inode || d->db_inode) && !(unchanged && d->inode == d->db_inode));
}

void dentry_turn_back(struct fs *fs, struct dentry *d, struct inode *db_inode, bool gap)
{
	d->flight = false;
	d->gap |= gap;
	rebase(fs, d, db_inode, d->inode || db_inode);
}
