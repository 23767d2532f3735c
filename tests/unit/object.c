/* SPDX-License-Identifier: Apache-2.0 */
/* Objects over a real store directory: data paths, settle, evict, fill, and recovery after a stop
 * that flushed nothing, which is what a kill leaves behind. */
#include "tests/unit/store_folder.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

static void open_store(uint64_t hot)
{
	folder_open((struct store_options){ .hot_bytes = hot, .warm_bytes = 32u << 20 });
}

static void setup(void)
{
	folder_make();
	open_store(256u << 20);
}

TestSuite(object, .init = setup, .fini = folder_remove, .timeout = 120);

/* A stop that settles, syncs and tidies nothing. */
static void killed(uint64_t hot)
{
	store_close(s, false);
	open_store(hot);
}

static void fill_random(void *buf, size_t len, uint64_t seed)
{
	uint64_t x = seed * 2654435761u + 88172645463325252ull;

	for (size_t i = 0; i < len / 8; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy((char *)buf + i * 8, &x, 8);
	}
}

static struct object *new_file(uint64_t ino)
{
	struct object *o;

	cr_assert_eq(object_create(s, ino, 0, &o), 0);
	return o;
}

static void commit(struct object *o)
{
	cr_assert_eq(meta_commit(folder_put(o), true), 0);
}

static void expect(struct object *o, const void *want, size_t len)
{
	char *got = malloc(len + 1);
	size_t off = 0;

	while (off < len + 1) {
		ssize_t n = object_read(o, got + off, len + 1 - off, off);

		cr_assert_geq(n, 0, "read at %zu: %s", off, strerror(-n));
		if (n == 0)
			break;
		off += n;
	}
	cr_assert_eq(off, len);
	for (size_t i = 0; i < len; i++)
		cr_assert_eq(got[i], ((const char *)want)[i], "byte %zu of %zu", i, len);
	free(got);
}

Test(object, write_settle_evict_read)
{
	size_t len = (5u << 20) + 123;
	char *data = calloc(1, len + 8);
	struct object *o = new_file(100);
	struct object_stat st;

	fill_random(data, len, 1);
	cr_assert_eq(object_write(o, data, len, 0), (ssize_t)len);
	expect(o, data, len);
	cr_assert(object_is_dirty(o));
	cr_assert_eq(object_evict(o, TIER_COLD), -EAGAIN);
	cr_assert_eq(object_settle(o), 0);
	cr_assert(!object_is_dirty(o));
	commit(o);
	object_stat(o, &st);
	cr_assert_eq(st.tier, TIER_HOT);
	cr_assert_eq(object_evict(o, TIER_WARM), 0);
	object_stat(o, &st);
	cr_assert_eq(st.tier, TIER_WARM);
	expect(o, data, len);
	cr_assert_eq(object_evict(o, TIER_COLD), 0);
	object_stat(o, &st);
	cr_assert_eq(st.tier, TIER_COLD);
	cr_assert_geq(st.stored, len - 64);
	expect(o, data, len);
	cr_assert_eq(object_image_prepare(o, false), 1);
	object_stat(o, &st);
	cr_assert_eq(st.tier, TIER_HOT);
	expect(o, data, len);
	object_unref(o);
	killed(256u << 20);
	cr_assert_eq(object_get(s, 100, 0, &o), 0);
	object_stat(o, &st);
	cr_assert_eq(st.tier, TIER_HOT, "a clean image is found again");
	expect(o, data, len);
	object_unref(o);
	free(data);
}

Test(object, equal_content_is_stored_once)
{
	size_t len = 3u << 20;
	char *data = malloc(len);
	struct object *a = new_file(100), *b = new_file(101);
	struct store_status st;
	uint64_t once;

	fill_random(data, len, 2);
	object_write(a, data, len, 0);
	cr_assert_eq(object_settle(a), 0);
	store_status(s, &st);
	once = st.stored_bytes;
	object_write(b, data, len, 0);
	cr_assert_eq(object_settle(b), 0);
	store_status(s, &st);
	cr_assert_eq(st.stored_bytes, once);
	commit(a);
	commit(b);
	object_unref(a);
	object_unref(b);
	free(data);
}

