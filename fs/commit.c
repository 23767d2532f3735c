/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit: the thread that writes the namespace to meta.db. Those who wait are served first and in
 * groups, one transaction for all of them; in between, rounds over everything that is dirty. Every
 * transaction is durable, so what is clean is durable.
 *
 * It settles nothing itself: a request that needs a file settled goes back to who made it.
 */
#include "fs/commit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#define BATCH 4096u
/* Others wait for an fsync meanwhile, 0.17 s with 500,000 of them. A bound of rounds: what is asked for
 * comes at once, and a removed directory takes what is left in it along. */
#define BATCH_EXTENTS 300000u
/* A file that is renamed and written without end could make an fsync start over without end. */
#define RETRIES 100
#define ATIMES  4096u

struct commit_request {
	struct list link;
	struct inode **seeds; /* held by who waits */
	size_t n;
	bool all; /* everything that was dirty when fs->dirty_seq was upto */
	uint64_t upto;
	bool done;
	int result;             /* -EAGAIN: settle what is in blocked, and ask again */
	struct inode **blocked; /* held, for who waits to put */
	size_t n_blocked;
};

static void finish(struct fs *fs, struct commit_request *q, int result)
{
	q->result = result;
	q->done = true;
	pthread_cond_broadcast(&fs->commit_done);
}

/* The blocked files of a closure change hands. */
static int hand_over(struct commit_request *q, const struct closure *c)
{
	size_t n = q->n_blocked + c->n_blocked;
	struct inode **v = realloc(q->blocked, n * sizeof(*v));

	if (!v)
		return -ENOMEM;
	q->blocked = v;
	for (size_t k = 0; k < c->n_blocked; k++) {
		c->blocked[k]->refs++;
		v[q->n_blocked++] = c->blocked[k];
	}
	return 0;
}

/* Writes a closure. The lock is held, and given up meanwhile. */
static int write_closure(struct fs *fs, struct closure *c)
{
	struct batch *b;
	int r;

	if (!c->n)
		return 0;
	r = batch_take(c, &b);
	if (r)
		return r;
	ns_unlock(fs);
	r = batch_write(b);
	ns_lock(fs);
	batch_end(b, r);
	pthread_cond_broadcast(&fs->commit_done);
	if (r && r != fs->commit_error)
		fs_log(fs, LOG_ERR,
		       "cannot commit to meta.db: %s; what is not committed stays in "
		       "the run directory, and is tried again",
		       strerror(-r));
	fs->commit_error = r;
	return r;
}

/* ---- requests ---- */

/* Adds what a request asks for. 0: it is in the closure; -EBUSY: it must wait. */
static int add_request(struct closure *c, struct commit_request *q)
{
	int r = 0;

	for (size_t k = 0; k < q->n; k++) {
		int s = closure_add(c, q->seeds[k]);

		if (s == -EAGAIN && hand_over(q, c))
			s = -ENOMEM;
		if (s && r != -ENOMEM)
			r = s;
	}
	return q->n_blocked && r != -ENOMEM ? -EAGAIN : r;
}

/* What can be served goes to group; the rest waits for a settle to end. */
static void gather(struct fs *fs, struct closure *c, struct list *group)
{
	struct list *l, *next;

	list_for_each_safe(l, next, &fs->requests)
	{
		struct commit_request *q = list_entry(l, struct commit_request, link);
		int r = q->all ? -EBUSY : add_request(c, q);

		if (r == -EBUSY)
			continue;
		list_del(&q->link);
		if (r)
			finish(fs, q, r);
		else
			list_add_tail(group, &q->link);
	}
}

/* True if there may be more to do at once. */
static bool serve_waiting(struct fs *fs)
{
	struct list group, *l, *next;
	struct closure c;
	bool any;
	int r;

	list_init(&group);
	closure_begin(&c, fs);
	gather(fs, &c, &group);
	any = !list_empty(&group) || c.n;
	r = write_closure(fs, &c);
	closure_done(&c);
	list_for_each_safe(l, next, &group)
	{
		list_del(l);
		finish(fs, list_entry(l, struct commit_request, link), r);
	}
	return any;
}

/* ---- rounds ---- */

/* Times of reading wait for company, until they are many. */
static bool may_wait(const struct fs *fs, const struct inode *i)
{
	return !i->counted && fs->n_dirty - fs->n_unsettled < ATIMES;
}

/* A removed tree is deleted leaf by leaf, so that no transaction grows with it: its directories
 * come in the second pass. */
static bool is_deferred(const struct inode *i, int pass)
{
	return pass == 0 && inode_is_dir(i) && !i->a.nlink && !list_empty(&i->dir.dirty_names);
}

