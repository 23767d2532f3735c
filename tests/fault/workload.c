/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workload: see workload.h. It does what fs/ does with a store: objects are written, settled, put into
 * transactions with their names, evicted, read back, shared, cut and discarded, the journal is
 * rewritten, the store is closed, opened, and opened after what looks like a kill. Whatever fails, it
 * goes on, and everything it reads must be as the model says.
 */
#include "tests/fault/workload.h"
#include "store/io.h"
#include "tests/fault/calls.h"
#include "tests/fault/model.h"
#include "tests/fault/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KIB 1024u

static struct {
	const char *path, *rundir;
	struct store *s;
	struct object *o[FILES];
	uint64_t dentry_id, record;
} w;

static uint8_t slot[3][320 * KIB], noise[FILE_MAX], scratch[FILE_MAX + 1];
static uint32_t slot_len[3];

bool workload_init(const char *folder)
{
	static const char *const name[3] = { "prefix300_a_400tok", "prefix300_c_350tok",
					     "story_001" };
	uint64_t x = 88172645463325252ull;

	for (int i = 0; i < 3; i++) {
		char path[512];
		ssize_t n;
		int fd;

		snprintf(path, sizeof(path), "%s/%s.ggsq2", folder, name[i]);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		n = fd < 0 ? -1 : pread(fd, slot[i], sizeof(slot[i]), 0);
		if (fd >= 0)
			close(fd);
		if (n <= 0)
			return false;
		slot_len[i] = (uint32_t)n;
	}
	for (size_t i = 0; i < sizeof(noise); i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(noise + i, &x, 8);
	}
	return true;
}

/* What fails without a fault, or with one that nobody may notice, is a failure of the run. */
static bool failed(int r, const char *what, int f)
{
	if (r >= 0)
		return false;
	if (!atomic_load(&calls->fired) || calls->kind == FAULT_DELAY)
		model_wrong("%s of file %d: %s, without a fault", what, f, strerror(-r));
	return true;
}

/* ---- the store ---- */

int workload_open(const char *path, const char *rundir, struct store **ret, struct store_error *err)
{
	static struct io_ops plain;
	struct store_options opt = {
		.path = path,
		.rundir = rundir,
		.hot_bytes = 64u << 20,
		.warm_bytes = 4u << 20,
		.idle_s = 3600,
		.codec = CODEC_CHOICE_FAST,
		.io = &plain,
	};

	plain = io_system;
	plain.direct_only = true;
	return store_open(&opt, ret, err);
}

static uint64_t replayed;

static int see_record(void *arg, const struct journal_record *rec)
{
	uint64_t n;

	(void)arg;
	if (!rec)
		return 0;
	if (rec->len != sizeof(n)) {
		model_wrong("a record of %u bytes in the journal", rec->len);
		return 0;
	}
	memcpy(&n, rec->data, sizeof(n));
	if (replayed && n != replayed + 1)
		model_wrong("record %llu of the journal follows %llu", (unsigned long long)n,
			    (unsigned long long)replayed);
	replayed = n;
	return 0;
}

void workload_replay(struct store *s)
{
	int r;

	replayed = 0;
	r = journal_replay(s, see_record, NULL);
	if (r)
		model_wrong("replaying the journal: %s", strerror(-r));
	if (replayed < model->recorded)
		model_wrong("the journal ends at record %llu, and %llu was acknowledged",
			    (unsigned long long)replayed, (unsigned long long)model->recorded);
	w.record = replayed;
}

static int see_marker(void *arg, const char *name, const void *value, size_t len)
{
	if (!strcmp(name, MARKER) && len == sizeof(int))
		memcpy(arg, value, len);
	return 0;
}

/* A commit whose sync failed may be there all the same. */
static void look_at_marker(void)
{
	int n = model->base;

	failed(meta_get_xattrs(w.s, 1, see_marker, &n), "marker", -1);
	if (n < model->acked || n > model->attempt)
		model_wrong("the last transaction there is %d, of %d to %d", n, model->acked,
			    model->attempt);
	model->base = n;
}

