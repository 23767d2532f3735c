/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint: the journal rewritten to what meta.db does not have yet. Inodes come first, so that
 * every name finds what it names at replay.
 */
#include "fs/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int put(struct journal_checkpoint *c, uint32_t type, void *data, size_t len)
{
	struct journal_record rec = { .type = type, .len = (uint32_t)len, .data = data };

	return journal_checkpoint_append(c, &rec, 1);
}

static int put_inode(struct journal_checkpoint *c, const struct inode *i)
{
	size_t size = jrec_inode_size(&i->a);
	void *buf = malloc(size);
	int r;

	if (!buf)
		return -ENOMEM;
	jrec_inode_write(buf, &i->a);
	r = put(c, J_INODE, buf, size);
	free(buf);
	return r;
}

static int put_dentry(struct journal_checkpoint *c, const struct dentry *d)
{
	uint64_t buf[(sizeof(struct jrec_dentry) + NAME_LIMIT) / sizeof(uint64_t)];
	struct jrec_dentry rec = {
		.parent = d->parent_ino,
		.ino = d->inode ? d->inode->ino : 0,
		.id = d->id,
		.mode = d->inode ? d->inode->a.mode & S_IFMT : 0,
		.gap = d->gap,
	};

	memcpy(rec.name, d->name, d->len + 1u);
	jrec_dentry_write(buf, &rec);
	return put(c, J_DENTRY, buf, jrec_dentry_size(d->len));
}

/* A name may be dirty although neither who has it nor who had it is. */
static int put_names(struct fs *fs, struct journal_checkpoint *c)
{
	int r = 0;

	for (struct dentry *d = fs->dentries; d && r == 0; d = d->hh.next)
		if (d->dirty)
			r = put_dentry(c, d);
	return r;
}

static int put_xattr(struct journal_checkpoint *c, const struct inode *i, const struct xattr *x)
{
	size_t size = jrec_xattr_size(strlen(x->name), x->len);
	void *buf = malloc(size);
	int r;

	if (!buf)
		return -ENOMEM;
	jrec_xattr_write(buf, i->ino, x->name, x->value, x->len, x->present);
	r = put(c, J_XATTR, buf, size);
	free(buf);
	return r;
}

static int put_xattrs(struct journal_checkpoint *c, const struct inode *i)
{
	int r = 0;

	for (struct xattr *x = i->xattrs; x && r == 0; x = x->next)
		if (x->dirty)
			r = put_xattr(c, i, x);
	return r;
}

static int for_dirty(struct fs *fs, struct journal_checkpoint *c,
		     int (*fn)(struct journal_checkpoint *c, const struct inode *i))
{
	struct list *l;
	int r = 0;

	list_for_each(l, &fs->dirty) if (r == 0) r = fn(c, list_entry(l, struct inode, dirty_link));
	return r;
}

static int put_all(void *arg, struct journal_checkpoint *c)
{
	struct fs *fs = arg;
	int r = for_dirty(fs, c, put_inode);

	if (r == 0)
		r = put_names(fs, c);
	return r ? r : for_dirty(fs, c, put_xattrs);
}

int checkpoint_write(struct fs *fs)
{
	return journal_checkpoint(fs->store, put_all, fs);
}
