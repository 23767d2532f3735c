/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta.db on a drive that fails: a VFS under SQLite makes the Nth write or sync fail, and keeps what
 * was synced, which is what a power cut leaves.
 */
#include "store/meta.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OTHER, DATABASE, WAL };

static char dir[64], cut[64];
static struct store_error err;

/* ---- the drive ---- */

static struct {
	pthread_mutex_t lock;
	int calls, fail_at;   /* the fail_at-th write, sync or truncate from now */
	int fail_sync_of;     /* or every sync of such a file */
	int error;            /* with this errno */
	bool failed, in_sync; /* it did; it was a sync */
	int syncs[3];
} drive = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* SQLite's own methods with three replaced, by what they were and the kind of file. */
static struct methods {
	sqlite3_io_methods with;
	const sqlite3_io_methods *without;
	int kind;
} methods[8];

static sqlite3_vfs vfs;
static sqlite3_vfs *unix_vfs;

static struct methods *of(sqlite3_file *f)
{
	return (struct methods *)f->pMethods;
}

static bool fails(int kind, bool sync)
{
	bool f;

	pthread_mutex_lock(&drive.lock);
	f = ++drive.calls == drive.fail_at || (sync && drive.fail_sync_of == kind && kind);
	if (f) {
		drive.failed = true;
		drive.in_sync = sync;
		errno = drive.error;
	}
	pthread_mutex_unlock(&drive.lock);
	return f;
}

static void arm(int fail_at, int error)
{
	pthread_mutex_lock(&drive.lock);
	drive.calls = 0;
	drive.fail_at = fail_at;
	drive.error = error;
	drive.fail_sync_of = OTHER;
	drive.failed = drive.in_sync = false;
	pthread_mutex_unlock(&drive.lock);
}

static int drive_write(sqlite3_file *f, const void *buf, int len, sqlite3_int64 off)
{
	if (fails(of(f)->kind, false))
		return drive.error == ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE;
	return of(f)->without->xWrite(f, buf, len, off);
}

static int drive_truncate(sqlite3_file *f, sqlite3_int64 size)
{
	if (fails(of(f)->kind, false))
		return SQLITE_IOERR_TRUNCATE;
	return of(f)->without->xTruncate(f, size);
}

static void copy_file(const char *from, const char *to, const char *name)
{
	char command[256];

	snprintf(command, sizeof(command), "cp %s/%s %s/%s", from, name, to, name);
	cr_assert_eq(system(command), 0);
}

static int drive_sync(sqlite3_file *f, int flags)
{
	int kind = of(f)->kind;
	int r;

	if (fails(kind, true))
		return SQLITE_IOERR_FSYNC;
	r = of(f)->without->xSync(f, flags);
	pthread_mutex_lock(&drive.lock);
	drive.syncs[kind]++;
	if (cut[0] && kind)
		copy_file(dir, cut, kind == WAL ? "meta.db-wal" : "meta.db");
	pthread_mutex_unlock(&drive.lock);
	return r;
}

static void wrap(sqlite3_file *f, int kind)
{
	struct methods *m = methods;

	pthread_mutex_lock(&drive.lock);
	while (m->without && (m->without != f->pMethods || m->kind != kind))
		m++;
	if (!m->without) {
		m->with = *f->pMethods;
		m->with.xWrite = drive_write;
		m->with.xTruncate = drive_truncate;
		m->with.xSync = drive_sync;
		m->kind = kind;
		m->without = f->pMethods;
	}
	f->pMethods = &m->with;
	pthread_mutex_unlock(&drive.lock);
}

static int drive_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *ret_flags)
{
	int r = unix_vfs->xOpen(unix_vfs, name, f, flags, ret_flags);

	(void)v;
	if (r == SQLITE_OK && name && !strncmp(name, dir, strlen(dir)))
		wrap(f, flags & SQLITE_OPEN_WAL     ? WAL :
			flags & SQLITE_OPEN_MAIN_DB ? DATABASE :
						      OTHER);
	return r;
}

