/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_txn: the one transaction that writes meta.db, and its rows.
 *
 * The counters of table meta change with the rows: in memory of the transaction, then in the same
 * commit. A failed statement spoils the transaction, for SQLite may have rolled back by itself and
 * would commit each later statement alone: every call after it returns its error, meta_txn_commit
 * too.
 */
#include "store/meta_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

static sqlite3_stmt *statement(struct meta_txn *t, enum meta_sql sql)
{
	return t->meta->writer.stmt[sql]; /* all were prepared by meta_open */
}

static int run(struct meta_txn *t, sqlite3_stmt *st)
{
	if (t->err == 0)
		t->err = meta_conn_run(&t->meta->writer, st);
	return t->err;
}

int meta_txn_begin(struct meta *m, struct store *s, struct meta_txn **ret)
{
	struct meta_txn *t = &m->txn;
	int r;

	if (m->read_only)
		return -EROFS;
	meta_wal_admit(m);
	pthread_mutex_lock(&m->write_lock);
	r = meta_broken(m);
	if (r == 0)
		r = meta_conn_run(&m->writer, m->writer.stmt[SQL_BEGIN]);
	if (r < 0) {
		pthread_mutex_unlock(&m->write_lock);
		return r;
	}
	/* Only this thread changes them from here on. */
	*t = (struct meta_txn){ .meta = m, .store = s, .counters = m->committed };
	*ret = t;
	return 0;
}

/* Nothing to roll back when SQLite did it already. */
static void roll_back(struct meta *m)
{
	if (!sqlite3_get_autocommit(m->writer.db))
		meta_conn_run(&m->writer, m->writer.stmt[SQL_ROLLBACK]);
}

void meta_txn_abort(struct meta_txn *t)
{
	struct meta *m = t->meta;

	roll_back(m);
	pthread_mutex_unlock(&m->write_lock);
}

static int put_counters(struct meta_txn *t)
{
	const struct meta_counters *c = &t->counters;
	sqlite3_stmt *st = statement(t, SQL_PUT_COUNTERS);

	if (!memcmp(c, &t->meta->committed, sizeof(*c)))
		return 0;
	sqlite3_bind_int64(st, 1, c->logical_bytes);
	sqlite3_bind_int64(st, 2, c->files);
	sqlite3_bind_int64(st, 3, c->inodes);
	sqlite3_bind_int64(st, 4, c->max_ino);
	sqlite3_bind_int64(st, 5, c->max_dentry_id);
	return run(t, st);
}

static int commit(struct meta_txn *t)
{
	struct meta *m = t->meta;
	int r = t->err;

	if (r == 0)
		r = put_counters(t);
	if (r == 0)
		r = run(t, statement(t, SQL_COMMIT));
	if (r < 0) {
		roll_back(m);
		return r;
	}
	pthread_mutex_lock(&m->state_lock);
	m->committed = t->counters;
	pthread_mutex_unlock(&m->state_lock);
	return 0;
}

int meta_txn_commit(struct meta_txn *t, bool durable)
{
	struct meta *m = t->meta;
	int r = commit(t);

	if (r == 0) {
		meta_wal_committed(m);
		if (durable)
			r = meta_wal_sync(m);
	}
	pthread_mutex_unlock(&m->write_lock);
	return r;
}

struct store *meta_txn_store(struct meta_txn *t)
{
	return t->store;
}

static int64_t pack_time(const struct timespec *ts)
{
	int64_t ns;

	if (__builtin_mul_overflow((int64_t)ts->tv_sec, 1000000000, &ns) ||
	    __builtin_add_overflow(ns, (int64_t)ts->tv_nsec, &ns))
		return ts->tv_sec < 0 ? INT64_MIN : INT64_MAX;
	return ns;
}

static bool is_row_number(uint64_t n)
{
	return n > 0 && n <= INT64_MAX;
}

static int check_name(const char *name)
{
	size_t len = strlen(name);

	if (len > META_NAME_MAX)
		return -ENAMETOOLONG;
	return len == 0 ? -EINVAL : 0;
}

static void bind_text(sqlite3_stmt *st, int n, const char *text)
{
	sqlite3_bind_blob(st, n, text, (int)strlen(text), SQLITE_STATIC);
}

/* A NULL pointer would be an SQL NULL. */
static void bind_bytes(sqlite3_stmt *st, int n, const void *data, size_t len)
{
	sqlite3_bind_blob(st, n, len ? data : "", (int)len, SQLITE_STATIC);
}

/* Where the counter of a store from elsewhere is not the sum of its rows, it stays one that can be. */
static void count(int64_t *counter, int64_t n)
{
	if (__builtin_add_overflow(*counter, n, counter))
		*counter = INT64_MAX;
	if (*counter < 0)
		*counter = 0;
}

/* What an inode adds to the counters, times sign. */
static void count_inode(struct meta_txn *t, uint32_t mode, uint64_t size, int sign)
{
	count(&t->counters.inodes, sign);
	if (!S_ISREG(mode))
		return;
	count(&t->counters.files, sign);
	count(&t->counters.logical_bytes, sign * (int64_t)(size & INT64_MAX));
}

