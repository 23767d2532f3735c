/* SPDX-License-Identifier: Apache-2.0 */
/*
 * namei: names and what they name: lookup, forget, and everything that makes or removes a name
 * except rename. Permissions, sticky bits and types along the path are checked by the kernel
 * (default_permissions).
 */
#include "fs/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool namei_is_kvfs(uint64_t parent, const char *name)
{
	return parent == INO_ROOT && !strcmp(name, ".kvfs");
}

int namei_load(struct fs *fs, uint64_t parent, const char *name, struct inode **ret_parent,
	       struct dentry **ret)
{
	struct inode *p;
	int r;

	if (strlen(name) > NAME_LIMIT)
		return -ENAMETOOLONG;
	r = inode_hold(fs, parent, &p);
	if (r)
		return r;
	if (!inode_is_dir(p))
		r = -ENOTDIR;
	else
		r = dentry_load(fs, p, name, ret);
	/* Loading gives the lock up: the directory may have been removed meanwhile. */
	if (r == 0 && p->a.nlink == 0) {
		dentry_put(fs, *ret);
		r = -ENOENT;
	}
	if (r)
		inode_put(fs, p);
	else
		*ret_parent = p;
	return r;
}

void namei_unlookup(struct fs *fs, struct inode *i, uint64_t n)
{
	i->nlookup -= n < i->nlookup ? n : i->nlookup;
	inode_rest(fs, i);
}

void namei_reply_entry(fuse_req_t req, struct inode *i, enum attr_use use)
{
	struct fs *fs = req_fs(req);
	struct fuse_entry_param e;
	int r = attr_entry(fs, i, use, &e);
	bool taken = false;

	if (r)
		fuse_reply_err(req, -r);
	else
		taken = fuse_reply_entry(req, &e) == 0;
	ns_lock(fs);
	if (!taken)
		namei_unlookup(fs, i, 1);
	inode_put(fs, i);
	ns_unlock(fs);
}

/* ---- lookup and forget ---- */

static void reply_missing(fuse_req_t req)
{
	struct fuse_entry_param e = { .entry_timeout = ENTRY_TIMEOUT };

	fuse_reply_entry(req, &e);
}

/* Held and counted as known to the kernel; *ret NULL when there is no such name. */
static int lookup(struct fs *fs, uint64_t parent, const char *name, struct inode **ret)
{
	struct inode *p;
	struct dentry *d;
	int r = namei_load(fs, parent, name, &p, &d);

	*ret = NULL;
	if (r)
		return r == -ENOENT ? 0 : r;
	if (d->inode) {
		*ret = d->inode;
		d->inode->refs++;
		d->inode->nlookup++;
	}
	dentry_put(fs, d);
	inode_put(fs, p);
	return 0;
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	struct inode *i;
	int r;

	count(fs, REQ_LOOKUP);
	if (ino_is_virtual(parent) || namei_is_kvfs(parent, name)) {
		virtual_lookup(req, parent, name);
		return;
	}
	ns_lock(fs);
	r = lookup(fs, parent, name, &i);
	ns_unlock(fs);
	if (r)
		fuse_reply_err(req, -r);
	else if (i)
		namei_reply_entry(req, i, ATTR_ASKED);
	else
		reply_missing(req);
}

static void forget(struct fs *fs, uint64_t ino, uint64_t n)
{
	struct inode *i = inode_find(fs, ino);

	if (i)
		namei_unlookup(fs, i, n);
	else
		known_forget(&fs->known, ino, n);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	struct fs *fs = req_fs(req);

	count(fs, REQ_FORGET);
	ns_lock(fs);
	forget(fs, ino, nlookup);
	ns_unlock(fs);
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t n, struct fuse_forget_data *forgets)
{
	struct fs *fs = req_fs(req);

	count(fs, REQ_FORGET);
	ns_lock(fs);
	for (size_t k = 0; k < n; k++)
		forget(fs, forgets[k].ino, forgets[k].nlookup);
	ns_unlock(fs);
	fuse_reply_none(req);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = req_fs(req);
	char *target = NULL;
	struct inode *i;
	int r = -EINVAL;

	count(fs, REQ_READLINK);
	ns_lock(fs);
	i = inode_find(fs, ino);
	if (!i) {
		r = -ESTALE;
	} else if (i->a.target) {
		target = strdup(i->a.target);
		r = target ? 0 : -ENOMEM;
	}
	ns_unlock(fs);
	if (r)
		fuse_reply_err(req, -r);
	else
		fuse_reply_readlink(req, target);
	free(target);
}

