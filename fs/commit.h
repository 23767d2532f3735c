/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit: how the namespace reaches meta.db.
 *
 *   writeback  settles the content of files and says when it is time to commit
 *   closure    what must be committed together with an inode
 *   batch      a snapshot of some inodes, written in one transaction
 *   commit     the thread that does it, for those who wait and in the background
 */
#ifndef FS_COMMIT_H
#define FS_COMMIT_H

#include "fs/files.h"

/* ---- writeback.c ----------------------------------------------------------------------------- */

int writeback_start(struct fs *fs);
void writeback_stop(struct fs *fs);
/* Settles a held file; the lock is not held. 0 when there was nothing to do. A failure is
 * remembered for the openers. */
int writeback_settle(struct fs *fs, struct inode *i);
/* Settles everything that is dirty, open files too. The first error; the others are tried. */
int writeback_settle_all(struct fs *fs);
/* Settle and commit soon. Any thread, any lock. */
void writeback_press(struct fs *fs);
/* Look for work now. A leaf lock is taken, as by writeback_press(). */
void writeback_wake(struct fs *fs);
/* The file was closed and is to be evicted. The lock is held. */
void writeback_evict_later(struct fs *fs, struct inode *i);

/* ---- closure.c ------------------------------------------------------------------------------- */

struct closure {
	struct fs *fs;
	uint64_t mark;
	struct inode **v; /* in order of discovery; no references: the lock is held */
	size_t n, cap, visited;
	uint64_t extents;       /* about as many come or go with the files in it */
	struct inode **blocked; /* files to be settled first */
	size_t n_blocked, cap_blocked;
	bool busy; /* a file of it is being settled now */
	int error;
};
void closure_begin(struct closure *c, struct fs *fs);
/*
 * Adds an inode and all that must be in the same transaction. On failure nothing is added:
 * -EAGAIN: files in c->blocked must be settled first; -EBUSY: one is being settled; -ENOMEM.
 * The lock is held from closure_begin() to the last use.
 */
int closure_add(struct closure *c, struct inode *seed);
void closure_done(struct closure *c);
static inline bool closure_has(const struct closure *c, const struct inode *i)
{
	return i->mark == c->mark;
}

/* ---- batch.c --------------------------------------------------------------------------------- */

struct batch;
/* A snapshot of a closure; the lock is held. */
int batch_take(struct closure *c, struct batch **ret);
/* Writes it; the lock is not held. */
int batch_write(struct batch *b);
/* Makes clean what was written and has not changed since, and frees it; the lock is held. result:
 * of batch_write(). */
void batch_end(struct batch *b, int result);

/* ---- commit.c -------------------------------------------------------------------------------- */

int commit_start(struct fs *fs);
void commit_stop(struct fs *fs);
/* fsync: settles the file and commits its closure durably. Errors that were not reported through
 * this handle yet come first. h may be NULL. */
int commit_file(struct fs *fs, struct inode *i, struct handle *h);
/* fsync of a directory: it and every name in it. */
int commit_dir(struct fs *fs, struct inode *dir);
int commit_all(struct fs *fs);
/* Some held inodes, with what they depend on, durably. */
int commit_inodes(struct fs *fs, struct inode **v, size_t n);
/* An error of a settle that this handle has not reported yet; 0. */
int commit_take_error(struct fs *fs, struct handle *h);
/* The committer looks for work. The lock is held. */
void commit_kick(struct fs *fs);
/* A background round, soon. The lock is held. */
void commit_want_round(struct fs *fs);

#endif
