/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store and a run directory from elsewhere: a good one in which rows, records, files or bytes were changed, is
 * mounted, walked, written to and unmounted. It may be refused, and reads may fail; but what is read where nothing
 * was changed that says what the content is, is right, and nothing outside of the store is touched.
 */
#include "store/hash.h"
#include "store/segment_impl.h"
#include "fs/state.h"
#include "tests/fuzz/mounted.h"

#include <inttypes.h>
#include <sqlite3.h>
#include <sys/inotify.h>
#include <sys/xattr.h>

#define CHANGES 6
#define ENTRIES 120 /* looked at, of a tree that may have loops */
#define NAMES   32

static char uuid[37], victim[128];
static uint64_t epoch;
static int watch = -1;
static bool exact; /* nothing was changed that says what the content is */

int LLVMFuzzerInitialize(int *argc, char ***argv);

/* ---- changes of rows ---- */

static const struct table {
	const char *name, *key;
	const char *column[14];
	unsigned columns;
	bool says_content;
} table[] = {
	{ "meta", "key", { "key", "value" }, 2, false },
	{ "inodes",
	  "ino",
	  { "ino", "mode", "uid", "gid", "nlink", "rdev", "flags", "size", "atime_ns", "mtime_ns",
	    "ctime_ns", "btime_ns", "target" },
	  13,
	  true },
	{ "dentries", "parent, id", { "parent", "id", "name", "ino", "mode" }, 5, true },
	{ "xattrs", "ino, name", { "ino", "name", "value" }, 3, false },
	{ "extents", "ino", { "ino", "packed" }, 2, true },
	{ "chunks",
	  "id",
	  { "id", "hash", "tenant", "segment", "offset", "raw", "stored", "codec", "params",
	    "refs" },
	  10,
	  false },
	{ "segments", "n", { "n", "used" }, 2, false },
};
#define TABLES (sizeof(table) / sizeof(table[0]))

static sqlite3 *db_open(void)
{
	char path[128];
	sqlite3 *db;

	snprintf(path, sizeof(path), "%s/meta.db", store_path);
	if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK) {
		sqlite3_close(db);
		return NULL;
	}
	sqlite3_exec(db, "PRAGMA synchronous = OFF", NULL, NULL, NULL);
	return db;
}

static size_t put_leb(uint8_t *p, uint64_t v)
{
	size_t n = 0;

	for (; v >= 0x80; v >>= 7)
		p[n++] = (uint8_t)(v | 0x80);
	p[n++] = (uint8_t)v;
	return n;
}

/* A packed map of up to seven extents. */
static size_t take_extents(struct input *in, uint8_t *buf)
{
	size_t n = 0;

	buf[n++] = 1;
	for (uint64_t k = take(in, 1) % 8; k; k--)
		for (int number = 0; number < 4; number++)
			n += put_leb(buf + n, take_number(in));
	return n;
}

static size_t take_name(struct input *in, char *buf)
{
	static const char *const name[] = {
		"..", ".",     "a/b", "/",   "/etc/passwd",     "../outside/victim",
		"",   ".kvfs", "dir", "new", "user.kvfs.layout"
	};
	uint64_t kind = take(in, 1);
	size_t len;

	if (kind < 160) {
		strcpy(buf, name[kind % (sizeof(name) / sizeof(name[0]))]);
		return strlen(buf);
	}
	len = kind < 170 ? 250 + take(in, 1) % 12 : take(in, 1) % 16;
	for (size_t k = 0; k < len; k++)
		buf[k] = k < 16 ? (char)take(in, 1) : 'n';
	return len;
}

