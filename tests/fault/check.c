/* SPDX-License-Identifier: Apache-2.0 */
/* check: see check.h. Nothing fails here: what is wrong now is what the fault has left. */
#include "tests/fault/check.h"
#include "store/extmap.h"
#include "tests/fault/model.h"
#include "tests/fault/workload.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint8_t got[FILE_MAX + 1];

static struct store *open_found(const char *path, const char *rundir, bool replay)
{
	struct store_error err;
	struct store *s;
	int r = workload_open(path, rundir, &s, &err);

	if (r) {
		model_wrong("it does not open: %s", err.text);
		return NULL;
	}
	if (replay)
		workload_replay(s);
	r = store_start(s);
	if (r)
		model_wrong("it does not start: %s", strerror(-r));
	return s;
}

/* ---- rows ---- */

static int see_marker(void *arg, const char *name, const void *value, size_t len)
{
	if (!strcmp(name, MARKER) && len == sizeof(int))
		memcpy(arg, value, len);
	return 0;
}

static int see_name(void *arg, const struct meta_dentry *d)
{
	const struct state *st = arg;
	int n, f = (int)d->ino - FIRST_INO;

	if (sscanf(d->name, "name-%d", &n) != 1 || n < 0 || n >= NAMES || st->name[n] != f)
		model_wrong("the name %s is of file %d", d->name, f);
	return 0;
}

static void check_names(struct store *s, const struct state *st)
{
	struct meta_dentry d;
	char name[16];

	meta_list(s, 1, 0, see_name, (void *)st);
	for (int n = 0; n < NAMES; n++) {
		snprintf(name, sizeof(name), "name-%d", n);
		if (st->name[n] >= 0 && meta_lookup(s, 1, name, &d))
			model_wrong("the name %s is missing", name);
	}
}

/* The transaction that left the store so. */
static int find_state(struct store *s, int first, int last)
{
	int n = 0, r = meta_get_xattrs(s, 1, see_marker, &n);

	if (r)
		model_wrong("the root's attributes: %s", strerror(-r));
	else if (n < first || n > last)
		model_wrong("the last transaction there is %d, not one of %d to %d", n, first,
			    last);
	return model->wrong ? -1 : n;
}

static void check_rows(struct store *s, const struct state *st)
{
	struct meta_inode i;

	check_names(s, st);
	for (int f = 0; f < FILES; f++) {
		int r = meta_get_inode(s, FIRST_INO + (uint64_t)f, &i);

		if (r == 0)
			meta_inode_done(&i);
		if (r != (st->version[f] >= 0 ? 0 : -ENOENT))
			model_wrong("the row of file %d: %s", f, strerror(-r));
	}
}

/* ---- bytes ---- */

static struct object *object(struct store *s, int f)
{
	struct object *o;
	int r = object_get(s, FIRST_INO + (uint64_t)f, 0, &o);

	if (!r)
		return o;
	model_wrong("file %d is not there: %s", f, strerror(-r));
	return NULL;
}

/* Bytes up to the end; what cannot be read, and may be damaged, is passed over. -1: it may not. */
static int64_t read_all(struct object *o, int f,
			bool (*agrees)(int f, const uint8_t *b, uint32_t n, uint32_t off))
{
	struct object_stat st;
	uint32_t at = 0;

	object_stat(o, &st);
	while (at < FILE_MAX) {
		uint32_t want = model->damaged ? 1024 : 128u << 10;
		ssize_t n = object_read(o, got, want, at);

		if (n == -EIO && model->damaged && at < st.size) {
			at += want;
			continue;
		}
		if (n < 0)
			model_wrong("file %d at %u cannot be read: %s", f, at, strerror((int)-n));
		if (n < 0 || (n > 0 && !agrees(f, got, (uint32_t)n, at)))
			return -1;
		if (n == 0)
			break;
		at += (uint32_t)n;
	}
	return at < st.size ? at : (int64_t)st.size;
}

static const struct content *wanted;

