/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_schema: the tables of meta.db, made when the file is new and checked when it is not. What
 * each column means is in kvfs-store(5); a change there or here, or a new codec, is a new META_FORMAT.
 */
#include "store/meta_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define QUICK_CHECK_PAGES 1024 /* a larger database is fsck's to check */

/* dentries are clustered by id and found by name through an index, not the other way round: a
 * readdir is one walk along the table, new names go to the table's end, and a name that is not
 * there costs one descent either way. */
static const struct {
	const char *sql;
	bool clustered; /* WITHOUT ROWID */
	bool index;
} schema[] = {
	{ .sql = "CREATE TABLE meta(key TEXT NOT NULL PRIMARY KEY, value ANY NOT NULL)",
	  .clustered = true },
	{ .sql = "CREATE TABLE inodes(ino INTEGER PRIMARY KEY, mode INTEGER NOT NULL,"
		 " uid INTEGER NOT NULL, gid INTEGER NOT NULL, nlink INTEGER NOT NULL,"
		 " rdev INTEGER NOT NULL, flags INTEGER NOT NULL, size INTEGER NOT NULL,"
		 " atime_ns INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,"
		 " btime_ns INTEGER NOT NULL, target BLOB)" },
	{ .sql = "CREATE TABLE dentries(parent INTEGER NOT NULL, id INTEGER NOT NULL, name BLOB NOT NULL,"
		 " ino INTEGER NOT NULL, mode INTEGER NOT NULL, PRIMARY KEY(parent, id))",
	  .clustered = true },
	{ .sql = "CREATE UNIQUE INDEX dentries_name ON dentries(parent, name)", .index = true },
	{ .sql = "CREATE TABLE xattrs(ino INTEGER NOT NULL, name BLOB NOT NULL, value BLOB NOT NULL,"
		 " PRIMARY KEY(ino, name))",
	  .clustered = true },
	{ .sql = "CREATE TABLE extents(ino INTEGER PRIMARY KEY, packed BLOB NOT NULL)" },
	{ .sql = "CREATE TABLE chunks(id INTEGER PRIMARY KEY, hash BLOB NOT NULL, tenant INTEGER NOT NULL,"
		 " segment INTEGER NOT NULL, offset INTEGER NOT NULL, raw INTEGER NOT NULL,"
		 " stored INTEGER NOT NULL, codec INTEGER NOT NULL, params INTEGER NOT NULL,"
		 " refs INTEGER NOT NULL)" },
	{ .sql = "CREATE TABLE segments(n INTEGER PRIMARY KEY, used INTEGER NOT NULL)" },
};

int meta_fail(struct store_error *err, int error, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(err->text, sizeof(err->text), format, ap);
	va_end(ap);
	return error;
}

static int create_tables(struct meta_conn *c)
{
	bool strict = sqlite3_libversion_number() >= 3037000;
	char sql[768];

	for (size_t i = 0; i < sizeof(schema) / sizeof(schema[0]); i++) {
		bool clustered = schema[i].clustered;
		int r;

		snprintf(sql, sizeof(sql), "%s%s%s%s", schema[i].sql,
			 clustered ? " WITHOUT ROWID" : "", clustered && strict ? "," : "",
			 strict && !schema[i].index ? " STRICT" : "");
		r = meta_conn_exec(c, sql);
		if (r < 0)
			return r;
	}
	return 0;
}

/* A random UUID (version 4) as text. */
static int make_uuid(char ret[37])
{
	uint8_t b[16];

	if (getrandom(b, sizeof(b), 0) != sizeof(b))
		return -EIO;
	b[6] = (b[6] & 0x0f) | 0x40;
	b[8] = (b[8] & 0x3f) | 0x80;
	snprintf(ret, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12],
		 b[13], b[14], b[15]);
	return 0;
}

/* The first rows: what the store is, and its root directory, owned by who makes it. */
static int create_rows(struct meta_conn *c)
{
	struct timespec ts;
	char uuid[37], sql[768];
	long long now;
	int r = make_uuid(uuid);

	if (r < 0)
		return r;
	clock_gettime(CLOCK_REALTIME, &ts);
	now = (long long)ts.tv_sec * 1000000000 + ts.tv_nsec;
	snprintf(sql, sizeof(sql),
		 "INSERT INTO meta(key, value) VALUES('uuid', '%s'), ('epoch', 1),"
		 " ('created', %lld), ('logical_bytes', 0), ('files', 0), ('inodes', 1),"
		 " ('max_ino', 1), ('max_dentry_id', 0);"
		 "INSERT INTO inodes VALUES(1, %u, %u, %u, 2, 0, 0, 0, %lld, %lld, %lld, %lld, NULL);"
		 "PRAGMA application_id = %d; PRAGMA user_version = %d",
		 uuid, now, S_IFDIR | 0755, geteuid(), getegid(), now, now, now, now,
		 META_APPLICATION_ID, META_FORMAT);
	return meta_conn_exec(c, sql);
}