/* Binds a value of a kind the column may have. */
static void bind(struct input *in, sqlite3_stmt *st, const char *column)
{
	static uint8_t buf[512];
	bool blob = !strcmp(column, "name") || !strcmp(column, "target") ||
		    !strcmp(column, "packed") || !strcmp(column, "hash") ||
		    (!strcmp(column, "value") && (take(in, 1) & 1));
	size_t n;

	if (!strcmp(column, "packed"))
		n = take_extents(in, buf);
	else if (blob)
		n = take_name(in, (char *)buf);
	if (blob)
		sqlite3_bind_blob(st, 1, buf, (int)n, SQLITE_TRANSIENT);
	else
		sqlite3_bind_int64(st, 1, (int64_t)take_number(in));
}

/* UPDATE of a cell, INSERT of a row like another but for a cell, or DELETE. */
static void change_row(struct input *in)
{
	const struct table *t = &table[take(in, 1) % TABLES];
	unsigned column = take(in, 1) % t->columns, how = take(in, 1) % 4;
	uint64_t row = take(in, 1) % 24;
	sqlite3 *db = db_open();
	char sql[600], list[200] = "";
	sqlite3_stmt *st = NULL;

	exact &= !t->says_content;
	for (unsigned k = 0; k < t->columns; k++)
		sprintf(list + strlen(list), "%s%s", k ? ", " : "",
			k == column ? "?1" : t->column[k]);
	if (how == 0)
		snprintf(sql, sizeof(sql),
			 "INSERT OR REPLACE INTO %s SELECT %s FROM %s LIMIT 1 OFFSET %u", t->name,
			 list, t->name, (unsigned)row);
	else if (how == 1 && row < 4)
		snprintf(sql, sizeof(sql),
			 "DELETE FROM %s WHERE (%s) = (SELECT %s FROM %s LIMIT 1 OFFSET ?1 %% 24)",
			 t->name, t->key, t->key, t->name);
	else
		snprintf(sql, sizeof(sql),
			 "UPDATE OR REPLACE %s SET %s = ?1 WHERE (%s) = (SELECT %s FROM %s LIMIT 1 "
			 "OFFSET %u)",
			 t->name, t->column[column], t->key, t->key, t->name, (unsigned)row);
	if (db && sqlite3_prepare_v2(db, sql, -1, &st, NULL) == SQLITE_OK) {
		bind(in, st, how == 1 && row < 4 ? "" : t->column[column]);
		sqlite3_step(st);
	}
	sqlite3_finalize(st);
	sqlite3_close(db);
}

/* Another schema. */
static void change_schema(struct input *in)
{
	static const char *const sql[] = {
		"CREATE TRIGGER t AFTER UPDATE ON meta BEGIN DELETE FROM inodes; END",
		"CREATE TRIGGER t AFTER INSERT ON inodes BEGIN UPDATE chunks SET refs = 0; END",
		"ALTER TABLE inodes RENAME TO other; CREATE VIEW inodes AS SELECT * FROM other",
		("ALTER TABLE segments RENAME TO other; CREATE VIEW segments(n, used) AS WITH RECURSIVE "
		 "c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x, x FROM c"),
		"DROP INDEX dentries_name",
		"DROP TABLE xattrs",
		"DROP TABLE xattrs; CREATE TABLE xattrs(ino, name, value)",
		"DROP TABLE extents; CREATE TABLE extents(ino INTEGER PRIMARY KEY, packed)",
		"ALTER TABLE chunks ADD COLUMN more AS (randomblob(100000))",
		"CREATE TABLE other(a); INSERT INTO other VALUES(1)",
		"PRAGMA user_version = 1",
		"PRAGMA journal_mode = DELETE",
	};
	sqlite3 *db = db_open();

	exact = false;
	if (db)
		sqlite3_exec(db, sql[take(in, 1) % (sizeof(sql) / sizeof(sql[0]))], NULL, NULL,
			     NULL);
	sqlite3_close(db);
}

/* ---- changes of files ---- */

static const struct saved_file *file_of(struct input *in)
{
	return &template[take(in, 1) % n_template];
}

static bool is_segment(const struct saved_file *f)
{
	return strstr(f->path, ".seg");
}