static bool is_wanted(int f, const uint8_t *b, uint32_t n, uint32_t off)
{
	if (off + n > wanted->size)
		model_wrong("file %d has more than its %u bytes", f, wanted->size);
	for (uint32_t i = 0; i < n && !model->wrong; i++)
		if (b[i] != wanted->byte[off + i])
			model_wrong("file %d of version %d: byte %u is %#x, not %#x", f,
				    (int)(wanted - model->version), off + i, b[i],
				    wanted->byte[off + i]);
	return !model->wrong;
}

static void check_committed(struct store *s, const struct state *st)
{
	for (int f = 0; f < FILES; f++) {
		struct object *o;
		int64_t n;

		if (st->version[f] < 0)
			continue;
		wanted = &model->version[st->version[f]];
		o = object(s, f);
		if (!o)
			return;
		n = read_all(o, f, is_wanted);
		if (n >= 0 && n != wanted->size)
			model_wrong("file %d has %lld bytes, not %u", f, (long long)n,
				    wanted->size);
		object_unref(o);
	}
}

static void check_acked(struct store *s)
{
	for (int f = 0; f < FILES; f++) {
		const struct file *m = &model->file[f];
		struct object *o;
		int64_t n;

		if (!m->made || m->discarded)
			continue;
		o = object(s, f);
		if (!o)
			return;
		n = read_all(o, f, model_agrees);
		if (n >= 0)
			model_agrees_size(f, (uint64_t)n);
		object_unref(o);
	}
}

/* ---- what is not in the model ---- */

struct refs {
	uint64_t chunk[4096];
	unsigned refs[4096];
	size_t n;
};

static void count_ref(struct refs *v, uint64_t chunk)
{
	size_t i = 0;

	while (i < v->n && v->chunk[i] != chunk)
		i++;
	if (i == sizeof(v->chunk) / sizeof(v->chunk[0])) {
		model_wrong("no room to count so many chunks");
		return;
	}
	if (i == v->n) {
		v->chunk[v->n++] = chunk;
		v->refs[i] = 0;
	}
	v->refs[i]++;
}

static void count_refs(sqlite3 *db, struct refs *v)
{
	sqlite3_stmt *st;

	v->n = 0;
	sqlite3_prepare_v2(db, "SELECT packed FROM extents", -1, &st, NULL);
	while (sqlite3_step(st) == SQLITE_ROW) {
		struct extmap *m;
		int r = extmap_decode(sqlite3_column_blob(st, 0),
				      (size_t)sqlite3_column_bytes(st, 0), &m);

		if (r) {
			model_wrong("extents: %s", strerror(-r));
			break;
		}
		for (size_t i = 0; i < m->n; i++)
			count_ref(v, m->e[i].chunk);
		extmap_unref(m);
	}
	sqlite3_finalize(st);
}

/* Each chunk has a row, that says how often it is used, and a segment. */
static void check_chunks(sqlite3 *db, const char *path)
{
	static struct refs v;
	sqlite3_stmt *st;
	size_t found = 0;

	count_refs(db, &v);
	sqlite3_prepare_v2(db, "SELECT id, refs, segment FROM chunks WHERE refs > 0", -1, &st,
			   NULL);
	while (sqlite3_step(st) == SQLITE_ROW) {
		uint64_t id = (uint64_t)sqlite3_column_int64(st, 0);
		unsigned refs = (unsigned)sqlite3_column_int64(st, 1);
		char name[600];
		size_t i = 0;

		while (i < v.n && v.chunk[i] != id)
			i++;
		if (i == v.n || v.refs[i] != refs)
			model_wrong("chunk %llu has %u references, its row says %u",
				    (unsigned long long)id, i == v.n ? 0 : v.refs[i], refs);
		found += i < v.n;
		snprintf(name, sizeof(name), "%s/segments/%08x.seg", path,
			 (unsigned)sqlite3_column_int64(st, 2));
		if (access(name, F_OK) && !model->damaged)
			model_wrong("%s is missing", name);
	}
	sqlite3_finalize(st);
	if (found != v.n && !model->wrong)
		model_wrong("%zu chunks have a row, %zu are used", found, v.n);
}

