/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction: what lives is the same before, meanwhile and after it, wherever it is interrupted, and its
 * segments are no longer than they must be. */
#include "store/chunker.h"
#include "store/segment_impl.h"
#include "store/store_impl.h"
#include "tests/unit/store_folder.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILES   240u
#define FIRST   100u       /* inode of the first file */
#define BIG     (8u << 20) /* bytes: more than is read at once */
#define BIG_INO 99u
#define CRASHED 9

static void open_store(void)
{
	folder_open((struct store_options){ .hot_bytes = 256u << 20, .warm_bytes = 1u << 20 });
}

static void setup(void)
{
	folder_make();
	open_store();
}

TestSuite(gc, .init = setup, .fini = folder_remove, .timeout = 300);

static void reopen(bool clean)
{
	store_close(s, clean);
	open_store();
}

static struct store_status status(void)
{
	struct store_status st;

	store_status(s, &st);
	return st;
}

/* ---- files of one chunk, which no punching gives back ---- */

static size_t length(uint64_t ino)
{
	return 300 + ino * 7 % 600;
}

static void content(char *buf, size_t len, uint64_t seed)
{
	uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull;

	for (size_t i = 0; i < len; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		buf[i] = (char)(x >> 32);
	}
}

static struct object *settled(uint64_t ino, const char *data, size_t len)
{
	struct object *o;

	cr_assert_eq(object_create(s, ino, 0, &o), 0);
	cr_assert_eq(object_write(o, data, len, 0), (ssize_t)len);
	cr_assert_eq(object_settle(o), 0);
	return o;
}

static void put(struct meta_txn *t, struct object *o)
{
	struct meta_inode i = { .ino = object_ino(o), .mode = S_IFREG | 0600, .nlink = 1 };
	uint64_t gen;

	cr_assert_eq(meta_put_file(t, &i, o, &gen), 0);
}

static void commit(struct object **o, size_t n)
{
	struct meta_txn *t;

	cr_assert_eq(store_sync_data(s), 0);
	cr_assert_eq(meta_begin(s, &t), 0);
	for (size_t i = 0; i < n; i++)
		put(t, o[i]);
	cr_assert_eq(meta_commit(t, true), 0);
}

static void make_files(void)
{
	static struct object *o[FILES];
	char data[1024];

	for (unsigned i = 0; i < FILES; i++) {
		content(data, length(FIRST + i), i);
		o[i] = settled(FIRST + i, data, length(FIRST + i));
	}
	commit(o, FILES);
	for (unsigned i = 0; i < FILES; i++) {
		cr_assert_eq(object_evict(o[i], TIER_COLD), 0);
		object_unref(o[i]);
	}
}

static void make_big(void)
{
	char *data = malloc(BIG);
	struct object *o;

	content(data, BIG, 7);
	o = settled(BIG_INO, data, BIG);
	commit(&o, 1);
	cr_assert_eq(object_evict(o, TIER_COLD), 0);
	object_unref(o);
	free(data);
}

static bool lives(unsigned i, unsigned one_in)
{
	return i % one_in == 0;
}

static void erase(uint64_t *ino, size_t n)
{
	struct meta_txn *t;
	struct object *o;

	for (size_t i = 0; i < n; i++) {
		cr_assert_eq(object_get(s, ino[i], 0, &o), 0);
		object_discard(o);
		object_unref(o);
	}
	cr_assert_eq(meta_begin(s, &t), 0);
	for (size_t i = 0; i < n; i++)
		cr_assert_eq(meta_del_inode(t, ino[i]), 0);
	cr_assert_eq(meta_commit(t, true), 0);
}

static void delete_all_but(unsigned one_in)
{
	static uint64_t ino[FILES];
	size_t n = 0;

	for (unsigned i = 0; i < FILES; i++)
		if (!lives(i, one_in))
			ino[n++] = FIRST + i;
	erase(ino, n);
}