static void change_bytes(struct input *in)
{
	const struct saved_file *f = file_of(in);
	uint64_t off = take(in, 3), n = take(in, 1) % 8;
	int fd = open(f->path, O_RDWR | O_NOFOLLOW | O_NONBLOCK);

	exact &= is_segment(f);
	for (uint64_t k = 0; k <= n && fd >= 0; k++) {
		uint8_t byte = (uint8_t)take(in, 1);

		if (f->len && pwrite(fd, &byte, 1, (off_t)((off + k) % f->len)) != 1)
			break;
	}
	if (fd >= 0)
		close(fd);
}

static void change_length(struct input *in)
{
	const struct saved_file *f = file_of(in);
	uint64_t len = take(in, 3);
	int fd = open(f->path, O_RDWR | O_NOFOLLOW | O_NONBLOCK);

	exact &= is_segment(f);
	if (fd < 0)
		return;
	must(!ftruncate(fd, (off_t)(len % (f->len + 8192))));
	close(fd);
}

/* Something else in the place of a file, or a file where none was. */
static void change_file(struct input *in)
{
	static const char *const name[] = { "lock",
					    "meta.db",
					    "meta.db-wal",
					    "meta.db-shm",
					    "segments",
					    "segments/00000001.seg",
					    "segments/00000002.seg",
					    "segments/ffffffff.seg",
					    "segments/fffffffe.seg",
					    "segments/-1.seg",
					    "segments/1.seg",
					    "segments/00000000.seg",
					    "segments/00001000.seg",
					    "segments/x",
					    "more" };
	char path[160], aside[160];
	const char *what = name[take(in, 1) % (sizeof(name) / sizeof(name[0]))];
	unsigned how = take(in, 1) % 6;

	snprintf(path, sizeof(path), "%s/%s", store_path, what);
	snprintf(aside, sizeof(aside), "%s.aside", path);
	exact &= !strncmp(what, "segments/", 9) || !strcmp(what, "more") || !strcmp(what, "lock");
	rename(path, aside);
	if (how == 0)
		must(!symlink(!strcmp(what, "segments") ? outside_path : victim, path));
	else if (how == 1)
		must(!mkfifo(path, 0600));
	else if (how == 2)
		must(!mkdir(path, 0700));
	else if (how == 3)
		put_file(path, "something", 9);
	else if (how == 4)
		must(!symlink(aside, path));
}

/* Where a record is, and how long its file. */
struct place_of {
	uint64_t id, segment, offset;
};

static bool find_chunk(sqlite3 *db, uint64_t k, struct place_of *ret)
{
	sqlite3_stmt *st = NULL;
	bool found = false;

	if (sqlite3_prepare_v2(db, "SELECT id, segment, offset FROM chunks LIMIT 1 OFFSET ?1", -1,
			       &st, NULL) == SQLITE_OK) {
		sqlite3_bind_int64(st, 1, (int64_t)(k % 24));
		found = sqlite3_step(st) == SQLITE_ROW;
		ret->id = (uint64_t)sqlite3_column_int64(st, 0);
		ret->segment = (uint64_t)sqlite3_column_int64(st, 1);
		ret->offset = (uint64_t)sqlite3_column_int64(st, 2);
	}
	sqlite3_finalize(st);
	return found;
}

/* Right sums for whatever the record says now. */
static void sum_record(uint8_t *seg, size_t len, const struct place_of *at)
{
	struct record_header *h = (struct record_header *)(seg + at->offset);
	uint64_t there = len - at->offset - sizeof(*h);

	h->payload_sum = sum64(h + 1, h->stored_len < there ? h->stored_len : there);
	h->header_sum = sum64_seeded(h, 56, at->segment << 32 | at->offset);
}

