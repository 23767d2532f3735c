/* SPDX-License-Identifier: Apache-2.0 */
/* fsck_mend: what is wrong is put right, in a copy of meta.db that takes its place when it is whole. */
#include "store/fsck_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

int fsck_mend(struct fsck *f, const char *sql, int64_t a, int64_t b, int64_t c, const void *blob,
	      size_t len)
{
	struct fsck_mend m = { sql, { a, b, c }, NULL, len };
	int r;

	if (!f->opt->repair)
		return 0;
	r = fsck_room((void **)&f->mend, f->mends, &f->mends_cap, sizeof(*f->mend));
	if (!r && blob) {
		m.blob = malloc(len + 1);
		if (!m.blob)
			return -ENOMEM;
		memcpy(m.blob, blob, len);
	}
	if (!r)
		f->mend[f->mends++] = m;
	return r;
}

/* A statement that is NULL stands for the row of a chunk. */
int fsck_mend_chunk(struct fsck *f, const struct meta_chunk *c)
{
	return fsck_mend(f, NULL, 0, 0, 0, c, sizeof(*c));
}

/* ---- the copy ---- */

#define COPY   "meta.db.fsck-new"
#define BEFORE "meta.db.before-fsck"
#define ROUNDS 6u
#define SQL_ROW                                                                                    \
	"INSERT OR REPLACE INTO chunks(id, hash, tenant, segment, offset, raw, stored, codec,"     \
	" params, refs) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"

static void remove_copy(struct fsck *f)
{
	unlinkat(f->dir_fd, COPY, 0);
	unlinkat(f->dir_fd, COPY "-journal", 0);
	unlinkat(f->dir_fd, COPY "-wal", 0);
	unlinkat(f->dir_fd, COPY "-shm", 0);
}

static int no_copy(struct fsck *f, int r)
{
	return fsck_fail(f, r, "%s/" COPY ": %s: meta.db is as it was", f->path, strerror(-r));
}