/* A fault that comes once may fail it once; then somebody mounts again. */
static bool open_store(void)
{
	struct store_error err;
	int r;

	for (int i = 0; i < 3; i++) {
		r = workload_open(w.path, w.rundir, &w.s, &err);
		if (!r) {
			workload_replay(w.s);
			look_at_marker();
			r = store_start(w.s);
			if (!failed(r, "start", -1))
				return true;
			store_close(w.s, false);
		}
		failed(r, err.text, -1);
	}
	w.s = NULL;
	return false;
}

static void close_store(bool clean)
{
	for (int f = 0; f < FILES; f++) {
		object_unref(w.o[f]);
		w.o[f] = NULL;
	}
	/* Only a clean end takes the journal away. */
	if (clean)
		model->recorded = 0;
	store_close(w.s, clean);
	w.s = NULL;
}

/* Every operation ends with one. */
static void record(void)
{
	uint64_t n = w.record + 1;
	struct journal_record rec = { JOURNAL_NAMESPACE, sizeof(n), &n };

	if (failed(journal_append(w.s, &rec, 1), "record", -1))
		return;
	w.record = n;
	model->recorded = n;
}

static int put_record(void *arg, struct journal_checkpoint *c)
{
	struct journal_record rec = { JOURNAL_NAMESPACE, sizeof(w.record), &w.record };

	(void)arg;
	return journal_checkpoint_append(c, &rec, 1);
}

static void rewrite_journal(void)
{
	failed(journal_checkpoint(w.s, put_record, NULL), "checkpoint", -1);
	record();
}

/* ---- objects ---- */

static struct object *object(int f)
{
	int r = 0;

	if (!w.o[f])
		r = object_get(w.s, FIRST_INO + (uint64_t)f, 0, &w.o[f]);
	if (r == -ENOENT && !model->file[f].made)
		return NULL;
	failed(r, "get", f);
	return w.o[f];
}

static void create(int f)
{
	failed(object_create(w.s, FIRST_INO + (uint64_t)f, 0, &w.o[f]), "create", f);
}

/* len 0: to the end. Bytes, or an errno. */
static ssize_t read_back(int f, uint32_t off, uint32_t len, uint8_t *to)
{
	uint32_t done = 0;
	ssize_t n = 1;

	if (!len || len > FILE_MAX - off)
		len = FILE_MAX - off;
	while (done < len && n > 0) {
		uint32_t want = len - done < 100000 ? len - done : 100000;

		n = object_read(w.o[f], to + done, want, off + done);
		if (n > 0 && !model_agrees(f, to + done, (uint32_t)n, off + done))
			return -EIO;
		if (n > 0)
			done += (uint32_t)n;
	}
	return n < 0 ? n : done;
}

static void check(int f)
{
	struct object_stat st;
	ssize_t n;

	if (!object(f))
		return;
	failed(object_stat(w.o[f], &st), "stat", f);
	model_agrees_size(f, st.size);
	n = read_back(f, 0, 0, scratch);
	if (!failed((int)n, "read", f))
		model_agrees_size(f, (uint64_t)n);
}

static void write_at(int f, uint32_t off, const uint8_t *data, uint32_t len)
{
	ssize_t n;

	if (!object(f))
		return;
	model_may_write(f, off, data, len);
	n = object_write(w.o[f], data, len, off);
	if (!failed((int)n, "write", f) && n == (ssize_t)len)
		model_wrote(f, off, data, len);
	else if (n >= 0)
		model_wrong("a write of %u bytes to file %d wrote %zd", len, f, n);
	record();
}

static void append(int f, const uint8_t *data, uint32_t len)
{
	uint32_t size = model->file[f].size;
	uint64_t at = 0;
	ssize_t n;

	/* Where it would go is not known. */
	if (!object(f) || !model_is_sure(f))
		return;
	model_may_write(f, size, data, len);
	n = object_append(w.o[f], data, len, &at);
	if (!failed((int)n, "append", f)) {
		if (at != size)
			model_wrong("an append went to %llu", (unsigned long long)at);
		model_wrote(f, size, data, len);
	}
	record();
}

