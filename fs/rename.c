/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rename: moving, replacing and exchanging names. Loops are refused by the kernel, which holds the
 * whole path; here it is checked again against what the cache knows.
 */
#include "fs/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE (1 << 0)
#define RENAME_EXCHANGE  (1 << 1)
#endif

struct renaming {
	struct inode *p1, *p2;
	struct dentry *d1, *d2;
	unsigned flags;
	uint64_t asked[2]; /* inodes of which a stat may be on its way; 0: none */
};

static bool is_dir(const struct inode *i)
{
	return i && inode_is_dir(i);
}

/* True also where the way up has no end, which only a store or a journal from elsewhere can make. */
static bool is_below(struct fs *fs, const struct inode *dir, const struct inode *top)
{
	for (unsigned left = HASH_COUNT(fs->inodes); left && dir != top; left--) {
		struct dentry *d = inode_a_name(dir);

		if (!d)
			return false;
		dir = d->parent;
	}
	return true;
}

static int check_replaced(struct fs *fs, const struct renaming *rn)
{
	struct inode *i = rn->d1->inode, *j = rn->d2->inode;
	int r;

	if (!j)
		return 0;
	if (rn->flags & RENAME_NOREPLACE)
		return -EEXIST;
	if (is_dir(j) && !is_dir(i))
		return -EISDIR;
	if (!is_dir(j) && is_dir(i))
		return -ENOTDIR;
	r = is_dir(j) ? namei_dir_is_empty(fs, j) : 1;
	return r < 0 ? r : r ? 0 : -ENOTEMPTY;
}

static int check(struct fs *fs, const struct renaming *rn)
{
	struct inode *i = rn->d1->inode, *j = rn->d2->inode;

	if (!i || rn->p1->a.nlink == 0 || rn->p2->a.nlink == 0)
		return -ENOENT;
	if (is_dir(i) && is_below(fs, rn->p2, i))
		return -EINVAL;
	if (!(rn->flags & RENAME_EXCHANGE))
		return check_replaced(fs, rn);
	if (!j)
		return -ENOENT;
	return is_dir(j) && is_below(fs, rn->p1, j) ? -EINVAL : 0;
}

/* nlink of the directories when a subdirectory changes place. */
static void stage_parents(struct nsop *op, const struct renaming *rn, int out1, int out2)
{
	nsop_touch(op, rn->p1, true)->nlink += (unsigned)(out2 - out1);
	nsop_touch(op, rn->p2, true)->nlink += (unsigned)(out1 - out2);
}

static void stage_move(struct nsop *op, const struct renaming *rn)
{
	struct inode *i = rn->d1->inode, *j = rn->d2->inode;

	nsop_touch(op, i, false);
	stage_parents(op, rn, is_dir(i), 0);
	if (j) {
		struct meta_inode *a = nsop_touch(op, j, false);

		a->nlink = is_dir(j) ? 0 : a->nlink - 1;
		nsop_inode(op, rn->p2)->nlink -= is_dir(j);
	}
	nsop_name(op, rn->d1, NULL);
	nsop_name(op, rn->d2, i);
}

static void stage_exchange(struct nsop *op, const struct renaming *rn)
{
	struct inode *i = rn->d1->inode, *j = rn->d2->inode;

	nsop_touch(op, i, false);
	nsop_touch(op, j, false);
	stage_parents(op, rn, is_dir(i), is_dir(j));
	nsop_name(op, rn->d1, j);
	nsop_name(op, rn->d2, i);
}

/* Whether a name must wait for content is the object's to say. *held keeps the object in memory
 * until the change is made. */
static int hold_object(struct fs *fs, struct dentry *d, struct inode **held)
{
	struct inode *i = d->inode;
	struct object *o;
	int r;

	*held = NULL;
	if (!i || !inode_is_file(i))
		return 0;
	i->refs++;
	r = inode_object_load(fs, i, &o);
	if (r) {
		inode_put(fs, i);
		return r;
	}
	object_unref(o);
	*held = i;
	return 0;
}

/* The kernel only notes that ctime has changed, and takes what a stat that was on its way brings later for
 * news. Of a replaced inode it drops that. */
static uint64_t take_asked(struct inode *i)
{
	bool asked = i->asked;

	i->asked = false;
	return asked ? i->ino : 0;
}

static int change(struct fs *fs, struct renaming *rn)
{
	struct inode *i = rn->d1->inode, *j = rn->d2->inode;
	struct nsop op;
	int r = check(fs, rn);

	if (r || i == j)
		return r;
	nsop_begin(&op, fs);
	if (rn->flags & RENAME_EXCHANGE)
		stage_exchange(&op, rn);
	else
		stage_move(&op, rn);
	r = nsop_run(&op);
	if (r)
		return r;
	rn->asked[0] = take_asked(i);
	if (rn->flags & RENAME_EXCHANGE)
		rn->asked[1] = take_asked(j);
	return 0;
}

static int run(struct fs *fs, struct renaming *rn)
{
	struct inode *held1, *held2 = NULL;
	int r = hold_object(fs, rn->d1, &held1);

	if (r == 0 && (rn->flags & RENAME_EXCHANGE))
		r = hold_object(fs, rn->d2, &held2);
	/* Here the lock is not given up any more. */
	if (r == 0)
		r = change(fs, rn);
	if (held1)
		inode_put(fs, held1);
	if (held2)
		inode_put(fs, held2);
	return r;
}

static int rename_locked(struct fs *fs, struct renaming *rn, fuse_ino_t parent, const char *name,
			 fuse_ino_t newparent, const char *newname)
{
	int r = namei_load(fs, parent, name, &rn->p1, &rn->d1);

	if (r)
		return r;
	r = namei_load(fs, newparent, newname, &rn->p2, &rn->d2);
	if (r == 0) {
		r = run(fs, rn);
		dentry_put(fs, rn->d2);
		inode_put(fs, rn->p2);
	}
	dentry_put(fs, rn->d1);
	inode_put(fs, rn->p1);
	return r;
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
	       const char *newname, unsigned int flags)
{
	struct fs *fs = req_fs(req);
	struct renaming rn = { .flags = flags };
	int r;

	count(fs, REQ_RENAME);
	if (fs->opt.read_only)
		r = -EROFS;
	else if (flags != 0 && flags != RENAME_NOREPLACE && flags != RENAME_EXCHANGE)
		r = -EINVAL;
	else if (ino_is_virtual(parent) || ino_is_virtual(newparent) ||
		 namei_is_kvfs(parent, name) || namei_is_kvfs(newparent, newname))
		r = -EPERM;
	else {
		ns_lock(fs);
		r = rename_locked(fs, &rn, parent, name, newparent, newname);
		ns_unlock(fs);
	}
	for (unsigned k = 0; k < 2; k++)
		if (rn.asked[k])
			notify_changed(fs, rn.asked[k]);
	fuse_reply_err(req, -r);
}
