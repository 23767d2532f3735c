/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status: the whole state in numbers, as JSON in .kvfs/status. unsettled_bytes is 0 only if a power
 * cut would lose nothing: data not yet in segments, and 4096 bytes for every inode whose row, names
 * or xattrs are not durably committed, or whose file is dirty in whatever way: cut short, or open for
 * somebody who writes unseen.
 */
#include "fs/status.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define INODE_BYTES 4096u

/* Dirty objects whose inodes are not dirty themselves; those are counted already. */
struct dirty_count {
	struct fs *fs;
	uint64_t files;
};

static int count_object(void *arg, struct object *o)
{
	struct dirty_count *c = arg;
	struct inode *i;

	ns_lock(c->fs);
	i = inode_find(c->fs, object_ino(o));
	c->files += !i || (!i->counted && i->a.nlink);
	ns_unlock(c->fs);
	return 0;
}

static uint64_t count_inodes(struct fs *fs)
{
	uint64_t n = 0;
	struct list *l;

	list_for_each(l, &fs->dirty)
	{
		struct inode *i = list_entry(l, struct inode, dirty_link);

		n += i->counted && inode_is_file(i);
	}
	return n;
}

void status_take(struct fs *fs, struct fs_status *ret)
{
	struct dirty_count c = { .fs = fs };
	struct timespec now;

	memset(ret, 0, sizeof(*ret));
	ns_lock(fs);
	/* In this order: what is settled between two of them is counted twice rather than never. */
	store_status(fs->store, &ret->store);
	ret->unsettled_bytes = ret->store.unsettled_bytes + fs->n_unsettled * INODE_BYTES;
	ret->unsettled_files = count_inodes(fs);
	ret->cached_inodes = HASH_COUNT(fs->inodes);
	ret->cached_names = HASH_COUNT(fs->dentries);
	ret->commit_error = fs->commit_error;
	ns_unlock(fs);
	store_for_dirty(fs->store, 0, DIRTY_OPEN | DIRTY_PUT_OFF, count_object, &c);
	ret->unsettled_bytes += c.files * INODE_BYTES;
	ret->unsettled_files += c.files;
	ret->inodes = meta_count_inodes(fs->store);
	ret->open_handles = handles_used(&fs->handles);
	ret->passthrough = atomic_load(&fs->passthrough);
	ret->passthrough_why = atomic_load(&fs->passthrough_why);
	clock_gettime(CLOCK_MONOTONIC, &now);
	ret->uptime_s = (uint64_t)(now.tv_sec - fs->started.tv_sec);
	for (int k = 0; k < REQ_COUNT; k++)
		ret->requests[k] = atomic_load_explicit(&fs->requests_by[k], memory_order_relaxed);
}

double status_ratio(uint64_t whole, uint64_t part)
{
	return part ? (double)whole / (double)part : 1.0;
}

/* ---- JSON ---- */

static void set_count(json_t *j, const char *key, uint64_t value)
{
	json_object_set_new(j, key, json_integer((json_int_t)value));
}

static void set_bool(json_t *j, const char *key, bool value)
{
	json_object_set_new(j, key, json_boolean(value));
}

/* Paths may hold any bytes; JSON holds UTF-8. */
static void set_text(json_t *j, const char *key, const char *text)
{
	json_t *s = json_string(text ? text : "");

	json_object_set_new(j, key, s ? s : json_string("?"));
}

/* The warm tier has chunks, which files share, and so no number of files. */
static json_t *tier_json(const struct store_tier *t, bool has_files)
{
	json_t *j = json_object();

	set_count(j, "bytes", t->bytes);
	set_count(j, "budget", t->budget);
	if (has_files)
		set_count(j, "files", t->files);
	else
		json_object_set_new(j, "files", json_null());
	return j;
}

static void set_identity(json_t *j, struct fs *fs, const struct fs_status *st)
{
	set_text(j, "version", KVFS_VERSION);
	set_count(j, "pid", (uint64_t)getpid());
	set_text(j, "mountpoint", fs->mountpoint);
	set_text(j, "store", st->store.path);
	set_text(j, "rundir", st->store.rundir);
	set_text(j, "uuid", st->store.uuid);
	set_count(j, "uptime_s", st->uptime_s);
	set_bool(j, "passthrough", st->passthrough);
	set_text(j, "passthrough_why", st->passthrough_why);
	set_bool(j, "read_only", fs->opt.read_only);
	set_bool(j, "allow_other", fs->opt.allow_other);
	set_text(j, "codec", codec_choice_name(st->store.codec));
	set_text(j, "dedup", dedup_scope_name(st->store.dedup));
	set_count(j, "read_rate", st->store.read_rate);
	set_bool(j, "o_direct", st->store.direct_io);
	set_bool(j, "io_uring", st->store.io_uring);
	set_bool(j, "huge_pages", st->store.huge_pages);
	set_bool(j, "own_tmpfs", st->store.own_tmpfs);
}

