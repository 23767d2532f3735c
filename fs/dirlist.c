/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dirlist: the names of a directory at one moment: what meta.db has, with the dirty names of the
 * cache over it. The rows are read without the namespace lock; a commit that makes names clean
 * meanwhile makes the list stale, and it is read again. The newest lists are kept until a name of
 * theirs changes: rows cost 0.5 us a name, and the kernel's own cache of listings puts those of
 * before and after a change together.
 */
#include "fs/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define READ_TRIES  3
#define NAMES_LIMIT (1u << 31)
#define KEPT_BYTES  (32u << 20) /* of all lists that are kept: some 700,000 names */

static size_t bytes_of(const struct dirlist *l)
{
	return sizeof(*l) + l->cap * sizeof(*l->v) + l->names_cap;
}

static int grow(void **p, size_t *cap, size_t need, size_t item)
{
	size_t n = *cap ? *cap : 64;
	void *q;

	if (need <= *cap)
		return 0;
	while (n < need)
		n *= 2;
	q = realloc(*p, n * item);
	if (!q)
		return -ENOMEM;
	*p = q;
	*cap = n;
	return 0;
}

static int add(struct dirlist *l, uint64_t id, uint64_t ino, uint32_t mode, const char *name)
{
	size_t len = strlen(name) + 1;

	if (l->names_len + len > NAMES_LIMIT)
		return -EFBIG;
	if (grow((void **)&l->v, &l->cap, l->n + 1, sizeof(*l->v)) ||
	    grow((void **)&l->names, &l->names_cap, l->names_len + len, 1))
		return -ENOMEM;
	l->v[l->n++] = (struct dirlist_entry){
		.id = id,
		.ino = ino,
		.mode = mode & S_IFMT,
		.name = (uint32_t)l->names_len,
	};
	memcpy(l->names + l->names_len, name, len);
	l->names_len += len;
	return 0;
}

static int add_row(void *arg, const struct meta_dentry *d)
{
	return add(arg, d->id, d->ino, d->mode, d->name);
}

/* Takes out the rows that are not so any more. */
static void drop_overridden(struct fs *fs, uint64_t dir, struct dirlist *l)
{
	size_t n = 0;

	for (size_t k = 0; k < l->n; k++) {
		struct dentry *d = dentry_find(fs, dir, dirlist_name(l, k));

		if (!d || !d->dirty)
			l->v[n++] = l->v[k];
	}
	l->n = n;
}

static int by_id(const void *a, const void *b)
{
	const struct dirlist_entry *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

/* The lock is held. */
static int overlay(struct fs *fs, uint64_t dir, struct dirlist *l)
{
	struct inode *i = inode_find(fs, dir);
	struct list *p;
	int r = 0;

	if (!i || !inode_is_dir(i) || list_empty(&i->dir.dirty_names))
		return 0;
	drop_overridden(fs, dir, l);
	list_for_each(p, &i->dir.dirty_names)
	{
		struct dentry *d = list_entry(p, struct dentry, child);

		if (r == 0 && d->inode)
			r = add(l, d->id, d->inode->ino, d->inode->a.mode, d->name);
	}
	qsort(l->v, l->n, sizeof(*l->v), by_id);
	return r;
}

/* ---- keeping them ---- */

void dirlist_forget(struct fs *fs, struct inode *dir)
{
	struct dirlist *l = dir->dir.list;

	if (!l)
		return;
	dir->dir.list = NULL;
	list_del(&l->kept);
	fs->dirlist_bytes -= bytes_of(l);
	dirlist_put(l);
}

static void trim(void **p, size_t *cap, size_t n, size_t item)
{
	void *q = n ? realloc(*p, n * item) : NULL;

	if (!q)
		return;
	*p = q;
	*cap = n;
}

/* The lock is held: the list is what the directory has. */
static void keep(struct fs *fs, uint64_t dir, struct dirlist *l)
{
	struct inode *i = inode_find(fs, dir);

	if (!i || !inode_is_dir(i) || l->n * sizeof(*l->v) + l->names_len > KEPT_BYTES)
		return;
	trim((void **)&l->v, &l->cap, l->n, sizeof(*l->v));
	trim((void **)&l->names, &l->names_cap, l->names_len, 1);
	dirlist_forget(fs, i);
	l->owner = i;
	l->refs++;
	i->dir.list = l;
	list_add_tail(&fs->dirlists, &l->kept);
	fs->dirlist_bytes += bytes_of(l);
	while (fs->dirlist_bytes > KEPT_BYTES)
		dirlist_forget(fs, list_entry(fs->dirlists.next, struct dirlist, kept)->owner);
}

static struct dirlist *find_kept(struct fs *fs, uint64_t dir)
{
	struct inode *i = inode_find(fs, dir);
	struct dirlist *l = i && inode_is_dir(i) ? i->dir.list : NULL;

	if (l) {
		list_del(&l->kept);
		list_add_tail(&fs->dirlists, &l->kept);
		l->refs++;
	}
	return l;
}

/* One try; 1: stale. */
static int read_once(struct fs *fs, uint64_t dir, bool locked, struct dirlist *l)
{
	uint64_t seq;
	int r;

	l->n = l->names_len = 0;
	ns_lock(fs);
	seq = fs->commit_seq;
	if (!locked)
		ns_unlock(fs);
	r = meta_list(fs->store, dir, 0, add_row, l);
	if (!locked)
		ns_lock(fs);
	if (r == 0)
		r = seq == fs->commit_seq ? overlay(fs, dir, l) : 1;
	if (r == 0)
		keep(fs, dir, l);
	ns_unlock(fs);
	return r;
}

int dirlist_get(struct fs *fs, uint64_t dir, struct dirlist **ret)
{
	struct dirlist *l;
	int r = 1;

	ns_lock(fs);
	l = find_kept(fs, dir);
	ns_unlock(fs);
	if (!l) {
		l = calloc(1, sizeof(*l));
		if (!l)
			return -ENOMEM;
		l->refs = 1;
		list_init(&l->kept);
		for (int tries = 0; r == 1; tries++)
			r = read_once(fs, dir, tries >= READ_TRIES, l);
		if (r) {
			dirlist_put(l);
			return r;
		}
	}
	*ret = l;
	return 0;
}

void dirlist_put(struct dirlist *l)
{
	if (!l || --l->refs)
		return;
	free(l->v);
	free(l->names);
	free(l);
}

size_t dirlist_after(const struct dirlist *l, uint64_t after)
{
	size_t low = 0, high = l->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (l->v[mid].id <= after)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}
