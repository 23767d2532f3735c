/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_impl: what the meta*.c files share: the open database, its connections and its statements.
 * No other files include it but those of fsck, for nobody else sees SQLite.
 */
#ifndef STORE_META_IMPL_H
#define STORE_META_IMPL_H

#include "store/meta.h"

#include <pthread.h>
#include <sqlite3.h>

#define META_APPLICATION_ID 0x6b766673 /* "kvfs" */
#define META_FORMAT         3          /* PRAGMA user_version */

#define META_NAME_MAX   255u
#define META_TARGET_MAX 4095u
#define META_VALUE_MAX  65536u
#define META_PACKED_MAX 1000000000u /* SQLite's limit for a value */

/* Every statement kvfs ever runs on an open database; the texts are in meta_conn.c. */
enum meta_sql {
	SQL_BEGIN,
	SQL_COMMIT,
	SQL_ROLLBACK,
	SQL_GET_INODE,
	SQL_LOOKUP,
	SQL_LIST,
	SQL_GET_XATTRS,
	SQL_GET_EXTENTS,
	SQL_SOME_CHUNKS,
	SQL_NEXT_CHUNK,
	SQL_ALL_SEGMENTS,
	SQL_ALL_META,
	SQL_INODE_WEIGHT,
	SQL_PUT_INODE,
	SQL_DEL_INODE,
	SQL_DEL_XATTRS,
	SQL_PUT_DENTRY,
	SQL_DEL_DENTRY,
	SQL_PUT_XATTR,
	SQL_DEL_XATTR,
	SQL_PUT_EXTENTS,
	SQL_DEL_EXTENTS,
	SQL_PUT_CHUNK,
	SQL_SET_REFS,
	SQL_MOVE_CHUNK,
	SQL_DEL_CHUNK,
	SQL_PUT_SEGMENT,
	SQL_DEL_SEGMENT,
	SQL_PUT_COUNTERS,
	SQL_BUMP_EPOCH,
	SQL_ALL_EXTENTS,
	SQL_PUT_SCRUB,
	META_SQL_COUNT
};

/* A connection serves one thread at a time: SQLite is told not to lock it. */
struct meta_conn {
	sqlite3 *db;
	sqlite3_stmt *stmt[META_SQL_COUNT]; /* prepared at first use */
	struct meta_conn *next;             /* idle readers */
};

struct meta_counters {
	int64_t logical_bytes, files, inodes, max_ino, max_dentry_id;
};

struct meta_txn {
	struct meta *meta;
	struct store *store;
	struct meta_counters counters; /* what the committed ones become */
	int err; /* the first failed statement: SQLite may have rolled back, so nothing may follow */
};

struct meta {
	char *path; /* of meta.db, for sentences */
	char *uri;  /* what SQLite opens */
	char uuid[37];
	bool read_only;
	uint64_t epoch; /* atomic */

	pthread_mutex_t write_lock; /* from begin to commit or abort */
	struct meta_conn writer;    /* the next four: write_lock */
	struct meta_txn txn;
	uint64_t wal_bytes; /* length of the WAL after the last commit */
	bool unsynced;      /* a commit was not synced yet */

	pthread_mutex_t state_lock;     /* innermost */
	struct meta_counters committed; /* to the end: state_lock */
	int broken; /* the errno of a failed sync: nothing is written any more */
	struct meta_conn *idle;
	unsigned idle_count;
	pthread_cond_t wake; /* the checkpointer: checkpoint_due or stop has changed */
	bool checkpoint_due, stop;
	pthread_cond_t emptied; /* writers: wal_full has changed */
	bool wal_full;          /* no transaction begins before the checkpointer has been round */

	bool running; /* the checkpointer exists; set by open and close alone */
	pthread_t thread;
	struct meta_conn checkpointer; /* its thread's */
};

/* meta_conn.c */
int meta_conn_open(const char *uri, bool writable, struct meta_conn *ret);  /* reads nothing yet */
int meta_conn_start(const char *uri, bool writable, struct meta_conn *ret); /* open and set up */
void meta_conn_close(struct meta_conn *c, bool keep_wal);                   /* zeros are fine */
int meta_conn_exec(struct meta_conn *c, const char *sql);
int meta_conn_number(struct meta_conn *c, const char *sql, int64_t *ret); /* one row, one column */
int meta_conn_stmt(struct meta_conn *c, enum meta_sql sql, sqlite3_stmt **ret);
int meta_conn_prepare_all(struct meta_conn *c);
/* The errno of the connection's last error, whose code was rc. */
int meta_conn_errno(struct meta_conn *c, int rc);
/* 1: a row, 0: the end, negative errno. */
int meta_conn_step(struct meta_conn *c, sqlite3_stmt *st);
/* Runs a statement that yields no rows and resets it. */
int meta_conn_run(struct meta_conn *c, sqlite3_stmt *st);

/* meta_schema.c */
/* Makes the tables if there are none, checks format and shape. err says what is wrong. */
int meta_schema_check(struct meta *m, struct store_error *err);
/* The empty tables, in a transaction of the caller. */
int meta_schema_create(struct meta_conn *c);
/* Bytes of meta.db-wal; -1: there is none. */
int64_t meta_wal_size(const struct meta *m);
int meta_fail(struct store_error *err, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* meta_wal.c */
int meta_wal_start(struct meta *m);
void meta_wal_stop(struct meta *m);
int meta_wal_sync(struct meta *m);       /* holds write_lock */
void meta_wal_committed(struct meta *m); /* holds write_lock */
void meta_wal_admit(struct meta *m);     /* before a transaction; holds nothing */
int meta_broken(struct meta *m);

/* meta.c. The path as what SQLite opens, to be freed; NULL when out of memory. */
char *meta_uri(const char *path, const char *query);

/* meta_read.c */
/* The row of a statement with the columns of SQL_GET_INODE, or of SQL_SOME_CHUNKS. -EUCLEAN: it holds what cannot
 * be. */
int meta_column_inode(sqlite3_stmt *st, uint64_t ino, struct meta_inode *ret);
int meta_column_chunk(sqlite3_stmt *st, struct meta_chunk *ret);
int meta_load(struct meta *m); /* uuid, epoch and counters, into m */
void meta_readers_close(struct meta *m, bool keep_wal);

#endif