/* ---- making ---- */

static void describe(const struct make *mk, struct inode *p, uint64_t ino, struct meta_inode *a)
{
	*a = (struct meta_inode){
		.ino = ino,
		.mode = mk->mode & (S_IFMT | 07777),
		.uid = mk->ctx->uid,
		.gid = mk->ctx->gid,
		.rdev = (uint32_t)mk->rdev,
		.flags = p->a.flags & META_INHERITED,
	};
	if (!S_ISREG(a->mode) && !S_ISDIR(a->mode))
		a->flags &= ~META_LAYOUT;
	if (!S_ISLNK(a->mode) && !acls_has_default(p))
		a->mode &= ~mk->ctx->umask;
	if (p->a.mode & S_ISGID) {
		a->gid = p->a.gid;
		if (S_ISDIR(a->mode))
			a->mode |= S_ISGID;
	}
	a->atime = a->mtime = a->ctime = a->btime = clock_wall();
}

/* The new inode in the cache, without a link yet; takes over the reference to o. */
static int enter(struct fs *fs, const struct make *mk, struct inode *p, uint64_t ino,
		 struct object *o, struct inode **ret)
{
	struct meta_inode a;
	struct inode *i;
	int r;

	describe(mk, p, ino, &a);
	if (mk->target) {
		a.target = strdup(mk->target);
		if (!a.target)
			return -ENOMEM;
		a.size = strlen(a.target);
	}
	r = inode_enter(fs, &a, false, &i);
	meta_inode_done(&a);
	if (r)
		return r;
	if (o) {
		i->file.o = o;
		object_set_unlinked(o, true);
	}
	i->refs++;
	*ret = i;
	return 0;
}

/* The layout is an attribute, of which the new inode gets its own. */
static int stage_layout(struct nsop *op, struct inode *p, struct inode *i, char **ret)
{
	struct raw_layout l = { 0 };

	if (!(i->a.flags & META_LAYOUT))
		return 0;
	choices_layout(p, &l);
	return choices_stage_layout(op, i, &l, ret);
}

static int run_make(struct fs *fs, struct inode *p, struct dentry *d, struct inode *i)
{
	struct acl_values acls = { 0 };
	bool dir = inode_is_dir(i);
	char *layout = NULL;
	struct nsop op;
	int r;

	nsop_begin(&op, fs);
	nsop_inode(&op, i);
	r = stage_layout(&op, p, i, &layout);
	if (r == 0)
		r = acls_stage_inherited(&op, p, i, &acls);
	if (r == 0 && d) {
		nsop_inode(&op, i)->nlink = dir ? 2 : 1;
		nsop_touch(&op, p, true)->nlink += dir;
		nsop_name(&op, d, i);
	}
	if (r == 0)
		r = nsop_run(&op);
	if (r) {
		acl_values_free(&acls);
		free(layout);
	} else if (inode_is_file(i)) {
		choices_apply(i, i->file.o);
	}
	return r;
}

/* That of a file that is not made; NULL is fine. */
static void drop_object(struct object *o)
{
	if (o)
		object_discard(o);
	object_unref(o);
}