/* What comes to the list while a pass is at work stands behind all that was there, and is left to
 * the next one: a round ends, however busy the mount is. */
struct pass {
	int number;
	uint64_t upto; /* what is dirty since then or before */
	size_t left;   /* to be tried, of those that were dirty at the beginning */
	struct commit_request *q;
};

/* A name may be older than who has it: that one is asked for in place of whom it has replaced. */
static bool is_asked_for(const struct inode *i, uint64_t upto)
{
	struct list *l;

	if (i->dirty_since <= upto)
		return true;
	if (!i->n_dirty_names)
		return false;
	list_for_each(l, &i->names)
	{
		struct dentry *d = list_entry(l, struct dentry, names);

		if (d->dirty && d->dirty_since <= upto)
			return true;
	}
	return false;
}

/* The next batch of a pass. False when all were tried. */
static bool fill(struct fs *fs, struct closure *c, struct pass *p)
{
	struct commit_request *q = p->q;

	for (unsigned tried = 0; tried < BATCH && c->n < BATCH && c->extents < BATCH_EXTENTS;
	     tried++) {
		struct inode *i;
		int r;

		if (list_empty(&fs->dirty) || !p->left)
			return false;
		i = list_entry(fs->dirty.next, struct inode, dirty_link);
		if (i->round == fs->round)
			return false;
		p->left--;
		i->round = fs->round;
		list_del(&i->dirty_link);
		list_add_tail(&fs->dirty, &i->dirty_link);
		if (!is_asked_for(i, p->upto) || is_deferred(i, p->number) ||
		    (!q && may_wait(fs, i)))
			continue;
		r = closure_add(c, i);
		if (!q)
			continue;
		if (r == -EAGAIN)
			r = hand_over(q, c);
		if (r && r != -EBUSY)
			q->result = r;
		else if (r == -EBUSY && !q->result)
			q->result = -EBUSY;
	}
	return true;
}

static int run_pass(struct fs *fs, struct pass *p)
{
	bool more = true;
	int r = 0;

	fs->round++;
	p->left = fs->n_dirty;
	while (more && r == 0) {
		struct closure c;

		closure_begin(&c, fs);
		more = fill(fs, &c, p);
		r = write_closure(fs, &c);
		if (!c.n) {
			ns_unlock(fs);
			ns_lock(fs);
		}
		closure_done(&c);
		/* Those who wait come first. */
		if (!list_empty(&fs->requests))
			serve_waiting(fs);
	}
	return r;
}

/* Everything that is ready; q: for whom, NULL in the background. */
static int run_round(struct fs *fs, struct commit_request *q)
{
	struct pass p = { .q = q, .upto = q ? q->upto : fs->dirty_seq };
	int r = run_pass(fs, &p);

	p.number = 1;
	return r ? r : run_pass(fs, &p);
}

/* Something asked for is not committed: it came by its name while the round was at work. */
static bool is_left(struct fs *fs, const struct commit_request *q)
{
	struct list *l;

	list_for_each(l, &fs->dirty)
	{
		if (is_asked_for(list_entry(l, struct inode, dirty_link), q->upto))
			return true;
	}
	return false;
}

/* A request for everything. False when it must wait for a settle to end. */
static bool serve_all(struct fs *fs, struct commit_request *q)
{
	int r;

	q->result = 0;
	r = run_round(fs, q);
	if (r == 0)
		r = q->n_blocked ? -EAGAIN : q->result;
	if (r == 0 && is_left(fs, q))
		r = -EAGAIN;
	if (r == -EBUSY)
		return false;
	list_del(&q->link);
	finish(fs, q, r);
	return true;
}

static bool serve_alls(struct fs *fs)
{
	struct list *l, *next;
	bool any = false;

	list_for_each_safe(l, next, &fs->requests)
	{
		struct commit_request *q = list_entry(l, struct commit_request, link);

		if (!q->all)
			continue;
		any |= serve_all(fs, q);
		/* The lock was given up: the list may be another. */
		break;
	}
	return any;
}

/* ---- the thread ---- */

static void *committer(void *arg)
{
	struct fs *fs = arg;

	ns_lock(fs);
	while (!fs->committer_stop || !list_empty(&fs->requests)) {
		bool any;

		fs->commit_kick = false;
		any = serve_waiting(fs);
		any |= serve_alls(fs);
		if (fs->round_wanted) {
			fs->round_wanted = false;
			run_round(fs, NULL);
			any = true;
		}
		if (journal_wants_checkpoint(fs->store))
			checkpoint_write(fs);
		/* Files that went away are told of when the lock is given up. */
		if (any || fs->discards) {
			ns_unlock(fs);
			ns_lock(fs);
		} else if (!fs->commit_kick && !fs->committer_stop) {
			ns_wait(fs, &fs->commit_wake, -1);
		}
	}
	ns_unlock(fs);
	return NULL;
}