static void set_bytes(json_t *j, const struct fs_status *st)
{
	const struct store_status *s = &st->store;

	set_count(j, "logical_bytes", s->logical_bytes);
	set_count(j, "unique_bytes", s->unique_bytes);
	set_count(j, "stored_bytes", s->stored_bytes);
	json_object_set_new(j, "dedup_ratio",
			    json_real(status_ratio(s->logical_bytes, s->unique_bytes)));
	json_object_set_new(j, "compression_ratio",
			    json_real(status_ratio(s->unique_bytes, s->stored_bytes)));
	set_count(j, "dirty_bytes", s->dirty_bytes);
	set_count(j, "unsettled_bytes", st->unsettled_bytes);
	set_count(j, "unsettled_files", st->unsettled_files);
	set_count(j, "pinned_bytes", s->pinned_bytes);
	set_count(j, "chunks", s->chunks);
	set_bool(j, "chunks_loaded", s->loaded);
	set_count(j, "segments", s->segments);
	set_count(j, "index_bytes", s->index.bytes);
	set_count(j, "index_budget", s->index.budget);
	set_count(j, "index_entries", s->index.entries);
}

static json_t *gc_json(const struct store_gc_status *g)
{
	json_t *j = json_object();

	set_count(j, "dead_bytes", g->dead_bytes);
	set_count(j, "moved_bytes_total", g->moved_bytes_total);
	set_count(j, "freed_bytes_total", g->freed_bytes_total);
	set_count(j, "segments_total", g->segments_total);
	set_count(j, "left_segments", g->left_segments);
	set_count(j, "left_bytes", g->left_bytes);
	set_count(j, "asked", g->asked);
	set_count(j, "done", g->done);
	set_text(j, "error", g->error ? strerror(-g->error) : "");
	return j;
}

double status_scrubbed(const struct scrub_status *s)
{
	return s->next <= s->last ? (double)s->next / (double)s->last : 1.0;
}

static json_t *scrub_json(const struct scrub_status *s)
{
	json_t *j = json_object();

	set_count(j, "rate", s->rate);
	set_bool(j, "running", s->rate && s->next <= s->last);
	json_object_set_new(j, "progress", json_real(status_scrubbed(s)));
	set_count(j, "pass_began", (uint64_t)s->began);
	set_count(j, "pass_ended", (uint64_t)s->ended);
	set_count(j, "pass_damaged", s->pass_damaged);
	set_count(j, "bytes_total", s->bytes_total);
	set_count(j, "chunks_total", s->chunks_total);
	set_count(j, "damaged_total", s->damaged_total);
	return j;
}

static void set_counters(json_t *j, const struct fs_status *st)
{
	json_t *requests = json_object();

	set_count(j, "settled_bytes_total", st->store.settled_bytes_total);
	set_count(j, "filled_bytes_total", st->store.filled_bytes_total);
	set_count(j, "dedup_bytes_total", st->store.dedup_bytes_total);
	set_count(j, "index_replaced_total", st->store.index.replaced);
	set_count(j, "damaged_reads_total", st->store.damaged_reads_total);
	set_count(j, "evicted_files_total", st->store.evicted_files_total);
	set_count(j, "inodes", st->inodes);
	set_count(j, "cached_inodes", st->cached_inodes);
	set_count(j, "cached_names", st->cached_names);
	set_count(j, "open_handles", st->open_handles);
	set_text(j, "commit_error", st->commit_error ? strerror(-st->commit_error) : "");
	for (int k = 0; k < REQ_COUNT; k++)
		set_count(requests, request_name((enum request)k), st->requests[k]);
	json_object_set_new(j, "requests", requests);
	json_object_set_new(j, "gc", gc_json(&st->store.gc));
}

char *fs_status_json(struct fs *fs)
{
	json_t *j = json_object(), *tiers = json_object();
	struct fs_status st;
	char *text, *line = NULL;

	status_take(fs, &st);
	set_identity(j, fs, &st);
	json_object_set_new(tiers, "hot", tier_json(&st.store.hot, true));
	json_object_set_new(tiers, "warm", tier_json(&st.store.warm, false));
	json_object_set_new(tiers, "cold", tier_json(&st.store.cold, true));
	json_object_set_new(j, "tiers", tiers);
	set_bytes(j, &st);
	json_object_set_new(j, "scrub", scrub_json(&st.store.scrub));
	set_counters(j, &st);
	text = json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	json_decref(j);
	/* With the newline a text file ends with. */
	if (text && asprintf(&line, "%s\n", text) < 0)
		line = NULL;
	free(text);
	return line;
}