static void expect_file(uint64_t ino, size_t len, uint64_t seed)
{
	char *want = malloc(len), *got = malloc(len);
	struct object *o;

	content(want, len, seed);
	cr_assert_eq(object_get(s, ino, 0, &o), 0);
	for (size_t off = 0; off < len;) {
		ssize_t n = object_read(o, got + off, len - off, off);

		cr_assert(n > 0, "inode %lu at %zu: %zd", (unsigned long)ino, off, n);
		off += n;
	}
	cr_assert(!memcmp(got, want, len), "other bytes in inode %lu", (unsigned long)ino);
	/* What a journal tells of is settled once more. */
	if (!object_is_dirty(o))
		cr_assert_eq(object_evict(o, TIER_COLD), 0);
	object_unref(o);
	free(want);
	free(got);
}

static void expect_files(unsigned one_in)
{
	for (unsigned i = 0; i < FILES; i++)
		if (lives(i, one_in))
			expect_file(FIRST + i, length(FIRST + i), i);
}

/* Segments without the room that the active one has ahead. */
static uint64_t segment_bytes(void)
{
	DIR *d = fdopendir(openat(s->seg_fd, ".", O_RDONLY | O_DIRECTORY));
	uint64_t sum = 0;
	struct dirent *e;
	struct stat st;

	cr_assert(d);
	while ((e = readdir(d)))
		if (e->d_name[0] != '.' && !fstatat(s->seg_fd, e->d_name, &st, 0))
			sum += st.st_blocks * 512;
	closedir(d);
	return sum - segset_room(s->segs);
}

/* Asks for it and waits; its result. */
static int collect(void)
{
	struct store_status st;

	cr_assert_eq(store_gc(s), 0);
	do {
		usleep(2000);
		st = status();
	} while (st.gc.done != st.gc.asked);
	return st.gc.error;
}

Test(gc, gives_back_what_punching_cannot)
{
	uint64_t before, stored;

	make_files();
	reopen(true);
	before = segment_bytes();
	delete_all_but(3);
	cr_assert_eq(collect(), 0);
	expect_files(3);
	stored = status().stored_bytes;
	cr_assert(segment_bytes() < stored + 65536, "%lu bytes of %lu for %lu", segment_bytes(),
		  before, stored);
	cr_assert_eq(status().gc.moved_bytes_total, stored,
		     "each record that lives is copied once");
	cr_assert_eq(status().gc.segments_total, 1);
	cr_assert_eq(status().gc.dead_bytes, 0);
	cr_assert_eq(collect(), 0);
	cr_assert_eq(status().gc.moved_bytes_total, stored, "there is nothing left to copy");
	reopen(true);
	expect_files(3);
	cr_assert_eq(status().stored_bytes, stored);
}

/* That which is written to is left first. */
Test(gc, takes_the_active_segment_too)
{
	make_files();
	delete_all_but(3);
	cr_assert_eq(collect(), 0);
	cr_assert_eq(status().gc.segments_total, 1);
	cr_assert(segment_bytes() < status().stored_bytes + 65536);
	expect_files(3);
}

/* A segment of which seven eighths live is left as it is, also on request. */
Test(gc, leaves_alone_what_is_mostly_alive)
{
	char data[1024];
	struct object *o[100];
	uint64_t ino[100];

	make_big();
	for (unsigned i = 0; i < 100; i++) {
		content(data, 900, i);
		ino[i] = FIRST + i;
		o[i] = settled(ino[i], data, 900);
	}
	commit(o, 100);
	for (unsigned i = 0; i < 100; i++)
		object_unref(o[i]);
	reopen(true);
	erase(ino, 100);
	cr_assert_eq(collect(), 0);
	cr_assert_eq(status().gc.moved_bytes_total, 0, "%lu moved, %lu dead",
		     status().gc.moved_bytes_total, status().gc.dead_bytes);
	cr_assert(status().gc.dead_bytes > 200000, "%lu", status().gc.dead_bytes);
}