static void cut(int f, uint32_t size)
{
	if (!object(f))
		return;
	model_may_resize(f, size);
	if (!failed(object_truncate(w.o[f], size), "truncate", f))
		model_resized(f, size);
	record();
}

static void make_hole(int f, uint32_t off, uint32_t len)
{
	int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

	if (!object(f))
		return;
	memset(scratch, 0, len);
	model_may_write(f, off, scratch, len);
	if (!failed(object_fallocate(w.o[f], mode, off, len), "fallocate", f))
		model_wrote(f, off, scratch, len);
	record();
}

/* As a passthrough writer does it: past the daemon, and past the calls that are counted. */
static void write_unseen(int f, uint32_t off, const uint8_t *data, uint32_t len)
{
	static const char *const place[] = { "images", "small" };
	char path[512];
	int fd = -1, r;

	if (!object(f))
		return;
	r = object_image_prepare(w.o[f], true);
	if (failed(r, "prepare", f) || r != 1)
		return;
	if (failed(object_handle_begin(w.o[f], true, true), "open", f))
		return;
	for (int i = 0; i < 2 && fd < 0; i++) {
		snprintf(path, sizeof(path), "%s/%s/%x", w.rundir, place[i], FIRST_INO + f);
		fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
	}
	model_may_write(f, off, data, len);
	if (syscall(SYS_pwrite64, fd, data, len, (long)off) == (long)len)
		model_wrote(f, off, data, len);
	else
		model_wrong("%s: cannot be written: %s", path, strerror(errno));
	syscall(SYS_close, fd);
	object_handle_end(w.o[f], true, true);
	record();
}

/* The bytes are those that are there; else it is a copy. */
static void share(int from, int to, uint32_t off, uint32_t to_off, uint32_t len)
{
	const uint8_t *data = model->file[from].byte + off;
	ssize_t n;

	if (off + len > model->file[from].size) /* a write failed */
		len = model->file[from].size - off;
	if (!len || !object(from) || !object(to) || !model_is_sure(from))
		return;
	model_may_write(to, to_off, data, len);
	n = object_share(w.o[from], off, w.o[to], to_off, len);
	if (n == -EOPNOTSUPP) {
		write_at(to, to_off, data, len);
		return;
	}
	if (failed((int)n, "share", to))
		model->file[to].unsure = true;
	else if (n != (ssize_t)len)
		model_wrong("%zd of %u bytes were shared", n, len);
	else
		model_wrote(to, to_off, data, len);
	if (n == (ssize_t)len && model_is_sure(to))
		model_settled(to, NULL, 0);
	record();
}

static void evict(int f, enum object_tier to)
{
	if (object(f))
		failed(object_evict(w.o[f], to), "evict", f);
	record();
}

static void fill(int f)
{
	if (object(f))
		failed(object_image_prepare(w.o[f], false), "prepare", f);
	record();
}

/* ---- settling and committing ---- */

/* What is settled must be known: where a change failed before, it is what can be read. */
static bool note_settled(int f)
{
	ssize_t n;

	if (model_is_sure(f)) {
		model_settled(f, NULL, 0);
		return true;
	}
	n = read_back(f, 0, 0, scratch);
	if (failed((int)n, "read", f) || !model_agrees_size(f, (uint64_t)n)) {
		model->file[f].unsure = true;
		return false;
	}
	model_settled(f, scratch, (uint32_t)n);
	return true;
}

static bool settle(int f)
{
	int r = -EIO;

	if (!object(f))
		return false;
	if (!object_is_dirty(w.o[f]) && model->file[f].version >= 0 && !model->file[f].unsure)
		return true;
	for (int i = 0; i < 2 && r; i++) {
		r = object_settle(w.o[f]);
		failed(r, "settle", f);
	}
	if (r) {
		model->file[f].unsure = true;
		return false;
	}
	return note_settled(f);
}