/* The lock is held. o is taken over, whatever comes of it. */
static int make_in(struct fs *fs, const struct make *mk, struct inode *p, struct dentry *d,
		   uint64_t ino, struct object *o, struct inode **ret)
{
	struct inode *i;
	int r = d && d->inode ? -EEXIST : enter(fs, mk, p, ino, o, &i);

	if (r) {
		drop_object(o);
		return r;
	}
	r = run_make(fs, p, d, i);
	if (r) {
		/* Without a link and unknown to the kernel: its object goes with it. */
		inode_put(fs, i);
		return r;
	}
	i->nlookup++;
	*ret = i;
	return 0;
}

static int find_place(struct fs *fs, uint64_t parent, const char *name, struct inode **ret_parent,
		      struct dentry **ret)
{
	int r;

	*ret = NULL;
	if (name)
		return namei_load(fs, parent, name, ret_parent, ret);
	r = inode_hold(fs, parent, ret_parent);
	if (r == 0 && (*ret_parent)->a.nlink == 0) {
		inode_put(fs, *ret_parent);
		r = -ENOENT;
	}
	return r;
}

/* What there is to inherit. Loading gives the lock up: the directory may be removed meanwhile. */
static int load_inherited(struct fs *fs, struct inode *p)
{
	int r = xattrs_load(fs, p);

	return r == 0 && p->a.nlink == 0 ? -ENOENT : r;
}

static int make_locked(struct fs *fs, const struct make *mk, uint64_t parent, const char *name,
		       uint64_t ino, struct object *o, struct inode **ret)
{
	struct inode *p;
	struct dentry *d;
	int r = find_place(fs, parent, name, &p, &d);

	if (r) {
		drop_object(o);
		return r;
	}
	r = load_inherited(fs, p);
	if (r)
		drop_object(o);
	else
		r = make_in(fs, mk, p, d, ino, o, ret);
	if (d)
		dentry_put(fs, d);
	inode_put(fs, p);
	return r;
}

int namei_make(struct fs *fs, const struct make *mk, uint64_t parent, const char *name,
	       struct inode **ret)
{
	struct object *o = NULL;
	uint64_t ino;
	int r = 0;

	if (fs->opt.read_only)
		return -EROFS;
	if (ino_is_virtual(parent))
		return -EPERM;
	if (name && namei_is_kvfs(parent, name))
		return -EEXIST;
	ns_lock(fs);
	ino = fs->next_ino++;
	ns_unlock(fs);
	if (S_ISREG(mk->mode))
		r = object_create(fs->store, ino, mk->ctx->uid, &o);
	if (r)
		return r;
	ns_lock(fs);
	r = make_locked(fs, mk, parent, name, ino, o, ret);
	ns_unlock(fs);
	return r;
}

static void reply_make(fuse_req_t req, const struct make *mk, fuse_ino_t parent, const char *name)
{
	struct inode *i;
	int r = namei_make(req_fs(req), mk, parent, name, &i);

	if (r)
		fuse_reply_err(req, -r);
	else
		namei_reply_entry(req, i, ATTR_MADE);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	struct make mk = { .ctx = fuse_req_ctx(req), .mode = mode, .rdev = rdev };

	count(req_fs(req), REQ_MKNOD);
	reply_make(req, &mk, parent, name);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct make mk = { .ctx = fuse_req_ctx(req), .mode = S_IFDIR | (mode & 07777) };

	count(req_fs(req), REQ_MKDIR);
	reply_make(req, &mk, parent, name);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	struct make mk = { .ctx = fuse_req_ctx(req), .mode = S_IFLNK | 0777, .target = target };

	count(req_fs(req), REQ_SYMLINK);
	if (!*target)
		fuse_reply_err(req, ENOENT);
	else
		reply_make(req, &mk, parent, name);
}

/* ---- link ---- */

