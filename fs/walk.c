/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk: the regular files below a directory. Directories are listed one after the other, breadth
 * first, without a lock between them; what comes and goes meanwhile may be seen or not.
 */
#include "fs/control.h"

#include <errno.h>
#include <stdlib.h>

struct queue {
	uint64_t *v; /* directories to be listed */
	size_t n, cap, next;
	size_t files;
};

static int push(struct queue *q, uint64_t dir)
{
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

static int call(struct fs *fs, uint64_t ino, int (*fn)(void *arg, struct inode *i), void *arg)
{
	struct inode *i;
	bool gone;
	int r;

	ns_lock(fs);
	r = inode_load(fs, ino, &i);
	gone = r || !inode_is_file(i) || !i->a.nlink;
	ns_unlock(fs);
	if (r)
		return r == -ENOENT ? 0 : r;
	r = gone ? 0 : fn(arg, i);
	ns_lock(fs);
	inode_put(fs, i);
	ns_unlock(fs);
	return r;
}

static int walk_list(struct fs *fs, struct queue *q, const struct dirlist *l,
		     int (*fn)(void *arg, struct inode *i), void *arg)
{
	int r = 0;

	for (size_t k = 0; k < l->n && r == 0; k++) {
		if (S_ISDIR(l->v[k].mode))
			r = push(q, l->v[k].ino);
		else if (S_ISREG(l->v[k].mode))
			r = q->files++ < WALK_LIMIT ? call(fs, l->v[k].ino, fn, arg) : -E2BIG;
	}
	return r;
}

int walk_files(struct fs *fs, struct inode *top, int (*fn)(void *arg, struct inode *i), void *arg)
{
	struct queue q = { 0 };
	int r;

	if (inode_is_file(top))
		return fn(arg, top);
	r = push(&q, top->ino);
	while (r == 0 && q.next < q.n) {
		struct dirlist l;

		r = dirlist_read(fs, q.v[q.next++], &l);
		if (r)
			break;
		r = walk_list(fs, &q, &l, fn, arg);
		dirlist_done(&l);
	}
	free(q.v);
	return r;
}
