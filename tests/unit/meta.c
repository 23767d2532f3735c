/* SPDX-License-Identifier: Apache-2.0 */
/* meta.db: opening every kind of file, rows there and back, transactions, readers beside a writer. */
#include "store/meta.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];
static struct meta *m;
static struct store_error err;

static void setup(void)
{
	strcpy(dir, "/tmp/kvfs-meta-XXXXXX");
	cr_assert(mkdtemp(dir));
	err.text[0] = 0;
	cr_assert_eq(meta_open(dir, false, &m, &err), 0, "%s", err.text);
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
	meta_close(m);
	m = NULL;
	nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(meta, .init = setup, .fini = teardown, .timeout = 60);

static const char *file(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static void reopen(bool read_only)
{
	meta_close(m);
	m = NULL;
	cr_assert_eq(meta_open(dir, read_only, &m, &err), 0, "%s", err.text);
}

/* Runs SQL as sqlite3(1) would. */
static void by_hand(const char *sql)
{
	sqlite3 *db;

	cr_assert_eq(sqlite3_open(file("meta.db"), &db), SQLITE_OK);
	cr_assert_eq(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
	sqlite3_close(db);
}

/* Of a query with one number. */
static void by_hand_gives(const char *sql, int want)
{
	sqlite3_stmt *st;
	sqlite3 *db;

	cr_assert_eq(sqlite3_open(file("meta.db"), &db), SQLITE_OK);
	cr_assert_eq(sqlite3_prepare_v2(db, sql, -1, &st, NULL), SQLITE_OK);
	cr_assert_eq(sqlite3_step(st), SQLITE_ROW);
	cr_assert_eq(sqlite3_column_int(st, 0), want, "%s: %d", sql, sqlite3_column_int(st, 0));
	sqlite3_finalize(st);
	sqlite3_close(db);
}

static struct meta_txn *begin(void)
{
	struct meta_txn *t;

	cr_assert_eq(meta_txn_begin(m, NULL, &t), 0);
	return t;
}

static void put_file(struct meta_txn *t, uint64_t ino, uint64_t size)
{
	struct meta_inode i = { .ino = ino, .mode = S_IFREG | 0644, .nlink = 1, .size = size };

	cr_assert_eq(meta_row_put_inode(t, &i), 0);
}

static int put_name(struct meta_txn *t, uint64_t id, uint64_t ino, const char *name)
{
	struct meta_dentry d = { .id = id, .parent = 1, .ino = ino, .mode = S_IFREG, .name = name };

	return meta_put_dentry(t, &d);
}

static void check_totals(uint64_t bytes, uint64_t files, uint64_t inodes)
{
	uint64_t b, f;

	cr_assert_eq(meta_totals(m, &b, &f), 0);
	cr_assert_eq(b, bytes, "%lu bytes", b);
	cr_assert_eq(f, files, "%lu files", f);
	cr_assert_eq(meta_row_count_inodes(m), inodes);
}

/* ---- opening ---- */

Test(meta, new_database)
{
	struct meta_inode root;
	char uuid[37];
	struct stat st;

	cr_assert_eq(stat(file("meta.db"), &st), 0);
	cr_assert_eq(st.st_mode, S_IFREG | 0600);
	cr_assert_eq(stat(file("meta.db-wal"), &st), 0);
	cr_assert_eq(st.st_mode, S_IFREG | 0600);
	cr_assert_eq(meta_row_get_inode(m, 1, &root), 0);
	cr_assert_eq(root.mode, S_IFDIR | 0755);
	cr_assert_eq(root.uid, geteuid());
	cr_assert_eq(root.gid, getegid());
	cr_assert_eq(root.nlink, 2);
	cr_assert_gt(root.mtime.tv_sec, 1700000000);
	check_totals(0, 0, 1);
	cr_assert_eq(meta_row_max_ino(m), 1);
	cr_assert_eq(meta_row_max_dentry_id(m), 0);
	strcpy(uuid, meta_uuid(m));
	cr_assert_eq(strlen(uuid), 36);
	cr_assert_eq(uuid[14], '4');
	reopen(false);
	cr_assert_str_eq(meta_uuid(m), uuid);
	meta_close(m);
	m = NULL;
	cr_assert_eq(stat(file("meta.db-wal"), &st), -1, "a closed database is one file");
	cr_assert_eq(stat(file("meta.db-shm"), &st), -1);
}

Test(meta, epoch)
{
	uint64_t e = meta_epoch(m);

	cr_assert_eq(meta_bump_epoch(m), 0);
	cr_assert_eq(meta_epoch(m), e + 1);
	reopen(false);
	cr_assert_eq(meta_epoch(m), e + 1);
}

/* Opens what is there now and expects a refusal that names the file and says this. */
static void refuse(bool read_only, int error, const char *says)
{
	int r = meta_open(dir, read_only, &m, &err);

	cr_assert_eq(r, error, "%d: %s", r, err.text);
	cr_assert_null(m);
	cr_assert(strstr(err.text, dir), "%s", err.text);
	cr_assert(strstr(err.text, says), "%s", err.text);
	cr_assert_null(strchr(err.text, '\n'));
}

static void closed(void)
{
	meta_close(m);
	m = NULL;
}

Test(meta, newer_format)
{
	closed();
	by_hand("PRAGMA user_version = 4");
	refuse(false, -EMEDIUMTYPE,
	       "meta.db: made by a newer kvfs (format 4, this one knows 3): upgrade kvfs");
	refuse(true, -EMEDIUMTYPE, "upgrade kvfs");
}

/* Formats 1 and 2 had fewer codecs: what is written from now on must not be met by a kvfs that knows them
 * alone. */
Test(meta, older_format)
{
	for (int version = 1; version < 3; version++) {
		closed();
		by_hand(version == 1 ? "PRAGMA user_version = 1" : "PRAGMA user_version = 2");
		reopen(true);
		closed();
		by_hand_gives("PRAGMA user_version", version);
		reopen(false);
		closed();
		by_hand_gives("PRAGMA user_version", 3);
		reopen(false);
	}
	closed();
	by_hand("PRAGMA user_version = 0");
	refuse(false, -EUCLEAN, "does not exist");
}

Test(meta, another_program)
{
	closed();
	by_hand("PRAGMA application_id = 7");
	refuse(false, -EMEDIUMTYPE, "another program");
}

static void overwrite(off_t off, size_t len, int c)
{
	int fd = open(file("meta.db"), O_WRONLY);
	char buf[8192];

	memset(buf, c, sizeof(buf));
	cr_assert_eq(pwrite(fd, buf, len, off), (ssize_t)len);
	close(fd);
}

Test(meta, not_a_database)
{
	closed();
	overwrite(0, 100, 'x');
	refuse(false, -EMEDIUMTYPE, "not a database");
	refuse(true, -EMEDIUMTYPE, "not a database");
}

/* A store from elsewhere leads nowhere else, and nothing is waited for. */
Test(meta, no_regular_file, .timeout = 10)
{
	char elsewhere[128];
	struct meta *none;

	snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", dir);
	meta_close(m);
	m = NULL;
	cr_assert_eq(rename(file("meta.db"), elsewhere), 0);
	cr_assert_eq(symlink(elsewhere, file("meta.db")), 0);
	cr_assert_eq(meta_open(dir, false, &none, &err), -EMEDIUMTYPE);
	cr_assert_eq(unlink(file("meta.db")), 0);
	cr_assert_eq(mkfifo(file("meta.db"), 0600), 0);
	cr_assert_eq(meta_open(dir, false, &none, &err), -EMEDIUMTYPE);
	cr_assert_eq(meta_open(dir, true, &none, &err), -EMEDIUMTYPE);
	cr_assert_eq(unlink(file("meta.db")), 0);
	cr_assert_eq(rename(elsewhere, file("meta.db")), 0);
	reopen(false);
}

Test(meta, damaged)
{
	closed();
	overwrite(4096, 8192, 0xa5);
	refuse(false, -EUCLEAN, "damaged");
}

Test(meta, cut_short)
{
	closed();
	cr_assert_eq(truncate(file("meta.db"), 8192), 0);
	refuse(false, -EUCLEAN, "damaged");
}

Test(meta, table_missing)
{
	closed();
	by_hand("DROP TABLE segments");
	refuse(false, -EUCLEAN, "damaged (no such table: segments)");
	refuse(true, -EUCLEAN, "damaged (no such table: segments)");
}

Test(meta, identity_missing)
{
	closed();
	by_hand("DELETE FROM meta WHERE key = 'uuid'");
	refuse(false, -EUCLEAN, "damaged");
}

Test(meta, tables_of_others_are_fine)
{
	closed();
	by_hand("CREATE TABLE _litestream_seq(id INTEGER PRIMARY KEY, seq INTEGER)");
	reopen(false);
}

Test(meta, missing)
{
	closed();
	cr_assert_eq(unlink(file("meta.db")), 0);
	refuse(true, -ENOENT, "missing");
	cr_assert_eq(symlink("frames", file("meta.db-wal")), 0); /* anything but empty */
	close(open(file("frames"), O_WRONLY | O_CREAT, 0600));
	cr_assert_eq(truncate(file("frames"), 6), 0);
	refuse(false, -EUCLEAN, "meta.db-wal is there");
	cr_assert_eq(access(file("meta.db"), F_OK), -1, "nothing is made in its place");
}

Test(meta, no_directory)
{
	struct meta *other = NULL;

	cr_assert_eq(meta_open("/nonexistent/store", false, &other, &err), -ENOENT);
	cr_assert(strstr(err.text, "/nonexistent/store"));
}

Test(meta, killed_while_being_made)
{
	closed();
	cr_assert_eq(truncate(file("meta.db"), 0), 0);
	refuse(true, -EMEDIUMTYPE, "empty");
	reopen(false);
	check_totals(0, 0, 1);
}

Test(meta, path_with_uri_characters)
{
	struct meta *other;
	char sub[128];

	snprintf(sub, sizeof(sub), "%s/a?b#c%%20d e&f=g", dir);
	cr_assert_eq(mkdir(sub, 0700), 0);
	cr_assert_eq(meta_open(sub, false, &other, &err), 0, "%s", err.text);
	meta_close(other);
	strcat(sub, "/meta.db");
	cr_assert_eq(access(sub, F_OK), 0);
}

/* ---- read-only ---- */

static int count_entries(void)
{
	int n = 0;
	char command[128];
	FILE *f;

	snprintf(command, sizeof(command), "ls %s | wc -l", dir);
	f = popen(command, "r");
	cr_assert_eq(fscanf(f, "%d", &n), 1);
	pclose(f);
	return n;
}

Test(meta, read_only)
{
	struct meta_txn *t = begin();
	struct meta_inode i;

	put_file(t, 2, 10);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	reopen(true);
	cr_assert_eq(meta_row_get_inode(m, 2, &i), 0);
	check_totals(10, 1, 2);
	cr_assert_eq(meta_txn_begin(m, NULL, &t), -EROFS);
	cr_assert_eq(meta_bump_epoch(m), -EROFS);
	cr_assert_eq(count_entries(), 1, "no -wal, no -shm");
}

/* A child commits without syncing, then dies. */
static void commit_and_die(void)
{
	int status;
	pid_t pid;

	closed();
	pid = fork();
	if (pid == 0) {
		struct meta_txn *t;
		struct meta *c;

		if (meta_open(dir, false, &c, &err) < 0 || meta_txn_begin(c, NULL, &t) < 0)
			_exit(1);
		put_file(t, 2, 4096);
		put_name(t, 1, 2, "kept");
		if (meta_txn_commit(t, false) < 0)
			_exit(2);
		kill(getpid(), SIGKILL);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFSIGNALED(status), "%x", status);
}

Test(meta, killed)
{
	struct meta_dentry d;

	commit_and_die();
	reopen(true);
	cr_assert_eq(meta_row_lookup(m, 1, "kept", &d), 0, "read-only, out of the WAL");
	check_totals(4096, 1, 2);
	reopen(false);
	cr_assert_eq(meta_row_lookup(m, 1, "kept", &d), 0);
	check_totals(4096, 1, 2);
	cr_assert_eq(meta_row_max_dentry_id(m), 1);
}

/* On a read-only file system a closed database opens, and so does one with a WAL and an -shm. */
Test(meta, read_only_file_system)
{
	struct meta_dentry d;
	char copy[128];

	commit_and_die();
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		cr_skip_test("needs to mount");
	cr_assert_eq(mount(dir, dir, NULL, MS_BIND, NULL), 0);
	cr_assert_eq(mount(NULL, dir, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), 0);
	reopen(true);
	cr_assert_eq(meta_row_lookup(m, 1, "kept", &d), 0);
	closed();
	refuse(false, -EROFS, "for writing");
	cr_assert_eq(mount(NULL, dir, NULL, MS_REMOUNT | MS_BIND, NULL), 0);
	snprintf(copy, sizeof(copy), "%s/meta.db-shm", dir);
	cr_assert_eq(unlink(copy), 0);
	cr_assert_eq(mount(NULL, dir, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), 0);
	refuse(true, -EROFS, "mount it writable once");
	cr_assert_eq(mount(NULL, dir, NULL, MS_REMOUNT | MS_BIND, NULL), 0);
	reopen(false);
	closed();
	cr_assert_eq(mount(NULL, dir, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), 0);
	reopen(true);
	cr_assert_eq(meta_row_lookup(m, 1, "kept", &d), 0);
	closed();
	umount(dir);
}

/* ---- rows ---- */

static void same_time(struct timespec a, struct timespec b)
{
	cr_assert_eq(a.tv_sec, b.tv_sec, "%ld", (long)a.tv_sec);
	cr_assert_eq(a.tv_nsec, b.tv_nsec, "%ld", a.tv_nsec);
}

Test(meta, inode)
{
	struct meta_inode i = {
		.ino = 77,
		.mode = S_IFLNK | 0777,
		.uid = UINT32_MAX - 1,
		.gid = 12,
		.nlink = 3,
		.rdev = UINT32_MAX,
		.flags = META_PIN,
		.size = 9,
		.atime = { -1, 999999999 },
		.mtime = { 1700000000, 1 },
		.ctime = { INT64_MAX / 2, 0 },
		.btime = { INT64_MIN / 2, 5 },
		.target = (char[]){ "../layers" },
	};
	struct meta_inode r = { 0 };
	struct meta_txn *t = begin();

	cr_assert_eq(meta_put_inode(t, &i), 0);
	cr_assert_eq(meta_row_get_inode(m, 77, &r), -ENOENT, "not committed yet");
	cr_assert_eq(meta_txn_commit(t, true), 0);
	cr_assert_eq(meta_row_get_inode(m, 77, &r), 0);
	cr_assert_eq(r.ino, 77);
	cr_assert_eq(r.mode, i.mode);
	cr_assert_eq(r.uid, i.uid);
	cr_assert_eq(r.gid, i.gid);
	cr_assert_eq(r.nlink, i.nlink);
	cr_assert_eq(r.rdev, i.rdev);
	cr_assert_eq(r.flags, i.flags);
	cr_assert_eq(r.size, i.size);
	same_time(r.atime, i.atime);
	same_time(r.mtime, i.mtime);
	same_time(r.ctime, (struct timespec){ 9223372036, 854775807 });
	same_time(r.btime, (struct timespec){ -9223372037, 145224192 });
	cr_assert_str_eq(r.target, "../layers");
	meta_inode_done(&r);
	meta_inode_done(&r);
	check_totals(0, 0, 2);
	cr_assert_eq(meta_row_max_ino(m), 77);
}

Test(meta, refused_inodes)
{
	struct meta_txn *t = begin();
	struct meta_inode i = { .ino = 0, .mode = S_IFREG };
	char target[5000];

	cr_assert_eq(meta_row_put_inode(t, &i), -EINVAL);
	i.ino = UINT64_MAX;
	cr_assert_eq(meta_row_put_inode(t, &i), -EINVAL);
	i.ino = 2;
	i.size = UINT64_MAX;
	cr_assert_eq(meta_row_put_inode(t, &i), -EFBIG);
	i.mode = S_IFLNK;
	i.size = 0;
	cr_assert_eq(meta_row_put_inode(t, &i), -EINVAL);
	memset(target, 'a', sizeof(target) - 1);
	target[sizeof(target) - 1] = 0;
	i.target = target;
	cr_assert_eq(meta_row_put_inode(t, &i), -ENAMETOOLONG);
	put_file(t, 2, 1);
	cr_assert_eq(meta_txn_commit(t, false), 0, "a refusal does not spoil the transaction");
	check_totals(1, 1, 2);
}

Test(meta, totals_follow_replacements)
{
	struct meta_txn *t = begin();
	struct meta_inode d = { .ino = 9, .mode = S_IFDIR | 0700, .nlink = 2, .size = 5 };

	put_file(t, 5, 100);
	put_file(t, 5, 70);
	put_file(t, 3, 11); /* below the highest, and new */
	cr_assert_eq(meta_row_put_inode(t, &d), 0);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	check_totals(81, 2, 4);
	t = begin();
	put_file(t, 5, 1000);
	cr_assert_eq(meta_row_del_inode(t, 3), 0);
	cr_assert_eq(meta_row_del_inode(t, 4), 0);
	cr_assert_eq(meta_row_del_inode(t, 400), 0);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	check_totals(1000, 1, 3);
	cr_assert_eq(meta_row_max_ino(m), 9);
	reopen(false);
	check_totals(1000, 1, 3);
	cr_assert_eq(meta_row_max_ino(m), 9);
}

Test(meta, abort)
{
	struct meta_txn *t = begin();
	struct meta_inode i;

	put_file(t, 2, 100);
	cr_assert_eq(put_name(t, 1, 2, "a"), 0);
	meta_txn_abort(t);
	check_totals(0, 0, 1);
	cr_assert_eq(meta_row_max_ino(m), 1);
	cr_assert_eq(meta_row_max_dentry_id(m), 0);
	cr_assert_eq(meta_row_get_inode(m, 2, &i), -ENOENT);
	t = begin();
	put_file(t, 2, 7);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	check_totals(7, 1, 2);
}

Test(meta, dentry)
{
	char name[257], odd[256];
	struct meta_txn *t = begin();
	struct meta_dentry d;

	for (int i = 0; i < 255; i++)
		odd[i] = (char)(i + 1 == '/' ? 'x' : i + 1);
	odd[255] = 0;
	memset(name, 'n', 256);
	name[256] = 0;
	cr_assert_eq(put_name(t, 1, 2, name), -ENAMETOOLONG);
	cr_assert_eq(put_name(t, 1, 2, ""), -EINVAL);
	cr_assert_eq(put_name(t, 1, 2, "a/b"), -EINVAL);
	cr_assert_eq(put_name(t, 0, 2, "a"), -EINVAL);
	cr_assert_eq(put_name(t, 1, 2, odd), 0);
	cr_assert_eq(put_name(t, 2, 3, "b"), 0);
	cr_assert_eq(put_name(t, 3, 4, "b"), 0, "replaces");
	cr_assert_eq(meta_del_dentry(t, 1, "nothing"), 0);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	cr_assert_eq(meta_row_lookup(m, 1, odd, &d), 0);
	cr_assert_eq(d.ino, 2);
	cr_assert_eq(d.id, 1);
	cr_assert_eq(d.parent, 1);
	cr_assert_eq(d.mode, S_IFREG);
	cr_assert_str_eq(d.name, odd);
	cr_assert_eq(meta_row_lookup(m, 1, "b", &d), 0);
	cr_assert_eq(d.ino, 4);
	cr_assert_eq(d.id, 3);
	cr_assert_eq(meta_row_lookup(m, 1, "B", &d), -ENOENT);
	cr_assert_eq(meta_row_lookup(m, 2, "b", &d), -ENOENT);
	cr_assert_eq(meta_row_max_dentry_id(m), 3);
	t = begin();
	cr_assert_eq(meta_del_dentry(t, 1, "b"), 0);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	cr_assert_eq(meta_row_lookup(m, 1, "b", &d), -ENOENT);
}

Test(meta, a_failed_statement_spoils_the_transaction)
{
	struct meta_txn *t = begin();
	struct meta_dentry d;

	put_file(t, 2, 50);
	cr_assert_eq(put_name(t, 1, 2, "a"), 0);
	cr_assert_eq(put_name(t, 1, 3, "b"), -EEXIST);
	cr_assert_eq(put_name(t, 2, 3, "c"), -EEXIST);
	cr_assert_eq(meta_txn_commit(t, true), -EEXIST);
	cr_assert_eq(meta_row_lookup(m, 1, "a", &d), -ENOENT);
	check_totals(0, 0, 1);
	t = begin();
	cr_assert_eq(put_name(t, 1, 3, "b"), 0);
	cr_assert_eq(meta_txn_commit(t, true), 0);
}

struct listing {
	char names[256];
	unsigned n, stop_at;
	bool nest;
};

static int list_name(void *arg, const struct meta_dentry *d)
{
	struct listing *l = arg;
	struct meta_dentry again;

	strcat(l->names, d->name);
	if (l->nest)
		cr_assert_eq(meta_row_lookup(m, d->parent, d->name, &again), 0);
	return ++l->n == l->stop_at ? 42 : 0;
}

Test(meta, list)
{
	struct meta_txn *t = begin();
	struct listing l = { .nest = true };

	cr_assert_eq(put_name(t, 30, 2, "a"), 0);
	cr_assert_eq(put_name(t, 10, 3, "z"), 0);
	cr_assert_eq(put_name(t, 20, 4, "m"), 0);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	cr_assert_eq(meta_row_list(m, 1, 0, list_name, &l), 0);
	cr_assert_str_eq(l.names, "zma");
	l = (struct listing){ 0 };
	cr_assert_eq(meta_row_list(m, 1, 10, list_name, &l), 0);
	cr_assert_str_eq(l.names, "ma");
	l = (struct listing){ .stop_at = 2 };
	cr_assert_eq(meta_row_list(m, 1, 0, list_name, &l), 42);
	cr_assert_str_eq(l.names, "zm");
	l = (struct listing){ 0 };
	cr_assert_eq(meta_row_list(m, 1, UINT64_MAX, list_name, &l), 0);
	cr_assert_eq(meta_row_list(m, 7, 0, list_name, &l), 0);
	cr_assert_eq(l.n, 0);
}

static int list_xattr(void *arg, const char *name, const void *value, size_t len)
{
	char *p = arg;

	sprintf(p + strlen(p), "%s=%zu:%.*s;", name, len, len > 8 ? 0 : (int)len,
		(const char *)value);
	return 0;
}

Test(meta, xattrs)
{
	static char big[65537];
	char seen[256] = "";
	struct meta_txn *t = begin();

	put_file(t, 2, 0);
	cr_assert_eq(meta_put_xattr(t, 2, "user.b", "one", 3), 0);
	cr_assert_eq(meta_put_xattr(t, 2, "user.a", NULL, 0), 0);
	cr_assert_eq(meta_put_xattr(t, 2, "user.big", big, 65536), 0);
	cr_assert_eq(meta_put_xattr(t, 2, "user.big", big, 65537), -E2BIG);
	cr_assert_eq(meta_put_xattr(t, 2, "", "x", 1), -EINVAL);
	cr_assert_eq(meta_put_xattr(t, 3, "user.c", "other", 5), 0);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	cr_assert_eq(meta_row_get_xattrs(m, 2, list_xattr, seen), 0);
	cr_assert_str_eq(seen, "user.a=0:;user.b=3:one;user.big=65536:;");
	t = begin();
	cr_assert_eq(meta_put_xattr(t, 2, "user.b", "two!", 4), 0);
	cr_assert_eq(meta_del_xattr(t, 2, "user.big"), 0);
	cr_assert_eq(meta_del_xattr(t, 2, "user.none"), 0);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	seen[0] = 0;
	cr_assert_eq(meta_row_get_xattrs(m, 2, list_xattr, seen), 0);
	cr_assert_str_eq(seen, "user.a=0:;user.b=4:two!;");
	t = begin();
	cr_assert_eq(meta_row_del_inode(t, 2), 0);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	seen[0] = 0;
	cr_assert_eq(meta_row_get_xattrs(m, 2, list_xattr, seen), 0);
	cr_assert_str_eq(seen, "");
	cr_assert_eq(meta_row_get_xattrs(m, 3, list_xattr, seen), 0);
	cr_assert_str_eq(seen, "user.c=5:other;");
}

static uint8_t *pack(uint64_t chunk, size_t *ret_len)
{
	struct extent e = { .off = 4096, .chunk = chunk, .len = 100, .skip = 7 };
	struct extmap *map = extmap_new(&e, 1);
	uint8_t *packed;
	ssize_t len = extmap_encode(map, &packed);

	cr_assert_gt(len, 0);
	extmap_unref(map);
	*ret_len = (size_t)len;
	return packed;
}

Test(meta, extents)
{
	struct extmap *map;
	uint64_t size;
	size_t len;
	uint8_t *packed = pack(5, &len);
	struct meta_txn *t = begin();

	put_file(t, 2, 4196);
	cr_assert_eq(meta_txn_get_extents(t, 2, &map, &size), 0);
	cr_assert_eq(map->n, 0);
	extmap_unref(map);
	cr_assert_eq(meta_put_extents(t, 2, packed, len), 0);
	cr_assert_eq(meta_txn_get_extents(t, 2, &map, &size), 0);
	cr_assert_eq(map->n, 1);
	extmap_unref(map);
	cr_assert_eq(meta_get_extents(m, 2, &map, &size), -ENOENT);
	cr_assert_eq(meta_txn_get_extents(t, 3, &map, &size), -ENOENT);
	cr_assert_eq(meta_txn_commit(t, true), 0);
	cr_assert_eq(meta_get_extents(m, 2, &map, &size), 0);
	cr_assert_eq(size, 4196);
	cr_assert_eq(map->e[0].chunk, 5);
	cr_assert_eq(map->e[0].off, 4096);
	extmap_unref(map);
	t = begin();
	cr_assert_eq(meta_put_extents(t, 2, NULL, 0), 0);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	cr_assert_eq(meta_get_extents(m, 2, &map, &size), 0);
	cr_assert_eq(map->n, 0);
	extmap_unref(map);
	free(packed);
}

Test(meta, deleting_an_inode_takes_its_extents)
{
	struct extmap *map;
	uint64_t size;
	size_t len;
	uint8_t *packed = pack(5, &len);
	struct meta_txn *t = begin();

	put_file(t, 2, 4196);
	cr_assert_eq(meta_put_extents(t, 2, packed, len), 0);
	cr_assert_eq(meta_row_del_inode(t, 2), 0);
	put_file(t, 2, 1);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	cr_assert_eq(meta_get_extents(m, 2, &map, &size), 0);
	cr_assert_eq(map->n, 0);
	cr_assert_eq(size, 1);
	extmap_unref(map);
	free(packed);
}

static int one_chunk(void *arg, const struct meta_chunk *c)
{
	*(struct meta_chunk *)arg = *c;
	return 9;
}

static int count_chunk(void *arg, const struct meta_chunk *c)
{
	(void)c;
	++*(unsigned *)arg;
	return 0;
}

Test(meta, chunks)
{
	struct meta_chunk c = {
		.info = { .chunk_id = 1234567890123,
			  .hash = { .lo = 0xfedcba9876543210, .hi = 0x8000000000000001 },
			  .tenant = UINT32_MAX,
			  .raw_len = 262144,
			  .stored_len = 200000,
			  .codec = 1,
			  .params = { 1, 2, 3, 255 } },
		.loc = { .segment = 0xabcdef01, .offset = UINT32_MAX },
		.refs = 3,
	};
	struct meta_txn *t = begin();
	struct meta_chunk r;
	unsigned n = 0;

	cr_assert_eq(meta_put_chunk(t, &c), 0);
	cr_assert_eq(meta_set_refs(t, c.info.chunk_id, UINT32_MAX), 0);
	cr_assert_eq(meta_set_refs(t, 99, 1), -ENOENT);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	cr_assert_eq(meta_for_chunks(m, 0, UINT64_MAX, one_chunk, &r), 9);
	c.refs = UINT32_MAX;
	cr_assert_eq(r.info.chunk_id, c.info.chunk_id);
	cr_assert_eq(r.info.hash.lo, c.info.hash.lo);
	cr_assert_eq(r.info.hash.hi, c.info.hash.hi);
	cr_assert_eq(r.info.tenant, c.info.tenant);
	cr_assert_eq(r.info.raw_len, c.info.raw_len);
	cr_assert_eq(r.info.stored_len, c.info.stored_len);
	cr_assert_eq(r.info.codec, c.info.codec);
	cr_assert_eq(memcmp(r.info.params, c.info.params, CODEC_PARAMS), 0);
	cr_assert_eq(r.loc.segment, c.loc.segment);
	cr_assert_eq(r.loc.offset, c.loc.offset);
	cr_assert_eq(r.refs, c.refs);
	t = begin();
	c.info.chunk_id = 2;
	cr_assert_eq(meta_put_chunk(t, &c), 0);
	cr_assert_eq(meta_put_chunk(t, &c), 0);
	cr_assert_eq(meta_del_chunk(t, 1234567890123), 0);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	cr_assert_eq(meta_for_chunks(m, 0, UINT64_MAX, count_chunk, &n), 0);
	cr_assert_eq(n, 1);
}

Test(meta, hash_reads_as_xxh128sum_prints_it)
{
	struct meta_chunk c = { .info = { .chunk_id = 1, .hash = { .lo = 0x0f, .hi = 0xa0 } } };
	struct meta_txn *t = begin();
	unsigned n = 0;

	cr_assert_eq(meta_put_chunk(t, &c), 0);
	cr_assert_eq(meta_txn_commit(t, false), 0);
	by_hand("DELETE FROM chunks WHERE hex(hash) = '00000000000000A0000000000000000F'");
	cr_assert_eq(meta_for_chunks(m, 0, UINT64_MAX, count_chunk, &n), 0);
	cr_assert_eq(n, 0);
}

static int sum_segment(void *arg, uint32_t n, uint64_t used)
{
	*(uint64_t *)arg = *(uint64_t *)arg * 1000 + n * 100 + used;
	return 0;
}

Test(meta, segments)
{
	struct meta_txn *t = begin();
	uint64_t sum = 0;

	cr_assert_eq(meta_put_segment(t, 2, 5), 0);
	cr_assert_eq(meta_put_segment(t, 1, 3), 0);
	cr_assert_eq(meta_put_segment(t, 2, 7), 0);
	cr_assert_eq(meta_put_segment(t, 3, 9), 0);
	cr_assert_eq(meta_del_segment(t, 3), 0);
	cr_assert_eq(meta_put_segment(t, 1, 0), 0); /* by one who knows less of it */
	cr_assert_eq(meta_txn_commit(t, false), 0);
	cr_assert_eq(meta_for_segments(m, sum_segment, &sum), 0);
	cr_assert_eq(sum, 103207);
}

/* Rows that no kvfs wrote are damage, not a crash. */
Test(meta, impossible_rows)
{
	struct meta_inode i;
	struct meta_dentry d;
	struct extmap *map;
	uint64_t size, sum = 0;
	unsigned n = 0;
	char seen[64] = "";

	by_hand("INSERT INTO inodes VALUES(2, 33188, 0, 0, 1, 0, 0, -5, 0, 0, 0, 0, NULL);"
		"INSERT INTO inodes VALUES(3, 41471, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, x'610062');"
		"INSERT INTO inodes VALUES(4, 99999999999, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, NULL);"
		"INSERT INTO inodes VALUES(5, 33188, 0, 0, 1, 0, 0, 9, 0, 0, 0, 0, NULL);"
		"INSERT INTO extents VALUES(5, x'ffffff');"
		"INSERT INTO dentries VALUES(1, 1, x'', 5, 32768);"
		"INSERT INTO dentries VALUES(2, 1, zeroblob(300), 5, 32768);"
		"INSERT INTO dentries VALUES(3, 1, x'61', -5, 32768);"
		"INSERT INTO dentries VALUES(10, 1, x'2e2e', 5, 32768);"
		"INSERT INTO dentries VALUES(11, 1, x'2e', 5, 32768);"
		"INSERT INTO dentries VALUES(12, 1, x'612f62', 5, 32768);"
		"INSERT INTO dentries VALUES(13, 9223372036854775807, x'61', 5, 32768);"
		"INSERT INTO inodes VALUES(6, 420, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, NULL);"
		"INSERT INTO inodes VALUES(7, 41471, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, NULL);"
		"INSERT INTO inodes VALUES(8, 33188, 0, 0, 1, 0, 0, 17592186044417, 0, 0, 0, 0, NULL);"
		"INSERT INTO xattrs VALUES(6, x'61', zeroblob(65537));"
		"INSERT INTO xattrs VALUES(5, x'', x'');"
		"INSERT INTO segments VALUES(-1, 1);"
		"INSERT INTO chunks VALUES(1, x'00', 0, 0, 4096, 1, 1, 0, 0, 1)");
	for (uint64_t ino = 2; ino < 5; ino++)
		cr_assert_eq(meta_row_get_inode(m, ino, &i), -EUCLEAN);
	cr_assert_eq(meta_get_extents(m, 2, &map, &size), -EUCLEAN);
	cr_assert_eq(meta_get_extents(m, 5, &map, &size), -EUCLEAN);
	for (uint64_t ino = 6; ino < 9; ino++)
		cr_assert_eq(meta_row_get_inode(m, ino, &i), -EUCLEAN);
	cr_assert_eq(meta_get_extents(m, 8, &map, &size), -EUCLEAN);
	for (uint64_t parent = 1; parent < 4; parent++)
		cr_assert_eq(meta_row_list(m, parent, 0, list_name, &(struct listing){ 0 }),
			     -EUCLEAN);
	for (uint64_t parent = 10; parent < 14; parent++)
		cr_assert_eq(meta_row_list(m, parent, 0, list_name, &(struct listing){ 0 }),
			     -EUCLEAN, "%lu", parent);
	cr_assert_eq(meta_row_get_xattrs(m, 6, list_xattr, seen), -EUCLEAN);
	cr_assert_eq(meta_row_lookup(m, 3, "a", &d), -EUCLEAN);
	cr_assert_eq(meta_row_get_xattrs(m, 5, list_xattr, seen), -EUCLEAN);
	cr_assert_eq(meta_for_segments(m, sum_segment, &sum), -EUCLEAN);
	cr_assert_eq(meta_for_chunks(m, 0, UINT64_MAX, count_chunk, &n), -EUCLEAN);
}

/* ---- a writer and many readers ---- */

#define ROUNDS 300

static int count_name(void *arg, const struct meta_dentry *d)
{
	(void)d;
	++*(unsigned *)arg;
	return 0;
}

/* Both names of a pair are there or neither is: a listing is one moment. */
static void *read_pairs(void *arg)
{
	unsigned before, n = 0;

	(void)arg;
	do {
		before = n;
		n = 0;
		if (meta_row_list(m, 1, 0, count_name, &n) != 0)
			return "failed";
		if (n < before)
			return "went back";
		if (n % 2)
			return "half a transaction";
	} while (n < 2 * ROUNDS);
	return NULL;
}

Test(meta, readers_see_whole_transactions)
{
	pthread_t threads[4];
	char name[32];
	void *wrong;

	for (int i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, read_pairs, NULL), 0);
	for (uint64_t k = 1; k <= ROUNDS; k++) {
		struct meta_txn *t = begin();

		for (uint64_t id = 2 * k; id < 2 * k + 2; id++) {
			snprintf(name, sizeof(name), "%lu", id);
			put_file(t, id, 1);
			cr_assert_eq(put_name(t, id, id, name), 0);
		}
		cr_assert_eq(meta_txn_commit(t, k % 64 == 0), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &wrong);
		cr_assert_null(wrong, "%s", (char *)wrong);
	}
	check_totals(2 * ROUNDS, 2 * ROUNDS, 2 * ROUNDS + 1);
}

/* Commits that never pause do not let the WAL grow for ever. */
Test(meta, wal_is_bounded)
{
	static uint8_t blob[65536];
	struct stat st;
	off_t top = 0;

	for (int i = 0; i < 4000; i++) {
		struct meta_txn *t = begin();

		blob[0] = (uint8_t)i;
		cr_assert_eq(meta_put_extents(t, 2 + i % 3, blob, sizeof(blob)), 0);
		cr_assert_eq(meta_txn_commit(t, false), 0);
		cr_assert_eq(stat(file("meta.db-wal"), &st), 0);
		if (st.st_size > top)
			top = st.st_size;
	}
	cr_assert_leq(top, 66 << 20, "%ld", (long)top);
}