/* Deleted without anybody asking: a segment most of which is dead is compacted at once. */
Test(gc, goes_on_at_leisure)
{
	make_files();
	reopen(true);
	delete_all_but(5);
	for (int i = 0; i < 1000 && !status().gc.segments_total; i++)
		usleep(20000);
	cr_assert_eq(status().gc.segments_total, 1);
	cr_assert(segment_bytes() < status().stored_bytes + 65536);
	expect_files(5);
}

/* What only the journal knows is not moved: it says where it is. */
Test(gc, leaves_what_is_not_committed)
{
	char data[1024];
	struct object *o;

	make_files();
	content(data, 1000, 4711);
	o = settled(5, data, 1000);
	object_unref(o);
	reopen(false);
	delete_all_but(3);
	cr_assert_eq(collect(), 0);
	reopen(false);
	expect_files(3);
	o = object_find(s, 5);
	cr_assert(o, "it was in the journal");
	cr_assert_eq(object_settle(o), 0);
	commit(&o, 1);
	object_unref(o);
	cr_assert_eq(collect(), 0);
	cr_assert(segment_bytes() < status().stored_bytes + 65536);
	cr_assert_eq(status().damaged_reads_total, 0);
	reopen(true);
	expect_file(5, 1000, 4711);
	expect_files(3);
}

/* A damaged record stays with its segment, which costs the others nothing. */
Test(gc, leaves_what_is_damaged)
{
	uint64_t moved;
	char name[160];
	int fd;

	make_files();
	reopen(true);
	delete_all_but(3);
	snprintf(name, sizeof(name), "%s/segments/00000001.seg", store_path);
	fd = open(name, O_RDWR);
	cr_assert(fd >= 0);
	/* In the payload of the first record, whose file lives. */
	cr_assert_eq(pwrite(fd, "damage", 6, SEGMENT_HEADER + 100), 6);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	cr_assert_eq(collect(), 0);
	moved = status().gc.moved_bytes_total;
	cr_assert(moved > 30000);
	cr_assert_eq(access(name, F_OK), 0);
	for (unsigned i = 1; i < FILES; i++)
		if (lives(i, 3))
			expect_file(FIRST + i, length(FIRST + i), i);
	cr_assert_eq(collect(), 0);
	cr_assert_eq(status().gc.moved_bytes_total, moved, "it is not tried again");
}

/* ---- readers ---- */

static struct io_ops hooked;
static pthread_t hooked_thread;
static bool hook_armed;

/* The first read of the test's thread: the segment is compacted, and what was asked for is not there. */
static ssize_t hooked_pread(void *arg, int fd, void *buf, size_t len, uint64_t off)
{
	if (hook_armed && pthread_equal(pthread_self(), hooked_thread)) {
		hook_armed = false;
		cr_assert_eq(collect(), 0);
		return -EIO;
	}
	return io_system.pread(arg, fd, buf, len, off);
}

static void arm(void)
{
	hooked = io_system;
	hooked.direct_only = true;
	hooked.pread = hooked_pread;
	hooked_thread = pthread_self();
	s->segs->io = &hooked;
	hook_armed = true;
}