/* An empty file of the owner and mode of meta.db. */
static int create_copy(struct fsck *f)
{
	struct stat st;
	int fd, r = 0;

	remove_copy(f);
	if (fstatat(f->dir_fd, "meta.db", &st, 0))
		return -errno;
	fd = openat(f->dir_fd, COPY, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (fchown(fd, st.st_uid, st.st_gid) || fchmod(fd, st.st_mode & 0777))
		r = -errno;
	close(fd);
	return r;
}

static int open_copy(struct fsck *f, struct meta_conn *ret)
{
	char *path, *uri;
	int r;

	if (asprintf(&path, "%s/" COPY, f->path) < 0)
		return -ENOMEM;
	uri = meta_uri(path, "");
	free(path);
	if (!uri)
		return -ENOMEM;
	r = meta_conn_open(uri, true, ret);
	free(uri);
	return r;
}

/* Page by page, with what is in the log. */
static int copy_pages(sqlite3 *from, sqlite3 *to)
{
	sqlite3_backup *b = sqlite3_backup_init(to, "main", from, "main");
	struct meta_conn c = { .db = to };
	int rc;

	if (!b)
		return meta_conn_errno(&c, sqlite3_errcode(to));
	while ((rc = sqlite3_backup_step(b, 1024)) == SQLITE_OK)
		;
	sqlite3_backup_finish(b);
	return rc == SQLITE_DONE ? 0 : meta_conn_errno(&c, rc);
}

/* From here on the copy is what is checked. Until it is whole it need not survive anything. */
static int make_copy(struct fsck *f)
{
	struct meta_conn c = { 0 };
	int r = create_copy(f);

	if (!r)
		r = open_copy(f, &c);
	if (!r)
		r = copy_pages(f->db, c.db);
	if (!r)
		r = meta_conn_exec(&c, "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL;"
				       "PRAGMA cache_size = -65536; PRAGMA trusted_schema = OFF");
	if (r) {
		meta_conn_close(&c, true);
		return r;
	}
	sqlite3_close(f->db);
	f->db = c.db;
	f->copied = true;
	return 0;
}

static int open_nowhere(struct meta_conn *ret)
{
	int rc = sqlite3_open("", &ret->db);

	return rc == SQLITE_OK ? 0 : meta_conn_errno(ret, rc);
}

int fsck_salvage(struct fsck *f)
{
	struct meta_conn c = { 0 };
	int r = f->opt->repair ? create_copy(f) : 0;

	if (!r)
		r = f->opt->repair ? open_copy(f, &c) : open_nowhere(&c);
	if (!r)
		r = meta_conn_exec(&c, "PRAGMA page_size = 4096; PRAGMA journal_mode = DELETE;"
				       "PRAGMA synchronous = FULL; PRAGMA cache_size = -65536");
	if (!r)
		r = fsck_pages_copy(f, c.db);
	if (r) {
		meta_conn_close(&c, true);
		return f->opt->repair ? no_copy(f, r) : r;
	}
	sqlite3_close(f->db);
	f->db = c.db;
	f->copied = f->opt->repair;
	return 0;
}

/* ---- what is put right ---- */

static void bind_chunk(sqlite3_stmt *st, const struct meta_chunk *c)
{
	XXH128_hash_t hash = { .low64 = c->info.hash.lo, .high64 = c->info.hash.hi };
	XXH128_canonical_t canonical;
	uint32_t params = 0;

	XXH128_canonicalFromHash(&canonical, hash);
	for (int i = 0; i < CODEC_PARAMS; i++)
		params |= (uint32_t)c->info.params[i] << 8 * i;
	sqlite3_bind_int64(st, 1, (int64_t)c->info.chunk_id);
	sqlite3_bind_blob(st, 2, &canonical, sizeof(canonical), SQLITE_TRANSIENT);
	sqlite3_bind_int64(st, 3, c->info.tenant);
	sqlite3_bind_int64(st, 4, c->loc.segment);
	sqlite3_bind_int64(st, 5, (int64_t)c->loc.offset * RECORD_ALIGN);
	sqlite3_bind_int64(st, 6, c->info.raw_len);
	sqlite3_bind_int64(st, 7, c->info.stored_len);
	sqlite3_bind_int64(st, 8, c->info.codec);
	sqlite3_bind_int64(st, 9, params);
	sqlite3_bind_int64(st, 10, c->refs);
}

static int run_mend(struct fsck *f, const struct fsck_mend *m)
{
	struct meta_chunk chunk;
	sqlite3_stmt *st;
	int r = fsck_query(f, m->sql ?: SQL_ROW, &st);

	if (r)
		return r;
	if (!m->sql) {
		memcpy(&chunk, m->blob, sizeof(chunk));
		bind_chunk(st, &chunk);
	} else {
		for (int i = 0; i < 3; i++)
			sqlite3_bind_int64(st, i + 1, m->number[i]);
		if (m->blob)
			sqlite3_bind_blob(st, 4, m->blob, (int)m->len, SQLITE_STATIC);
	}
	r = fsck_step(f, st);
	sqlite3_finalize(st);
	return r > 0 ? 0 : r;
}

static int run_mends(struct fsck *f)
{
	struct meta_conn c = { .db = f->db };
	int r = meta_conn_exec(&c, "BEGIN IMMEDIATE");

	for (size_t k = 0; k < f->mends && !r; k++)
		r = run_mend(f, &f->mend[k]);
	return r ? r : meta_conn_exec(&c, "COMMIT");
}

/* Until nothing is left that could be put right: what one pass does may be the next one's business. */
static int mend_all(struct fsck *f)
{
	struct fsck_result told = *f->ret;
	unsigned round = 0;
	int r = 0;

	f->quiet = true;
	while (!r && f->ret->mended) {
		if (round++ == ROUNDS)
			return fsck_fail(
				f, -EUCLEAN,
				"%s: what is wrong is not to be put right: restore meta.db from"
				" a copy; it is as it was",
				f->path);
		r = run_mends(f);
		if (!r)
			r = fsck_check(f);
	}
	*f->ret = told;
	return r > 0 ? -EUCLEAN : r;
}

/* ---- its place ---- */

static int sync_copy(struct fsck *f)
{
	int fd = openat(f->dir_fd, COPY, O_RDWR | O_CLOEXEC | O_NOFOLLOW), r = 0;

	if (fd < 0)
		return -errno;
	if (fsync(fd))
		r = -errno;
	close(fd);
	return r;
}

/* The name meta.db is one or the other at every moment. */
static int install(struct fsck *f)
{
	int r = sync_copy(f);

	if (r)
		return r;
	unlinkat(f->dir_fd, BEFORE, 0);
	if (linkat(f->dir_fd, "meta.db", f->dir_fd, BEFORE, 0) || fsync(f->dir_fd))
		return -errno;
	if (renameat(f->dir_fd, COPY, f->dir_fd, "meta.db") || fsync(f->dir_fd))
		return -errno;
	f->ret->repaired = true;
	return 0;
}

static int finish_copy(struct fsck *f)
{
	struct meta_conn c = { .db = f->db };
	int r = meta_conn_exec(&c, "PRAGMA journal_mode = WAL");

	if (sqlite3_close(f->db) != SQLITE_OK && !r)
		r = -EIO;
	f->db = NULL;
	return r ? r : install(f);
}

int fsck_repair(struct fsck *f)
{
	uint32_t headers = f->bad_headers;
	int r;

	if (!f->mends && !f->copied)
		return fsck_segments_mend(f);
	r = f->copied ? 0 : make_copy(f);
	if (!r)
		r = mend_all(f);
	if (!r)
		r = finish_copy(f);
	if (r) {
		remove_copy(f);
		return f->err->text[0] ? r : no_copy(f, r);
	}
	return headers ? fsck_segments_mend(f) : 0;
}
