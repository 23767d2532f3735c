/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xattr: requests for extended attributes. Stored as they come: user, trusted, security. Other name
 * spaces are not supported and say so. user.kvfs.* is control.c, POSIX ACLs are acls.c.
 */
#include "fs/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

/* What listxattr(2) can return at most. */
#define NAMES_LIMIT 65536u

static int check_name(const struct fs *fs, const char *name)
{
	static const char *const space[] = { "user.", "trusted.", "security." };

	for (size_t k = 0; k < sizeof(space) / sizeof(space[0]); k++) {
		size_t len = strlen(space[k]);

		if (!strncmp(name, space[k], len))
			return !name[len] ? -EINVAL : strlen(name) > NAME_LIMIT ? -ERANGE : 0;
	}
	return fs->acls && acl_is_name(name) ? 0 : -EOPNOTSUPP;
}

static int hold(struct fs *fs, fuse_ino_t ino, struct inode **ret)
{
	int r;

	ns_lock(fs);
	r = inode_hold(fs, ino, ret);
	ns_unlock(fs);
	return r;
}

static void let_go(struct fs *fs, struct inode *i)
{
	ns_lock(fs);
	inode_put(fs, i);
	ns_unlock(fs);
}

/* size 0 asks for the length. */
static void reply_value(fuse_req_t req, const char *value, size_t len, size_t size)
{
	if (!size)
		fuse_reply_xattr(req, len);
	else if (len > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, value, len);
}

/* ---- get ---- */

/* A copy of the value, to be freed. */
static ssize_t get_stored(struct fs *fs, struct inode *i, const char *name, char **ret)
{
	struct xattr *x;
	ssize_t r;

	ns_lock(fs);
	r = xattrs_load(fs, i);
	x = r ? NULL : xattrs_find(i, name);
	if (!r && (!x || !x->present))
		r = -ENODATA;
	if (!r) {
		*ret = malloc(x->len + 1u);
		if (*ret && x->len)
			memcpy(*ret, x->value, x->len);
		r = *ret ? (ssize_t)x->len : -ENOMEM;
	}
	ns_unlock(fs);
	return r;
}

static ssize_t get(fuse_req_t req, struct inode *i, const char *name, char **ret)
{
	const char *control = control_name(name);
	struct caller c;

	if (!control)
		return get_stored(req_fs(req), i, name, ret);
	caller_init(&c, req);
	*ret = malloc(64);
	return *ret ? control_get(&c, i, control, *ret, 64) : -ENOMEM;
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct fs *fs = req_fs(req);
	char *value = NULL;
	struct inode *i;
	ssize_t n;

	count(fs, REQ_GETXATTR);
	n = check_name(fs, name);
	if (n == 0)
		n = ino_is_virtual(ino) ? -ENODATA : hold(fs, ino, &i);
	if (n == 0) {
		n = get(req, i, name, &value);
		let_go(fs, i);
	}
	if (n < 0)
		fuse_reply_err(req, (int)-n);
	else
		reply_value(req, value, (size_t)n, size);
	free(value);
}

/* ---- list ---- */

/* Of those below user.kvfs. the stored ones are in no list either, so that copies do not carry them. */
static bool is_listed(const struct xattr *x)
{
	return x->present && !control_name(x->name);
}

static size_t names_size(const struct inode *i)
{
	size_t size = 0;

	for (struct xattr *x = i->xattrs; x; x = x->next)
		if (is_listed(x))
			size += strlen(x->name) + 1;
	return size;
}

static ssize_t list(struct fs *fs, struct inode *i, char **ret)
{
	ssize_t r;
	char *p;

	ns_lock(fs);
	r = xattrs_load(fs, i);
	if (r == 0) {
		r = (ssize_t)names_size(i);
		*ret = p = malloc((size_t)r + 1);
		for (struct xattr *x = i->xattrs; p && x; x = x->next)
			if (is_listed(x))
				p = stpcpy(p, x->name) + 1;
		if (!*ret)
			r = -ENOMEM;
	}
	ns_unlock(fs);
	return r;
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct fs *fs = req_fs(req);
	char *names = NULL;
	struct inode *i;
	ssize_t n;

	count(fs, REQ_LISTXATTR);
	if (ino_is_virtual(ino)) {
		reply_value(req, NULL, 0, size);
		return;
	}
	n = hold(fs, ino, &i);
	if (n == 0) {
		n = list(fs, i, &names);
		let_go(fs, i);
	}
	if (n < 0)
		fuse_reply_err(req, (int)-n);
	else
		reply_value(req, names, (size_t)n, size);
	free(names);
}

