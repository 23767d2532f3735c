/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jrec: the records of the namespace in the journal, to the byte. A journal is read by the machine
 * that wrote it, by this or a later version: fields are in host order, and a layout never changes
 * but gets a new type.
 */
#include "fs/state.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct wire_inode {
	uint64_t ino, size;
	int64_t time[4][2]; /* atime, mtime, ctime, btime: seconds, nanoseconds */
	uint32_t mode, uid, gid, nlink, rdev, flags;
	uint32_t target_len;
	uint32_t unused;
	/* the target, without NUL */
};

struct wire_dentry {
	uint64_t parent, ino, id;
	uint32_t mode;
	uint16_t name_len;
	uint16_t gap;
	/* the name */
};

struct wire_xattr {
	uint64_t ino;
	uint32_t len;
	uint16_t name_len;
	uint16_t present;
	/* the name, the value */
};

static size_t target_len(const struct meta_inode *a)
{
	return a->target ? strlen(a->target) : 0;
}

size_t jrec_inode_size(const struct meta_inode *a)
{
	return sizeof(struct wire_inode) + target_len(a);
}

size_t jrec_dentry_size(size_t name_len)
{
	return sizeof(struct wire_dentry) + name_len;
}

size_t jrec_xattr_size(size_t name_len, size_t len)
{
	return sizeof(struct wire_xattr) + name_len + len;
}

void jrec_inode_write(void *buf, const struct meta_inode *a)
{
	const struct timespec *t[4] = { &a->atime, &a->mtime, &a->ctime, &a->btime };
	struct wire_inode w = {
		.ino = a->ino,
		.size = a->size,
		.mode = a->mode,
		.uid = a->uid,
		.gid = a->gid,
		.nlink = a->nlink,
		.rdev = a->rdev,
		.flags = a->flags,
		.target_len = (uint32_t)target_len(a),
	};

	for (int k = 0; k < 4; k++) {
		w.time[k][0] = t[k]->tv_sec;
		w.time[k][1] = t[k]->tv_nsec;
	}
	memcpy(buf, &w, sizeof(w));
	if (w.target_len)
		memcpy((char *)buf + sizeof(w), a->target, w.target_len);
}

void jrec_dentry_write(void *buf, const struct jrec_dentry *d)
{
	struct wire_dentry w = {
		.parent = d->parent,
		.ino = d->ino,
		.id = d->id,
		.mode = d->mode,
		.name_len = (uint16_t)strlen(d->name),
		.gap = d->gap,
	};

	memcpy(buf, &w, sizeof(w));
	memcpy((char *)buf + sizeof(w), d->name, w.name_len);
}

void jrec_xattr_write(void *buf, uint64_t ino, const char *name, const void *value, size_t len,
		      bool present)
{
	struct wire_xattr w = {
		.ino = ino,
		.len = (uint32_t)len,
		.name_len = (uint16_t)strlen(name),
		.present = present,
	};
	char *p = buf;

	memcpy(p, &w, sizeof(w));
	memcpy(p + sizeof(w), name, w.name_len);
	if (len)
		memcpy(p + sizeof(w) + w.name_len, value, len);
}

static bool time_ok(const int64_t t[2])
{
	return t[1] >= 0 && t[1] < 1000000000;
}

static bool is_number(uint64_t n)
{
	return n && n <= META_NUMBER_MAX;
}

int jrec_inode_read(const void *buf, size_t len, struct meta_inode *a)
{
	struct timespec *t[4] = { &a->atime, &a->mtime, &a->ctime, &a->btime };
	struct wire_inode w;

	if (len < sizeof(w))
		return -EBADMSG;
	memcpy(&w, buf, sizeof(w));
	if (w.target_len != len - sizeof(w) || w.target_len >= PATH_MAX || !is_number(w.ino) ||
	    !!w.target_len != !!S_ISLNK(w.mode) || (S_ISREG(w.mode) && w.size > OBJECT_MAX))
		return -EBADMSG;
	*a = (struct meta_inode){
		.ino = w.ino,
		.size = w.size,
		.mode = w.mode,
		.uid = w.uid,
		.gid = w.gid,
		.nlink = w.nlink,
		.rdev = w.rdev,
		.flags = w.flags,
	};
	for (int k = 0; k < 4; k++) {
		if (!time_ok(w.time[k]))
			return -EBADMSG;
		t[k]->tv_sec = w.time[k][0];
		t[k]->tv_nsec = w.time[k][1];
	}
	if (!w.target_len)
		return 0;
	a->target = strndup((const char *)buf + sizeof(w), w.target_len);
	return a->target ? 0 : -ENOMEM;
}

static int read_name(const char *p, size_t len, char name[static NAME_LIMIT + 1])
{
	if (!len || len > NAME_LIMIT || memchr(p, '\0', len))
		return -EBADMSG;
	memcpy(name, p, len);
	name[len] = '\0';
	return 0;
}

int jrec_dentry_read(const void *buf, size_t len, struct jrec_dentry *d)
{
	struct wire_dentry w;
	int r;

	if (len < sizeof(w))
		return -EBADMSG;
	memcpy(&w, buf, sizeof(w));
	if (w.name_len != len - sizeof(w) || !is_number(w.parent) || w.id > META_NUMBER_MAX ||
	    (w.ino && !is_number(w.ino)))
		return -EBADMSG;
	d->parent = w.parent;
	d->ino = w.ino;
	d->id = w.id;
	d->mode = w.mode;
	d->gap = w.gap;
	r = read_name((const char *)buf + sizeof(w), w.name_len, d->name);
	return r == 0 && !meta_name_ok(d->name) ? -EBADMSG : r;
}

int jrec_xattr_read(const void *buf, size_t len, struct jrec_xattr *x)
{
	const char *p = buf;
	struct wire_xattr w;

	if (len < sizeof(w))
		return -EBADMSG;
	memcpy(&w, buf, sizeof(w));
	if (len - sizeof(w) < w.name_len || w.len != len - sizeof(w) - w.name_len ||
	    w.len > XATTR_LIMIT || !is_number(w.ino))
		return -EBADMSG;
	x->ino = w.ino;
	x->present = w.present;
	x->len = w.len;
	x->value = p + sizeof(w) + w.name_len;
	return read_name(p + sizeof(w), w.name_len, x->name);
}