/* A query that must give nothing, and what is wrong if it does. */
static void none(sqlite3 *db, const char *sql, const char *what)
{
	sqlite3_stmt *st;

	if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) != SQLITE_OK ||
	    sqlite3_step(st) != SQLITE_DONE)
		model_wrong("meta.db: %s: %s", what, sqlite3_errmsg(db));
	sqlite3_finalize(st);
}

static void check_database(const char *path)
{
	char name[600];
	sqlite3 *db;

	snprintf(name, sizeof(name), "%s/meta.db", path);
	if (sqlite3_open_v2(name, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK) {
		model_wrong("meta.db cannot be opened");
		return;
	}
	none(db, "SELECT 1 FROM pragma_integrity_check WHERE integrity_check <> 'ok'", "damaged");
	none(db, "SELECT 1 FROM dentries WHERE ino NOT IN (SELECT ino FROM inodes)",
	     "a name without an inode");
	none(db, "SELECT 1 FROM inodes WHERE ino > 1 AND ino NOT IN (SELECT ino FROM dentries)",
	     "an inode without a name");
	none(db, "SELECT 1 FROM extents WHERE ino NOT IN (SELECT ino FROM inodes)",
	     "extents without an inode");
	none(db,
	     "SELECT 1 FROM meta WHERE key = 'inodes' AND value <> (SELECT count(*) FROM inodes)",
	     "the number of inodes");
	none(db,
	     "SELECT 1 FROM meta WHERE key = 'logical_bytes' AND value <>"
	     " (SELECT coalesce(sum(size), 0) FROM inodes WHERE ino > 1)",
	     "the sum of sizes");
	check_chunks(db, path);
	sqlite3_close(db);
}

/* ---- the checks ---- */

void check_power(const char *store, const char *rundir, int first, int last)
{
	struct store *s = open_found(store, rundir, false);
	int n;

	if (!s)
		return;
	n = model->wrong ? -1 : find_state(s, first, last);
	if (n >= 0) {
		check_rows(s, &model->state[n]);
		check_committed(s, &model->state[n]);
	}
	store_close(s, !model->wrong);
	if (!model->wrong)
		check_database(store);
}

/* Everything that is there becomes durable. A name for each, as fs/ has it in its journal. */
static int keep(struct store *s, int f, struct meta_txn **t)
{
	struct meta_inode i = { .ino = FIRST_INO + (uint64_t)f,
				.mode = S_IFREG | 0600,
				.nlink = 1 };
	struct meta_dentry d = {
		.id = 1000 + (uint64_t)f, .parent = 1, .ino = i.ino, .mode = S_IFREG, .name = "kept"
	};
	struct object *o = object(s, f);
	char name[16];
	uint64_t gen;
	int r;

	if (!o)
		return -ENOENT;
	snprintf(name, sizeof(name), "kept-%d", f);
	d.name = name;
	r = object_settle(o);
	if (!r)
		r = meta_begin(s, t);
	if (!r) {
		r = meta_put_file(*t, &i, o, &gen);
		if (!r)
			r = meta_put_dentry(*t, &d);
		if (!r)
			r = meta_commit(*t, true);
		else
			meta_abort(*t);
	}
	object_unref(o);
	return r;
}

static void keep_all(struct store *s)
{
	struct meta_txn *t;

	for (int f = 0; f < FILES && !model->wrong; f++) {
		int r = 0;

		if (model->file[f].made && !model->file[f].discarded)
			r = keep(s, f, &t);
		if (r && !(r == -EIO && model->damaged))
			model_wrong("file %d cannot be kept: %s", f, strerror(-r));
	}
}

void check_killed(const char *store, const char *rundir)
{
	struct store *s = open_found(store, rundir, true);
	int n;

	if (!s)
		return;
	n = model->wrong ? -1 : find_state(s, model->acked, model->attempt);
	if (n >= 0) {
		check_rows(s, &model->state[n]);
		check_acked(s);
		keep_all(s);
	}
	store_close(s, !model->wrong && !model->damaged);
	if (model->wrong || model->damaged)
		return;
	s = open_found(store, rundir, false);
	if (!s)
		return;
	check_acked(s);
	store_close(s, true);
	check_database(store);
}