/* Begun before the move, ended after it, when the old segment is gone. */
Test(gc, a_read_that_has_begun_finds_what_moved)
{
	char *got = malloc(BIG), *want = malloc(BIG);
	struct object *o;
	struct fetch *f;

	make_files();
	make_big();
	delete_all_but(FILES);
	reopen(true);
	/* As if more of it were dead, or it would not be worth it. */
	cr_assert_eq(object_get(s, BIG_INO, 0, &o), 0);
	pthread_rwlock_rdlock(&o->rw);
	cr_assert_eq(fetch_begin(o, 0, BIG, NULL, &f), 0);
	seglive_looked(s, 1, 2 * (uint64_t)BIG);
	cr_assert_eq(collect(), 0);
	cr_assert(status().gc.moved_bytes_total > BIG, "%lu", status().gc.moved_bytes_total);
	cr_assert(faccessat(s->seg_fd, "00000001.seg", F_OK, 0) < 0);
	cr_assert_eq(fetch_to_memory(f, got), 0);
	fetch_end(f);
	pthread_rwlock_unlock(&o->rw);
	content(want, BIG, 7);
	cr_assert(!memcmp(got, want, BIG));
	cr_assert_eq(status().damaged_reads_total, 0);
	object_unref(o);
	free(got);
	free(want);
}

Test(gc, dedup_finds_what_moved)
{
	char data[1024];

	make_files();
	reopen(true);
	delete_all_but(3);
	content(data, length(FIRST), 0);
	arm();
	object_unref(settled(7, data, length(FIRST)));
	cr_assert(!hook_armed);
	cr_assert_eq(status().gc.segments_total, 1);
	cr_assert_eq(status().dedup_bytes_total, length(FIRST), "it is not stored again");
}

/* ---- kills ---- */

static atomic_int steps_left;

static void step(void)
{
	if (atomic_fetch_sub(&steps_left, 1) == 1)
		_exit(CRASHED);
}

static int step_openat(void *arg, int dirfd, const char *name, int flags, mode_t mode)
{
	if (flags & O_CREAT)
		step();
	return io_system.openat(arg, dirfd, name, flags, mode);
}

static int step_fdatasync(void *arg, int fd)
{
	step();
	return io_system.fdatasync(arg, fd);
}

static int step_fsync(void *arg, int fd)
{
	step();
	return io_system.fsync(arg, fd);
}

static int step_fallocate(void *arg, int fd, int mode, uint64_t off, uint64_t len)
{
	step();
	return io_system.fallocate(arg, fd, mode, off, len);
}

/* Before and after it. */
static int step_unlinkat(void *arg, int dirfd, const char *name)
{
	int r;

	step();
	r = io_system.unlinkat(arg, dirfd, name);
	step();
	return r;
}

