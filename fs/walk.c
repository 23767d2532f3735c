/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk: the regular files below a directory. Directories are listed one after the other, breadth
 * first, without a lock between them; what comes and goes meanwhile may be seen or not. It never goes
 * where the caller could not go by itself.
 */
#include "fs/control.h"

#include <errno.h>
#include <stdlib.h>

#define LIST_AND_SEARCH 5u

struct queue {
	struct caller *caller;
	bool own;
	int (*fn)(void *arg, struct inode *i);
	void *arg;
	uint64_t *v; /* directories to be listed */
	size_t n, cap, next;
	size_t files;
};

static int push(struct queue *q, uint64_t dir)
{
	if (q->n == WALK_LIMIT) /* or the directories go round in circles */
		return -E2BIG;
	if (q->n == q->cap) {
		size_t cap = q->cap ? q->cap * 2 : 64;
		uint64_t *v = realloc(q->v, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		q->v = v;
		q->cap = cap;
	}
	q->v[q->n++] = dir;
	return 0;
}

/* ---- whose ---- */

void caller_init(struct caller *c, fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	c->req = req;
	c->uid = ctx->uid;
	c->gid = ctx->gid;
	c->n_groups = -1;
}

bool caller_is_member(struct caller *c, gid_t gid)
{
	if (c->gid == gid)
		return true;
	if (c->n_groups < 0) {
		int n = fuse_req_getgroups(c->req, CALLER_GROUPS, c->groups);

		c->n_groups = n < 0 ? 0 : n > CALLER_GROUPS ? CALLER_GROUPS : n;
	}
	for (int k = 0; k < c->n_groups; k++)
		if (c->groups[k] == gid)
			return true;
	return false;
}

/* ---- the walk ---- */

static bool is_wanted(const struct queue *q, const struct inode *i)
{
	return inode_is_file(i) && i->a.nlink &&
	       (!q->own || q->caller->uid == 0 || q->caller->uid == i->a.uid);
}

static int call(struct queue *q, uint64_t ino)
{
	struct fs *fs = req_fs(q->caller->req);
	struct inode *i;
	bool wanted;
	int r;

	ns_lock(fs);
	r = inode_load(fs, ino, &i);
	wanted = r == 0 && is_wanted(q, i);
	ns_unlock(fs);
	if (r)
		return r == -ENOENT ? 0 : r;
	r = wanted ? q->fn(q->arg, i) : 0;
	ns_lock(fs);
	inode_put(fs, i);
	ns_unlock(fs);
	return r;
}

static int walk_list(struct queue *q, const struct dirlist *l)
{
	int r = 0;

	for (size_t k = 0; k < l->n && r == 0; k++) {
		if (S_ISDIR(l->v[k].mode))
			r = push(q, l->v[k].ino);
		else if (S_ISREG(l->v[k].mode))
			r = q->files++ < WALK_LIMIT ? call(q, l->v[k].ino) : -E2BIG;
	}
	return r;
}

/* 1: the caller may go there. */
static int may_enter(struct queue *q, uint64_t dir)
{
	struct fs *fs = req_fs(q->caller->req);
	struct inode *i;
	int r;

	ns_lock(fs);
	r = inode_load(fs, dir, &i);
	if (r == 0) {
		r = acls_permit(q->caller, i, LIST_AND_SEARCH);
		inode_put(fs, i);
	}
	ns_unlock(fs);
	return r == -ENOENT ? 0 : r;
}

static int walk_dir(struct queue *q, uint64_t dir)
{
	struct dirlist *l;
	int r = may_enter(q, dir);

	if (r != 1)
		return r;
	r = dirlist_get(req_fs(q->caller->req), dir, &l);
	if (r)
		return r;
	r = walk_list(q, l);
	dirlist_put(l);
	return r;
}

int walk_files(struct caller *c, struct inode *top, bool own, int (*fn)(void *arg, struct inode *i),
	       void *arg)
{
	struct queue q = { .caller = c, .own = own, .fn = fn, .arg = arg };
	int r;

	if (inode_is_file(top))
		return fn(arg, top);
	r = push(&q, top->ino);
	while (r == 0 && q.next < q.n)
		r = walk_dir(&q, q.v[q.next++]);
	free(q.v);
	return r;
}
