/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inode: the cache of inodes. An inode is in memory while the kernel knows it, somebody works on
 * it, a cached name lies below it, or meta.db does not have its state yet. Of files that only the
 * kernel knows no more than RESTING_MAX stay; the others are in fs->known and come back when asked for.
 *
 * Must never wait for I/O under the namespace lock: rows are read without it, and what was read is
 * thrown away when a commit has made entries clean (and droppable) meanwhile.
 */
#include "fs/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How often a row is read again without the lock before it is read under it. */
#define LOAD_TRIES 3

#define RESTING_MAX 32768u /* files, of about 700 bytes */
#define LET_GO      16u    /* at most so many of them at a time */

struct inode *inode_find(struct fs *fs, uint64_t ino)
{
	struct inode *i;

	HASH_FIND(hh, fs->inodes, &ino, sizeof(ino), i);
	return i;
}

static void init_kind(struct inode *i)
{
	if (inode_is_dir(i)) {
		list_init(&i->dir.dirty_names);
		i->dir.db_nlink = i->in_db ? i->a.nlink : 2;
	} else if (inode_is_file(i)) {
		list_init(&i->file.evict_link);
		i->file.settled_mtime = i->a.mtime;
	}
}

int inode_enter(struct fs *fs, struct meta_inode *a, bool in_db, struct inode **ret)
{
	struct inode *i = calloc(1, sizeof(*i));
	struct known_file f;

	if (!i)
		return -ENOMEM;
	i->a = *a;
	i->ino = a->ino;
	i->type = a->mode & S_IFMT;
	i->in_db = in_db;
	i->xattrs_loaded = !in_db;
	list_init(&i->names);
	list_init(&i->lost);
	list_init(&i->dirty_link);
	list_init(&i->rest_link);
	init_kind(i);
	HASH_ADD(hh, fs->inodes, ino, sizeof(i->ino), i);
	if (!i->hh.tbl) {
		free(i);
		return -ENOMEM;
	}
	if (known_take(&fs->known, i->ino, &f)) {
		i->nlookup = f.nlookup;
		i->file.varied = true;
		i->file.opened = f.idle_since;
		i->file.idle_since.tv_sec = f.idle_since;
	}
	a->target = NULL;
	*ret = i;
	return 0;
}

/* One try: reads the row without the lock. 1: it may be stale. */
static int load_once(struct fs *fs, uint64_t ino, bool locked, struct inode **ret)
{
	uint64_t seq = fs->commit_seq;
	struct meta_inode a = { 0 };
	int r;

	if (!locked)
		ns_unlock(fs);
	r = meta_get_inode(fs->store, ino, &a);
	if (!locked)
		ns_lock(fs);
	*ret = inode_find(fs, ino);
	if (*ret)
		r = 0;
	else if (seq != fs->commit_seq)
		r = 1;
	else if (r == 0)
		r = inode_enter(fs, &a, true, ret);
	meta_inode_done(&a);
	return r;
}

struct named {
	uint64_t id;
	char name[NAME_LIMIT + 1]; /* "": there is no such row */
};

static int copy_name(void *arg, const struct meta_dentry *d)
{
	struct named *n = arg;

	if (d->id == n->id)
		snprintf(n->name, sizeof(n->name), "%s", d->name);
	return 1;
}

/* Brings a file back with its name, which leads to its directory, and with that to what an fsync has to
 * make durable. It is not there afterwards if it was renamed or removed meanwhile. */
static int bring_back(struct fs *fs, const struct known_file *f)
{
	struct named n = { .id = f->id };
	struct inode *p;
	struct dentry *d;
	int r = inode_load(fs, f->parent, &p);

	if (r)
		return r == -ENOENT ? 0 : r;
	ns_unlock(fs);
	r = meta_list(fs->store, f->parent, f->id - 1, copy_name, &n);
	ns_lock(fs);
	if (r >= 0 && n.name[0]) {
		r = dentry_load(fs, p, n.name, &d);
		if (r == 0)
			dentry_put(fs, d);
	}
	inode_put(fs, p);
	return r < 0 ? r : 0;
}

/* *ret NULL: the kernel does not know it. */
static int load_known(struct fs *fs, uint64_t ino, struct inode **ret)
{
	struct known_file f;
	int r = 0;

	*ret = NULL;
	for (int tries = 0; r == 0 && !*ret && tries < LOAD_TRIES; tries++) {
		if (!known_find(&fs->known, ino, &f))
			break;
		r = bring_back(fs, &f);
		*ret = inode_find(fs, ino);
	}
	return *ret ? 0 : r;
}

int inode_load(struct fs *fs, uint64_t ino, struct inode **ret)
{
	struct inode *i = inode_find(fs, ino);
	int r = i ? 0 : load_known(fs, ino, &i);

	if (r == 0 && !i)
		r = 1;
	for (int tries = 0; r == 1; tries++)
		r = load_once(fs, ino, tries >= LOAD_TRIES, &i);
	if (r)
		return r;
	i->refs++;
	*ret = i;
	return 0;
}

int inode_hold(struct fs *fs, uint64_t ino, struct inode **ret)
{
	struct inode *i = inode_find(fs, ino);
	struct known_file f;
	int r;

	if (i) {
		i->refs++;
		*ret = i;
		return 0;
	}
	if (!known_find(&fs->known, ino, &f))
		return -ESTALE;
	r = inode_load(fs, ino, ret);
	return r == -ENOENT ? -ESTALE : r;
}

void inode_put(struct fs *fs, struct inode *i)
{
	i->refs--;
	inode_rest(fs, i);
}

void inode_free(struct inode *i)
{
	if (inode_is_file(i))
		object_unref(i->file.o);
	xattrs_free(i);
	free(i->a.target);
	free(i);
}