/* After a failed call on c: what it was, and what to do about it. */
static int explain(const struct meta *m, struct meta_conn *c, int r, struct store_error *err)
{
	const char *why = sqlite3_errmsg(c->db);
	int rc = sqlite3_errcode(c->db) & 0xff;

	if (rc == SQLITE_NOTADB)
		return meta_fail(err, -EMEDIUMTYPE,
				 "%s: not a database, so this is no kvfs store, or its first page is"
				 " damaged: choose another directory, or try 'kvfs fsck --repair'",
				 m->path);
	if (r == -EUCLEAN)
		return meta_fail(
			err, r,
			"%s: damaged (%s): try 'kvfs fsck --repair', or restore it from a copy",
			m->path, why);
	if (m->read_only && (rc == SQLITE_CANTOPEN || rc == SQLITE_READONLY))
		return meta_fail(err, -EROFS,
				 "%s: a crash left changes in meta.db-wal, which cannot be read"
				 " without writing: mount it writable once",
				 m->path);
	if (r == -EBUSY)
		return meta_fail(err, r, "%s: locked by another program: end that first", m->path);
	if (r == -ENOSPC)
		return meta_fail(err, r, "%s: no space left on the file system: free some",
				 m->path);
	return meta_fail(err, r, "%s: %s (%s): see dmesg", m->path, why, strerror(-r));
}

static int refuse_foreign(const struct meta *m, struct store_error *err)
{
	return meta_fail(err, -EMEDIUMTYPE,
			 "%s: a database of another program, so this is no kvfs store:"
			 " choose another directory",
			 m->path);
}

static int refuse_newer(const struct meta *m, int64_t version, struct store_error *err)
{
	return meta_fail(err, -EMEDIUMTYPE,
			 "%s: made by a newer kvfs (format %lld, this one knows %d): upgrade kvfs",
			 m->path, (long long)version, META_FORMAT);
}

/* What is written from now on an older kvfs would take for damaged. */
static int raise_format(const struct meta *m, struct meta_conn *c, struct store_error *err)
{
	char sql[64];
	int r;

	snprintf(sql, sizeof(sql), "PRAGMA user_version = %d", META_FORMAT);
	r = meta_conn_exec(c, sql);
	return r < 0 ? explain(m, c, r, err) : 0;
}

/* Ours, and of a format we know? 1: a database without anything in it. */
static int check_format(const struct meta *m, struct meta_conn *c, struct store_error *err)
{
	int64_t app, version, objects;
	int r = meta_conn_number(c, "PRAGMA application_id", &app);

	if (r == 0)
		r = meta_conn_number(c, "PRAGMA user_version", &version);
	if (r == 0)
		r = meta_conn_number(c, "SELECT count(*) FROM sqlite_master", &objects);
	if (r < 0)
		return explain(m, c, r, err);
	if (app == 0 && version == 0 && objects == 0)
		return 1;
	if (app != META_APPLICATION_ID)
		return refuse_foreign(m, err);
	if (version > META_FORMAT)
		return refuse_newer(m, version, err);
	if (version == 1 || version == 2) /* fewer codecs, nothing else */
		return m->read_only ? 0 : raise_format(m, c, err);
	if (version < META_FORMAT)
		return meta_fail(err, -EUCLEAN,
				 "%s: damaged (format %lld does not exist): restore it from a copy",
				 m->path, (long long)version);
	return 0;
}

/* Tables may have columns that another made up, and there may be other tables. But a view or a trigger runs as
 * ours what somebody else has written, without an end if he likes. */
static int check_objects(const struct meta *m, struct meta_conn *c, struct store_error *err)
{
	int64_t odd = 0;
	int r = meta_conn_number(
		c,
		"SELECT count(*) FROM sqlite_master WHERE type IN ('view', 'trigger')"
		" OR (type = 'table' AND coalesce(rootpage, 0) = 0)",
		&odd);

	if (r < 0)
		return explain(m, c, r, err);
	if (odd)
		return meta_fail(err, -EUCLEAN,
				 "%s: damaged (has views, triggers or virtual tables): restore it"
				 " from a copy",
				 m->path);
	return 0;
}

static uint32_t be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* What is not for us to open: SQLite would recover the WAL of a newer format, and roll back what
 * another program began, before it could be asked. Everything else is left to check_format(). To be
 * called before any connection is there, whose locks the close would drop. */
static int check_header(const struct meta *m, struct store_error *err)
{
	uint8_t h[100];
	int fd = open(m->path, O_RDONLY | O_CLOEXEC);
	ssize_t n;
	uint32_t app;

	if (fd < 0)
		return meta_fail(err, -errno, "%s: cannot be opened: %s", m->path, strerror(errno));
	n = read(fd, h, sizeof(h));
	close(fd);
	if (n != sizeof(h) || memcmp(h, "SQLite format 3", 16))
		return 0;
	app = be32(h + 68);
	if (app && app != META_APPLICATION_ID)
		return refuse_foreign(m, err);
	if (app && be32(h + 60) > META_FORMAT)
		return refuse_newer(m, be32(h + 60), err);
	return 0;
}