static void make_dir(char path[64])
{
	strcpy(path, "/tmp/kvfs-meta-XXXXXX");
	cr_assert(mkdtemp(path));
}

static void setup(void)
{
	unix_vfs = sqlite3_vfs_find(NULL);
	vfs = *unix_vfs;
	vfs.zName = "drive";
	vfs.xOpen = drive_open;
	cr_assert_eq(sqlite3_vfs_register(&vfs, 1), SQLITE_OK);
	make_dir(dir);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void teardown(void)
{
	nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	if (cut[0])
		nftw(cut, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(meta_fault, .init = setup, .fini = teardown, .timeout = 120);

/* ---- what is done to it ---- */

static struct meta *open_meta(const char *where)
{
	struct meta *m = NULL;

	cr_assert_eq(meta_open(where, false, &m, &err), 0, "%s", err.text);
	return m;
}

/* A transaction that makes the file ino, with a name and 64 KiB of extents. */
static int make_file(struct meta *m, uint64_t ino, bool durable)
{
	static uint8_t blob[65536];
	struct meta_inode i = { .ino = ino, .mode = S_IFREG | 0600, .nlink = 1, .size = 1 };
	struct meta_dentry d = { .id = ino, .parent = 1, .ino = ino, .mode = S_IFREG };
	struct meta_txn *t;
	char name[16];
	int r = meta_txn_begin(m, NULL, &t);

	if (r < 0)
		return r;
	snprintf(name, sizeof(name), "%lu", ino);
	d.name = name;
	r = meta_row_put_inode(t, &i);
	if (r == 0)
		r = meta_put_dentry(t, &d);
	if (r == 0)
		r = meta_put_extents(t, ino % 50 + 2, blob, sizeof(blob));
	if (r < 0) {
		meta_txn_abort(t);
		return r;
	}
	return meta_txn_commit(t, durable);
}

static int count_name(void *arg, const struct meta_dentry *d)
{
	(void)d;
	++*(uint64_t *)arg;
	return 0;
}

/* The files 2 to last are there, whole, and no more than one other. Returns the last. */
static uint64_t check_files(struct meta *m, uint64_t last)
{
	uint64_t n = 0, bytes, files;

	cr_assert_eq(meta_row_list(m, 1, 0, count_name, &n), 0);
	cr_assert_eq(meta_totals(m, &bytes, &files), 0);
	cr_assert_eq(files, n);
	cr_assert_eq(bytes, n);
	cr_assert_eq(meta_row_count_inodes(m), n + 1);
	cr_assert_eq(meta_row_max_ino(m), n + 1);
	cr_assert_geq(n + 1, last, "%lu of %lu", n + 1, last);
	return n + 1;
}

/* ---- tests ---- */

Test(meta_fault, only_durable_commits_sync)
{
	struct meta *m = open_meta(dir);
	struct meta_txn *t;

	cr_assert_eq(make_file(m, 2, true), 0);
	drive.syncs[WAL] = 0;
	for (uint64_t ino = 3; ino < 20; ino++)
		cr_assert_eq(make_file(m, ino, false), 0);
	cr_assert_eq(drive.syncs[WAL], 0);
	cr_assert_eq(make_file(m, 20, true), 0);
	cr_assert_eq(drive.syncs[WAL], 1);
	cr_assert_eq(make_file(m, 21, false), 0);
	cr_assert_eq(meta_txn_begin(m, NULL, &t), 0);
	cr_assert_eq(meta_txn_commit(t, true), 0, "an empty one makes those before it durable");
	cr_assert_eq(drive.syncs[WAL], 2);
	meta_close(m);
}

static void fail_each_call(int error)
{
	bool failed = true, in_sync;

	for (int n = 1; failed; n++) {
		struct meta *m = open_meta(dir);
		uint64_t last = check_files(m, 1);
		int r;

		arm(n, error);
		r = make_file(m, last + 1, true);
		failed = drive.failed;
		in_sync = drive.in_sync;
		arm(0, 0);
		if (failed)
			cr_assert(r == -error || (in_sync && r == -EIO), "call %d: %d", n, r);
		else
			cr_assert_eq(r, 0);
		r = make_file(m, last + (r ? 1 : 2), true);
		meta_close(m);
		m = open_meta(dir);
		check_files(m, last + (r == 0));
		meta_close(m);
	}
}

Test(meta_fault, failed_writes)
{
	fail_each_call(EIO);
}

Test(meta_fault, full_drive)
{
	fail_each_call(ENOSPC);
}

/* Opening writes too. Whatever fails, the next open finds a whole database. */
Test(meta_fault, failed_open)
{
	bool failed = true;
	char name[128];

	snprintf(name, sizeof(name), "%s/meta.db", dir);
	for (int n = 1; failed; n++) {
		struct meta *m = NULL;
		int r;

		unlink(name);
		arm(n, EIO);
		r = meta_open(dir, false, &m, &err);
		failed = drive.failed;
		arm(0, 0);
		cr_assert_eq(r == 0, m != NULL);
		cr_assert(r == 0 || strstr(err.text, name), "%s", err.text);
		meta_close(m);
		m = open_meta(dir);
		check_files(m, 1);
		meta_close(m);
	}
}

/* After a failed sync nothing is acknowledged any more; a new open sees what is there. */
Test(meta_fault, failed_sync_breaks_the_database)
{
	struct meta *m = open_meta(dir);

	cr_assert_eq(make_file(m, 2, true), 0);
	arm(0, EIO);
	drive.fail_sync_of = WAL;
	cr_assert_eq(make_file(m, 3, true), -EIO);
	arm(0, 0);
	cr_assert_eq(make_file(m, 4, false), -EIO);
	drive.syncs[DATABASE] = 0;
	meta_close(m);
	cr_assert_eq(drive.syncs[DATABASE], 0, "closing does not checkpoint");
	m = open_meta(dir);
	cr_assert_eq(check_files(m, 2), 3);
	cr_assert_eq(make_file(m, 4, true), 0);
	meta_close(m);
}

Test(meta_fault, failed_checkpoint_sync_breaks_the_database)
{
	struct meta *m = open_meta(dir);
	uint64_t ino = 2;
	int r = 0;

	arm(0, EIO);
	drive.fail_sync_of = DATABASE;
	for (int i = 0; i < 5000 && r == 0; i++) {
		r = make_file(m, ino, false);
		ino += r == 0;
		usleep(100);
	}
	cr_assert_eq(r, -EIO);
	arm(0, 0);
	meta_close(m);
	m = open_meta(dir);
	check_files(m, ino - 1);
	meta_close(m);
}

/* Opens what a power cut now would leave: of each file the synced content or all of it. */
static void check_power_cut(uint64_t durable)
{
	char path[64];
	struct meta *m;

	for (int kept = 0; kept < 4; kept++) {
		make_dir(path);
		pthread_mutex_lock(&drive.lock);
		copy_file(kept & 1 ? dir : cut, path, "meta.db");
		copy_file(kept & 2 ? dir : cut, path, "meta.db-wal");
		pthread_mutex_unlock(&drive.lock);
		m = open_meta(path);
		check_files(m, durable);
		meta_close(m);
		nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	}
}

/* Enough commits for several checkpoints and restarts of the WAL. */
Test(meta_fault, power_cuts)
{
	struct meta *m;

	make_dir(cut);
	m = open_meta(dir);
	for (uint64_t ino = 2; ino < 1000; ino++) {
		cr_assert_eq(make_file(m, ino, ino % 20 == 0), 0);
		if (ino % 20 == 0)
			check_power_cut(ino);
	}
	cr_assert_gt(drive.syncs[DATABASE], 3, "no checkpoint");
	meta_close(m);
}
