/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attr: what stat(2) shows and what chmod, chown, utimensat and truncate change.
 *
 * Size and content times of a regular file are the object's to say: a passthrough writer moves them
 * without a request. Those in the inode are what was last heard.
 */
#include "fs/files.h"

#include <errno.h>
#include <string.h>

/* st_blksize: the unit of the maps of images. Large enough for copies, small enough for a stdio
 * buffer that is filled for a header of 48 bytes. st_blocks is in units of 512 whatever it says. */
#define BLKSIZE OBJECT_BLOCK

#define CAPABILITY "security.capability"

static void fill(const struct meta_inode *a, uint64_t stored, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = a->ino;
	st->st_mode = a->mode;
	st->st_nlink = a->nlink;
	st->st_uid = a->uid;
	st->st_gid = a->gid;
	st->st_rdev = a->rdev;
	st->st_size = (off_t)a->size;
	st->st_blksize = BLKSIZE;
	st->st_blocks = (blkcnt_t)((stored + 511) / 512);
	st->st_atim = a->atime;
	st->st_mtim = a->mtime;
	st->st_ctim = a->ctime;
}

/* A hint for the admission of the next writer in the same directory. */
static void note_size(struct inode *i)
{
	struct dentry *d = inode_a_name(i);

	if (d && i->a.size > d->parent->dir.largest)
		d->parent->dir.largest = i->a.size;
}

/* The lock is held. */
static void take_object_stat(struct inode *i, struct object *o, uint64_t epoch)
{
	struct object_stat os;

	object_stat(o, &os);
	inode_fold(i, &os);
	note_size(i);
	i->file.varied |= os.stored != i->file.stored;
	i->file.stored = os.stored;
	i->file.orphan = os.orphan;
	i->file.mappable &= os.dirty || os.writer || i->nopen;
	/* While it is dirty every byte written changes it. */
	i->file.stored_epoch = os.dirty || os.writer ? 0 : epoch;
}

static int stat_file(struct fs *fs, struct inode *i)
{
	uint64_t epoch = fs->stored_epoch;
	struct object *o;
	int r;

	if (!i->file.o && i->file.stored_epoch == epoch)
		return 0;
	r = inode_object_load(fs, i, &o);
	if (r)
		return r == -ENOENT ? -ESTALE : r;
	take_object_stat(i, o, epoch);
	object_unref(o);
	return 0;
}

void attr_stat_virtual(struct fs *fs, uint64_t ino, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = ino;
	st->st_mode = ino == INO_KVFS ? S_IFDIR | 0555 : S_IFREG | 0444;
	st->st_nlink = ino == INO_KVFS ? 2 : 1;
	st->st_blksize = BLKSIZE;
	st->st_ctim = st->st_mtim = st->st_atim = fs->root->a.btime;
}

/* What a write or a truncation takes away of a file's mode. */
static mode_t privilege_bits(mode_t mode)
{
	mode_t bits = mode & S_ISUID;

	/* Without group execution S_ISGID means mandatory locking and stays. */
	if ((mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP))
		bits |= S_ISGID;
	return bits;
}

/*
 * How long the kernel may keep what stat() shows. Not at all: the mode of a file that loses bits by a
 * write, after which the kernel asks for size and times alone; and what a dead daemon's handles change,
 * which the kernel does not put down to this mount's inode. Shortly: directories, as a listing on its
 * way while one changes comes with what was, and after the news; what may be changed through a mapping.
 * What else changes a dirty file the kernel sees, but for st_blocks at the end of a settle, and of that it
 * is told. The lock is held.
 */
static double attr_timeout(const struct inode *i, enum attr_use use)
{
	bool file = inode_is_file(i);

	if (file && (i->file.orphan || privilege_bits(i->a.mode)))
		return 0;
	if (S_ISDIR(i->a.mode) ||
	    (file && !i->file.stored_epoch && (i->file.mappable || use == ATTR_UNORDERED)))
		return CHANGING_TIMEOUT;
	return ATTR_TIMEOUT;
}

int attr_stat(struct fs *fs, struct inode *i, enum attr_use use, struct stat *st,
	      double *ret_timeout)
{
	bool file = inode_is_file(i);
	int r = 0;

	ns_lock(fs);
	if (file && !i->discarded)
		r = stat_file(fs, i);
	if (r == 0) {
		fill(&i->a, file ? i->file.stored : 0, st);
		*ret_timeout = attr_timeout(i, use);
		i->asked |= use == ATTR_ASKED;
	}
	ns_unlock(fs);
	return r;
}

int attr_entry(struct fs *fs, struct inode *i, enum attr_use use, struct fuse_entry_param *e)
{
	int r;

	memset(e, 0, sizeof(*e));
	r = attr_stat(fs, i, use, &e->attr, &e->attr_timeout);
	e->ino = i->ino;
	e->generation = 1;
	e->entry_timeout = ENTRY_TIMEOUT;
	return r;
}

/* ---- privileges ---- */

static struct xattr *capability(struct inode *i)
{
	struct xattr *x = xattrs_find(i, CAPABILITY);

	return x && x->present ? x : NULL;
}

bool attr_has_privileges(struct inode *i)
{
	return (i->a.mode & (S_ISUID | S_ISGID)) || capability(i);
}

