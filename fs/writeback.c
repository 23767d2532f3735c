/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writeback: settling content. Every settle of fs/ goes through writeback_settle(), which numbers
 * them: a name that waits for content waits for a settle that began after it was given.
 *
 * A file is not settled between store_sync_data() and the commit of a batch it is in, because what
 * is put must be durable; and it is not put while a settle is at work.
 */
#include "fs/commit.h"

#include "fs/control.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <syslog.h>

#define TICK_MS    1000
#define PRESSED_MS 20

/* ---- one file ---- */

struct settle {
	struct object *o;
	uint32_t number;
	struct timespec mtime;
};

/* meta.db must be told of what will be settled, also after a kill: that is journaled first. */
static int announce(struct fs *fs, struct inode *i, struct object *o)
{
	struct object_stat os;
	struct nsop op;

	object_stat(o, &os);
	inode_fold(i, &os);
	nsop_begin(&op, fs);
	nsop_data(&op, i);
	return nsop_run(&op);
}

/* 1: there is something to settle. The lock is held. */
static int settle_begin(struct fs *fs, struct inode *i, struct settle *s)
{
	int r;

	if (!inode_is_file(i) || i->a.nlink == 0)
		return 0;
	r = inode_object_load(fs, i, &s->o);
	if (r)
		return r;
	while (i->file.committing)
		ns_wait(fs, &fs->commit_done, -1);
	r = object_is_dirty(s->o) || object_is_uncommitted(s->o) ? announce(fs, i, s->o) : 0;
	if (r || !object_is_dirty(s->o)) {
		object_unref(s->o);
		return r;
	}
	s->mtime = i->a.mtime;
	s->number = ++i->file.settle_started;
	i->file.settling++;
	return 1;
}

static void settle_end(struct fs *fs, struct inode *i, const struct settle *s, int result)
{
	struct file_state *f = &i->file;

	f->settling--;
	f->stored_epoch = 0;
	if (result == 0) {
		if (s->number > f->settle_done)
			f->settle_done = s->number;
		f->settled_mtime = s->mtime;
	} else {
		if (f->error != result || !f->error_seq)
			fs_log(fs, LOG_ERR, "cannot settle inode %llu: %s",
			       (unsigned long long)i->ino, strerror(-result));
		f->error = result;
		f->error_seq++;
	}
	/* A commit may wait for the end of this. */
	commit_kick(fs);
}

int writeback_settle(struct fs *fs, struct inode *i)
{
	struct settle s;
	int r;

	ns_lock(fs);
	r = settle_begin(fs, i, &s);
	ns_unlock(fs);
	if (r != 1)
		return r;
	r = object_settle(s.o);
	ns_lock(fs);
	settle_end(fs, i, &s, r);
	ns_unlock(fs);
	object_unref(s.o);
	return r;
}

/* ---- many ---- */

struct walk { /* several threads are on it */
	struct fs *fs;
	atomic_uint settled;
	atomic_int_least64_t round_ms; /* when the last round was asked for */
	atomic_int error;              /* the first */
	bool background;
};

static bool stopped(struct fs *fs)
{
	bool stop;

	pthread_mutex_lock(&fs->settle_lock);
	stop = fs->settler_stop;
	pthread_mutex_unlock(&fs->settle_lock);
	return stop;
}

static void ask_round(struct walk *w)
{
	ns_lock(w->fs);
	commit_want_round(w->fs);
	ns_unlock(w->fs);
	w->round_ms = clock_ms();
}

static void note_error(struct walk *w, int r)
{
	atomic_compare_exchange_strong(&w->error, &(int){ 0 }, r);
}

static int settle_object(void *arg, struct object *o)
{
	struct walk *w = arg;
	struct inode *i;
	int r;

	if (w->background && stopped(w->fs))
		return 1;
	ns_lock(w->fs);
	r = inode_load(w->fs, object_ino(o), &i);
	ns_unlock(w->fs);
	/* A file that is just being made has no inode yet. */
	if (r == -ENOENT)
		return 0;
	if (r) {
		note_error(w, r);
		return 0;
	}
	r = writeback_settle(w->fs, i);
	if (r)
		note_error(w, r);
	else
		atomic_fetch_add(&w->settled, 1);
	ns_lock(w->fs);
	inode_put(w->fs, i);
	ns_unlock(w->fs);
	/* A long walk is committed on the way. */
	if (clock_ms() - w->round_ms >= TICK_MS)
		ask_round(w);
	return 0;
}