/* Bytes this process read from devices; 0 where the kernel does not count them. */
static uint64_t device_reads(void)
{
	FILE *f = fopen("/proc/self/io", "re");
	char line[128];
	uint64_t n = 0;

	while (f && fgets(line, sizeof(line), f))
		sscanf(line, "read_bytes: %" SCNu64, &n);
	if (f)
		fclose(f);
	return n;
}

/* Chunks of small files are about 1 KiB: comparing each with a read of its own reads whole blocks
 * again and again. */
Test(object, small_duplicates_are_compared_in_runs)
{
	size_t len = 768u << 10;
	char *data = malloc(len);
	struct object *a = new_file(100), *b = new_file(101);
	struct store_status st;
	uint64_t before;

	fill_random(data, len, 4);
	object_write(a, data, len, 0);
	cr_assert_eq(object_settle(a), 0);
	commit(a);
	store_status(s, &st);
	cr_assert_gt(st.chunks, len / 4096, "%" PRIu64 " chunks", st.chunks);
	object_write(b, data, len, 0);
	before = device_reads();
	cr_assert_eq(object_settle(b), 0);
	cr_assert_lt(device_reads() - before, len * 3 / 2);
	commit(b);
	expect(b, data, len);
	object_unref(a);
	object_unref(b);
	free(data);
}

/* Equal chunks within one window: the later ones find the first, which is not written yet. */
Test(object, repeats_within_a_file_are_stored_once)
{
	size_t unit = 64u << 10, n = 8;
	char *data = malloc(unit * n);
	struct object *a = new_file(100);
	struct store_status st;

	for (size_t i = 0; i < n; i++)
		fill_random(data + i * unit, unit, 5);
	object_write(a, data, unit * n, 0);
	cr_assert_eq(object_settle(a), 0);
	commit(a);
	store_status(s, &st);
	cr_assert_lt(st.stored_bytes, unit * 2);
	cr_assert_eq(object_evict(a, TIER_COLD), 0);
	expect(a, data, unit * n);
	object_unref(a);
	free(data);
}

/* Whatever was written before a kill is there after it, settled or not. */
Test(object, killed_with_dirty_blocks)
{
	size_t len = 2u << 20;
	char *data = malloc(len);
	struct object *o = new_file(100);

	fill_random(data, len, 3);
	object_write(o, data, len, 0);
	cr_assert_eq(object_settle(o), 0);
	commit(o);
	cr_assert_eq(object_evict(o, TIER_COLD), 0);
	fill_random(data + 300000, 48, 4);
	cr_assert_eq(object_write(o, data + 300000, 48, 300000), 48);
	fill_random(data + (1 << 20), 1 << 17, 5);
	object_write(o, data + (1 << 20), 1 << 17, 1 << 20);
	expect(o, data, len);
	object_unref(o);
	killed(256u << 20);
	cr_assert_eq(object_get(s, 100, 0, &o), 0);
	expect(o, data, len);
	cr_assert_eq(object_settle(o), 0);
	expect(o, data, len);
	object_unref(o);
	killed(256u << 20); /* settled, never committed */
	cr_assert_eq(object_get(s, 100, 0, &o), 0);
	expect(o, data, len);
	commit(o);
	cr_assert_eq(object_settle(o), 0);
	commit(o);
	cr_assert_eq(object_evict(o, TIER_COLD), 0);
	expect(o, data, len);
	object_unref(o);
	free(data);
}