/* Takes the row that is about to be replaced or removed out of the counters. 1: there is one. */
static int uncount_inode(struct meta_txn *t, uint64_t ino)
{
	sqlite3_stmt *st = statement(t, SQL_INODE_WEIGHT);
	uint64_t size;
	uint32_t mode;
	int r;

	if (t->err)
		return t->err;
	/* No row was ever above the highest: a new file costs no look. */
	if (ino > (uint64_t)t->counters.max_ino)
		return 0;
	sqlite3_bind_int64(st, 1, (int64_t)ino);
	r = meta_conn_step(&t->meta->writer, st);
	mode = (uint32_t)sqlite3_column_int64(st, 0);
	size = (uint64_t)sqlite3_column_int64(st, 1);
	sqlite3_reset(st);
	if (r < 0)
		t->err = r;
	if (r == 1)
		count_inode(t, mode, size, -1);
	return r;
}

static int check_inode(const struct meta_inode *i)
{
	size_t len = i->target ? strlen(i->target) : 0;

	if (!is_row_number(i->ino) || (S_ISLNK(i->mode) && len == 0))
		return -EINVAL;
	if (i->size > INT64_MAX)
		return -EFBIG;
	return len > META_TARGET_MAX ? -ENAMETOOLONG : 0;
}

int meta_row_put_inode(struct meta_txn *t, const struct meta_inode *i)
{
	sqlite3_stmt *st = statement(t, SQL_PUT_INODE);
	int r = check_inode(i);

	if (r == 0)
		r = uncount_inode(t, i->ino);
	if (r < 0)
		return r;
	sqlite3_bind_int64(st, 1, (int64_t)i->ino);
	sqlite3_bind_int64(st, 2, i->mode);
	sqlite3_bind_int64(st, 3, i->uid);
	sqlite3_bind_int64(st, 4, i->gid);
	sqlite3_bind_int64(st, 5, i->nlink);
	sqlite3_bind_int64(st, 6, i->rdev);
	sqlite3_bind_int64(st, 7, i->flags);
	sqlite3_bind_int64(st, 8, (int64_t)i->size);
	sqlite3_bind_int64(st, 9, pack_time(&i->atime));
	sqlite3_bind_int64(st, 10, pack_time(&i->mtime));
	sqlite3_bind_int64(st, 11, pack_time(&i->ctime));
	sqlite3_bind_int64(st, 12, pack_time(&i->btime));
	if (i->target)
		bind_text(st, 13, i->target);
	else
		sqlite3_bind_null(st, 13);
	count_inode(t, i->mode, i->size, 1);
	if (i->ino > (uint64_t)t->counters.max_ino)
		t->counters.max_ino = (int64_t)i->ino;
	return run(t, st);
}

int meta_put_inode(struct meta_txn *t, const struct meta_inode *i)
{
	return meta_row_put_inode(t, i);
}

/* Deletes what belongs to one number. */
static int delete_row(struct meta_txn *t, enum meta_sql sql, uint64_t number)
{
	sqlite3_stmt *st = statement(t, sql);

	sqlite3_bind_int64(st, 1, (int64_t)number);
	return run(t, st);
}

int meta_row_del_inode(struct meta_txn *t, uint64_t ino)
{
	int r = uncount_inode(t, ino);

	if (r == 1)
		r = delete_row(t, SQL_DEL_INODE, ino);
	if (r == 0)
		r = delete_row(t, SQL_DEL_XATTRS, ino);
	if (r == 0)
		r = delete_row(t, SQL_DEL_EXTENTS, ino);
	return r;
}

int meta_put_dentry(struct meta_txn *t, const struct meta_dentry *d)
{
	sqlite3_stmt *st = statement(t, SQL_PUT_DENTRY);
	int r = check_name(d->name);

	if (r == 0 && !meta_name_ok(d->name))
		r = -EINVAL;
	if (r == 0 && !(is_row_number(d->parent) && is_row_number(d->id) && is_row_number(d->ino)))
		r = -EINVAL;
	if (r < 0)
		return r;
	sqlite3_bind_int64(st, 1, (int64_t)d->parent);
	sqlite3_bind_int64(st, 2, (int64_t)d->id);
	bind_text(st, 3, d->name);
	sqlite3_bind_int64(st, 4, (int64_t)d->ino);
	sqlite3_bind_int64(st, 5, d->mode);
	if (d->id > (uint64_t)t->counters.max_dentry_id)
		t->counters.max_dentry_id = (int64_t)d->id;
	return run(t, st);
}

/* Deletes a name of a number: a dentry or an xattr. */
static int delete_name(struct meta_txn *t, enum meta_sql sql, uint64_t number, const char *name)
{
	sqlite3_stmt *st = statement(t, sql);

	sqlite3_bind_int64(st, 1, (int64_t)number);
	bind_text(st, 2, name);
	return run(t, st);
}

