/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store: opening, recovering and closing a store; its status; the journal as fs/ sees it.
 */
#include "store/store_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <syslog.h>
#include <unistd.h>

#define MIB          (1ull << 20)
#define SEGMENT_SIZE (64 * MIB)
#define JOURNAL_SIZE (64 * MIB)
#define LOCK_WAIT_MS 2000
#define OPEN_WAIT_MS 500

void store_log(struct store *s, int level, const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	if (!s->opt.hooks.log)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	s->opt.hooks.log(s->opt.hooks.arg, level, line);
}

struct meta *store_meta(struct store *s)
{
	return s->meta;
}

bool store_recovered(const struct store *s)
{
	return s->recovered;
}

const char *store_rundir(const struct store *s)
{
	return s->rundir;
}

static int fail(struct store_error *err, int r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static int fail(struct store_error *err, int r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	return r;
}

/* ---- the directory ---- */

/* 1: empty; 0: holds something. A fresh ext4 has lost+found, a store whose making was killed may
 * have its lock only. */
static int is_empty(int fd)
{
	int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *e;
	int empty = 1;

	if (!d) {
		if (copy >= 0)
			close(copy);
		return -errno;
	}
	while (empty && (e = readdir(d)))
		empty = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
			!strcmp(e->d_name, "lost+found") || !strcmp(e->d_name, "lock");
	closedir(d);
	return empty;
}

/* Makes the name of a store to be durable before anything in it is. A killed mount may have made it
 * and not got here. Not that of a mount point, which is on another device; and where the directory above
 * cannot be read, its owner knows what is in it. */
static int sync_name(struct store *s, struct store_error *err)
{
	struct stat here, up;
	int fd, r;

	if (fstat(s->dir_fd, &here) || fstatat(s->dir_fd, "..", &up, 0))
		return fail(err, -errno, "%s/..: %s", s->path, strerror(errno));
	if (here.st_dev != up.st_dev)
		return 0;
	fd = s->io->openat(s->io->arg, s->dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (fd == -EACCES)
		return 0;
	r = fd < 0 ? fd : s->io->fsync(s->io->arg, fd);
	if (fd >= 0)
		s->io->close(s->io->arg, fd);
	return r ? fail(err, r, "%s/..: cannot be synced: %s", s->path, strerror(-r)) : 0;
}

/* Opens the store's directory; *ret_fresh: it is to be made a store. */
static int open_dir(struct store *s, bool *ret_made, bool *ret_fresh, struct store_error *err)
{
	const char *path = s->opt.path;
	int r;

	if (!s->read_only && mkdir(path, 0700) == 0)
		*ret_made = true;
	else if (!s->read_only && errno != EEXIST)
		return fail(err, -errno, "%s: cannot make the store: %s", path, strerror(errno));
	s->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->dir_fd < 0 && errno == ENOTDIR)
		return fail(err, -ENOTDIR, "%s: not a directory: name a directory for the store",
			    path);
	if (s->dir_fd < 0)
		return fail(err, -errno, "%s: cannot open the store: %s", path, strerror(errno));
	s->path = realpath(path, NULL);
	if (!s->path)
		return -ENOMEM;
	if (faccessat(s->dir_fd, "meta.db", F_OK, 0) == 0)
		return 0;
	r = is_empty(s->dir_fd);
	if (r < 0)
		return fail(err, r, "%s: cannot read: %s", path, strerror(-r));
	if (!r)
		return fail(err, -EMEDIUMTYPE,
			    "%s: neither empty nor a kvfs store: name another directory", path);
	if (s->read_only)
		return fail(err, -EMEDIUMTYPE,
			    "%s: empty: a store is made by a mount without -o ro", path);
	*ret_fresh = true;
	return sync_name(s, err);
}

/* A daemon just killed holds its locks until the last of its threads has gone. */
int lock_file(int fd)
{
	int64_t until = now_ms() + LOCK_WAIT_MS;
	int r;

	while ((r = flock(fd, LOCK_EX | LOCK_NB)) && errno == EWOULDBLOCK && now_ms() < until)
		nanosleep(&(struct timespec){ .tv_nsec = 20 * 1000000L }, NULL);
	return r;
}

static int take_lock(struct store *s, struct store_error *err)
{
	int flags = s->read_only ? O_RDONLY : O_RDWR | O_CREAT;

	s->lock_fd = openat(s->dir_fd, "lock", flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (s->lock_fd < 0 && errno == EROFS)
		return fail(err, -EROFS, "%s: on a read-only file system: mount it with -o ro",
			    s->path);
	if (s->lock_fd < 0)
		return fail(err, -errno, "%s/lock: %s", s->path, strerror(errno));
	if (lock_file(s->lock_fd) == 0)
		return 0;
	if (errno != EWOULDBLOCK)
		return fail(err, -errno, "%s/lock: %s", s->path, strerror(errno));
	return fail(err, -EBUSY, "%s: another kvfs daemon has it mounted: unmount that first",
		    s->path);
}

/* Small stores get small segments: a sixteenth of the file system, so that one more always fits. */
static uint64_t segment_size(struct store *s)
{
	struct statvfs v;
	uint64_t size;

	if (fstatvfs(s->dir_fd, &v))
		return SEGMENT_SIZE;
	size = (uint64_t)v.f_blocks * v.f_frsize / 16 / MIB * MIB;
	return size < MIB ? MIB : size > SEGMENT_SIZE ? SEGMENT_SIZE : size;
}

/* ---- segments ---- */

/* The number in the name of a segment; false for what is none. */
static bool segment_number(const char *name, uint32_t *ret)
{
	char again[32];
	unsigned n;

	if (sscanf(name, "%8x.seg", &n) != 1)
		return false;
	snprintf(again, sizeof(again), "%08x.seg", n);
	*ret = n;
	return !strcmp(name, again);
}

/* By the names that are there, not by numbers up to the highest, which may be any. fn: non-zero ends it. */
static int each_segment(struct store *s,
			int (*fn)(struct store *s, uint32_t segment, const char *name, void *arg),
			void *arg)
{
	int fd = openat(s->seg_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	uint32_t n;

	if (!d) {
		r = -errno;
		if (fd >= 0)
			close(fd);
		return r;
	}
	while (!r && (e = readdir(d)))
		if (segment_number(e->d_name, &n))
			r = fn(s, n, e->d_name, arg);
	closedir(d);
	return r;
}

static int take_highest(struct store *s, uint32_t segment, const char *name, void *arg)
{
	uint32_t *highest = arg;

	(void)s;
	(void)name;
	if (segment > *highest)
		*highest = segment;
	return 0;
}

static int highest_segment(struct store *s, uint32_t *ret)
{
	*ret = 0;
	return each_segment(s, take_highest, ret);
}

/* UINT32_MAX: there is none. */
static uint32_t number_after(uint32_t segment)
{
	return segment < UINT32_MAX ? segment + 1 : segment;
}

static int open_segments(struct store *s, struct store_error *err)
{
	struct segset_options o = { .io = s->io,
				    .uuid = meta_uuid(s->meta),
				    .segment_size = segment_size(s),
				    .read_only = s->read_only };
	uint32_t highest;
	int r;

	if (!s->read_only && mkdirat(s->dir_fd, "segments", 0700) && errno != EEXIST)
		return fail(err, -errno, "%s/segments: %s", s->path, strerror(errno));
	s->seg_fd = openat(s->dir_fd, "segments", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (s->seg_fd < 0)
		return fail(err, -errno, "%s/segments: %s", s->path, strerror(errno));
	o.dirfd = s->seg_fd;
	r = highest_segment(s, &highest);
	o.next = number_after(highest);
	if (!r)
		r = segset_open(&o, &s->segs);
	if (r)
		return fail(err, r, "%s/segments: cannot be opened: %s", s->path, strerror(-r));
	/* Metadata, padding of flushes, one segment that is being preallocated, and one that compaction copies
	 * before it can remove what it has copied. */
	s->slack = o.segment_size * 2 + 4 * MIB;
	return 0;
}

/* ---- loading ---- */

static int open_journal(struct store *s, struct store_error *err)
{
	uint64_t epoch = meta_epoch(s->meta), groups = 0;
	int r;

	/* The journal takes the next epoch before the database does, and either is accepted. */
	r = journal_open(s->run_fd, meta_uuid(s->meta), epoch, epoch + 1, JOURNAL_SIZE,
			 recover_record, s, &s->journal, &groups);
	if (r)
		return fail(err, r, "%s/journal: %s", s->rundir, strerror(-r));
	s->recovered = groups != 0;
	if (groups)
		store_log(s, LOG_NOTICE, "%s: recovering: %" PRIu64 " operations in the journal",
			  s->path, groups);
	r = recover_finish(s);
	if (!r)
		r = meta_bump_epoch(s->meta);
	return r ? fail(err, r, "%s: recovery failed: %s", s->path, strerror(-r)) : 0;
}

/* What the dead daemon appended may never have been synced; a transaction will soon name it. */
static int sync_segment(struct store *s, uint32_t segment, const char *name, void *arg)
{
	int fd, r = 0;
	bool fresh;

	(void)arg;
	seglive_end(s, segment, &fresh);
	if (!fresh)
		return 0;
	fd = openat(s->seg_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	if (fsync(fd) || fsync(s->seg_fd))
		r = -errno;
	close(fd);
	return r;
}

static int tidy_segment(struct store *s, uint32_t segment, const char *name, void *arg)
{
	bool fresh;
	uint64_t end = seglive_end(s, segment, &fresh);
	int r;

	(void)arg;
	/* Later ones are this daemon's. */
	if (segment > s->found_segments)
		return 0;
	r = end ? segset_trim(s->segs, segment, end) : segset_remove(s->segs, segment);
	if (r)
		store_log(s, LOG_WARNING, "%s/segments/%s: cannot be trimmed: %s", s->path, name,
			  strerror(-r));
	return 0;
}

/* What an earlier daemon preallocated and did not use. What fails costs only room, until the next mount. */
void segments_tidy(struct store *s)
{
	int r = each_segment(s, tidy_segment, NULL);

	if (r)
		store_log(s, LOG_WARNING, "%s/segments: cannot be listed: %s", s->path,
			  strerror(-r));
}

static int load(struct store *s, struct store_error *err)
{
	int r = chunk_table_new(s->opt.warm_bytes, s->opt.index_bytes, &s->chunks);

	if (!r)
		r = loader_open(s);
	if (r)
		return fail(
			err, r,
			"%s/meta.db: the chunk table cannot be read: %s: restore the store from a copy",
			s->path, strerror(-r));
	r = rundir_open(s, err);
	if (r)
		return r;
	if (s->read_only) {
		if (faccessat(s->run_fd, "journal", F_OK, 0) == 0)
			return fail(
				err, -EROFS,
				"%s: holds what a killed daemon had not settled: mount the store once without -o ro",
				s->rundir);
		return 0;
	}
	r = open_journal(s, err);
	if (!r)
		r = highest_segment(s, &s->found_segments);
	/* The journal still tells of segments that are gone: chunks in them are dead, and what the
	 * reaper does to their places must not meet a new segment of that number. */
	segset_skip_to(s->segs, number_after(seglive_highest(s)));
	if (!r)
		r = each_segment(s, sync_segment, NULL);
	if (!r && loader_done(s))
		segments_tidy(s);
	return r;
}

static void defaults(struct store *s)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
	long processors = sysconf(_SC_NPROCESSORS_ONLN);

	s->processors = processors > 0 ? (unsigned)processors : 1;
	if (!s->opt.hot_bytes)
		s->opt.hot_bytes = memory / 2;
	if (!s->opt.warm_bytes)
		s->opt.warm_bytes = memory / 8;
	if (!s->opt.index_bytes)
		s->opt.index_bytes = memory / 64;
	if (s->opt.codec == CODEC_CHOICE_STORE)
		s->opt.codec = CODEC_CHOICE_AUTO;
	if (!s->opt.open_wait_ms)
		s->opt.open_wait_ms = OPEN_WAIT_MS;
}

/* As if somebody had made all contents collide. */
static struct hash128 same_hash(const void *buf, size_t len)
{
	(void)buf;
	(void)len;
	return (struct hash128){ 0 };
}

static struct store *store_new(const struct store_options *opt)
{
	struct store *s = calloc(1, sizeof(*s));
	pthread_condattr_t attr;

	if (!s)
		return NULL;
	s->opt = *opt;
	s->read_only = opt->read_only;
	s->io = opt->io ? opt->io : &io_system;
	s->hash = opt->same_hash ? same_hash : hash128;
	s->lock_fd = s->dir_fd = s->seg_fd = s->run_fd = -1;
	s->img_fd[IMAGE_HUGE] = s->img_fd[IMAGE_SMALL] = -1;
	pthread_mutex_init(&s->objects_lock, NULL);
	pthread_mutex_init(&s->tier_lock, NULL);
	pthread_mutex_init(&s->space_lock, NULL);
	pthread_mutex_init(&s->seg_lock, NULL);
	pthread_mutex_init(&s->rate_lock, NULL);
	pthread_mutex_init(&s->reap_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->tier_wake, &attr);
	pthread_condattr_destroy(&attr);
	TAILQ_INIT(&s->lru);
	TAILQ_INIT(&s->pending);
	defaults(s);
	s->scratch = scratch_new();
	if (!s->scratch) {
		free(s);
		return NULL;
	}
	return s;
}

/* A store that could not be made leaves nothing behind. */
static void unmake(struct store *s, bool made)
{
	static const char *const file[] = { "meta.db", "meta.db-wal", "meta.db-shm", "lock" };

	for (size_t i = 0; i < sizeof(file) / sizeof(file[0]); i++)
		unlinkat(s->dir_fd, file[i], 0);
	unlinkat(s->dir_fd, "segments", AT_REMOVEDIR);
	if (made)
		rmdir(s->opt.path);
}

int store_open(const struct store_options *opt, struct store **ret, struct store_error *err)
{
	struct store *s = store_new(opt);
	bool made = false, fresh = false, locked = false;
	int r;

	if (!s)
		return fail(err, -ENOMEM, "%s: out of memory", opt->path);
	err->text[0] = 0;
	/* The kernel signals lease breaks; a probe holds its lease for microseconds only. */
	signal(SIGIO, SIG_IGN);
	r = open_dir(s, &made, &fresh, err);
	if (!r)
		r = take_lock(s, err);
	locked = !r;
	/* Another mount may have made it, and may have used it, while this one waited. */
	fresh = fresh && locked && faccessat(s->dir_fd, "meta.db", F_OK, 0) != 0;
	if (!r)
		r = meta_open(s->path, s->read_only, &s->meta, err);
	if (!r)
		r = open_segments(s, err);
	if (!r)
		r = load(s, err);
	if (r) {
		if (!err->text[0])
			fail(err, r, "%s: %s", opt->path, strerror(-r));
		if (fresh)
			unmake(s, made);
		store_close(s, false);
		return r;
	}
	*ret = s;
	return 0;
}

int store_start(struct store *s)
{
	int r;

	rundir_measure(s);
	r = fill_start(s);
	if (!r)
		r = loader_start(s);
	if (!r)
		r = gc_start(s);
	if (!r)
		r = tier_start(s);
	s->started = !r;
	if (!r)
		r = scrub_start(s);
	return r;
}

static void free_objects(struct store *s)
{
	struct object *o, *tmp;

	HASH_ITER(hh, s->objects, o, tmp) {
		HASH_DEL(s->objects, o);
		object_destroy(o);
	}
}

static void free_saved(struct store *s)
{
	for (size_t i = 0; i < s->saved_n; i++)
		free(s->saved[i].copy);
	free(s->saved);
	s->saved = NULL;
	s->saved_n = s->saved_cap = 0;
}

void store_close(struct store *s, bool clean)
{
	if (!s)
		return;
	gc_stop(s);
	scrub_stop(s);
	if (s->started)
		tier_stop(s);
	fill_stop(s);
	if (clean && s->chunks && !s->read_only && loader_done(s))
		while (chunk_any_dead(s->chunks) && reap_dead(s, 4096) > 0)
			;
	loader_close(s);
	rundir_close(s, clean);
	free_objects(s);
	journal_close(s->journal);
	segset_close(s->segs);
	chunk_table_free(s->chunks);
	meta_close(s->meta);
	seglive_free(s);
	scratch_free(s->scratch);
	free_saved(s);
	free(s->undo);
	if (s->seg_fd >= 0)
		close(s->seg_fd);
	if (s->lock_fd >= 0)
		close(s->lock_fd);
	if (s->dir_fd >= 0)
		close(s->dir_fd);
	pthread_mutex_destroy(&s->objects_lock);
	pthread_mutex_destroy(&s->tier_lock);
	pthread_mutex_destroy(&s->space_lock);
	pthread_mutex_destroy(&s->seg_lock);
	pthread_mutex_destroy(&s->rate_lock);
	pthread_mutex_destroy(&s->reap_lock);
	pthread_cond_destroy(&s->tier_wake);
	free(s->path);
	free(s->rundir);
	free(s);
}

/* ---- status ---- */

static uint64_t pinned_bytes(struct store *s)
{
	size_t n;
	struct object **v = object_list(s, &n);
	uint64_t sum = 0;

	for (size_t i = 0; v && i < n; i++) {
		pthread_mutex_lock(&v[i]->mu);
		if (v[i]->handles || (v[i]->all_dirty && !v[i]->hidden))
			sum += v[i]->size;
		pthread_mutex_unlock(&v[i]->mu);
	}
	object_list_free(v, n);
	return sum;
}

void store_status(struct store *s, struct store_status *ret)
{
	struct chunk_totals t;
	uint64_t files;

	rundir_measure(s);
	chunk_table_totals(s->chunks, &t);
	*ret = (struct store_status){
		.path = s->path,
		.rundir = s->rundir,
		.hot = { pool_used(s), s->opt.hot_bytes, atomic_load(&s->images) },
		.warm = { t.warm_bytes, s->opt.warm_bytes, 0 },
		.cold = { t.stored_bytes, 0, 0 },
		.unique_bytes = t.unique_bytes,
		.stored_bytes = t.stored_bytes,
		.chunks = t.chunks,
		.index = { t.index.bytes, t.index.budget, t.index.entries, t.index.replaced },
		.loaded = loader_done(s),
		.segments = seglive_count(s),
		.dirty_bytes = atomic_load(&s->dirty_bytes),
		.unsettled_bytes = atomic_load(&s->named_bytes),
		.pinned_bytes = pinned_bytes(s),
		.settled_bytes_total = atomic_load(&s->settled_total),
		.filled_bytes_total = atomic_load(&s->filled_total),
		.dedup_bytes_total = atomic_load(&s->dedup_total),
		.damaged_reads_total = atomic_load(&s->damaged_total),
		.evicted_files_total = atomic_load(&s->evicted_total),
		.codec = s->opt.codec,
		.dedup = s->opt.dedup,
		.read_rate = atomic_load(&s->read_rate),
		.direct_io = segset_is_direct(s->segs),
		.io_uring = segset_is_uring(s->segs),
		.huge_pages = s->huge_pages,
		.own_tmpfs = s->own_tmpfs,
		.read_only = s->read_only,
	};
	gc_status(s, &ret->gc);
	snprintf(ret->uuid, sizeof(ret->uuid), "%s", meta_uuid(s->meta));
	scrub_get_status(s, &ret->scrub);
	meta_totals(s->meta, &ret->logical_bytes, &files);
	ret->cold.files = files;
}

/* ---- the journal, for fs/ ---- */

struct journal_checkpoint {
	struct journal *journal;
};

int journal_append(struct store *s, const struct journal_record *rec, unsigned n)
{
	int r;

	if (!s->journal)
		return -EROFS;
	r = journal_put(s->journal, rec, n);
	if (r == -ENOSPC && s->opt.hooks.pressure)
		s->opt.hooks.pressure(s->opt.hooks.arg);
	return r;
}

int journal_replay(struct store *s, int (*fn)(void *arg, const struct journal_record *rec),
		   void *arg)
{
	int r = 0;

	for (size_t i = 0; i < s->saved_n && !r; i++)
		r = fn(arg, s->saved[i].copy ? &s->saved[i].rec : NULL);
	free_saved(s);
	return r;
}

bool journal_wants_checkpoint(struct store *s)
{
	return s->journal && journal_used(s->journal) > journal_size(s->journal) / 2;
}

int journal_checkpoint(struct store *s, int (*fn)(void *arg, struct journal_checkpoint *c),
		       void *arg)
{
	struct journal_checkpoint c = { s->journal };
	int r, e;

	if (!s->journal)
		return -EROFS;
	r = journal_checkpoint_begin(s->journal);
	if (r)
		return r;
	r = recover_checkpoint(s);
	if (!r)
		r = fn(arg, &c);
	e = journal_checkpoint_end(s->journal, !r);
	return r ? r : e;
}

int journal_checkpoint_append(struct journal_checkpoint *c, const struct journal_record *rec,
			      unsigned n)
{
	return journal_checkpoint_put(c->journal, rec, n);
}