/* A file four times the hot budget, written, read and amended. */
Test(object, larger_than_the_budget)
{
	size_t len = 128u << 20, step = 1u << 20;
	char *data = malloc(len);
	struct object *o;

	store_close(s, true);
	open_store(32u << 20);
	o = new_file(100);
	fill_random(data, len, 6);
	cr_assert_eq(object_handle_begin(o, true, false), 0);
	for (size_t off = 0; off < len; off += step) {
		ssize_t w = object_write(o, data + off, step, off);

		cr_assert_eq(w, (ssize_t)step, "at %zu: %s", off, w < 0 ? strerror(-w) : "short");
	}
	expect(o, data, len);
	for (size_t off = 12345; off + 100 < len; off += 7 * step) {
		fill_random(data + off, 100 & ~7, off);
		ssize_t w = object_write(o, data + off, 100, off);

		cr_assert_eq(w, 100, "at %zu: %s", off, w < 0 ? strerror(-w) : "short");
	}
	expect(o, data, len);
	object_handle_end(o, true, false);
	object_unref(o);
	killed(32u << 20);
	cr_assert_eq(object_get(s, 100, 0, &o), 0);
	expect(o, data, len);
	cr_assert_eq(object_settle(o), 0);
	commit(o);
	expect(o, data, len);
	object_unref(o);
	free(data);
}

static int found(void *arg, struct object *o)
{
	return o == arg;
}

/* Whoever looks for what is to be settled or committed finds it. */
static void expect_found(struct object *o)
{
	bool want = object_is_dirty(o) || object_is_uncommitted(o);

	cr_assert_eq(store_for_dirty(s, 0, DIRTY_OPEN | DIRTY_PUT_OFF, found, o), want);
}

static void begin_and_abort(struct object *o)
{
	struct meta_txn *t = folder_put(o);

	expect_found(o);
	meta_abort(t);
}

/* Random operations against a plain buffer, with settles, evictions, aborted commits and kills mixed in. */
static void model_round(unsigned seed)
{
	size_t cap = 3u << 20, size = 0;
	char *m = calloc(1, cap), *buf = malloc(cap);
	struct object *o = new_file(1000 + seed);

	srandom(seed);
	for (int i = 0; i < 150; i++) {
		size_t off = random() % (cap - 1),
		       len = random() % 3 ? random() % 5000 : random() % 400000;
		int op = random() % 12;

		if (off + len > cap)
			len = cap - off;
		if (op < 4 && len) {
			fill_random(buf, len + 8 > cap ? cap : (len + 8) & ~7ul, seed * 1000 + i);
			cr_assert_eq(object_write(o, buf, len, off), (ssize_t)len);
			memcpy(m + off, buf, len);
			size = off + len > size ? off + len : size;
		} else if (op == 4) {
			cr_assert_eq(object_truncate(o, off), 0);
			if (off < size)
				memset(m + off, 0, size - off);
			size = off;
		} else if (op == 5 && len) {
			cr_assert_eq(object_fallocate(o, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
						      off, len),
				     0);
			if (off < size)
				memset(m + off, 0, off + len < size ? len : size - off);
		} else if (op == 6) {
			cr_assert_eq(object_settle(o), 0);
		} else if (op == 7) {
			cr_assert_eq(object_settle(o), 0);
			commit(o);
			cr_assert_eq(object_evict(o, random() % 2 ? TIER_COLD : TIER_WARM), 0);
		} else if (op == 8) {
			object_image_prepare(o, false);
		} else if (op == 9 && i % 4 == 0) {
			object_unref(o);
			killed(256u << 20);
			cr_assert_eq(object_get(s, 1000 + seed, 0, &o), 0, "seed %u step %d", seed,
				     i);
		} else if (op == 10) {
			begin_and_abort(o);
		}
		expect_found(o);
		if (i % 8 == 0)
			expect(o, m, size);
	}
	expect(o, m, size);
	object_unref(o);
	free(m);
	free(buf);
}

Test(object, model)
{
	for (unsigned seed = 1; seed <= 12; seed++)
		model_round(seed);
}

static atomic_bool loaded_enough;

