/* SPDX-License-Identifier: Apache-2.0 */
/* Contents whose hashes collide, as somebody may make them: a store in which every content has the same
 * hash. Bytes decide what is shared, tenants never share, and nothing takes longer than it must. */
#include "tests/unit/store_folder.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SMALL 400u  /* bytes: one chunk */
#define BLOCK 4096u /* a chunk at its longest, in a file of this size */
#define BIG   (200u * BLOCK)

static void open_store(void)
{
	folder_open((struct store_options){
		.hot_bytes = 256u << 20, .warm_bytes = 64u << 20, .same_hash = true });
}

static void setup(void)
{
	folder_make();
	open_store();
}

TestSuite(collision, .init = setup, .fini = folder_remove, .timeout = 120);

static struct store_status status(void)
{
	struct store_status st;

	store_status(s, &st);
	return st;
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

/* Written and settled. */
static struct object *file(uint64_t ino, uint32_t tenant, const char *data, size_t len)
{
	struct object *o;

	cr_assert_eq(object_create(s, ino, tenant, &o), 0);
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

static void expect(struct object *o, const char *want, size_t len)
{
	char *got = malloc(len);

	for (size_t off = 0; off < len;) {
		ssize_t n = object_read(o, got + off, len - off, off);

		cr_assert(n > 0, "read at %zu: %zd", off, n);
		off += n;
	}
	cr_assert(!memcmp(got, want, len), "other bytes in %lu", (unsigned long)object_ino(o));
	free(got);
}

/* Many files of one length, of two owners who have the same contents; each content once an owner. */
Test(collision, neither_files_nor_owners_are_mixed_up)
{
	enum { N = 100 };
	struct object *o[2 * N];
	char data[SMALL];
	uint32_t tenant;

	for (uint64_t i = 0; i < 2 * N; i++) {
		content(data, SMALL, i / 2);
		o[i] = file(100 + i, i & 1 ? 1000 : 0, data, SMALL);
	}
	cr_assert_eq(status().dedup_bytes_total, 0, "nothing of an owner's is another's");
	cr_assert_eq(status().unique_bytes, 2 * N * SMALL);
	commit(o, 2 * N);
	for (uint64_t i = 0; i < 2 * N; i++) {
		cr_assert_eq(object_evict(o[i], i & 2 ? TIER_WARM : TIER_COLD), 0);
		object_unref(o[i]);
	}
	/* As they are in memory, after a kill, and as a mount reads the rows. */
	for (int k = 0; k < 3; k++) {
		for (uint64_t i = 0; i < 2 * N; i++) {
			tenant = i & 1 ? 1000 : 0;
			content(data, SMALL, i / 2);
			cr_assert_eq(object_get(s, 100 + i, tenant, &o[i]), 0);
			expect(o[i], data, SMALL);
			object_unref(o[i]);
		}
		store_close(s, k > 0);
		open_store();
	}
}

/* In one file, too; and what is the same is shared still, as far as the index knows it. */
Test(collision, chunks_of_a_file_are_told_apart)
{
	char *data = malloc(BIG);
	struct object *o[2];

	/* A content without a cut but the longest: every chunk is as long as the others. */
	for (size_t i = 0; i < BIG; i += 4)
		memcpy(data + i, (uint32_t[]){ 0x01010101u * (uint32_t)(i / BLOCK + 1) }, 4);
	o[0] = file(100, 0, data, BIG);
	cr_assert_eq(status().unique_bytes + status().dedup_bytes_total, BIG);
	cr_assert(status().chunks > 100, "%lu", (unsigned long)status().chunks);
	o[1] = file(101, 0, data, BIG);
	cr_assert_eq(status().unique_bytes + status().dedup_bytes_total, 2 * BIG);
	commit(o, 2);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(object_evict(o[i], TIER_COLD), 0);
		expect(o[i], data, BIG);
		object_unref(o[i]);
	}
	free(data);
}

Test(collision, what_was_just_stored_is_shared)
{
	char data[SMALL];

	for (uint64_t i = 0; i < 100; i++) {
		content(data, SMALL, i);
		object_unref(file(100 + 2 * i, 0, data, SMALL));
		object_unref(file(101 + 2 * i, 0, data, SMALL));
		cr_assert_eq(status().unique_bytes, (i + 1) * SMALL);
		cr_assert_eq(status().dedup_bytes_total, (i + 1) * SMALL);
	}
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The candidates of a chunk are a few, however many collide: the later ones cost about what the first did. */
Test(collision, many_cost_no_more_than_few)
{
	enum { N = 800, PART = 200 };
	struct object *o[PART];
	char data[SMALL];
	double first = 0, last = 0;

	for (uint64_t n = 0; n < N; n += PART) {
		double t = seconds();

		for (uint64_t i = 0; i < PART; i++) {
			content(data, SMALL, n + i);
			o[i] = file(100 + n + i, 0, data, SMALL);
		}
		last = seconds() - t;
		first = n ? first : last;
		commit(o, PART);
		for (uint64_t i = 0; i < PART; i++) {
			cr_assert_eq(object_evict(o[i], TIER_COLD), 0);
			object_unref(o[i]);
		}
	}
	cr_assert(last < first * 3, "%.3f s, then %.3f", first, last);
}

struct race {
	struct object *o;
	int result;
};

static void *evict_warm(void *arg)
{
	struct race *r = arg;

	r->result = object_evict(r->o, TIER_WARM);
	return NULL;
}

/* As a passthrough writer does, unseen. False when there is no image any more. */
static bool write_unseen(struct object *o, const char *data, size_t len)
{
	char path[64];
	int fd, wfd;

	if (object_handle_begin(o, true, true))
		return false;
	fd = object_image_open(o);
	cr_assert(fd >= 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	wfd = open(path, O_WRONLY);
	cr_assert(wfd >= 0);
	cr_assert_eq(pwrite(wfd, data, len, 0), (ssize_t)len);
	close(wfd);
	close(fd);
	object_image_close(o);
	object_handle_end(o, true, true);
	return true;
}

/* While o becomes warm; whether it still had an image when the writer came. */
static bool write_while_warming(struct object *o, const char *data, size_t len)
{
	uint64_t warm = status().warm.bytes;
	struct race r = { .o = o };
	pthread_t thread;
	bool met;

	cr_assert_eq(pthread_create(&thread, NULL, evict_warm, &r), 0);
	while (status().warm.bytes == warm)
		;
	met = write_unseen(o, data, len);
	pthread_join(thread, NULL);
	return met;
}

/* Who writes to an image while it is being encoded for the warm tier does not get there what he writes: his hash says
 * nothing, and the chunks are those of other files, too. */
Test(collision, what_is_written_meanwhile_does_not_become_warm)
{
	enum { LEN = 12 << 20, TRIES = 20 };
	char *data = malloc(LEN), *forged = malloc(LEN);
	struct object *o[2];
	bool met = false;

	content(forged, LEN, TRIES);
	for (uint64_t i = 0; i < TRIES && !met; i++) {
		content(data, LEN, i);
		o[0] = file(100 + 2 * i, 0, data, LEN);
		o[1] = file(101 + 2 * i, 0, data, LEN);
		commit(o, 2);
		cr_assert_eq(object_evict(o[1], TIER_COLD), 0);
		met = write_while_warming(o[0], forged, LEN);
		expect(o[1], data, LEN);
		for (int k = 0; k < 2; k++) {
			object_discard(o[k]);
			object_unref(o[k]);
		}
	}
	cr_assert(met, "the writer always came too late");
	free(data);
	free(forged);
}
