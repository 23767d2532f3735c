/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck_db: meta.db as a database. It is opened so that reading changes nothing: a log that a crash left is
 * read along, and stays.
 */
#include "store/fsck_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int fsck_query(struct fsck *f, const char *sql, sqlite3_stmt **ret)
{
	int rc = sqlite3_prepare_v2(f->db, sql, -1, ret, NULL);
	struct meta_conn c = { .db = f->db };

	return rc == SQLITE_OK ? 0 : meta_conn_errno(&c, rc);
}

int fsck_step(struct fsck *f, sqlite3_stmt *st)
{
	struct meta_conn c = { .db = f->db };

	return fsck_cancelled(f) ? -ECANCELED : meta_conn_step(&c, st);
}

int fsck_number(struct fsck *f, const char *sql, int64_t *ret)
{
	sqlite3_stmt *st;
	int r = fsck_query(f, sql, &st);

	if (r)
		return r;
	r = fsck_step(f, st);
	if (r == 1)
		*ret = sqlite3_column_int64(st, 0);
	sqlite3_finalize(st);
	return r == 1 ? 0 : r ? r : -ENOENT;
}

static bool has_wal(const struct fsck *f)
{
	struct stat st;

	return fstatat(f->dir_fd, "meta.db-wal", &st, 0) == 0 && st.st_size > 0;
}

static int open_db(struct fsck *f, bool wal)
{
	struct meta_conn c = { 0 };
	char *path, *uri;
	int r;

	if (asprintf(&path, "%s/meta.db", f->path) < 0)
		return -ENOMEM;
	uri = meta_uri(path, wal ? "" : "?immutable=1");
	free(path);
	if (!uri)
		return -ENOMEM;
	r = meta_conn_open(uri, wal, &c);
	free(uri);
	if (r)
		return fsck_fail(f, r, "%s/meta.db: cannot be opened: %s", f->path, strerror(-r));
	sqlite3_db_config(c.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
	meta_conn_exec(&c, "PRAGMA query_only = ON; PRAGMA cache_size = -65536;"
			   "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON");
	f->db = c.db;
	return 0;
}

/* The log of a crash goes to where it belongs, as the next mount would do: it must not meet another meta.db. */
static int end_wal(struct fsck *f)
{
	struct meta_conn c = { .db = f->db };
	int r;

	meta_conn_exec(&c, "PRAGMA query_only = OFF");
	r = meta_conn_exec(&c, "PRAGMA wal_checkpoint(TRUNCATE)");
	sqlite3_db_config(f->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
	sqlite3_close(f->db);
	f->db = NULL;
	if (!r && has_wal(f))
		r = -EBUSY;
	if (r)
		return fsck_fail(f, r, "%s/meta.db-wal: cannot be moved into meta.db: %s", f->path,
				 strerror(-r));
	return open_db(f, false);
}

int fsck_db_open(struct fsck *f)
{
	bool wal = has_wal(f);
	int r;

	if (faccessat(f->dir_fd, "meta.db", F_OK, 0))
		return fsck_fail(f, -ENOENT,
				 "%s/meta.db: missing, and names are nowhere else: restore it from a"
				 " copy; an older one will do",
				 f->path);
	r = open_db(f, wal);
	return !r && wal && f->opt->repair ? end_wal(f) : r;
}

/* ---- what it is ---- */

static int check_format(struct fsck *f)
{
	int64_t app, version;
	int r = fsck_number(f, "PRAGMA application_id", &app);

	if (!r)
		r = fsck_number(f, "PRAGMA user_version", &version);
	if (r)
		return r;
	if (app != META_APPLICATION_ID)
		return fsck_fail(f, -EMEDIUMTYPE,
				 "%s/meta.db: a database of another program: name the directory of"
				 " a kvfs store",
				 f->path);
	if (version > META_FORMAT)
		return fsck_fail(f, -EMEDIUMTYPE,
				 "%s/meta.db: made by a newer kvfs (format %" PRId64
				 ", this one knows %d): use that",
				 f->path, version, META_FORMAT);
	return version > 0 ? 0 : -EUCLEAN;
}

/* The statements of an open store must be possible. */
static int check_schema(struct fsck *f)
{
	struct meta_conn c = { .db = f->db };
	int r = meta_conn_prepare_all(&c);

	for (int i = 0; i < META_SQL_COUNT; i++)
		sqlite3_finalize(c.stmt[i]);
	return r;
}

/* One line of it, whatever SQLite says. */
static void damaged(struct fsck *f, const char *text)
{
	char line[512];

	snprintf(line, sizeof(line), "%s", text);
	for (char *p = line; *p; p++)
		if (*p == '\n')
			*p = ';';
	fsck_found(f,
		   &(struct fsck_about){ .kind = "database",
					 .repair = "its rows are put into a new one" },
		   "meta.db: %s", line);
}

/* SQLite's own words, the first of them. 1: it is not "ok". */
static int check_integrity(struct fsck *f)
{
	bool bad = false;
	sqlite3_stmt *st;
	int r = fsck_query(f, "PRAGMA integrity_check(10)", &st);

	while (!r && (r = fsck_step(f, st)) == 1) {
		const char *text = (const char *)sqlite3_column_text(st, 0);

		r = 0;
		if (text && !strcmp(text, "ok"))
			continue;
		bad = true;
		damaged(f, text ? text : "its check says nothing");
	}
	sqlite3_finalize(st);
	return r ? r : bad;
}

int fsck_db_check(struct fsck *f)
{
	int r = check_format(f);

	if (!r)
		r = check_schema(f);
	if (!r)
		r = check_integrity(f);
	if (r == -EUCLEAN) {
		damaged(f, sqlite3_errmsg(f->db));
		return 1;
	}
	return r;
}

int fsck_db_meta(struct fsck *f)
{
	sqlite3_stmt *st;
	int r = fsck_query(f, "SELECT value FROM meta WHERE key = 'uuid'", &st);

	if (r)
		return r;
	r = fsck_step(f, st);
	if (r == 1 && sqlite3_column_bytes(st, 0) == 36)
		memcpy(f->uuid, sqlite3_column_blob(st, 0), 36);
	sqlite3_finalize(st);
	return r < 0 ? r : 0;
}