static void *load_again_and_again(void *unused)
{
	struct object *o;

	for (int i = 0; i < 3000; i++) {
		cr_assert_eq(object_get(s, 100, 0, &o), 0);
		object_unref(o);
	}
	return unused;
}

static void *look_for_dirty(void *unused)
{
	while (!loaded_enough)
		store_for_dirty(s, 0, DIRTY_OPEN | DIRTY_PUT_OFF, found, NULL);
	return unused;
}

/* Of several that are loaded at a time one stays; nobody has found the others, be it for what is dirty. */
Test(object, loaded_by_several_at_a_time)
{
	enum { LOADERS = 4 };
	pthread_t loader[LOADERS], looker;
	struct object *o = new_file(100);
	char data[4096];

	fill_random(data, sizeof(data), 5);
	cr_assert_eq(object_write(o, data, sizeof(data), 0), (ssize_t)sizeof(data));
	cr_assert_eq(object_settle(o), 0);
	commit(o);
	cr_assert_eq(object_evict(o, TIER_COLD), 0);
	object_unref(o);
	cr_assert_eq(pthread_create(&looker, NULL, look_for_dirty, NULL), 0);
	for (int i = 0; i < LOADERS; i++)
		cr_assert_eq(pthread_create(&loader[i], NULL, load_again_and_again, NULL), 0);
	for (int i = 0; i < LOADERS; i++)
		pthread_join(loader[i], NULL);
	loaded_enough = true;
	pthread_join(looker, NULL);
	cr_assert_eq(object_get(s, 100, 0, &o), 0);
	expect(o, data, sizeof(data));
	object_unref(o);
}

/* A mapping that outlives its handle keeps the image, and its stores are seen by the next settle. */
Test(object, mapped_after_close)
{
	size_t len = 1u << 20;
	char *data = malloc(len), path[160], *map;
	struct object *o = new_file(100);
	int fd;

	fill_random(data, len, 9);
	cr_assert_eq(object_image_prepare(o, true), 1);
	cr_assert_eq(object_handle_begin(o, true, true), 0);
	snprintf(path, sizeof(path), "%s/images/64", run_path);
	fd = open(path, O_RDWR);
	cr_assert_geq(fd, 0);
	cr_assert_eq(pwrite(fd, data, len, 0), (ssize_t)len);
	map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	object_handle_end(o, true, true);
	cr_assert_eq(object_settle(o), 0);
	cr_assert(object_is_dirty(o), "a mapping may still store");
	cr_assert_neq(object_evict(o, TIER_COLD), 0);
	map[4711] ^= 0x55;
	data[4711] ^= 0x55;
	munmap(map, len);
	cr_assert_eq(object_settle(o), 0);
	cr_assert(!object_is_dirty(o));
	cr_assert_eq(object_evict(o, TIER_COLD), 0);
	expect(o, data, len);
	object_unref(o);
	free(data);
}

Test(object, seek_finds_holes)
{
	char block[4096];
	struct object *o = new_file(100);

	memset(block, 7, sizeof(block));
	cr_assert_eq(object_write(o, block, sizeof(block), 0), 4096);
	cr_assert_eq(object_write(o, block, sizeof(block), 4u << 20), 4096);
	cr_assert_eq(object_seek(o, 0, SEEK_DATA), 0);
	cr_assert_eq(object_seek(o, 0, SEEK_HOLE), OBJECT_BLOCK);
	cr_assert_eq(object_seek(o, 1u << 20, SEEK_DATA), 4u << 20);
	cr_assert_eq(object_seek(o, 4u << 20, SEEK_HOLE), (4u << 20) + 4096);
	cr_assert_eq(object_seek(o, (4u << 20) + 4096, SEEK_DATA), -ENXIO);
	cr_assert_eq(object_settle(o), 0);
	cr_assert_eq(object_seek(o, 1u << 20, SEEK_DATA), 4u << 20);
	object_unref(o);
}