struct change {
	unsigned put, del; /* files, a bit each */
	int name, of;      /* and this name is that file's; -1 */
	int unname;        /* and this one goes; -1 */
};

static const char *name_text(int n)
{
	static char text[NAMES][16];

	snprintf(text[n], sizeof(text[n]), "name-%d", n);
	return text[n];
}

static int put_name(struct meta_txn *t, int name, int f)
{
	struct meta_dentry d = { .id = ++w.dentry_id,
				 .parent = 1,
				 .ino = FIRST_INO + (uint64_t)f,
				 .mode = S_IFREG,
				 .name = name_text(name) };

	return meta_put_dentry(t, &d);
}

static int put_rows(struct meta_txn *t, const struct change *c, struct state *st)
{
	int r = 0;

	for (int f = 0; f < FILES && !r; f++) {
		struct meta_inode i = { .ino = FIRST_INO + (uint64_t)f,
					.mode = S_IFREG | 0600,
					.nlink = 1 };
		uint64_t gen;

		if (c->put & 1u << f && w.o[f]) {
			st->version[f] = model->file[f].version;
			r = meta_put_file(t, &i, w.o[f], &gen);
		}
		if (c->del & 1u << f && !r) {
			st->version[f] = -1;
			r = meta_del_inode(t, i.ino);
		}
	}
	if (!r && c->name >= 0) {
		st->name[c->name] = c->of;
		r = put_name(t, c->name, c->of);
	}
	if (!r && c->unname >= 0) {
		st->name[c->unname] = -1;
		r = meta_del_dentry(t, 1, name_text(c->unname));
	}
	return r;
}

/* For what is made of the trace: the transaction begins, or is durable. */
static void mark(int n, bool durable)
{
	calls_lock();
	if (trace)
		trace_step(STEP_MARK, -1, (uint64_t)n * 2 + durable, 0, NULL);
	calls_unlock();
}

/* One transaction; what is put must have been settled. */
static bool commit(struct change c, bool durable)
{
	int n = ++model->attempt, r;
	struct meta_txn *t;

	if (n == TXNS) {
		model_wrong("the model has no room for so many transactions");
		return false;
	}
	model->state[n] = model->state[model->base];
	mark(n, false);
	r = store_sync_data(w.s);
	if (failed(r, "sync", -1))
		return false;
	r = meta_begin(w.s, &t);
	if (failed(r, "begin", -1))
		return false;
	r = put_rows(t, &c, &model->state[n]);
	if (!r)
		r = meta_put_xattr(t, 1, MARKER, &n, sizeof(n));
	if (r) {
		failed(r, "put", -1);
		meta_abort(t);
		return false;
	}
	r = meta_commit(t, durable);
	if (failed(r, "commit", -1))
		return false;
	model->base = model->acked = n;
	if (durable) {
		model->durable = n;
		mark(n, true);
	}
	record();
	return true;
}

static bool is_named(int f)
{
	for (int n = 0; n < NAMES; n++)
		if (model->state[model->base].name[n] == f)
			return true;
	return false;
}

/* Settles a file and commits it, with its first name if it has none yet. */
static bool keep(int f, bool durable)
{
	struct change c = { .put = 1u << f, .name = is_named(f) ? -1 : f, .of = f, .unname = -1 };

	return settle(f) && commit(c, durable);
}

static void discard(int f)
{
	model->file[f].discarded = true;
	if (w.o[f])
		object_discard(w.o[f]);
	object_unref(w.o[f]);
	w.o[f] = NULL;
}

/* The name goes, and the file with it: the bytes before the rows or behind them. */
static void take_away(int f, int name, bool bytes_first)
{
	struct change c = { .del = 1u << f, .name = -1, .unname = name };

	if (!object(f))
		return;
	object_set_unlinked(w.o[f], true);
	model->file[f].discarded = true;
	if (bytes_first)
		discard(f);
	if (commit(c, true) && !bytes_first)
		discard(f);
}