static void change_record(uint8_t *seg, size_t len, const struct place_of *at, struct input *in,
			  sqlite3 *db)
{
	struct record_header *h = (struct record_header *)(seg + at->offset);
	static const char *const column[] = { "raw", "stored", "codec", "params", "tenant" };
	unsigned field = take(in, 1) % 6;
	uint64_t v = take_number(in);
	char sql[200];

	if (field == 0)
		h->raw_len = (uint32_t)v;
	else if (field == 1)
		h->stored_len = (uint32_t)v;
	else if (field == 2)
		h->codec = (uint8_t)(v &= 7);
	else if (field == 3)
		memcpy(h->params, &(uint32_t){ (uint32_t)v }, sizeof(h->params));
	else if (field == 4)
		h->tenant = (uint32_t)v;
	else if (at->offset + 64 + v % 4096 < len)
		seg[at->offset + 64 + v % 4096] = (uint8_t)take(in, 1);
	sum_record(seg, len, at);
	if (field == 5)
		return;
	snprintf(sql, sizeof(sql), "UPDATE chunks SET %s = %u WHERE id = %" PRIu64, column[field],
		 (unsigned)(uint32_t)v, at->id);
	sqlite3_exec(db, sql, NULL, NULL, NULL);
}

/* A record and its row together, as somebody who knows the format would. */
static void forge(struct input *in)
{
	sqlite3 *db = db_open();
	struct place_of at;
	char path[160];
	struct stat st;
	uint8_t *seg;
	int fd;

	exact = false;
	if (!db || !find_chunk(db, take(in, 1), &at)) {
		sqlite3_close(db);
		return;
	}
	snprintf(path, sizeof(path), "%s/segments/%08" PRIx64 ".seg", store_path, at.segment);
	fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && at.offset < INT32_MAX &&
	    at.offset + 64 < (uint64_t)st.st_size) {
		/* Room for a record as long as records get. */
		size_t len = (size_t)st.st_size + 2 * MIB;

		seg = calloc(1, len);
		must(seg && pread(fd, seg, (size_t)st.st_size, 0) == st.st_size);
		change_record(seg, len, &at, in, db);
		must(pwrite(fd, seg, len, 0) == (ssize_t)len);
		free(seg);
	}
	if (fd >= 0)
		close(fd);
	sqlite3_close(db);
}

/* ---- a run directory ---- */

static size_t take_record(struct input *in, uint8_t *buf, uint32_t *ret_type)
{
	static const uint8_t type[] = { 1, 2, 3, 4, 5, 6, 7, 8, 64, 65, 66, 9 };
	static const uint8_t len[] = { 56, 40, 16, 24, 24, 24, 24, 24, 112, 32, 16, 8 };
	unsigned k = take(in, 1) % sizeof(type);
	size_t n = len[k], more = 0;
	uint64_t v;

	*ret_type = type[k];
	for (size_t at = 0; at < n; at += 8) {
		v = take_number(in);
		memcpy(buf + at, &v, 8);
	}
	if (type[k] == 1)
		memset(buf + 49, 0, 7);
	if (type[k] == 2)
		more = take_extents(in, buf + n);
	else if (type[k] >= 64)
		more = take_name(in, (char *)buf + n);
	if (type[k] == 64) {
		memcpy(buf + 104, &(uint32_t){ (uint32_t)more }, 4);
		memset(buf + 108, 0, 4);
	} else if (type[k] == 65) {
		memcpy(buf + 28, &(uint16_t){ (uint16_t)more }, 2);
		buf[30] &= 1, buf[31] = 0;
	} else if (type[k] == 66) {
		memcpy(buf + 8, &(uint32_t){ 0 }, 4);
		memcpy(buf + 12, &(uint16_t){ (uint16_t)more }, 2);
		buf[14] &= 1, buf[15] = 0;
	}
	return n + more;
}