Test(object, deleted_files_give_their_bytes_back)
{
	size_t len = 8u << 20;
	char *data = malloc(len);
	struct object *o = new_file(100);
	struct store_status st;
	struct meta_txn *t;

	fill_random(data, len, 10);
	object_write(o, data, len, 0);
	cr_assert_eq(object_settle(o), 0);
	commit(o);
	cr_assert_eq(meta_begin(s, &t), 0);
	cr_assert_eq(meta_del_inode(t, 100), 0);
	cr_assert_eq(meta_commit(t, true), 0);
	object_discard(o);
	object_unref(o);
	for (int i = 0; i < 200; i++) {
		store_status(s, &st);
		if (!st.chunks)
			break;
		usleep(50000);
	}
	cr_assert_eq(st.chunks, 0);
	cr_assert_eq(st.stored_bytes, 0);
	free(data);
}

/* What the segments occupy on the disk, headers and padding of every kind included. */
static uint64_t on_disk(void)
{
	char path[128];
	uint64_t sum = 0;
	struct stat st;

	for (unsigned n = 0; n < 64; n++) {
		snprintf(path, sizeof(path), "%s/segments/%08x.seg", store_path, n);
		if (!stat(path, &st))
			sum += (uint64_t)st.st_blocks * 512;
	}
	return sum;
}

/*
 * Noise is stored as it is and costs the headers of its records, 64 bytes each: how many they are is the
 * length of the chunks, which follows from the size of the file.
 */
Test(object, noise_costs_its_headers_and_no_more)
{
	static const struct {
		size_t size;
		unsigned files;
		double most; /* per cent */
	} cases[] = { { 16u << 20, 2, 0.5 }, { (3u << 20) + 1, 8, 1 }, { 1000001, 12, 8 } };
	uint64_t stored = 0, disk = on_disk(), raw = 0;
	char *data = malloc(16u << 20);
	struct store_status st;

	for (unsigned k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		size_t all = cases[k].size * cases[k].files;
		double more, more_disk;

		for (unsigned i = 0; i < cases[k].files; i++) {
			struct object *o = new_file(100 + 100 * k + i);

			fill_random(data, cases[k].size + 7, 1000 * k + i + 1);
			cr_assert_eq(object_write(o, data, cases[k].size, 0),
				     (ssize_t)cases[k].size);
			cr_assert_eq(object_settle(o), 0);
			commit(o);
			object_unref(o);
		}
		do
			store_status(s, &st);
		while (!st.loaded);
		cr_assert_eq(st.unique_bytes - raw, all);
		more = 100 * ((double)(st.stored_bytes - stored) / (double)all - 1);
		store_close(s, true);
		more_disk = 100 * ((double)(on_disk() - disk) / (double)all - 1);
		open_store(256u << 20);
		cr_log_info("files of %zu bytes: %.2f %% more than raw, %.2f %% on the disk",
			    cases[k].size, more, more_disk);
		cr_assert_leq(more, cases[k].most);
		cr_assert_leq(more_disk, cases[k].most);
		stored = st.stored_bytes;
		raw = st.unique_bytes;
		disk = on_disk();
	}
	free(data);
}

/* Small chunks that live among dead ones keep their bytes when the dead are punched out. */
Test(object, the_living_survive_their_dead_neighbours)
{
	enum { FILES = 60 };
	static char data[FILES][3000];
	struct object *o[FILES];
	struct meta_txn *t;

	for (int i = 0; i < FILES; i++) {
		fill_random(data[i], sizeof(data[i]), 100 + i);
		o[i] = new_file(100 + i);
		cr_assert_eq(object_write(o[i], data[i], 100 + i * 37, 0), 100 + i * 37);
		cr_assert_eq(object_settle(o[i]), 0);
		commit(o[i]);
	}
	cr_assert_eq(meta_begin(s, &t), 0);
	for (int i = 0; i < FILES; i++)
		if (i % 3)
			cr_assert_eq(meta_del_inode(t, 100 + i), 0);
	cr_assert_eq(meta_commit(t, true), 0);
	for (int i = 0; i < FILES; i++)
		if (i % 3)
			object_discard(o[i]);
	for (int i = 0; i < 100; i++) {
		struct store_status st;

		store_status(s, &st);
		if (st.chunks <= FILES)
			break;
		usleep(50000);
	}
	sleep(2); /* the reaper's next turn */
	for (int i = 0; i < FILES; i++) {
		if (i % 3 == 0) {
			cr_assert_eq(object_evict(o[i], TIER_COLD), 0);
			expect(o[i], data[i], 100 + i * 37);
		}
		object_unref(o[i]);
	}
}