static void shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void shell(const char *fmt, ...)
{
	char cmd[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(cmd, sizeof(cmd), fmt, ap);
	va_end(ap);
	cr_assert_eq(system(cmd), 0, "%s", cmd);
}

/* Compacts in a process that ends at that step. True: it got there. */
static bool crash_at(int k)
{
	int st;
	pid_t pid = fork();

	if (!pid) {
		static struct io_ops io;

		open_store();
		io = io_system;
		io.openat = step_openat;
		io.fdatasync = step_fdatasync;
		io.fsync = step_fsync;
		io.fallocate = step_fallocate;
		io.unlinkat = step_unlinkat;
		s->segs->io = &io;
		atomic_store(&steps_left, k);
		_exit(collect() ? 1 : 0);
	}
	cr_assert_eq(waitpid(pid, &st, 0), pid);
	cr_assert(WIFEXITED(st) && (WEXITSTATUS(st) == 0 || WEXITSTATUS(st) == CRASHED), "%x", st);
	return WEXITSTATUS(st) == CRASHED;
}

/* At each second step from the first on. power: the run directory is lost, too. */
static void crash_at_each(int first, bool power)
{
	bool crashed = true;
	uint64_t chunks;
	int k = first;

	make_files();
	delete_all_but(4);
	chunks = status().chunks;
	store_close(s, true);
	shell("cp -a %s %s.0", store_path, store_path);
	for (; crashed; k += 2) {
		shell("rm -rf %s && cp -a %s.0 %s", store_path, store_path, store_path);
		crashed = crash_at(k);
		if (power)
			shell("umount -l %s 2>/dev/null; rm -rf %s", run_path, run_path);
		open_store();
		expect_files(4);
		cr_assert_eq(collect(), 0);
		cr_assert(segment_bytes() < status().stored_bytes + 65536, "after step %d", k);
		expect_file(FIRST, length(FIRST), 0);
		cr_assert_eq(status().chunks, chunks);
		store_close(s, true);
	}
	open_store();
	expect_files(4);
	cr_assert_geq(k, 7, "there are more steps than that");
}

Test(gc, a_kill_at_an_odd_step_loses_nothing)
{
	crash_at_each(1, false);
}

Test(gc, a_kill_at_an_even_step_loses_nothing)
{
	crash_at_each(2, false);
}

Test(gc, a_power_cut_at_an_odd_step_loses_nothing)
{
	crash_at_each(1, true);
}

Test(gc, a_power_cut_at_an_even_step_loses_nothing)
{
	crash_at_each(2, true);
}

/* ---- a device that refuses ---- */

static int no_space(void *arg, int fd, int mode, uint64_t off, uint64_t len)
{
	(void)arg;
	(void)fd;
	(void)mode;
	(void)off;
	(void)len;
	return -ENOSPC;
}

/* No segment for the copies: an error, and nothing has changed. */
Test(gc, a_full_device_is_no_disaster)
{
	static struct io_ops io;

	make_files();
	reopen(true);
	delete_all_but(3);
	io = io_system;
	io.fallocate = no_space;
	s->segs->io = &io;
	cr_assert_eq(collect(), -ENOSPC);
	expect_files(3);
	cr_assert_eq(status().gc.moved_bytes_total, 0);
	s->segs->io = &io_system;
	cr_assert_eq(collect(), 0);
	cr_assert(segment_bytes() < status().stored_bytes + 65536);
	expect_files(3);
}

/* ---- together ---- */

static atomic_bool stop;

static void *read_on(void *arg)
{
	uint64_t ino = FIRST;
	char want[1024], got[1024];
	struct object *o;

	(void)arg;
	while (!atomic_load(&stop)) {
		size_t len = length(ino);

		content(want, len, ino - FIRST);
		cr_assert_eq(object_get(s, ino, 0, &o), 0);
		cr_assert_eq(object_read(o, got, len, 0), (ssize_t)len);
		cr_assert(!memcmp(got, want, len));
		object_evict(o, TIER_COLD);
		object_unref(o);
		ino += 3;
		if (ino >= FIRST + FILES)
			ino = FIRST;
	}
	return NULL;
}

/* New files, one after the other, each deleted when three others have come. */
static void *write_on(void *arg)
{
	uint64_t ino = FIRST + FILES;
	char data[1024];
	struct object *o;

	(void)arg;
	while (!atomic_load(&stop)) {
		content(data, 900, ino);
		o = settled(ino, data, 900);
		commit(&o, 1);
		object_unref(o);
		if (ino >= FIRST + FILES + 3)
			erase(&(uint64_t){ ino - 3 }, 1);
		ino++;
	}
	return NULL;
}

Test(gc, beside_readers_and_writers)
{
	pthread_t thread[3];

	make_files();
	for (int round = 0; round < 3; round++) {
		reopen(true);
		atomic_store(&stop, false);
		pthread_create(&thread[0], NULL, read_on, NULL);
		pthread_create(&thread[1], NULL, read_on, NULL);
		pthread_create(&thread[2], NULL, write_on, NULL);
		if (!round)
			delete_all_but(3);
		for (int i = 0; i < 4; i++) {
			cr_assert_eq(collect(), 0);
			/* All of it once more, as if it were worth it. */
			for (uint32_t n = 1; n < 40; n++)
				if (!seglive_gone(s, n))
					seglive_looked(s, n, seglive_get(s, n) * 2 + 65536);
		}
		atomic_store(&stop, true);
		for (int i = 0; i < 3; i++)
			pthread_join(thread[i], NULL);
		cr_assert_eq(status().damaged_reads_total, 0);
	}
	expect_files(3);
}
