/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acls: the ACLs of inodes. They are stored as the attributes they come as. An access ACL and the group
 * bits of the mode change together; one that says no more than the mode is not kept. The kernel checks them
 * (FUSE_POSIX_ACL) and asks for those of an inode once, and again when its attributes have changed.
 */
#include "fs/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct xattr *find(struct inode *i, const char *name)
{
	struct xattr *x = xattrs_find(i, name);

	/* Another than a kernel has checked is from a damaged store. */
	return x && x->present && !acl_check(x->value, x->len) ? x : NULL;
}

static void *copy(const void *value, size_t len)
{
	void *v = malloc(len);

	return v ? memcpy(v, value, len) : NULL;
}

/* value is taken over in any case; -ENOMEM of NULL too. */
static int stage(struct nsop *op, struct inode *i, const char *name, void *value, size_t len,
		 struct acl_values *values)
{
	struct xattr *x = value ? xattrs_slot(i, name) : NULL;

	if (!x) {
		free(value);
		return -ENOMEM;
	}
	values->v[values->n++] = value;
	nsop_xattr(op, i, x, value, (uint32_t)len, true);
	return 0;
}

void acl_values_free(struct acl_values *values)
{
	while (values->n)
		free(values->v[--values->n]);
}

bool acls_has_default(struct inode *dir)
{
	return find(dir, ACL_DEFAULT);
}

int acls_stage_inherited(struct nsop *op, struct inode *dir, struct inode *i,
			 struct acl_values *values)
{
	struct xattr *x = S_ISLNK(i->a.mode) ? NULL : find(dir, ACL_DEFAULT);
	mode_t mode = i->a.mode;
	void *access;
	int r = 0;

	if (!x)
		return 0;
	access = copy(x->value, x->len);
	if (!access)
		return -ENOMEM;
	acl_inherit(access, x->len, &mode);
	nsop_inode(op, i)->mode = mode;
	if (acl_is_mode(x->len))
		free(access);
	else
		r = stage(op, i, ACL_ACCESS, access, x->len, values);
	if (r == 0 && inode_is_dir(i))
		r = stage(op, i, ACL_DEFAULT, copy(x->value, x->len), x->len, values);
	return r;
}

int acls_stage_chmod(struct nsop *op, struct inode *i, struct acl_values *values)
{
	struct xattr *x = find(i, ACL_ACCESS);
	void *value;

	if (!x)
		return 0;
	value = copy(x->value, x->len);
	if (!value)
		return -ENOMEM;
	acl_chmod(value, x->len, nsop_inode(op, i)->mode);
	return stage(op, i, ACL_ACCESS, value, x->len, values);
}

/* ---- set and remove ---- */

static void stage_removal(struct nsop *op, struct inode *i, const char *name)
{
	struct xattr *x = xattrs_find(i, name);

	if (x && x->present)
		nsop_xattr(op, i, x, NULL, 0, false);
}

/* Who may not give the file to its group by chmod cannot do it so either. */
static void stage_mode(struct nsop *op, struct caller *c, struct inode *i, mode_t permissions)
{
	struct meta_inode *a = nsop_inode(op, i);

	a->mode = (a->mode & ~(mode_t)0777) | permissions;
	if ((a->mode & S_ISGID) && c->uid != 0 && !caller_is_member(c, a->gid))
		a->mode &= ~(mode_t)S_ISGID;
}

int acls_set(struct caller *c, struct inode *i, const char *name, const void *value, size_t len)
{
	bool access = !strcmp(name, ACL_ACCESS);
	struct acl_values values = { 0 };
	struct fs *fs = req_fs(c->req);
	struct nsop op;
	int r = acl_check(value, len);

	if (r)
		return r;
	ns_lock(fs);
	r = xattrs_load(fs, i);
	nsop_begin(&op, fs);
	if (r == 0) {
		nsop_touch(&op, i, false);
		if (access)
			stage_mode(&op, c, i, acl_mode(value, len));
		if (access && acl_is_mode(len))
			stage_removal(&op, i, name);
		else
			r = stage(&op, i, name, copy(value, len), len, &values);
	}
	if (r == 0)
		r = nsop_run(&op);
	ns_unlock(fs);
	if (r)
		acl_values_free(&values);
	return r;
}

int acls_remove(struct fs *fs, struct inode *i, const char *name)
{
	struct nsop op;
	int r;

	ns_lock(fs);
	r = xattrs_load(fs, i);
	if (r == 0) {
		nsop_begin(&op, fs);
		nsop_touch(&op, i, false);
		stage_removal(&op, i, name);
		r = nsop_run(&op);
	}
	ns_unlock(fs);
	return r;
}

/* ---- what the kernel does not check ---- */

static bool is_member(void *caller, gid_t gid)
{
	return caller_is_member(caller, gid);
}

int acls_permit(struct caller *c, struct inode *i, unsigned want)
{
	struct acl_asker who = { c->uid, i->a.uid, i->a.gid, is_member, c };
	unsigned shift = 0;
	struct xattr *x;
	int r;

	if (c->uid == 0)
		return 1;
	r = xattrs_load(req_fs(c->req), i);
	if (r)
		return r;
	x = find(i, ACL_ACCESS);
	if (x)
		return acl_grants(x->value, x->len, &who, want);
	if (c->uid == i->a.uid)
		shift = 6;
	else if (caller_is_member(c, i->a.gid))
		shift = 3;
	return (i->a.mode >> shift & want) == want;
}