/* One transaction, so that a kill leaves an empty database, which the next open fills. */
static int create(const struct meta *m, struct meta_conn *c, struct store_error *err)
{
	int r = meta_conn_exec(c, "PRAGMA page_size = 4096; PRAGMA synchronous = FULL;"
				  "BEGIN IMMEDIATE");

	if (r < 0)
		return explain(m, c, r, err);
	r = create_tables(c);
	if (r == 0)
		r = create_rows(c);
	if (r == 0)
		r = meta_conn_exec(c, "COMMIT");
	if (r < 0) {
		explain(m, c, r, err);
		meta_conn_exec(c, "ROLLBACK");
	}
	return r;
}

/* An empty database is one whose making was cut short, unless there are segments: then it has lost
 * its content, and to fill it would lose the segments' too. */
static int create_missing(const struct meta *m, struct meta_conn *c, struct store_error *err)
{
	char *segments;
	int r;

	if (m->read_only)
		return meta_fail(err, -EMEDIUMTYPE, "%s: empty: mount it writable once", m->path);
	if (asprintf(&segments, "%.*ssegments", (int)(strlen(m->path) - strlen("meta.db")),
		     m->path) < 0)
		return meta_fail(err, -ENOMEM, "%s: out of memory", m->path);
	r = access(segments, F_OK) == 0 ? -EUCLEAN : 0;
	free(segments);
	if (r < 0)
		return meta_fail(err, r, "%s: damaged (empty): restore it from a copy", m->path);
	return create(m, c, err);
}

static int quick_check(const struct meta *m, struct meta_conn *c, struct store_error *err)
{
	int64_t pages, faults;
	int r = meta_conn_number(c, "PRAGMA page_count", &pages);

	if (r == 0 && pages > QUICK_CHECK_PAGES)
		return 0;
	if (r == 0)
		r = meta_conn_number(c,
				     "SELECT count(*) FROM pragma_quick_check(1)"
				     " WHERE quick_check <> 'ok'",
				     &faults);
	if (r < 0)
		return explain(m, c, r, err);
	if (faults)
		return meta_fail(
			err, -EUCLEAN,
			"%s: damaged (it fails SQLite's quick_check): try 'kvfs fsck --repair', or"
			" restore it from a copy",
			m->path);
	return 0;
}

/* WAL needs memory shared through a file, which some network file systems do not have. */
static int enter_wal(const struct meta *m, struct meta_conn *c, struct store_error *err)
{
	int64_t wal;
	/* EXTRA: the rollback journal is gone for good before there is a WAL. Should it come back after a
	 * power cut it would undo the switch in the file, but not in a connection that finds a WAL. */
	int r = meta_conn_exec(c, "PRAGMA synchronous = EXTRA; PRAGMA journal_mode = WAL");

	if (r == 0)
		r = meta_conn_number(c, "SELECT journal_mode = 'wal' FROM pragma_journal_mode",
				     &wal);
	if (r < 0)
		return explain(m, c, r, err);
	if (!wal)
		return meta_fail(err, -EOPNOTSUPP,
				 "%s: the file system has no shared mappings, which meta.db needs:"
				 " put the store on a local one",
				 m->path);
	return 0;
}

int meta_schema_create(struct meta_conn *c)
{
	char sql[96];
	int r = create_tables(c);

	snprintf(sql, sizeof(sql), "PRAGMA application_id = %d; PRAGMA user_version = %d",
		 META_APPLICATION_ID, META_FORMAT);
	return r ? r : meta_conn_exec(c, sql);
}

int meta_schema_check(struct meta *m, struct store_error *err)
{
	bool had_wal = meta_wal_size(m) > 0;
	struct meta_conn c = { 0 };
	int r = check_header(m, err);

	if (r < 0)
		return r;
	r = meta_conn_open(m->uri, !m->read_only, &c);
	if (r < 0)
		return meta_fail(err, r, "%s: cannot be opened%s: %s", m->path,
				 m->read_only ? "" : " for writing", strerror(-r));
	r = check_format(m, &c, err);
	if (r == 1)
		r = create_missing(m, &c, err);
	if (r == 0)
		r = check_objects(m, &c, err);
	if (r == 0)
		r = quick_check(m, &c, err);
	if (r == 0 && !m->read_only)
		r = enter_wal(m, &c, err);
	if (r == 0) {
		r = meta_conn_prepare_all(&c);
		if (r < 0)
			explain(m, &c, r, err);
	}
	/* What a refused database has in its WAL stays there; a WAL made just now is taken away. */
	meta_conn_close(&c, r < 0 && had_wal);
	return r;
}
