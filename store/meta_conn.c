/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_conn: one connection to meta.db: how it is set up, its statements, and what SQLite's errors
 * mean. Every SQL text that runs on an open store is here, in one table.
 */
#include "store/meta_impl.h"

#include <errno.h>
#include <string.h>

#define BUSY_TIMEOUT_MS 5000

static const char *const sql_text[META_SQL_COUNT] = {
	[SQL_BEGIN] = "BEGIN IMMEDIATE",
	[SQL_COMMIT] = "COMMIT",
	[SQL_ROLLBACK] = "ROLLBACK",
	[SQL_GET_INODE] = "SELECT mode, uid, gid, nlink, rdev, flags, size, atime_ns, mtime_ns,"
			  " ctime_ns, btime_ns, target FROM inodes WHERE ino = ?1",
	[SQL_LOOKUP] = "SELECT id, ino, mode FROM dentries WHERE parent = ?1 AND name = ?2",
	[SQL_LIST] = "SELECT id, ino, mode, name FROM dentries"
		     " WHERE parent = ?1 AND id > ?2 ORDER BY id",
	[SQL_GET_XATTRS] = "SELECT name, value FROM xattrs WHERE ino = ?1",
	[SQL_GET_EXTENTS] = "SELECT i.size, e.packed FROM inodes i LEFT JOIN extents e"
			    " ON e.ino = i.ino WHERE i.ino = ?1",
	[SQL_SOME_CHUNKS] = "SELECT id, hash, tenant, segment, offset, raw, stored, codec, params,"
			    " refs FROM chunks WHERE id BETWEEN ?1 AND ?2",
	[SQL_NEXT_CHUNK] = "SELECT min(id), (SELECT max(id) FROM chunks) FROM chunks"
			   " WHERE id >= ?1",
	[SQL_ALL_SEGMENTS] = "SELECT n, used FROM segments ORDER BY n",
	[SQL_ALL_META] = "SELECT key, value FROM meta",
	[SQL_INODE_WEIGHT] = "SELECT mode, size FROM inodes WHERE ino = ?1",
	[SQL_PUT_INODE] = "INSERT OR REPLACE INTO inodes(ino, mode, uid, gid, nlink, rdev, flags,"
			  " size, atime_ns, mtime_ns, ctime_ns, btime_ns, target)"
			  " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
	[SQL_DEL_INODE] = "DELETE FROM inodes WHERE ino = ?1",
	[SQL_DEL_XATTRS] = "DELETE FROM xattrs WHERE ino = ?1",
	[SQL_PUT_DENTRY] = "INSERT INTO dentries(parent, id, name, ino, mode)"
			   " VALUES(?1, ?2, ?3, ?4, ?5) ON CONFLICT(parent, name) DO UPDATE"
			   " SET id = excluded.id, ino = excluded.ino, mode = excluded.mode",
	[SQL_DEL_DENTRY] = "DELETE FROM dentries WHERE parent = ?1 AND name = ?2",
	[SQL_PUT_XATTR] = "INSERT OR REPLACE INTO xattrs(ino, name, value) VALUES(?1, ?2, ?3)",
	[SQL_DEL_XATTR] = "DELETE FROM xattrs WHERE ino = ?1 AND name = ?2",
	[SQL_PUT_EXTENTS] = "INSERT OR REPLACE INTO extents(ino, packed) VALUES(?1, ?2)",
	[SQL_DEL_EXTENTS] = "DELETE FROM extents WHERE ino = ?1",
	[SQL_PUT_CHUNK] = "INSERT OR REPLACE INTO chunks(id, hash, tenant, segment, offset, raw,"
			  " stored, codec, params, refs)"
			  " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
	[SQL_SET_REFS] = "UPDATE chunks SET refs = ?2 WHERE id = ?1",
	[SQL_MOVE_CHUNK] = "UPDATE chunks SET segment = ?2, offset = ?3 WHERE id = ?1",
	[SQL_DEL_CHUNK] = "DELETE FROM chunks WHERE id = ?1",
	[SQL_PUT_SEGMENT] = "INSERT INTO segments(n, used) VALUES(?1, ?2) ON CONFLICT(n)"
			    " DO UPDATE SET used = max(used, excluded.used)",
	[SQL_DEL_SEGMENT] = "DELETE FROM segments WHERE n = ?1",
	[SQL_PUT_COUNTERS] = "INSERT INTO meta(key, value) VALUES('logical_bytes', ?1),"
			     " ('files', ?2), ('inodes', ?3), ('max_ino', ?4),"
			     " ('max_dentry_id', ?5) ON CONFLICT(key) DO UPDATE"
			     " SET value = excluded.value",
	[SQL_BUMP_EPOCH] = "UPDATE meta SET value = value + 1 WHERE key = 'epoch'",
	[SQL_ALL_EXTENTS] = "SELECT ino, packed FROM extents",
	[SQL_PUT_SCRUB] = "INSERT INTO meta(key, value) VALUES('scrub_next', ?1),"
			  " ('scrub_last', ?2), ('scrub_began', ?3), ('scrub_ended', ?4)"
			  " ON CONFLICT(key) DO UPDATE SET value = excluded.value",
};

/* secure_delete: some distributions build SQLite with it fully on, which rewrites freed pages and
 * doubles the WAL of a removal; FAST still wipes what is rewritten anyway.
 * journal_size_limit: a WAL that once grew past it is cut back when it restarts. */
