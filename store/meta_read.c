/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_read: committed rows, read from any thread through a pool of connections. Nothing that comes
 * out of the file is trusted: what a row cannot hold is -EUCLEAN.
 */
#include "store/meta_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#define IDLE_READERS 16

/* A statement that reads: on a borrowed reader, or within a transaction on the writer. */
struct query {
	struct meta *meta;
	struct meta_conn *conn;
	sqlite3_stmt *st;
};

static int reader_new(const struct meta *m, struct meta_conn **ret)
{
	struct meta_conn *c = malloc(sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	r = meta_conn_start(m->uri, false, c);
	if (r < 0)
		free(c);
	else
		*ret = c;
	return r;
}

static int reader_get(struct meta *m, struct meta_conn **ret)
{
	struct meta_conn *c;

	pthread_mutex_lock(&m->state_lock);
	c = m->idle;
	if (c) {
		m->idle = c->next;
		m->idle_count--;
	}
	pthread_mutex_unlock(&m->state_lock);
	if (!c)
		return reader_new(m, ret);
	*ret = c;
	return 0;
}

static void reader_free(struct meta_conn *c, bool keep_wal)
{
	meta_conn_close(c, keep_wal);
	free(c);
}

static void reader_put(struct meta *m, struct meta_conn *c)
{
	pthread_mutex_lock(&m->state_lock);
	if (m->idle_count < IDLE_READERS) {
		c->next = m->idle;
		m->idle = c;
		m->idle_count++;
		c = NULL;
	}
	pthread_mutex_unlock(&m->state_lock);
	if (c)
		reader_free(c, true);
}

void meta_readers_close(struct meta *m, bool keep_wal)
{
	while (m->idle) {
		struct meta_conn *c = m->idle;

		m->idle = c->next;
		reader_free(c, keep_wal);
	}
	m->idle_count = 0;
}

static int query_begin(struct meta *m, enum meta_sql sql, struct query *q)
{
	int r = reader_get(m, &q->conn);

	if (r < 0)
		return r;
	q->meta = m;
	r = meta_conn_stmt(q->conn, sql, &q->st);
	if (r < 0)
		reader_put(m, q->conn);
	return r;
}

static int query_step(struct query *q)
{
	return meta_conn_step(q->conn, q->st);
}

/* The reset ends the read transaction, and lets go of bound values. */
static void query_end(struct query *q)
{
	sqlite3_reset(q->st);
	sqlite3_clear_bindings(q->st);
	reader_put(q->meta, q->conn);
}

static bool column_u32(sqlite3_stmt *st, int column, uint32_t *ret)
{
	int64_t v = sqlite3_column_int64(st, column);

	*ret = (uint32_t)v;
	return v >= 0 && v <= UINT32_MAX;
}

static bool column_u64(sqlite3_stmt *st, int column, uint64_t *ret)
{
	int64_t v = sqlite3_column_int64(st, column);

	*ret = (uint64_t)v;
	return v >= 0;
}

static struct timespec column_time(sqlite3_stmt *st, int column)
{
	int64_t ns = sqlite3_column_int64(st, column);
	int64_t s = ns / 1000000000, rest = ns % 1000000000;

	if (rest < 0) {
		s--;
		rest += 1000000000;
	}
	return (struct timespec){ .tv_sec = s, .tv_nsec = rest };
}

/* Copies a column of 1 to max bytes without NULs, and ends it with one. */
static int column_name(sqlite3_stmt *st, int column, char *buf, size_t max)
{
	const void *name = sqlite3_column_blob(st, column);
	size_t len = (size_t)sqlite3_column_bytes(st, column);

	if (!name || len == 0 || len > max || memchr(name, 0, len))
		return -EUCLEAN;
	memcpy(buf, name, len);
	buf[len] = 0;
	return 0;
}

static int column_target(sqlite3_stmt *st, int column, char **ret)
{
	char buf[META_TARGET_MAX + 1];
	char *copy = NULL;

	if (sqlite3_column_type(st, column) != SQLITE_NULL) {
		int r = column_name(st, column, buf, META_TARGET_MAX);

		if (r < 0)
			return r;
		copy = strdup(buf);
		if (!copy)
			return -ENOMEM;
	}
	*ret = copy;
	return 0;
}

int meta_column_inode(sqlite3_stmt *st, uint64_t ino, struct meta_inode *ret)
{
	struct meta_inode i = { .ino = ino };
	bool ok = column_u32(st, 0, &i.mode) && column_u32(st, 1, &i.uid) &&
		  column_u32(st, 2, &i.gid) && column_u32(st, 3, &i.nlink) &&
		  column_u32(st, 4, &i.rdev) && column_u32(st, 5, &i.flags) &&
		  column_u64(st, 6, &i.size);
	int r;

	if (!ok)
		return -EUCLEAN;
	i.atime = column_time(st, 7);
	i.mtime = column_time(st, 8);
	i.ctime = column_time(st, 9);
	i.btime = column_time(st, 10);
	r = column_target(st, 11, &i.target);
	if (r == 0)
		*ret = i;
	return r;
}

/* A type there is, with what goes with it. */
static bool kind_ok(const struct meta_inode *i)
{
	switch (i->mode & S_IFMT) {
	case S_IFREG:
		return i->size <= OBJECT_MAX;
	case S_IFLNK:
		return i->target;
	case S_IFDIR:
	case S_IFCHR:
	case S_IFBLK:
	case S_IFIFO:
	case S_IFSOCK:
		return true;
	default:
		return false;
	}
}

int meta_row_get_inode(struct meta *m, uint64_t ino, struct meta_inode *ret)
{
	struct query q;
	int r = query_begin(m, SQL_GET_INODE, &q);

	if (r < 0)
		return r;
	sqlite3_bind_int64(q.st, 1, (int64_t)ino);
	r = query_step(&q);
	if (r >= 0)
		r = r ? meta_column_inode(q.st, ino, ret) : -ENOENT;
	query_end(&q);
	if (r == 0 && !kind_ok(ret)) {
		meta_inode_done(ret);
		r = -EUCLEAN;
	}
	return r;
}

void meta_inode_done(struct meta_inode *i)
{
	free(i->target);
	i->target = NULL;
}

static int read_dentry(sqlite3_stmt *st, struct meta_dentry *d)
{
	bool ok = column_u64(st, 0, &d->id) && column_u64(st, 1, &d->ino) &&
		  column_u32(st, 2, &d->mode) && d->id <= META_NUMBER_MAX;

	return ok ? 0 : -EUCLEAN;
}

int meta_row_lookup(struct meta *m, uint64_t parent, const char *name, struct meta_dentry *ret)
{
	struct meta_dentry d = { .parent = parent, .name = name };
	struct query q;
	int r = query_begin(m, SQL_LOOKUP, &q);

	if (r < 0)
		return r;
	sqlite3_bind_int64(q.st, 1, (int64_t)parent);
	sqlite3_bind_blob(q.st, 2, name, (int)strlen(name), SQLITE_STATIC);
	r = query_step(&q);
	if (r >= 0)
		r = r ? read_dentry(q.st, &d) : -ENOENT;
	query_end(&q);
	if (r == 0)
		*ret = d;
	return r;
}

bool meta_name_ok(const char *name)
{
	return *name && strlen(name) <= META_NAME_MAX && !strchr(name, '/') && strcmp(name, ".") &&
	       strcmp(name, "..");
}

static int list_row(sqlite3_stmt *st, uint64_t parent,
		    int (*fn)(void *arg, const struct meta_dentry *d), void *arg)
{
	char name[META_NAME_MAX + 1];
	struct meta_dentry d = { .parent = parent, .name = name };
	int r = read_dentry(st, &d);

	if (r == 0)
		r = column_name(st, 3, name, META_NAME_MAX);
	if (r == 0 && !meta_name_ok(name))
		r = -EUCLEAN;
	return r < 0 ? r : fn(arg, &d);
}

int meta_row_list(struct meta *m, uint64_t parent, uint64_t after,
		  int (*fn)(void *arg, const struct meta_dentry *d), void *arg)
{
	struct query q;
	int r;

	if (after > INT64_MAX)
		return 0;
	r = query_begin(m, SQL_LIST, &q);
	if (r < 0)
		return r;
	sqlite3_bind_int64(q.st, 1, (int64_t)parent);
	sqlite3_bind_int64(q.st, 2, (int64_t)after);
	while ((r = query_step(&q)) == 1) {
		r = list_row(q.st, parent, fn, arg);
		if (r)
			break;
	}
	query_end(&q);
	return r;
}

int meta_row_get_xattrs(struct meta *m, uint64_t ino,
			int (*fn)(void *arg, const char *name, const void *value, size_t len),
			void *arg)
{
	char name[META_NAME_MAX + 1];
	struct query q;
	int r = query_begin(m, SQL_GET_XATTRS, &q);

	if (r < 0)
		return r;
	sqlite3_bind_int64(q.st, 1, (int64_t)ino);
	while ((r = query_step(&q)) == 1) {
		const void *value = sqlite3_column_blob(q.st, 1);
		size_t len = (size_t)sqlite3_column_bytes(q.st, 1);

		r = column_name(q.st, 0, name, META_NAME_MAX);
		if (r == 0)
			r = len <= META_VALUE_MAX ? fn(arg, name, value, len) : -EUCLEAN;
		if (r)
			break;
	}
	query_end(&q);
	return r;
}

static int read_extents(sqlite3_stmt *st, struct extmap **ret, uint64_t *ret_size)
{
	struct extmap *map;
	uint64_t size;
	int r = 0;

	if (!column_u64(st, 0, &size) || size > OBJECT_MAX)
		return -EUCLEAN;
	if (sqlite3_column_type(st, 1) == SQLITE_NULL) {
		map = extmap_new(NULL, 0);
		r = map ? 0 : -ENOMEM;
	} else {
		const uint8_t *packed = sqlite3_column_blob(st, 1);

		r = extmap_decode(packed, (size_t)sqlite3_column_bytes(st, 1), &map);
	}
	if (r < 0)
		return r;
	*ret = map;
	*ret_size = size;
	return 0;
}

static int get_extents(struct meta_conn *c, sqlite3_stmt *st, uint64_t ino, struct extmap **ret,
		       uint64_t *ret_size)
{
	int r;

	sqlite3_bind_int64(st, 1, (int64_t)ino);
	r = meta_conn_step(c, st);
	if (r >= 0)
		r = r ? read_extents(st, ret, ret_size) : -ENOENT;
	return r;
}

int meta_get_extents(struct meta *m, uint64_t ino, struct extmap **ret, uint64_t *ret_size)
{
	struct query q;
	int r = query_begin(m, SQL_GET_EXTENTS, &q);

	if (r < 0)
		return r;
	r = get_extents(q.conn, q.st, ino, ret, ret_size);
	query_end(&q);
	return r;
}

int meta_txn_get_extents(struct meta_txn *t, uint64_t ino, struct extmap **ret, uint64_t *ret_size)
{
	struct meta_conn *c = &t->meta->writer;
	sqlite3_stmt *st = c->stmt[SQL_GET_EXTENTS];
	int r = t->err ? t->err : get_extents(c, st, ino, ret, ret_size);

	sqlite3_reset(st);
	if (r < 0 && r != -ENOENT)
		t->err = r;
	return r;
}

int meta_column_chunk(sqlite3_stmt *st, struct meta_chunk *c)
{
	const void *hash = sqlite3_column_blob(st, 1);
	uint32_t codec, params;
	uint64_t offset;
	XXH128_hash_t h;
	bool ok = hash && sqlite3_column_bytes(st, 1) == 16 &&
		  column_u64(st, 0, &c->info.chunk_id) && column_u32(st, 2, &c->info.tenant) &&
		  column_u32(st, 3, &c->loc.segment) && column_u64(st, 4, &offset) &&
		  column_u32(st, 5, &c->info.raw_len) && column_u32(st, 6, &c->info.stored_len) &&
		  column_u32(st, 7, &codec) && column_u32(st, 8, &params) &&
		  column_u32(st, 9, &c->refs);

	if (!ok || codec > UINT8_MAX || offset % RECORD_ALIGN || offset / RECORD_ALIGN > UINT32_MAX)
		return -EUCLEAN;
	h = XXH128_hashFromCanonical(hash);
	c->info.hash = (struct hash128){ .lo = h.low64, .hi = h.high64 };
	c->info.codec = (uint8_t)codec;
	for (int i = 0; i < CODEC_PARAMS; i++)
		c->info.params[i] = (uint8_t)(params >> 8 * i);
	c->loc.offset = (uint32_t)(offset / RECORD_ALIGN);
	return 0;
}

int meta_next_chunk(struct meta *m, uint64_t from, uint64_t *ret, uint64_t *ret_max)
{
	struct query q;
	int r;

	if (from > INT64_MAX)
		return -ENOENT;
	r = query_begin(m, SQL_NEXT_CHUNK, &q);
	if (r < 0)
		return r;
	sqlite3_bind_int64(q.st, 1, (int64_t)from);
	r = query_step(&q);
	if (r == 1 && sqlite3_column_type(q.st, 0) == SQLITE_NULL)
		r = -ENOENT;
	else if (r == 1)
		r = column_u64(q.st, 0, ret) && column_u64(q.st, 1, ret_max) ? 0 : -EUCLEAN;
	query_end(&q);
	return r;
}

int meta_for_chunks(struct meta *m, uint64_t first, uint64_t last,
		    int (*fn)(void *arg, const struct meta_chunk *c), void *arg)
{
	struct query q;
	int r = query_begin(m, SQL_SOME_CHUNKS, &q);

	if (r < 0)
		return r;
	sqlite3_bind_int64(q.st, 1, (int64_t)first);
	sqlite3_bind_int64(q.st, 2, last > INT64_MAX ? INT64_MAX : (int64_t)last);
	while ((r = query_step(&q)) == 1) {
		struct meta_chunk c = { 0 };

		r = meta_column_chunk(q.st, &c);
		if (r == 0)
			r = fn(arg, &c);
		if (r)
			break;
	}
	query_end(&q);
	return r;
}

static int extents_row(sqlite3_stmt *st,
		       int (*fn)(void *arg, uint64_t ino, const struct extmap *map), void *arg)
{
	const uint8_t *packed = sqlite3_column_blob(st, 1);
	struct extmap *map;
	uint64_t ino;
	int r = extmap_decode(packed, (size_t)sqlite3_column_bytes(st, 1), &map);

	if (r < 0)
		return r;
	r = column_u64(st, 0, &ino) ? fn(arg, ino, map) : -EUCLEAN;
	extmap_unref(map);
	return r;
}

int meta_for_extents(struct meta *m, int (*fn)(void *arg, uint64_t ino, const struct extmap *map),
		     void *arg)
{
	struct query q;
	int r = query_begin(m, SQL_ALL_EXTENTS, &q);

	if (r < 0)
		return r;
	while ((r = query_step(&q)) == 1) {
		r = extents_row(q.st, fn, arg);
		if (r)
			break;
	}
	query_end(&q);
	return r;
}

static void load_scrub(sqlite3_stmt *st, struct scrub_status *at)
{
	const char *key = (const char *)sqlite3_column_text(st, 0);
	int64_t value = sqlite3_column_int64(st, 1);

	if (!key || value < 0)
		return;
	if (!strcmp(key, "scrub_next"))
		at->next = (uint64_t)value;
	else if (!strcmp(key, "scrub_last"))
		at->last = (uint64_t)value;
	else if (!strcmp(key, "scrub_began"))
		at->began = value;
	else if (!strcmp(key, "scrub_ended"))
		at->ended = value;
}

int meta_get_scrub(struct meta *m, struct scrub_status *ret)
{
	struct scrub_status at = { 0 };
	struct query q;
	int r = query_begin(m, SQL_ALL_META, &q);

	if (r < 0)
		return r;
	while ((r = query_step(&q)) == 1)
		load_scrub(q.st, &at);
	query_end(&q);
	if (!r)
		*ret = at;
	return r;
}

int meta_for_segments(struct meta *m, int (*fn)(void *arg, uint32_t n, uint64_t used), void *arg)
{
	struct query q;
	int r = query_begin(m, SQL_ALL_SEGMENTS, &q);

	if (r < 0)
		return r;
	while ((r = query_step(&q)) == 1) {
		uint64_t used;
		uint32_t n;

		r = column_u32(q.st, 0, &n) && column_u64(q.st, 1, &used) ? fn(arg, n, used) :
									    -EUCLEAN;
		if (r)
			break;
	}
	query_end(&q);
	return r;
}

/* Where a row of table meta goes; the number of its bit in the set of those seen, -1: not ours. */
static int load_row(struct meta *m, sqlite3_stmt *st)
{
	int64_t epoch = 0;
	const struct {
		const char *key;
		int64_t *to;
	} numbers[] = {
		{ "epoch", &epoch },
		{ "logical_bytes", &m->committed.logical_bytes },
		{ "files", &m->committed.files },
		{ "inodes", &m->committed.inodes },
		{ "max_ino", &m->committed.max_ino },
		{ "max_dentry_id", &m->committed.max_dentry_id },
	};
	const char *key = (const char *)sqlite3_column_text(st, 0);

	if (key && !strcmp(key, "uuid"))
		return column_name(st, 1, m->uuid, sizeof(m->uuid) - 1) < 0 ? -1 : 6;
	for (int i = 0; key && i < 6; i++) {
		if (strcmp(key, numbers[i].key))
			continue;
		*numbers[i].to = sqlite3_column_int64(st, 1);
		if (i == 0)
			m->epoch = (uint64_t)epoch;
		return *numbers[i].to < 0 ? -1 : i;
	}
	return -1;
}

int meta_load(struct meta *m)
{
	unsigned seen = 0;
	struct query q;
	int r = query_begin(m, SQL_ALL_META, &q);

	if (r < 0)
		return r;
	while ((r = query_step(&q)) == 1) {
		int n = load_row(m, q.st);

		if (n >= 0)
			seen |= 1u << n;
	}
	query_end(&q);
	if (r == 0 &&
	    (seen != 0x7f || strlen(m->uuid) != 36 || strspn(m->uuid, "0123456789abcdef-") != 36))
		r = -EUCLEAN;
	if (r == 0 && ((uint64_t)m->committed.max_ino > META_NUMBER_MAX ||
		       (uint64_t)m->committed.max_dentry_id > META_NUMBER_MAX))
		r = -EUCLEAN;
	return r;
}

int meta_get_inode(struct store *s, uint64_t ino, struct meta_inode *ret)
{
	return meta_row_get_inode(store_meta(s), ino, ret);
}

int meta_lookup(struct store *s, uint64_t parent, const char *name, struct meta_dentry *ret)
{
	return meta_row_lookup(store_meta(s), parent, name, ret);
}

int meta_list(struct store *s, uint64_t parent, uint64_t after,
	      int (*fn)(void *arg, const struct meta_dentry *d), void *arg)
{
	return meta_row_list(store_meta(s), parent, after, fn, arg);
}

int meta_get_xattrs(struct store *s, uint64_t ino,
		    int (*fn)(void *arg, const char *name, const void *value, size_t len),
		    void *arg)
{
	return meta_row_get_xattrs(store_meta(s), ino, fn, arg);
}