static int link_locked(struct fs *fs, struct inode *i, uint64_t parent, const char *name)
{
	struct object *o = NULL;
	struct inode *p;
	struct dentry *d;
	struct nsop op;
	int r = namei_load(fs, parent, name, &p, &d);

	if (r)
		return r;
	/* Whether the name must wait for content is the object's to say. */
	if (inode_is_file(i))
		r = inode_object_load(fs, i, &o);
	if (r == 0 && d->inode)
		r = -EEXIST;
	else if (r == 0 && (p->a.nlink == 0 || i->discarded))
		r = -ENOENT;
	if (r == 0) {
		nsop_begin(&op, fs);
		nsop_touch(&op, i, false)->nlink++;
		nsop_touch(&op, p, true);
		nsop_name(&op, d, i);
		r = nsop_run(&op);
	}
	object_unref(o);
	dentry_put(fs, d);
	inode_put(fs, p);
	return r;
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname)
{
	struct fs *fs = req_fs(req);
	struct inode *i;
	int r;

	count(fs, REQ_LINK);
	if (fs->opt.read_only || ino_is_virtual(ino) || ino_is_virtual(newparent)) {
		fuse_reply_err(req, fs->opt.read_only ? EROFS : EPERM);
		return;
	}
	ns_lock(fs);
	r = inode_hold(fs, ino, &i);
	if (r == 0) {
		r = namei_is_kvfs(newparent, newname) ? -EEXIST :
							link_locked(fs, i, newparent, newname);
		if (r)
			inode_put(fs, i);
		else
			i->nlookup++;
	}
	ns_unlock(fs);
	if (r)
		fuse_reply_err(req, -r);
	else
		namei_reply_entry(req, i, ATTR_UNORDERED);
}

/* ---- removing ---- */

struct search {
	struct fs *fs;
	uint64_t dir;
};

/* A committed name counts unless the cache knows better. */
static int is_there(void *arg, const struct meta_dentry *row)
{
	struct search *s = arg;
	struct dentry *d = dentry_find(s->fs, s->dir, row->name);

	return !d || d->inode;
}

int namei_dir_is_empty(struct fs *fs, struct inode *dir)
{
	struct search s = { fs, dir->ino };
	struct list *l;
	int r = 0;

	list_for_each(
		l, &dir->dir.dirty_names) if (list_entry(l, struct dentry, child)->inode) return 0;
	if (dir->in_db)
		r = meta_list(fs->store, dir->ino, 0, is_there, &s);
	return r < 0 ? r : !r;
}

static int removable(struct fs *fs, const struct dentry *d, bool dir)
{
	int r;

	if (!d->inode)
		return -ENOENT;
	if (!dir)
		return inode_is_dir(d->inode) ? -EISDIR : 0;
	if (!inode_is_dir(d->inode))
		return -ENOTDIR;
	r = namei_dir_is_empty(fs, d->inode);
	return r < 0 ? r : r ? 0 : -ENOTEMPTY;
}

static int remove_locked(struct fs *fs, uint64_t parent, const char *name, bool dir)
{
	struct inode *p;
	struct dentry *d;
	struct nsop op;
	int r = namei_load(fs, parent, name, &p, &d);

	if (r)
		return r;
	r = removable(fs, d, dir);
	if (r == 0) {
		struct meta_inode *a;

		nsop_begin(&op, fs);
		a = nsop_touch(&op, d->inode, false);
		a->nlink = dir ? 0 : a->nlink - 1;
		nsop_touch(&op, p, true)->nlink -= dir;
		nsop_name(&op, d, NULL);
		r = nsop_run(&op);
	}
	dentry_put(fs, d);
	inode_put(fs, p);
	return r;
}

static void reply_remove(fuse_req_t req, fuse_ino_t parent, const char *name, bool dir)
{
	struct fs *fs = req_fs(req);
	int r = -EPERM;

	if (fs->opt.read_only) {
		r = -EROFS;
	} else if (!ino_is_virtual(parent) && !namei_is_kvfs(parent, name)) {
		ns_lock(fs);
		r = remove_locked(fs, parent, name, dir);
		ns_unlock(fs);
	}
	fuse_reply_err(req, -r);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	count(req_fs(req), REQ_UNLINK);
	reply_remove(req, parent, name, false);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	count(req_fs(req), REQ_RMDIR);
	reply_remove(req, parent, name, true);
}