/* A journal of one group after the other, each whole. */
static void make_journal(struct input *in)
{
	static uint8_t buf[65536];
	char path[128];
	size_t at = 64;

	exact = false;
	memset(buf, 0, sizeof(buf));
	memcpy(buf, "kvjournl\1", 9);
	memcpy(buf + 16, &epoch, 8);
	memcpy(buf + 24, uuid, 36);
	for (uint64_t groups = 1 + take(in, 1) % 6; groups; groups--) {
		uint32_t n = 1 + (uint32_t)take(in, 1) % 4;
		size_t end = at + 16;
		uint64_t sum;

		for (uint32_t k = 0; k < n; k++) {
			uint32_t type = 0;
			size_t len = take_record(in, buf + end + 8, &type);

			memcpy(buf + end, &type, 4);
			memcpy(buf + end + 4, &(uint32_t){ (uint32_t)len }, 4);
			memset(buf + end + 8 + len, 0, 8);
			end += 8 + (len + 7) / 8 * 8;
		}
		sum = sum64_seeded(buf + at + 16, end - at - 16, n);
		memcpy(buf + at, &(uint32_t){ (uint32_t)(end - at) }, 4);
		memcpy(buf + at + 4, &n, 4);
		memcpy(buf + at + 8, &sum, 8);
		at = end;
	}
	snprintf(path, sizeof(path), "%s/journal", run_path);
	put_file(path, buf, at + 8);
}

/* An image of a file that is there, or of none; marked clean or not. */
static void make_image(struct input *in)
{
	char dir[128], path[160];
	uint64_t ino = take(in, 1), size = take_number(in), mark = take_number(in);
	bool link = take(in, 1) % 8 == 0;

	exact = false;
	snprintf(dir, sizeof(dir), "%s/%s", run_path, ino & 1 ? "small" : "images");
	mkdir(dir, 0700);
	snprintf(path, sizeof(path), "%s/%" PRIx64, dir,
		 ino < 240 ? ino % 32 + 1 : take_number(in));
	unlink(path);
	if (link) {
		must(!symlink(victim, path));
		return;
	}
	put_file(path, "image", 5);
	if (size <= INT64_MAX && truncate(path, (off_t)size))
		size = 5;
	setxattr(path, "trusted.kvfs.clean", &mark, sizeof(mark), 0);
}

static void change(struct input *in)
{
	switch (take(in, 1) % 16) {
	case 0:
	case 1:
		return change_bytes(in);
	case 2:
		return change_length(in);
	case 3:
	case 4:
		return change_file(in);
	case 5:
	case 6:
	case 7:
		return forge(in);
	case 8:
		return change_schema(in);
	case 9:
	case 10:
		return make_journal(in);
	case 11:
		return make_image(in);
	default:
		return change_row(in);
	}
}

/* ---- using it ---- */

struct seen {
	uint64_t node, parent;
	uint32_t mode;
	char name[NAMES];
};
static struct seen seen[ENTRIES];
static unsigned n_seen;

static void check_content(const struct seen *e, uint64_t off)
{
	for (unsigned k = 0; k < TEMPLATE_FILES && !off; k++)
		if (!strcmp(e->name, template_name[k]))
			must(answer.len == template_len[k] &&
			     !memcmp(answer.body, template_data[k], answer.len));
	if (!off && !strcmp(e->name, "copy"))
		must(answer.len == template_len[2] &&
		     !memcmp(answer.body, template_data[2], answer.len));
}

static void read_file(const struct seen *e, uint64_t size)
{
	const uint64_t at[] = { 0, size / 2, size ? size - 1 : 0 };
	struct fuse_open_in o = { .flags = O_RDONLY };
	struct fuse_release_in rel = { 0 };

	if (ask(FUSE_OPEN, e->node, &o, sizeof(o)))
		return;
	rel.fh = asked_fh(false);
	for (unsigned k = 0; k < 3; k++) {
		struct fuse_read_in r = { .fh = rel.fh, .offset = at[k], .size = 100000 };

		if (!ask(FUSE_READ, e->node, &r, sizeof(r))) {
			must(answer.len <= r.size);
			if (exact)
				check_content(e, at[k]);
		}
	}
	ask(FUSE_RELEASE, e->node, &rel, sizeof(rel));
}