static int checkpoint_nothing(void *arg, struct journal_checkpoint *c)
{
	(void)arg;
	(void)c;
	return 0;
}

static void *checkpoint_thread(void *arg)
{
	cr_assert_eq(journal_checkpoint(s, checkpoint_nothing, arg), 0);
	return NULL;
}

/* What a transaction on its way holds is not in meta.db yet: a journal that is rewritten meanwhile
 * must not leave it out. */
Test(object, checkpoint_during_a_transaction)
{
	size_t len = 300000;
	char *data = calloc(1, len + 8);
	struct object *o = new_file(100);
	struct meta_inode i = { .ino = 100, .mode = S_IFREG | 0600, .nlink = 1 };
	struct meta_txn *t;
	pthread_t thread;
	uint64_t gen;

	fill_random(data, len, 11);
	cr_assert_eq(object_write(o, data, len, 0), (ssize_t)len);
	cr_assert_eq(object_settle(o), 0);
	cr_assert_eq(meta_begin(s, &t), 0);
	cr_assert_eq(meta_put_file(t, &i, o, &gen), 0);
	cr_assert_eq(pthread_create(&thread, NULL, checkpoint_thread, NULL), 0);
	usleep(200000);
	meta_abort(t);
	pthread_join(thread, NULL);
	object_unref(o);
	killed(256u << 20);
	cr_assert_eq(object_get(s, 100, 0, &o), 0);
	expect(o, data, len);
	object_unref(o);
	free(data);
}

/* 16 TiB of hole, made by a writer nobody saw: neither counted as dirty nor read to be settled. */
Test(object, a_sparse_unseen_file_costs_what_is_in_it, .timeout = 20)
{
	struct object *o = new_file(100);
	struct object_stat st;
	char path[160];
	int fd;

	cr_assert_eq(object_image_prepare(o, true), 1);
	cr_assert_eq(object_handle_begin(o, true, true), 0);
	snprintf(path, sizeof(path), "%s/images/64", run_path);
	fd = open(path, O_RDWR);
	cr_assert_eq(ftruncate(fd, OBJECT_MAX), 0);
	cr_assert_eq(pwrite(fd, "x", 1, 1ull << 40), 1);
	object_stat(o, &st);
	cr_assert_eq(st.size, OBJECT_MAX);
	cr_assert_leq(st.dirty, 4u << 20);
	close(fd);
	object_handle_end(o, true, true);
	cr_assert_eq(object_settle(o), 0);
	object_stat(o, &st);
	cr_assert_eq(st.dirty, 0);
	cr_assert_eq(object_seek(o, 0, SEEK_DATA) / 4096, (1ll << 40) / 4096);
	commit(o);
	object_unref(o);
}

Test(object, beyond_the_largest_file)
{
	struct object *o = new_file(100);

	cr_assert_eq(object_write(o, "x", 1, 1ull << 62), -EFBIG);
	cr_assert_eq(object_write(o, "xy", 2, OBJECT_MAX - 1), -EFBIG);
	cr_assert_eq(object_truncate(o, OBJECT_MAX + 1), -EFBIG);
	cr_assert_eq(object_write(o, "x", 1, 0), 1);
	object_unref(o);
	killed(256u << 20);
	cr_assert_eq(object_get(s, 100, 0, &o), 0);
	expect(o, "x", 1);
	object_unref(o);
}