/* rename(2) over a name: the file it was of goes. */
static void replace(int f, int name, int old_name, int gone)
{
	struct change c = {
		.put = 1u << f, .del = 1u << gone, .name = name, .of = f, .unname = old_name
	};

	if (!settle(f))
		return;
	model->file[gone].discarded = true;
	if (commit(c, true))
		discard(gone);
}

/* ---- the script ---- */

static void check_all(void)
{
	for (int f = 0; f < FILES; f++)
		if (model->file[f].made && !model->file[f].discarded)
			check(f);
}

/* New files: some with the bytes of others, one that nobody commits. */
static void begin(void)
{
	create(0);
	write_at(0, 0, noise, 300 * KIB);
	keep(0, true);
	create(1);
	write_at(1, 0, slot[0], 100000);
	write_at(1, 100000, slot[0] + 100000, slot_len[0] - 100000);
	keep(1, false);
	create(2);
	write_at(2, 0, slot[1], slot_len[1]);
	keep(2, true);
	check(1);
}

static void change(void)
{
	write_at(0, 100001, noise + 500 * KIB, 70 * KIB);
	create(3);
	share(1, 3, 0, 0, slot_len[0] - 1000);
	keep(3, true);
	cut(2, 90001);
	append(2, noise + 7, 30 * KIB);
	keep(2, false);
	keep(0, true);
	check(2);
}

/* Out of the image and into it again; a part of a file that is in none is written. */
static void move(void)
{
	evict(1, TIER_COLD);
	check(1);
	evict(0, TIER_COLD);
	fill(0);
	check(0);
	evict(2, TIER_WARM);
	check(2);
	write_at(1, 130000, noise + 11, 9000);
	keep(1, true);
	make_hole(0, 70 * KIB, 100 * KIB);
	keep(0, true);
	rewrite_journal();
}

static void go(void)
{
	create(4);
	write_at(4, 0, noise + 100 * KIB, 700 * KIB);
	keep(4, true);
	replace(2, 0, 2, 0);
	take_away(3, 3, true);
	check_all();
}

/* After a clean end everything is cold, and what nobody names is given back. */
static void again(void)
{
	check_all();
	write_at(2, 50000, noise + 3, 100);
	create(5);
	write_unseen(5, 0, slot[2], slot_len[2]);
	keep(5, true);
	cut(4, 300 * KIB);
	write_at(4, 600 * KIB, noise + 5, 40 * KIB);
	keep(4, false);
	take_away(1, 1, false);
	rewrite_journal();
}

/* What a kill leaves: taken up again. */
static void after_kill(void)
{
	check_all();
	keep(2, true);
	evict(2, TIER_COLD);
	create(6);
	share(2, 6, 0, 0, 60000);
	keep(6, true);
	append(5, noise + 123, 200 * KIB);
	keep(5, false);
	check_all();
}

/* Nothing of this is committed. */
static void leave(void)
{
	create(7);
	write_at(7, 0, slot[0], 150 * KIB);
	settle(7);
	create(8);
	write_at(8, 10000, slot[1], 80 * KIB);
	write_at(6, 1000, noise + 77, 70 * KIB);
	cut(5, 100 * KIB);
	check_all();
}

void workload_run(const char *store, const char *rundir)
{
	w.path = store;
	w.rundir = rundir;
	for (int f = 0; f < FILES; f++) {
		model->file[f].version = -1;
		model->state[0].version[f] = -1;
	}
	for (int n = 0; n < NAMES; n++)
		model->state[0].name[n] = -1;
	if (!open_store())
		return;
	begin();
	change();
	move();
	go();
	close_store(true);
	if (!open_store())
		return;
	again();
	close_store(false);
	if (!open_store())
		return;
	after_kill();
	leave();
	model->finished = true;
}