static void look_at(const struct seen *e)
{
	struct fuse_getattr_in g = { 0 };
	struct fuse_getxattr_in x = { .size = 65536 };
	struct fuse_attr_out a;

	if (!ask(FUSE_GETATTR, e->node, &g, sizeof(g))) {
		memcpy(&a, answer.body, sizeof(a));
		if (S_ISREG(e->mode))
			read_file(e, a.attr.size);
	}
	ask(FUSE_READLINK, e->node, "", 0);
	ask(FUSE_LISTXATTR, e->node, &x, sizeof(x));
	send_as(0, FUSE_GETXATTR, e->node,
		message_add(message_add(message_new(), &x, sizeof(x)), "user.kvfs.layout", 17));
}

static void add_seen(uint64_t parent, const struct fuse_direntplus *d)
{
	struct seen *e = &seen[n_seen];

	if (n_seen == ENTRIES || !d->entry_out.nodeid || d->dirent.namelen >= NAMES ||
	    (d->dirent.name[0] == '.' && d->dirent.namelen < 3))
		return;
	*e = (struct seen){ d->entry_out.nodeid, parent, d->entry_out.attr.mode, "" };
	memcpy(e->name, d->dirent.name, d->dirent.namelen);
	n_seen++;
}

static void list(uint64_t dir)
{
	struct fuse_open_in o = { .flags = O_RDONLY };
	struct fuse_release_in rel = { 0 };
	struct fuse_read_in r = { .size = 8192 };
	static uint8_t page[8192];
	size_t len;

	if (ask(FUSE_OPENDIR, dir, &o, sizeof(o)))
		return;
	r.fh = rel.fh = asked_fh(false);
	for (int pages = 0; pages < 4 && !ask(FUSE_READDIRPLUS, dir, &r, sizeof(r)); pages++) {
		len = answer.len;
		must(len <= sizeof(page));
		memcpy(page, answer.body, len);
		for (size_t at = 0; at < len;) {
			struct fuse_direntplus *d = (struct fuse_direntplus *)(page + at);

			/* As the kernel takes them. */
			must(len - at >= FUSE_NAME_OFFSET_DIRENTPLUS &&
			     FUSE_DIRENTPLUS_SIZE(d) <= len - at);
			must(d->dirent.namelen && d->dirent.namelen <= 255 &&
			     !memchr(d->dirent.name, '/', d->dirent.namelen));
			r.offset = d->dirent.off;
			add_seen(dir, d);
			at += FUSE_DIRENTPLUS_SIZE(d);
		}
		if (!len)
			break;
	}
	ask(FUSE_RELEASEDIR, dir, &rel, sizeof(rel));
}

static void walk(void)
{
	n_seen = 0;
	list(FUSE_ROOT_ID);
	for (unsigned k = 0; k < n_seen; k++) {
		look_at(&seen[k]);
		if (S_ISDIR(seen[k].mode))
			list(seen[k].node);
	}
}

static void write_to(const struct seen *e)
{
	struct fuse_open_in o = { .flags = O_RDWR };
	struct fuse_write_in w = { .offset = 30, .size = 4 };
	struct fuse_setattr_in a = { .valid = FATTR_SIZE, .size = 9000 };
	struct fuse_release_in rel = { 0 };

	if (ask(FUSE_OPEN, e->node, &o, sizeof(o)))
		return;
	w.fh = rel.fh = asked_fh(false);
	send_as(0, FUSE_WRITE, e->node,
		message_add(message_add(message_new(), &w, sizeof(w)), "more", 4));
	ask(FUSE_SETATTR, e->node, &a, sizeof(a));
	ask(FUSE_RELEASE, e->node, &rel, sizeof(rel));
}