static void leave_rest(struct fs *fs, struct inode *i)
{
	fs->n_resting -= !list_empty(&i->rest_link);
	list_del(&i->rest_link);
}

/* Its names go first; each may take its directory along. */
static void drop(struct fs *fs, struct inode *i)
{
	struct list *l, *next;

	list_for_each(l, &i->names) if (list_entry(l, struct dentry, names)->refs) return;
	HASH_DEL(fs->inodes, i);
	leave_rest(fs, i);
	list_for_each_safe(l, next, &i->names)
	{
		struct dentry *d = list_entry(l, struct dentry, names);

		list_del(&d->names);
		d->inode = d->db_inode = NULL;
		dentry_drop(fs, d);
	}
	if (inode_is_dir(i))
		dirlist_forget(fs, i);
	inode_free(i);
}

/* Nobody works on the file and all of it is known to meta.db: the object can do without us. */
static void release_object(struct inode *i)
{
	object_unref(i->file.o);
	i->file.o = NULL;
}

/* The file has no name and no user: the store is told once the lock is given up. */
static void queue_discard(struct fs *fs, struct inode *i)
{
	i->discarded = true;
	i->refs++;
	i->discard_next = fs->discards;
	fs->discards = i;
}

static void start_rest(struct fs *fs, struct inode *i)
{
	leave_rest(fs, i);
	list_add_tail(&fs->resting, &i->rest_link);
	fs->n_resting++;
}

void inode_rest(struct fs *fs, struct inode *i)
{
	bool file = inode_is_file(i);

	if (i->refs || i->nopen)
		return;
	if (file && i->a.nlink == 0 && !i->nlookup && !i->discarded) {
		queue_discard(fs, i);
		return;
	}
	if (inode_is_dirty(i) || (file && (i->file.pin_held || !list_empty(&i->file.evict_link))))
		return;
	if (file && i->file.o && i->a.nlink)
		release_object(i);
	if (!i->nlookup)
		drop(fs, i);
	else if (file)
		start_rest(fs, i);
}

/* Its one name, by which it can be found again; NULL when it has to stay. */
static const struct dentry *way_back(const struct inode *i)
{
	const struct dentry *d = inode_a_name(i);

	if (!d || d->refs || i->refs || i->nopen || i->a.nlink != 1 || !i->in_db ||
	    i->nlookup > UINT32_MAX || i->names.next != i->names.prev || inode_is_dirty(i))
		return NULL;
	if (i->file.o || i->file.orphan || i->file.mappable || i->file.pin_held || i->file.evict_to)
		return NULL;
	return d;
}

/* The one that has rested longest; one that does not rest at all just leaves the list. */
static void let_one_go(struct fs *fs)
{
	struct inode *i = list_entry(fs->resting.next, struct inode, rest_link);
	const struct dentry *d = way_back(i);
	struct known_file f = { .ino = i->ino, .nlookup = (uint32_t)i->nlookup };

	leave_rest(fs, i);
	if (!d)
		return;
	f.parent = d->parent_ino;
	f.id = d->id;
	if (i->file.opened)
		f.idle_since = (uint32_t)i->file.idle_since.tv_sec;
	if (!i->nlookup || !known_add(&fs->known, &f))
		drop(fs, i);
}

void inode_let_go(struct fs *fs)
{
	for (unsigned n = 0; n < LET_GO && fs->n_resting > RESTING_MAX; n++)
		let_one_go(fs);
}

bool inode_is_dirty(const struct inode *i)
{
	if (i->flight)
		return true;
	if (i->a.nlink == 0 && !i->in_db)
		return false;
	return i->a.nlink == 0 || i->dirty || i->n_dirty_names || !list_empty(&i->lost);
}

void inode_update_dirty(struct fs *fs, struct inode *i)
{
	bool dirty = inode_is_dirty(i);
	bool counts = dirty && !(i->dirty == INODE_TIMES && i->a.nlink && !i->n_dirty_names &&
				 !i->flight && list_empty(&i->lost));

	if (dirty && list_empty(&i->dirty_link)) {
		list_add_tail(&fs->dirty, &i->dirty_link);
		fs->n_dirty++;
		i->dirty_since = ++fs->dirty_seq;
	} else if (!dirty && !list_empty(&i->dirty_link)) {
		list_del(&i->dirty_link);
		fs->n_dirty--;
	}
	if (counts && !i->counted)
		fs->n_unsettled++;
	else if (!counts && i->counted)
		fs->n_unsettled--;
	i->counted = counts;
}

int inode_object_load(struct fs *fs, struct inode *i, struct object **ret)
{
	struct object *o = i->file.o;
	int r = o ? 0 : choices_load(fs, i);

	if (r)
		return r;
	o = i->file.o;
	if (!o) {
		uint64_t ino = i->ino;
		uint32_t uid = i->a.uid;

		ns_unlock(fs);
		r = object_get(fs->store, ino, uid, &o);
		ns_lock(fs);
		if (r)
			return r;
		if (i->file.o) {
			object_unref(o);
			o = i->file.o;
		} else {
			i->file.o = o;
			choices_apply(i, o);
			if (!i->a.nlink)
				object_set_unlinked(o, true);
		}
	}
	object_ref(o);
	*ret = o;
	return 0;
}

void inode_fold(struct inode *i, const struct object_stat *os)
{
	i->a.size = os->size;
	if (os->mtime.tv_sec || os->mtime.tv_nsec)
		i->a.mtime = os->mtime;
	if (time_after(&os->ctime, &i->a.ctime))
		i->a.ctime = os->ctime;
}

struct dentry *inode_a_name(const struct inode *i)
{
	return list_empty(&i->names) ? NULL : list_entry(i->names.next, struct dentry, names);
}