bool attr_kill_privileges(struct nsop *op, struct inode *i)
{
	mode_t bits = privilege_bits(i->a.mode);
	struct xattr *x = capability(i);

	if (S_ISDIR(i->a.mode) || (!bits && !x))
		return false;
	nsop_touch(op, i, false)->mode &= ~bits;
	if (x)
		nsop_xattr(op, i, x, NULL, 0, false);
	return true;
}

/* ---- getattr ---- */

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct inode *i;
	double timeout;
	struct stat st;
	int r;

	(void)fi;
	count(fs, REQ_GETATTR);
	if (ino_is_virtual(ino)) {
		attr_stat_virtual(fs, ino, &st);
		fuse_reply_attr(req, &st, CHANGING_TIMEOUT);
		return;
	}
	ns_lock(fs);
	r = inode_hold(fs, ino, &i);
	ns_unlock(fs);
	if (r) {
		fuse_reply_err(req, -r);
		return;
	}
	r = attr_stat(fs, i, ATTR_ASKED, &st, &timeout);
	if (r)
		fuse_reply_err(req, -r);
	else
		fuse_reply_attr(req, &st, timeout);
	ns_lock(fs);
	inode_put(fs, i);
	ns_unlock(fs);
}

/* ---- setattr ---- */

#define SET_OWNER (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)
#define SET_MTIME (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW)
#define SET_ATIME (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW)
/* How libfuse passes FATTR_KILL_SUIDGID on: a truncation by somebody without CAP_FSETID. */
#define SET_KILL FUSE_SET_ATTR_KILL_SUID

/* chown and truncate take privileges away; chown of nothing does it too. */
static bool kills(int to_set)
{
	return !to_set || (to_set & (SET_OWNER | SET_KILL));
}

static int stage(struct nsop *op, struct inode *i, const struct stat *attr, int to_set,
		 struct acl_values *acls)
{
	struct meta_inode *a;

	if (kills(to_set))
		attr_kill_privileges(op, i);
	/* When content changed is the object's to say. */
	a = nsop_touch(op, i, false);
	if (to_set & FUSE_SET_ATTR_MODE)
		a->mode = (a->mode & S_IFMT) | (attr->st_mode & 07777);
	if (to_set & FUSE_SET_ATTR_UID)
		a->uid = attr->st_uid;
	if (to_set & FUSE_SET_ATTR_GID)
		a->gid = attr->st_gid;
	if (to_set & FUSE_SET_ATTR_SIZE)
		a->size = (uint64_t)attr->st_size;
	if (to_set & SET_ATIME)
		a->atime = to_set & FUSE_SET_ATTR_ATIME_NOW ? op->now : attr->st_atim;
	if (to_set & SET_MTIME)
		a->mtime = to_set & FUSE_SET_ATTR_MTIME_NOW ? op->now : attr->st_mtim;
	return to_set & FUSE_SET_ATTR_MODE ? acls_stage_chmod(op, i, acls) : 0;
}

/* What the object must hear of it. The lock is held. */
static int tell_object(struct inode *i, struct object *o, int to_set)
{
	if (to_set & FUSE_SET_ATTR_UID)
		object_set_tenant(o, i->a.uid);
	if (to_set & SET_MTIME)
		return object_set_mtime(o, &i->a.mtime);
	return 0;
}

static int set(struct fs *fs, struct inode *i, struct object *o, const struct stat *attr,
	       int to_set)
{
	struct acl_values acls = { 0 };
	struct object_stat os;
	struct nsop op;
	int r = 0;

	if (o && (to_set & FUSE_SET_ATTR_SIZE))
		r = object_truncate(o, (uint64_t)attr->st_size);
	if (r)
		return r;
	ns_lock(fs);
	r = xattrs_load(fs, i);
	if (r == 0) {
		if (o) {
			object_stat(o, &os);
			inode_fold(i, &os);
		}
		nsop_begin(&op, fs);
		r = stage(&op, i, attr, to_set, &acls);
		if (r == 0)
			r = nsop_run(&op);
		if (r)
			acl_values_free(&acls);
	}
	if (r == 0 && o)
		r = tell_object(i, o, to_set);
	ns_unlock(fs);
	return r;
}

static int setattr(struct fs *fs, fuse_ino_t ino, const struct stat *attr, int to_set,
		   struct stat *st, double *ret_timeout)
{
	struct object *o = NULL;
	struct inode *i;
	int r;

	ns_lock(fs);
	r = inode_hold(fs, ino, &i);
	if (r == 0 && inode_is_file(i)) {
		r = inode_object_load(fs, i, &o);
		if (r)
			inode_put(fs, i);
	}
	ns_unlock(fs);
	if (r)
		return r;
	r = set(fs, i, o, attr, to_set);
	object_unref(o);
	if (r == 0)
		r = attr_stat(fs, i, ATTR_UNORDERED, st, ret_timeout);
	else
		notify_queue(fs, ino); /* half of it may be done */
	ns_lock(fs);
	inode_put(fs, i);
	ns_unlock(fs);
	return r;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	double timeout = 0;
	struct stat st;
	int r;

	(void)fi;
	count(fs, REQ_SETATTR);
	if (ino_is_virtual(ino))
		r = -EPERM;
	else if (fs->opt.read_only)
		r = -EROFS;
	else
		r = setattr(fs, ino, attr, to_set, &st, &timeout);
	if (r)
		fuse_reply_err(req, -r);
	else
		fuse_reply_attr(req, &st, timeout);
}