int commit_start(struct fs *fs)
{
	int r = -pthread_create(&fs->committer, NULL, committer, fs);

	fs->committer_runs = r == 0;
	return r;
}

void commit_stop(struct fs *fs)
{
	if (!fs->committer_runs)
		return;
	ns_lock(fs);
	fs->committer_stop = true;
	pthread_cond_signal(&fs->commit_wake);
	ns_unlock(fs);
	pthread_join(fs->committer, NULL);
	fs->committer_runs = false;
}

void commit_kick(struct fs *fs)
{
	fs->commit_kick = true;
	pthread_cond_signal(&fs->commit_wake);
}

void commit_want_round(struct fs *fs)
{
	fs->round_wanted = true;
	commit_kick(fs);
}

/* ---- those who wait ---- */

static int ask(struct fs *fs, struct commit_request *q)
{
	ns_lock(fs);
	q->done = false;
	list_add_tail(&fs->requests, &q->link);
	commit_kick(fs);
	while (!q->done)
		ns_wait(fs, &fs->commit_done, -1);
	ns_unlock(fs);
	return q->result;
}

/* Settles what stands in the way and lets go of it. */
static int unblock(struct fs *fs, struct commit_request *q)
{
	int r = 0;

	for (size_t k = 0; k < q->n_blocked; k++) {
		int s = writeback_settle(fs, q->blocked[k]);

		r = r ? r : s;
	}
	ns_lock(fs);
	for (size_t k = 0; k < q->n_blocked; k++)
		inode_put(fs, q->blocked[k]);
	ns_unlock(fs);
	free(q->blocked);
	q->blocked = NULL;
	q->n_blocked = 0;
	return r;
}

static int request(struct fs *fs, struct commit_request *q)
{
	int r = -EAGAIN;

	for (int tries = 0; tries < RETRIES && r == -EAGAIN; tries++) {
		int s;

		r = ask(fs, q);
		s = unblock(fs, q);
		if (s)
			return s;
	}
	return r == -EAGAIN ? -EIO : r;
}

int commit_inodes(struct fs *fs, struct inode **v, size_t n)
{
	struct commit_request q = { .seeds = v, .n = n };

	list_init(&q.link);
	return request(fs, &q);
}

int commit_take_error(struct fs *fs, struct handle *h)
{
	struct file_state *f = &h->inode->file;
	int r = 0;

	ns_lock(fs);
	if (h->error_seen != f->error_seq) {
		h->error_seen = f->error_seq;
		r = f->error;
	}
	ns_unlock(fs);
	return r;
}

int commit_file(struct fs *fs, struct inode *i, struct handle *h)
{
	int r = h ? commit_take_error(fs, h) : 0;

	if (r)
		return r;
	r = writeback_settle(fs, i);
	if (r == 0)
		return commit_inodes(fs, &i, 1);
	/* It is reported here and now. */
	if (h)
		commit_take_error(fs, h);
	return r;
}

/* The directory, and who has or had a name in it, with references. */
static struct inode **collect(struct fs *fs, struct inode *dir, size_t *ret_n)
{
	struct inode **v;
	struct list *l;
	size_t n = 1;

	ns_lock(fs);
	list_for_each(l, &dir->dir.dirty_names) n += 2;
	v = calloc(n, sizeof(*v));
	n = 0;
	if (v) {
		v[n++] = dir;
		list_for_each(l, &dir->dir.dirty_names)
		{
			struct dentry *d = list_entry(l, struct dentry, child);

			if (d->inode)
				v[n++] = d->inode;
			if (d->db_inode)
				v[n++] = d->db_inode;
		}
		for (size_t k = 0; k < n; k++)
			v[k]->refs++;
	}
	ns_unlock(fs);
	*ret_n = n;
	return v;
}

int commit_dir(struct fs *fs, struct inode *dir)
{
	struct inode **v;
	size_t n;
	int r;

	v = collect(fs, dir, &n);
	if (!v)
		return -ENOMEM;
	r = commit_inodes(fs, v, n);
	ns_lock(fs);
	for (size_t k = 0; k < n; k++)
		inode_put(fs, v[k]);
	ns_unlock(fs);
	free(v);
	return r;
}

int commit_all(struct fs *fs)
{
	struct commit_request q = { .all = true };
	int r = writeback_settle_all(fs);
	int s;

	list_init(&q.link);
	/* After the settles: by them files with new content have become dirty. Younger ones are others'
	 * concern, else a busy mount would never be through. */
	ns_lock(fs);
	q.upto = fs->dirty_seq;
	ns_unlock(fs);
	s = request(fs, &q);
	return r ? r : s;
}