/* A change of size alone is committed, and found after a kill. */
Test(object, growing_without_bytes)
{
	struct object *o = new_file(100);
	struct object_stat st;

	cr_assert_eq(object_write(o, "x", 1, 0), 1);
	cr_assert_eq(object_settle(o), 0);
	commit(o);
	cr_assert_eq(object_truncate(o, 5000000), 0);
	cr_assert_eq(object_settle(o), 0);
	object_unref(o);
	killed(256u << 20);
	cr_assert_eq(object_get(s, 100, 0, &o), 0);
	object_stat(o, &st);
	cr_assert_eq(st.size, 5000000);
	object_unref(o);
}

/* A file outside of every budget that leaves room bytes in the tmpfs of small images. */
static void leave_room(const char *path, uint64_t room)
{
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	struct statfs fs;

	cr_assert_geq(fd, 0);
	cr_assert_eq(fstatfs(fd, &fs), 0);
	cr_assert_eq(fallocate(fd, 0, 0, fs.f_bfree * fs.f_bsize - room), 0);
	close(fd);
}

/* The image has room for a part of the last block only, so nothing of the write can count: nor may
 * the size it had reached. */
Test(object, a_write_that_failed_in_part_adds_nothing)
{
	size_t len = OBJECT_BLOCK + 30000;
	char *data = calloc(1, len + 8), *more = calloc(1, OBJECT_BLOCK);
	char ballast[128];
	struct object *o;
	struct object_stat st;

	if (geteuid())
		cr_skip("only root has a tmpfs of its own here");
	fill_random(data, len, 6);
	o = new_file(100);
	cr_assert_eq(object_write(o, data, len, 0), (ssize_t)len);
	cr_assert_eq(object_settle(o), 0);
	commit(o);
	cr_assert_eq(object_evict(o, TIER_COLD), 0);
	snprintf(ballast, sizeof(ballast), "%s/small/ballast", run_path);
	leave_room(ballast, 40960);
	cr_assert_eq(object_write(o, more, OBJECT_BLOCK, OBJECT_BLOCK), -ENOSPC);
	object_stat(o, &st);
	cr_assert_eq(st.size, len, "%" PRIu64 " bytes", st.size);
	cr_assert_eq(unlink(ballast), 0);
	expect(o, data, len);
	object_unref(o);
	killed(256u << 20);
	cr_assert_eq(object_get(s, 100, 0, &o), 0);
	expect(o, data, len);
	object_unref(o);
	free(more);
	free(data);
}

static void write_text(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");

	cr_assert_not_null(f);
	fputs(text, f);
	cr_assert_eq(fclose(f), 0);
}

/* A run directory on a disk, after a power cut: any page of it may be old. What is durable counts. */
Test(object, a_run_directory_of_another_boot_is_not_believed)
{
	size_t len = 300000;
	char *data = calloc(1, len + 8), path[128];
	struct object *o = new_file(100);

	fill_random(data, len, 7);
	cr_assert_eq(object_write(o, data, len, 0), (ssize_t)len);
	cr_assert_eq(object_settle(o), 0);
	commit(o);
	cr_assert_eq(object_write(o, "later", 5, 1000), 5);
	object_unref(o);
	snprintf(path, sizeof(path), "%s/boot", run_path);
	write_text(path, "00000000-another-boot");
	killed(256u << 20);
	cr_assert_eq(object_get(s, 100, 0, &o), 0);
	cr_assert(!object_is_dirty(o));
	expect(o, data, len);
	object_unref(o);
	free(data);
}

/* Making a store was killed after its lock was there. */
Test(object, a_folder_with_only_a_lock_becomes_a_store)
{
	char lock[128];

	store_close(s, true);
	snprintf(store_path, sizeof(store_path), "%s/half", base);
	cr_assert_eq(mkdir(store_path, 0700), 0);
	snprintf(lock, sizeof(lock), "%s/lock", store_path);
	write_text(lock, "");
	open_store(256u << 20);
}