static const char write_setup[] = "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0;"
				  "PRAGMA journal_size_limit = 16777216;"
				  "PRAGMA cache_size = -16384; PRAGMA secure_delete = FAST;"
				  "PRAGMA temp_store = MEMORY; PRAGMA trusted_schema = OFF;"
				  "PRAGMA cell_size_check = ON";

/* No mmap_size: a read error in a mapping is a SIGBUS, which ends the daemon, not an EIO. */
static const char read_setup[] = "PRAGMA query_only = ON; PRAGMA cache_size = -4096;"
				 "PRAGMA temp_store = MEMORY; PRAGMA trusted_schema = OFF;"
				 "PRAGMA cell_size_check = ON";

int meta_conn_open(const char *uri, bool writable, struct meta_conn *ret)
{
	struct meta_conn c = { 0 };
	int flags = SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE;
	int r;

	flags |= writable ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY;
	r = sqlite3_open_v2(uri, &c.db, flags, NULL);
	if (r != SQLITE_OK)
		r = meta_conn_errno(&c, r);
	else if (writable && sqlite3_db_readonly(c.db, "main")) /* it tries that by itself */
		r = -EROFS;
	if (r < 0) {
		meta_conn_close(&c, true);
		return r;
	}
	sqlite3_extended_result_codes(c.db, 1);
	sqlite3_busy_timeout(c.db, BUSY_TIMEOUT_MS);
	sqlite3_db_config(c.db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
	*ret = c;
	return 0;
}

int meta_conn_start(const char *uri, bool writable, struct meta_conn *ret)
{
	int r = meta_conn_open(uri, writable, ret);

	if (r < 0)
		return r;
	r = meta_conn_exec(ret, writable ? write_setup : read_setup);
	if (r < 0)
		meta_conn_close(ret, true);
	return r;
}

void meta_conn_close(struct meta_conn *c, bool keep_wal)
{
	for (int i = 0; i < META_SQL_COUNT; i++)
		sqlite3_finalize(c->stmt[i]);
	if (c->db && keep_wal)
		sqlite3_db_config(c->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
	sqlite3_close(c->db);
	memset(c, 0, sizeof(*c));
}

static int io_errno(struct meta_conn *c, int rc)
{
	int e = c->db ? sqlite3_system_errno(c->db) : 0;

	if (rc == SQLITE_IOERR_NOMEM)
		return -ENOMEM;
	if (rc == SQLITE_IOERR_CORRUPTFS)
		return -EUCLEAN;
	return e == ENOSPC || e == EDQUOT ? -ENOSPC : -EIO;
}

static int open_errno(struct meta_conn *c)
{
	int e = c->db ? sqlite3_system_errno(c->db) : 0;

	return e > 0 ? -e : -EIO;
}

int meta_conn_errno(struct meta_conn *c, int rc)
{
	switch (rc & 0xff) {
	case SQLITE_FULL:
		return -ENOSPC;
	case SQLITE_IOERR:
		return io_errno(c, rc);
	case SQLITE_CANTOPEN:
		return open_errno(c);
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB:
	case SQLITE_FORMAT:
	case SQLITE_ERROR: /* the statements are ours: what does not fit is the schema */
		return -EUCLEAN;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
	case SQLITE_PROTOCOL:
		return -EBUSY;
	case SQLITE_CONSTRAINT:
		return -EEXIST;
	case SQLITE_READONLY:
		return -EROFS;
	case SQLITE_NOMEM:
		return -ENOMEM;
	case SQLITE_TOOBIG:
		return -EFBIG;
	case SQLITE_PERM:
	case SQLITE_AUTH:
		return -EACCES;
	default:
		return -EIO;
	}
}

int meta_conn_exec(struct meta_conn *c, const char *sql)
{
	int rc = sqlite3_exec(c->db, sql, NULL, NULL, NULL);

	return rc == SQLITE_OK ? 0 : meta_conn_errno(c, rc);
}

int meta_conn_number(struct meta_conn *c, const char *sql, int64_t *ret)
{
	sqlite3_stmt *st;
	int r = sqlite3_prepare_v2(c->db, sql, -1, &st, NULL);

	if (r != SQLITE_OK)
		return meta_conn_errno(c, r);
	r = meta_conn_step(c, st);
	if (r == 1)
		*ret = sqlite3_column_int64(st, 0);
	sqlite3_finalize(st);
	return r == 1 ? 0 : r < 0 ? r : -EUCLEAN;
}

int meta_conn_stmt(struct meta_conn *c, enum meta_sql sql, sqlite3_stmt **ret)
{
	if (!c->stmt[sql]) {
		int rc = sqlite3_prepare_v3(c->db, sql_text[sql], -1, SQLITE_PREPARE_PERSISTENT,
					    &c->stmt[sql], NULL);

		if (rc != SQLITE_OK)
			return meta_conn_errno(c, rc);
	}
	*ret = c->stmt[sql];
	return 0;
}

int meta_conn_prepare_all(struct meta_conn *c)
{
	sqlite3_stmt *st;

	for (int i = 0; i < META_SQL_COUNT; i++) {
		int r = meta_conn_stmt(c, i, &st);

		if (r < 0)
			return r;
	}
	return 0;
}

int meta_conn_step(struct meta_conn *c, sqlite3_stmt *st)
{
	int rc = sqlite3_step(st);

	if (rc == SQLITE_ROW)
		return 1;
	return rc == SQLITE_DONE ? 0 : meta_conn_errno(c, rc);
}

int meta_conn_run(struct meta_conn *c, sqlite3_stmt *st)
{
	int r = meta_conn_step(c, st);

	sqlite3_reset(st);
	return r > 0 ? -EUCLEAN : r;
}