static void write_all(struct input *in)
{
	struct fuse_fsync_in sync = { 0 };
	struct fuse_open_in o = { 0 };
	struct fuse_rename_in ren = { .newdir = FUSE_ROOT_ID };

	for (unsigned k = 0; k < n_seen && k < 24; k++) {
		const struct seen *e = &seen[k];

		switch (take(in, 1) % 5) {
		case 0:
		case 1:
			if (S_ISREG(e->mode))
				write_to(e);
			break;
		case 2:
			ask(S_ISDIR(e->mode) ? FUSE_RMDIR : FUSE_UNLINK, e->parent, e->name,
			    strlen(e->name) + 1);
			break;
		case 3:
			message_add(message_add(message_new(), &ren, sizeof(ren)), e->name,
				    strlen(e->name) + 1);
			send_as(0, FUSE_RENAME, e->parent, message_add(&message, "moved", 6));
		}
	}
	ask(FUSE_MKNOD, FUSE_ROOT_ID, "\xa4\x81\0\0\0\0\0\0\0\0\0\0\0\0\0\0new", 20);
	if (ask(FUSE_OPENDIR, FUSE_ROOT_ID, &o, sizeof(o)))
		return;
	sync.fh = asked_fh(false);
	ask(FUSE_FSYNCDIR, FUSE_ROOT_ID, &sync, sizeof(sync));
	ask(FUSE_RELEASEDIR, FUSE_ROOT_ID, &(struct fuse_release_in){ .fh = sync.fh },
	    sizeof(struct fuse_release_in));
}

/* Walked by the daemon itself. */
static void evict_all(void)
{
	struct fuse_setxattr_in x = { .size = 4 };

	message_add(message_new(), &x, FUSE_COMPAT_SETXATTR_IN_SIZE);
	message_add(message_add(&message, "user.kvfs.evict", 16), "cold", 4);
	send_as(0, FUSE_SETXATTR, FUSE_ROOT_ID, &message);
}

/* Nothing outside was opened, changed or made. */
static void check_outside(void)
{
	char buf[4096] __attribute__((aligned(8)));

	must(read(watch, buf, sizeof(buf)) < 0 && errno == EAGAIN);
}

/* ---- the fuzzer ---- */

static void read_identity(void)
{
	sqlite3 *db = db_open();
	sqlite3_stmt *st;

	must(db && sqlite3_prepare_v2(db,
				      "SELECT (SELECT value FROM meta WHERE key = 'uuid'),"
				      " (SELECT value FROM meta WHERE key = 'epoch')",
				      -1, &st, NULL) == SQLITE_OK);
	must(sqlite3_step(st) == SQLITE_ROW);
	snprintf(uuid, sizeof(uuid), "%s", (const char *)sqlite3_column_text(st, 0));
	epoch = (uint64_t)sqlite3_column_int64(st, 1);
	sqlite3_finalize(st);
	sqlite3_close(db);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	place_make();
	template_make();
	read_identity();
	snprintf(victim, sizeof(victim), "%s/victim", outside_path);
	put_file(victim, "what is not the store's", 23);
	must(!truncate(victim, 100000));
	watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	must(inotify_add_watch(watch, outside_path, IN_ALL_EVENTS) >= 0);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct input in = { data, len };
	uint64_t mode = take(&in, 1), changes = take(&in, 1) % CHANGES;

	template_put();
	exact = true;
	for (uint64_t k = 0; k <= changes; k++)
		change(&in);
	for (int mounts = 0; mounts < 2; mounts++) {
		if (mounted_open(mode & 3, (mode & 0xf0) == 0xf0))
			break;
		walk();
		evict_all();
		walk();
		exact = false;
		write_all(&in);
		mounted_close();
		if (!(mode & 4))
			break;
	}
	check_outside();
	return 0;
}
