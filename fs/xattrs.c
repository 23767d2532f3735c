/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xattrs: the stored extended attributes of an inode in memory. All of them are read at the first
 * use, so that an absent one needs no second look.
 */
#include "fs/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_TRIES 3

static struct xattr *new_xattr(struct xattr **list, const char *name)
{
	size_t len = strlen(name);
	struct xattr *x = calloc(1, sizeof(*x) + len + 1);

	if (!x)
		return NULL;
	memcpy(x->name, name, len + 1);
	x->next = *list;
	*list = x;
	return x;
}

static void free_list(struct xattr *list)
{
	while (list) {
		struct xattr *x = list;

		list = x->next;
		free(x->value);
		free(x);
	}
}

static int add_row(void *arg, const char *name, const void *value, size_t len)
{
	struct xattr *x = new_xattr(arg, name);

	if (!x)
		return -ENOMEM;
	x->present = true;
	x->len = (uint32_t)len;
	x->value = malloc(len ? len : 1);
	if (!x->value)
		return -ENOMEM;
	if (len)
		memcpy(x->value, value, len);
	return 0;
}

int xattrs_load(struct fs *fs, struct inode *i)
{
	for (int tries = 0; !i->xattrs_loaded; tries++) {
		bool locked = tries >= LOAD_TRIES;
		uint64_t seq = fs->commit_seq, ino = i->ino;
		struct xattr *list = NULL;
		int r;

		if (!locked)
			ns_unlock(fs);
		r = meta_get_xattrs(fs->store, ino, add_row, &list);
		if (!locked)
			ns_lock(fs);
		if (r == 0 && !i->xattrs_loaded && (locked || seq == fs->commit_seq)) {
			i->xattrs = list;
			i->xattrs_loaded = true;
			list = NULL;
		}
		free_list(list);
		if (r)
			return r;
	}
	return 0;
}

struct xattr *xattrs_find(struct inode *i, const char *name)
{
	struct xattr *x;

	for (x = i->xattrs; x; x = x->next)
		if (!strcmp(x->name, name))
			break;
	return x;
}

struct xattr *xattrs_slot(struct inode *i, const char *name)
{
	struct xattr *x = xattrs_find(i, name);

	return x ? x : new_xattr(&i->xattrs, name);
}

void xattrs_free(struct inode *i)
{
	free_list(i->xattrs);
	i->xattrs = NULL;
}