int writeback_settle_all(struct fs *fs)
{
	struct walk w = { .fs = fs, .round_ms = clock_ms() };
	int r = store_for_dirty(fs->store, 0, DIRTY_OPEN | DIRTY_PUT_OFF | DIRTY_THREADS,
				settle_object, &w);

	return r < 0 ? r : w.error;
}

/* ---- evictions put off to the last close ---- */

void writeback_evict_later(struct fs *fs, struct inode *i)
{
	list_del(&i->file.evict_link);
	list_add_tail(&fs->evictions, &i->file.evict_link);
	writeback_wake(fs);
}

static struct inode *next_eviction(struct fs *fs, enum object_tier *to)
{
	struct inode *i = NULL;

	ns_lock(fs);
	if (!list_empty(&fs->evictions)) {
		i = list_entry(fs->evictions.next, struct inode, file.evict_link);
		list_del(&i->file.evict_link);
		*to = (enum object_tier)(i->file.evict_to - 1);
		i->refs++;
	}
	ns_unlock(fs);
	return i;
}

static void do_evictions(struct fs *fs)
{
	enum object_tier to;
	struct inode *i;

	while ((i = next_eviction(fs, &to))) {
		control_evict_file(fs, i, to, 0);
		ns_lock(fs);
		inode_put(fs, i);
		ns_unlock(fs);
	}
}

/* ---- the thread ---- */

static int64_t pass(struct fs *fs, bool pressed, int64_t last_round_ms)
{
	struct walk w = { .fs = fs, .round_ms = last_round_ms, .background = true };
	unsigned wait_s = fs->opt.commit_s ? fs->opt.commit_s - 1 : 0;

	do_evictions(fs);
	store_for_dirty(fs->store, pressed ? 0 : wait_s, DIRTY_THREADS | (pressed ? DIRTY_OPEN : 0),
			settle_object, &w);
	if (w.settled || pressed || clock_ms() - w.round_ms >= (int64_t)fs->opt.commit_s * 1000)
		ask_round(&w);
	return w.round_ms;
}

static void *settler(void *arg)
{
	struct fs *fs = arg;
	int64_t round_ms = clock_ms();

	pthread_mutex_lock(&fs->settle_lock);
	while (!fs->settler_stop) {
		bool pressed;

		if (!fs->pressure)
			cond_wait_ms(&fs->settle_wake, &fs->settle_lock,
				     fs->opt.commit_s ? TICK_MS : TICK_MS / 10);
		pressed = fs->pressure;
		fs->pressure = false;
		pthread_mutex_unlock(&fs->settle_lock);
		round_ms = pass(fs, pressed, round_ms);
		pthread_mutex_lock(&fs->settle_lock);
		/* What presses on without relief must not spin. */
		if (fs->pressure && !fs->settler_stop)
			cond_wait_ms(&fs->settle_wake, &fs->settle_lock, PRESSED_MS);
	}
	pthread_mutex_unlock(&fs->settle_lock);
	return NULL;
}

void writeback_wake(struct fs *fs)
{
	pthread_mutex_lock(&fs->settle_lock);
	pthread_cond_signal(&fs->settle_wake);
	pthread_mutex_unlock(&fs->settle_lock);
}

void writeback_press(struct fs *fs)
{
	pthread_mutex_lock(&fs->settle_lock);
	fs->pressure = true;
	pthread_cond_signal(&fs->settle_wake);
	pthread_mutex_unlock(&fs->settle_lock);
}

int writeback_start(struct fs *fs)
{
	int r = -pthread_create(&fs->settler, NULL, settler, fs);

	fs->settler_runs = r == 0;
	return r;
}

void writeback_stop(struct fs *fs)
{
	if (!fs->settler_runs)
		return;
	pthread_mutex_lock(&fs->settle_lock);
	fs->settler_stop = true;
	pthread_cond_signal(&fs->settle_wake);
	pthread_mutex_unlock(&fs->settle_lock);
	pthread_join(fs->settler, NULL);
	fs->settler_runs = false;
}