/* ---- set and remove ---- */

/* The lock is held and the xattrs are loaded. value is taken over on success. */
static int change(struct fs *fs, struct inode *i, const char *name, char *value, size_t len,
		  int flags, bool present)
{
	struct xattr *x = xattrs_find(i, name);
	bool there = x && x->present;
	struct nsop op;

	if (there && (flags & XATTR_CREATE))
		return -EEXIST;
	if (!there && ((flags & XATTR_REPLACE) || !present))
		return -ENODATA;
	if (!there && names_size(i) + strlen(name) + 1 > NAMES_LIMIT)
		return -ENOSPC;
	x = xattrs_slot(i, name);
	if (!x)
		return -ENOMEM;
	nsop_begin(&op, fs);
	nsop_touch(&op, i, false);
	nsop_xattr(&op, i, x, value, (uint32_t)len, present);
	return nsop_run(&op);
}

static int set_stored(struct fs *fs, struct inode *i, const char *name, const char *value,
		      size_t len, int flags)
{
	char *copy;
	int r;

	if (len > XATTR_LIMIT)
		return -E2BIG;
	copy = malloc(len + 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, value, len);
	ns_lock(fs);
	r = xattrs_load(fs, i);
	if (r == 0)
		r = change(fs, i, name, copy, len, flags, true);
	ns_unlock(fs);
	if (r)
		free(copy);
	return r;
}

static int check_change(struct fs *fs, fuse_ino_t ino, const char *name)
{
	if (ino_is_virtual(ino))
		return -EPERM;
	if (fs->opt.read_only)
		return -EROFS;
	return check_name(fs, name);
}

static int set(fuse_req_t req, struct inode *i, const char *name, const char *value, size_t len,
	       int flags)
{
	const char *control = control_name(name);
	struct caller c;

	caller_init(&c, req);
	if (control)
		return control_set(&c, i, control, value, len);
	if (acl_is_name(name))
		return acls_set(&c, i, name, value, len);
	return set_stored(req_fs(req), i, name, value, len, flags);
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
		 int flags)
{
	struct fs *fs = req_fs(req);
	struct inode *i;
	int r;

	count(fs, REQ_SETXATTR);
	r = check_change(fs, ino, name);
	if (r == 0)
		r = hold(fs, ino, &i);
	if (r == 0) {
		r = set(req, i, name, value, size, flags);
		/* A stat on its way may carry the old ctime. */
		if (r == 0)
			notify_changed(fs, ino);
		let_go(fs, i);
	}
	fuse_reply_err(req, -r);
}

static int remove_stored(struct fs *fs, struct inode *i, const char *name)
{
	int r;

	ns_lock(fs);
	r = xattrs_load(fs, i);
	if (r == 0)
		r = change(fs, i, name, NULL, 0, 0, false);
	ns_unlock(fs);
	return r;
}

static int remove_one(fuse_req_t req, struct inode *i, const char *name)
{
	const char *control = control_name(name);
	struct caller c;

	caller_init(&c, req);
	if (control)
		return control_remove(&c, i, control);
	if (acl_is_name(name))
		return acls_remove(req_fs(req), i, name);
	return remove_stored(req_fs(req), i, name);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct fs *fs = req_fs(req);
	struct inode *i;
	int r;

	count(fs, REQ_REMOVEXATTR);
	r = check_change(fs, ino, name);
	if (r == 0)
		r = hold(fs, ino, &i);
	if (r == 0) {
		r = remove_one(req, i, name);
		if (r == 0) /* as above */
			notify_changed(fs, ino);
		let_go(fs, i);
	}
	fuse_reply_err(req, -r);
}
