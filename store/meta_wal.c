/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_wal: when commits become durable, and who moves them from the WAL to meta.db.
 *
 * The writer runs with synchronous=NORMAL: a commit appends frames to meta.db-wal and syncs nothing,
 * so it survives a kill but not a power loss. A durable commit is followed by meta_wal_sync(), which
 * does to the WAL what synchronous=FULL would have done. That is enough, because
 *  - frames carry a running checksum that starts in the WAL's header; recovery takes the longest
 *    valid prefix that ends in a commit. Syncing the file makes its whole prefix durable, and so
 *    this commit and every one before it in this WAL;
 *  - commits of the WAL's earlier lives are in meta.db: the WAL restarts only after a checkpoint has
 *    synced the WAL, copied all of it and synced meta.db, which NORMAL does and we keep;
 *  - only the writer restarts the WAL, and it holds write_lock from before the commit to after the
 *    sync, so the frames are still there when we sync;
 *  - the sync goes through SQLite's own file object for the WAL, which also syncs the directory the
 *    first time, so that the name meta.db-wal is durable too.
 * FULL would further pad the last sector of a commit on drives that damage bytes next to those they
 * write when power fails; SQLite assumes there are none (SQLITE_POWERSAFE_OVERWRITE), and so do we.
 *
 * After a failed sync nobody knows what reached the drive, and the kernel calls the pages clean, so
 * that a second sync would lie. The database is then broken: no commit, no checkpoint until it is
 * opened again and SQLite has recovered what is really there.
 *
 * Checkpoints are run by a thread of their own, never by who commits.
 */
#include "store/meta_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECKPOINT_BYTES (8u << 20)
/* Commits that never pause keep the WAL from restarting; past this they wait for a moment. */
#define CHECKPOINT_FORCE_BYTES (64u << 20)
/* Room the WAL always has, so that a full file system still lets files be removed. */
#define WAL_RESERVE (16 << 20)

int meta_broken(struct meta *m)
{
	int r;

	pthread_mutex_lock(&m->state_lock);
	r = m->broken;
	pthread_mutex_unlock(&m->state_lock);
	return r;
}

static int set_broken(struct meta *m, int error)
{
	pthread_mutex_lock(&m->state_lock);
	m->broken = error;
	pthread_mutex_unlock(&m->state_lock);
	return error;
}

int meta_wal_sync(struct meta *m)
{
	sqlite3_file *wal = NULL;

	if (!m->unsynced)
		return 0;
	sqlite3_file_control(m->writer.db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &wal);
	if (!wal || !wal->pMethods)
		return -EIO;
	if (wal->pMethods->xSync(wal, SQLITE_SYNC_NORMAL) != SQLITE_OK)
		return set_broken(m, -EIO);
	m->unsynced = false;
	return 0;
}

void meta_wal_committed(struct meta *m)
{
	m->unsynced = true;
	if (m->wal_bytes < CHECKPOINT_BYTES)
		return;
	pthread_mutex_lock(&m->state_lock);
	m->checkpoint_due = true;
	m->wal_full = m->running && !m->stop && !m->broken && m->wal_bytes > CHECKPOINT_FORCE_BYTES;
	pthread_cond_signal(&m->wake);
	pthread_mutex_unlock(&m->state_lock);
}

/* Else commits that never pause would outrun the checkpointer, and take write_lock from it. */
void meta_wal_admit(struct meta *m)
{
	pthread_mutex_lock(&m->state_lock);
	while (m->wal_full)
		pthread_cond_wait(&m->emptied, &m->state_lock);
	pthread_mutex_unlock(&m->state_lock);
}

static int on_commit(void *arg, sqlite3 *db, const char *name, int frames)
{
	struct meta *m = arg;

	(void)db;
	(void)name;
	m->wal_bytes = (uint64_t)frames * 4096;
	return SQLITE_OK;
}

/* PASSIVE waits for nobody. A full disk or a busy reader is for the next time. */
static void checkpoint(struct meta *m)
{
	int rc = sqlite3_wal_checkpoint_v2(m->checkpointer.db, NULL, SQLITE_CHECKPOINT_PASSIVE,
					   NULL, NULL);

	if (rc == SQLITE_IOERR_FSYNC || rc == SQLITE_IOERR_DIR_FSYNC)
		set_broken(m, -EIO);
}

/* What was committed during the first pass is short; copying it with the writer held back lets the
 * next commit restart the WAL. */
static void checkpoint_force(struct meta *m)
{
	pthread_mutex_lock(&m->write_lock);
	if (m->wal_bytes > CHECKPOINT_FORCE_BYTES)
		checkpoint(m);
	pthread_mutex_unlock(&m->write_lock);
}

static void *checkpointer(void *arg)
{
	struct meta *m = arg;

	pthread_mutex_lock(&m->state_lock);
	for (;;) {
		while (!m->stop && !m->checkpoint_due)
			pthread_cond_wait(&m->wake, &m->state_lock);
		if (m->stop || m->broken)
			break;
		m->checkpoint_due = false;
		pthread_mutex_unlock(&m->state_lock);
		checkpoint(m);
		checkpoint_force(m);
		pthread_mutex_lock(&m->state_lock);
		m->wal_full = false;
		pthread_cond_broadcast(&m->emptied);
	}
	/* Whoever comes now is told that the database is broken, or is its closer. */
	m->wal_full = false;
	pthread_cond_broadcast(&m->emptied);
	pthread_mutex_unlock(&m->state_lock);
	return NULL;
}

/* Signals are for the program's threads. */
static int start_thread(struct meta *m)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&m->thread, NULL, checkpointer, m);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		return -r;
	pthread_setname_np(m->thread, "kvfs-meta");
	m->running = true;
	return 0;
}

/* Best effort. Only the WAL may be opened beside SQLite: closing a second descriptor of meta.db
 * would drop the locks SQLite holds on it. */
static void reserve(const struct meta *m)
{
	char *name;
	int fd;

	if (asprintf(&name, "%s-wal", m->path) < 0)
		return;
	fd = open(name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0) {
		(void)!fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, WAL_RESERVE);
		close(fd);
	}
	free(name);
}

int meta_wal_start(struct meta *m)
{
	int r = meta_conn_start(m->uri, true, &m->checkpointer);
	int64_t n;

	if (r < 0)
		return r;
	/* A connection that has read nothing does not know yet that there is a WAL. */
	r = meta_conn_number(&m->checkpointer, "SELECT count(*) FROM meta", &n);
	if (r < 0)
		return r;
	sqlite3_wal_hook(m->writer.db, on_commit, m);
	m->unsynced = true; /* a killed daemon's commits may not be synced */
	reserve(m);
	return start_thread(m);
}

void meta_wal_stop(struct meta *m)
{
	if (m->running) {
		pthread_mutex_lock(&m->state_lock);
		m->stop = true;
		pthread_cond_signal(&m->wake);
		pthread_mutex_unlock(&m->state_lock);
		pthread_join(m->thread, NULL);
		m->running = false;
	}
	meta_conn_close(&m->checkpointer, meta_broken(m) < 0);
}