int meta_del_dentry(struct meta_txn *t, uint64_t parent, const char *name)
{
	return delete_name(t, SQL_DEL_DENTRY, parent, name);
}

int meta_put_xattr(struct meta_txn *t, uint64_t ino, const char *name, const void *v, size_t len)
{
	sqlite3_stmt *st = statement(t, SQL_PUT_XATTR);
	int r = check_name(name);

	if (r == 0 && !is_row_number(ino))
		r = -EINVAL;
	if (r == 0 && len > META_VALUE_MAX)
		r = -E2BIG;
	if (r < 0)
		return r;
	sqlite3_bind_int64(st, 1, (int64_t)ino);
	bind_text(st, 2, name);
	bind_bytes(st, 3, v, len);
	return run(t, st);
}

int meta_del_xattr(struct meta_txn *t, uint64_t ino, const char *name)
{
	return delete_name(t, SQL_DEL_XATTR, ino, name);
}

int meta_put_extents(struct meta_txn *t, uint64_t ino, const uint8_t *packed, size_t len)
{
	sqlite3_stmt *st = statement(t, SQL_PUT_EXTENTS);

	if (!is_row_number(ino))
		return -EINVAL;
	if (len == 0)
		return delete_row(t, SQL_DEL_EXTENTS, ino);
	if (len > META_PACKED_MAX)
		return -EFBIG;
	sqlite3_bind_int64(st, 1, (int64_t)ino);
	bind_bytes(st, 2, packed, len);
	return run(t, st);
}

int meta_put_chunk(struct meta_txn *t, const struct meta_chunk *c)
{
	XXH128_hash_t hash = { .low64 = c->info.hash.lo, .high64 = c->info.hash.hi };
	sqlite3_stmt *st = statement(t, SQL_PUT_CHUNK);
	XXH128_canonical_t canonical;
	uint32_t params = 0;

	if (!is_row_number(c->info.chunk_id))
		return -EINVAL;
	XXH128_canonicalFromHash(&canonical, hash);
	for (int i = 0; i < CODEC_PARAMS; i++)
		params |= (uint32_t)c->info.params[i] << 8 * i;
	sqlite3_bind_int64(st, 1, (int64_t)c->info.chunk_id);
	bind_bytes(st, 2, &canonical, sizeof(canonical));
	sqlite3_bind_int64(st, 3, c->info.tenant);
	sqlite3_bind_int64(st, 4, c->loc.segment);
	sqlite3_bind_int64(st, 5, (int64_t)c->loc.offset * RECORD_ALIGN);
	sqlite3_bind_int64(st, 6, c->info.raw_len);
	sqlite3_bind_int64(st, 7, c->info.stored_len);
	sqlite3_bind_int64(st, 8, c->info.codec);
	sqlite3_bind_int64(st, 9, params);
	sqlite3_bind_int64(st, 10, c->refs);
	return run(t, st);
}

int meta_set_refs(struct meta_txn *t, uint64_t chunk_id, uint32_t refs)
{
	sqlite3_stmt *st = statement(t, SQL_SET_REFS);
	int r;

	sqlite3_bind_int64(st, 1, (int64_t)chunk_id);
	sqlite3_bind_int64(st, 2, refs);
	r = run(t, st);
	if (r == 0 && sqlite3_changes(t->meta->writer.db) == 0)
		r = -ENOENT;
	return r;
}

int meta_move_chunk(struct meta_txn *t, uint64_t chunk_id, struct segment_loc to)
{
	sqlite3_stmt *st = statement(t, SQL_MOVE_CHUNK);
	int r;

	sqlite3_bind_int64(st, 1, (int64_t)chunk_id);
	sqlite3_bind_int64(st, 2, to.segment);
	sqlite3_bind_int64(st, 3, (int64_t)to.offset * RECORD_ALIGN);
	r = run(t, st);
	if (r == 0 && sqlite3_changes(t->meta->writer.db) == 0)
		r = -ENOENT;
	return r;
}

int meta_del_chunk(struct meta_txn *t, uint64_t chunk_id)
{
	return delete_row(t, SQL_DEL_CHUNK, chunk_id);
}

int meta_put_segment(struct meta_txn *t, uint32_t n, uint64_t used)
{
	sqlite3_stmt *st = statement(t, SQL_PUT_SEGMENT);

	if (used > INT64_MAX)
		return -EINVAL;
	sqlite3_bind_int64(st, 1, n);
	sqlite3_bind_int64(st, 2, (int64_t)used);
	return run(t, st);
}

int meta_del_segment(struct meta_txn *t, uint32_t n)
{
	return delete_row(t, SQL_DEL_SEGMENT, n);
}

int meta_put_scrub(struct meta_txn *t, const struct scrub_status *at)
{
	sqlite3_stmt *st = statement(t, SQL_PUT_SCRUB);

	sqlite3_bind_int64(st, 1, (int64_t)at->next);
	sqlite3_bind_int64(st, 2, (int64_t)at->last);
	sqlite3_bind_int64(st, 3, at->began);
	sqlite3_bind_int64(st, 4, at->ended);
	return run(t, st);
}
