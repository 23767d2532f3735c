/* SPDX-License-Identifier: Apache-2.0 */
/* segment: what is appended is read, found by a scan, or its loss is reported. */
#include "store/segment.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define UUID    "01234567-89ab-cdef-0123-456789abcdef"
#define MIB     ((uint64_t)1 << 20)
#define LONGEST 262144u

/* ---- Calls that misbehave. Counters are touched by several threads in some tests. ---- */

struct faults {
	int writes;     /* so far */
	int fail_write; /* the write that fails, from 1 */
	int write_error;
	int sync_error;    /* while not 0 */
	int space_error;   /* of fallocate, while not 0 */
	int read_error_at; /* block of a segment that cannot be read, if not 0 */
	bool shorten;      /* writes do a part */
	bool no_direct;    /* O_DIRECT is not known */
};

static ssize_t faulty_pwrite(void *arg, int fd, const void *buf, size_t len, uint64_t off)
{
	struct faults *f = arg;

	if (__atomic_add_fetch(&f->writes, 1, __ATOMIC_RELAXED) ==
	    __atomic_load_n(&f->fail_write, __ATOMIC_RELAXED))
		return f->write_error;
	if (f->shorten && len > 4096)
		len = 4096;
	return io_system.pwrite(NULL, fd, buf, len, off);
}

static ssize_t faulty_pread(void *arg, int fd, void *buf, size_t len, uint64_t off)
{
	struct faults *f = arg;
	uint64_t bad = (uint64_t)f->read_error_at * IO_ALIGN;

	if (bad && off <= bad && bad < off + len)
		return -EIO;
	return io_system.pread(NULL, fd, buf, len, off);
}

static int faulty_fdatasync(void *arg, int fd)
{
	struct faults *f = arg;

	return f->sync_error ? f->sync_error : io_system.fdatasync(NULL, fd);
}

static int faulty_fallocate(void *arg, int fd, int mode, uint64_t off, uint64_t len)
{
	struct faults *f = arg;

	return f->space_error ? f->space_error : io_system.fallocate(NULL, fd, mode, off, len);
}

static int faulty_openat(void *arg, int dirfd, const char *name, int flags, mode_t mode)
{
	struct faults *f = arg;

	if (f->no_direct && (flags & O_DIRECT))
		return -EINVAL;
	return io_system.openat(NULL, dirfd, name, flags, mode);
}

/* ---- A folder of segments and what was put there ---- */

struct entry {
	struct segment_loc loc;
	struct record_info info;
	uint64_t seed; /* of its payload */
};

struct fixture {
	char dir[256];
	int dirfd;
	struct faults faults;
	struct io_ops ops;
	const struct io_ops *io;
	uint64_t size;
	struct segset *set;
	uint64_t random;
	struct entry *entry;
	size_t n;
};

static uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

static uint64_t draw(struct fixture *f, uint64_t below)
{
	return next_random(&f->random) % below;
}

static void open_set(struct fixture *f, uint32_t next, bool read_only)
{
	struct segset_options opt = {
		.io = f->io,
		.dirfd = f->dirfd,
		.uuid = UUID,
		.segment_size = f->size,
		.next = next,
		.read_only = read_only,
	};

	cr_assert_eq(segset_open(&opt, &f->set), 0);
}

/* faulty: through our calls, without io_uring. */
static void set_up(struct fixture *f, uint64_t size, bool faulty)
{
	const char *base = getenv("CASE_DIR");

	memset(f, 0, sizeof(*f));
	snprintf(f->dir, sizeof(f->dir), "%s/segments-XXXXXX", base ? base : "/tmp");
	cr_assert_not_null(mkdtemp(f->dir));
	f->dirfd = open(f->dir, O_RDONLY | O_DIRECTORY);
	f->ops = io_system;
	f->ops.openat = faulty_openat;
	f->ops.pread = faulty_pread;
	f->ops.pwrite = faulty_pwrite;
	f->ops.fdatasync = faulty_fdatasync;
	f->ops.fallocate = faulty_fallocate;
	f->ops.direct_only = true;
	f->ops.arg = &f->faults;
	f->io = faulty ? &f->ops : &io_system;
	f->size = size;
	f->random = 1;
	f->entry = calloc(10000, sizeof(*f->entry));
	open_set(f, 1, false);
	f->faults.writes = 0;
}

static void tear_down(struct fixture *f)
{
	char command[300];

	segset_close(f->set);
	close(f->dirfd);
	free(f->entry);
	snprintf(command, sizeof(command), "rm -rf '%s'", f->dir);
	cr_assert_eq(system(command), 0);
}

static void fill(uint8_t *p, size_t len, uint64_t seed)
{
	size_t i;

	for (i = 0; i + 8 <= len; i += 8) {
		uint64_t v = next_random(&seed) * 0x9e3779b97f4a7c15u;

		memcpy(p + i, &v, 8);
	}
	for (; i < len; i++)
		p[i] = (uint8_t)next_random(&seed);
}

static int try_append(struct fixture *f, uint32_t len)
{
	struct entry *e = &f->entry[f->n];
	uint8_t *payload = malloc(len);
	int rc;

	e->seed = f->n + 1000;
	fill(payload, len, e->seed);
	e->info = (struct record_info){
		.chunk_id = f->n + 1,
		.hash = hash128(payload, len),
		.tenant = 7,
		.raw_len = len,
		.stored_len = len,
		.codec = CODEC_RAW,
	};
	rc = segset_append(f->set, &e->info, payload, &e->loc);
	free(payload);
	f->n += !rc;
	return rc;
}

static void append(struct fixture *f, uint32_t len)
{
	cr_assert_eq(try_append(f, len), 0);
}

/* Many sizes, mostly small. */
static uint32_t draw_length(struct fixture *f)
{
	uint64_t most = draw(f, 3) ? 5000 : LONGEST;

	return (uint32_t)(1 + draw(f, most));
}

static int read_entry(struct fixture *f, const struct entry *e)
{
	uint8_t *got = malloc(e->info.stored_len), *want = malloc(e->info.stored_len);
	int rc = segset_read(f->set, e->loc, &e->info, got);

	fill(want, e->info.stored_len, e->seed);
	if (!rc)
		cr_assert_eq(memcmp(got, want, e->info.stored_len), 0);
	free(got);
	free(want);
	return rc;
}

static uint64_t file_size(struct fixture *f, uint32_t n)
{
	struct stat st;
	char name[20];

	snprintf(name, sizeof(name), "%08x.seg", n);
	return fstatat(f->dirfd, name, &st, 0) ? UINT64_MAX : (uint64_t)st.st_size;
}

static void damage(struct fixture *f, uint32_t n, uint64_t off)
{
	uint8_t byte;
	char name[20];
	int fd;

	snprintf(name, sizeof(name), "%08x.seg", n);
	fd = openat(f->dirfd, name, O_RDWR);
	cr_assert_eq(pread(fd, &byte, 1, (off_t)off), 1);
	byte ^= 0x55;
	cr_assert_eq(pwrite(fd, &byte, 1, (off_t)off), 1);
	close(fd);
}

/* ---- Bulk reads ---- */

struct bulk {
	struct fixture *f;
	size_t calls, stop_at;
	size_t failed;
};

static int on_record(void *arg, const struct segset_read_req *req, const void *payload, int err)
{
	struct bulk *b = arg;
	const struct entry *e = &b->f->entry[(uintptr_t)req->user];
	uint8_t *want;

	/* In order of submission: user counts up. */
	cr_assert_eq((uintptr_t)req->user, b->calls);
	b->calls++;
	if (err) {
		cr_assert_null(payload);
		b->failed++;
	} else {
		want = malloc(e->info.stored_len);
		fill(want, e->info.stored_len, e->seed);
		cr_assert_eq(memcmp(payload, want, e->info.stored_len), 0);
		free(want);
	}
	return b->calls == b->stop_at ? 42 : 0;
}

static struct bulk read_all(struct fixture *f, size_t stop_at)
{
	struct segset_read_req *req = calloc(f->n + 1, sizeof(*req));
	struct bulk b = { .f = f, .stop_at = stop_at };
	int rc;

	for (size_t i = 0; i < f->n; i++) {
		req[i].loc = f->entry[i].loc;
		req[i].info = &f->entry[i].info;
		req[i].user = (void *)i;
	}
	rc = segset_read_many(f->set, req, f->n, on_record, &b);
	cr_assert_eq(rc, stop_at ? 42 : 0);
	cr_assert_eq(b.calls, stop_at ? stop_at : f->n);
	free(req);
	return b;
}

static void expect_all_readable(struct fixture *f)
{
	cr_assert_eq(read_all(f, 0).failed, 0);
}

/* ---- Scans ---- */

struct found {
	struct fixture *f;
	size_t at; /* entries before have been seen or are missing */
	size_t seen;
};

static int on_found(void *arg, struct segment_loc loc, const struct record_info *info)
{
	struct found *s = arg;
	const struct entry *e;

	do {
		cr_assert_lt(s->at, s->f->n, "a record that nobody wrote");
		e = &s->f->entry[s->at++];
	} while (e->loc.segment != loc.segment || e->loc.offset != loc.offset);
	cr_assert_eq(info->chunk_id, e->info.chunk_id);
	cr_assert_eq(info->hash.lo, e->info.hash.lo);
	cr_assert_eq(info->hash.hi, e->info.hash.hi);
	cr_assert_eq(info->tenant, e->info.tenant);
	cr_assert_eq(info->raw_len, e->info.raw_len);
	cr_assert_eq(info->stored_len, e->info.stored_len);
	cr_assert_eq(info->codec, e->info.codec);
	cr_assert_eq(memcmp(info->params, e->info.params, CODEC_PARAMS), 0);
	s->seen++;
	return 0;
}

/* Number of records that scans of all segments find; in order, and nothing else. */
static size_t scan_all(struct fixture *f, uint64_t *ret_damaged)
{
	struct found s = { .f = f };

	*ret_damaged = 0;
	for (uint32_t n = 1; file_size(f, n) != UINT64_MAX; n++) {
		uint64_t damaged;

		cr_assert_eq(segset_scan(f->set, n, on_found, &s, &damaged), 0);
		*ret_damaged += damaged;
	}
	return s.seen;
}

/* ---- Tests ---- */

/* Appends, flushes, syncs and reads at random, then everything again from a new set. */
static void exercise(struct fixture *f, bool direct)
{
	uint64_t damaged;

	cr_assert_eq(segset_is_direct(f->set), direct);
	for (int i = 0; i < 600; i++) {
		append(f, draw_length(f));
		if (!draw(f, 50))
			cr_assert_eq(segset_sync(f->set), 0);
		else if (!draw(f, 20))
			cr_assert_eq(segset_flush(f->set), 0);
		cr_assert_eq(read_entry(f, &f->entry[draw(f, 3) ? f->n - 1 : draw(f, f->n)]), 0);
		if (!draw(f, 100))
			expect_all_readable(f);
	}
	expect_all_readable(f);
	cr_assert_eq(scan_all(f, &damaged), f->n);
	cr_assert_eq(segset_sync(f->set), 0);
	segset_close(f->set);
	open_set(f, 1000, true);
	expect_all_readable(f);
	cr_assert_eq(scan_all(f, &damaged), f->n);
	cr_assert_eq(damaged, 0);
	cr_assert_eq(try_append(f, 10), -EROFS);
	cr_assert_eq(file_size(f, 1000), UINT64_MAX);
}

Test(segment, records_come_back)
{
	struct fixture f;

	set_up(&f, 4 * MIB, false);
	exercise(&f, true);
	tear_down(&f);
}

Test(segment, records_come_back_without_io_uring_and_with_short_writes)
{
	struct fixture f;

	set_up(&f, 2 * MIB, true);
	f.faults.shorten = true;
	cr_assert_not(segset_is_uring(f.set));
	exercise(&f, true);
	tear_down(&f);
}

Test(segment, records_come_back_without_o_direct)
{
	struct fixture f;

	set_up(&f, 2 * MIB, true);
	segset_close(f.set);
	f.faults.no_direct = true;
	f.faults.space_error = -EOPNOTSUPP;
	open_set(&f, 1, false);
	exercise(&f, false);
	tear_down(&f);
}

Test(segment, large_segments_fill_all_buffers)
{
	struct fixture f;

	set_up(&f, 64 * MIB, false);
	for (int i = 0; i < 400; i++) {
		append(&f, LONGEST - (uint32_t)draw(&f, 1000));
		if (!(i % 37))
			cr_assert_eq(read_entry(&f, &f.entry[draw(&f, f.n)]), 0);
	}
	expect_all_readable(&f);
	cr_assert_eq(segset_sync(f.set), 0);
	expect_all_readable(&f);
	tear_down(&f);
}

Test(segment, the_longest_record_is_a_mebibyte)
{
	struct fixture f;
	struct record_info info = { .raw_len = 1, .stored_len = RECORD_MAX + 1 };
	struct segment_loc loc;

	set_up(&f, 8 * MIB, false);
	append(&f, RECORD_MAX);
	append(&f, RECORD_MAX);
	append(&f, RECORD_MAX);
	cr_assert_eq(segset_append(f.set, &info, &info, &loc), -EINVAL);
	info = (struct record_info){ .raw_len = 0, .stored_len = 1 };
	cr_assert_eq(segset_append(f.set, &info, &info, &loc), -EINVAL);
	info = (struct record_info){ .raw_len = 1, .stored_len = 0 };
	cr_assert_eq(segset_append(f.set, &info, &info, &loc), -EINVAL);
	cr_assert_eq(segset_sync(f.set), 0);
	expect_all_readable(&f);
	tear_down(&f);
}

Test(segment, a_callback_stops_a_bulk_read)
{
	struct fixture f;

	set_up(&f, 2 * MIB, false);
	for (int i = 0; i < 100; i++)
		append(&f, 100000);
	read_all(&f, 1);
	read_all(&f, 50);
	cr_assert_eq(segset_sync(f.set), 0);
	read_all(&f, 1);
	read_all(&f, 50);
	tear_down(&f);
}

Test(segment, requests_in_any_order_are_served)
{
	struct fixture f;

	set_up(&f, 4 * MIB, false);
	for (int i = 0; i < 300; i++)
		append(&f, draw_length(&f));
	cr_assert_eq(segset_sync(f.set), 0);
	for (size_t i = 0; i < f.n; i++) {
		size_t j = draw(&f, f.n);
		struct entry e = f.entry[i];

		f.entry[i] = f.entry[j];
		f.entry[j] = draw(&f, 10) ? e : f.entry[i]; /* some of them twice */
	}
	expect_all_readable(&f);
	tear_down(&f);
}

struct kept {
	size_t n;
	const void *payload[10000];
};

static int keep_payload(void *arg, const struct segset_read_req *req, const void *payload, int err)
{
	struct kept *k = arg;

	(void)req;
	cr_assert_eq(err, 0);
	k->payload[k->n++] = payload;
	return 0;
}

/* Reads the first n entries in steps. True: payloads were valid until the end. */
static bool read_held(struct fixture *f, size_t n)
{
	struct segset_read_req *req = calloc(n, sizeof(*req));
	struct kept *k = calloc(1, sizeof(*k));
	struct segset_read *r;
	bool holds;

	for (size_t i = 0; i < n; i++)
		req[i] = (struct segset_read_req){ f->entry[i].loc, &f->entry[i].info, NULL };
	cr_assert_eq(segset_read_begin(f->set, req, n, &r), 0);
	holds = segset_read_holds(r);
	segset_read_wait(r);
	cr_assert_eq(segset_read_finish(r, keep_payload, k), 0);
	cr_assert_eq(k->n, n);
	for (size_t i = 0; holds && i < n; i++) {
		const struct entry *e = &f->entry[i];
		uint8_t *want = malloc(e->info.stored_len);

		fill(want, e->info.stored_len, e->seed);
		cr_assert_eq(memcmp(k->payload[i], want, e->info.stored_len), 0);
		free(want);
	}
	segset_read_end(r);
	free(k);
	free(req);
	return holds;
}

Test(segment, payloads_stay_while_all_fits_the_buffers)
{
	struct fixture f;

	set_up(&f, 64 * MIB, false);
	for (int i = 0; i < 300; i++)
		append(&f, 60000);
	cr_assert_eq(segset_sync(f.set), 0);
	cr_assert(read_held(&f, 1));
	cr_assert(read_held(&f, 40));
	cr_assert(!read_held(&f, 300));
	expect_all_readable(&f);
	tear_down(&f);
}

/* A reader that ends without handing anything out leaves nothing behind. */
Test(segment, a_reader_may_end_early)
{
	struct segset_read *r;
	struct segset_read_req req[40];
	struct fixture f;

	set_up(&f, 64 * MIB, false);
	for (int i = 0; i < 40; i++) {
		append(&f, 60000);
		req[i] = (struct segset_read_req){ f.entry[i].loc, &f.entry[i].info, NULL };
	}
	cr_assert_eq(segset_sync(f.set), 0);
	cr_assert_eq(segset_read_begin(f.set, req, 40, &r), 0);
	segset_read_end(r);
	segset_read_end(NULL);
	expect_all_readable(&f);
	tear_down(&f);
}

Test(segment, a_record_must_be_what_is_asked_for)
{
	struct fixture f;
	struct entry e;

	set_up(&f, 2 * MIB, false);
	append(&f, 5000);
	append(&f, 5000);
	for (int synced = 0; synced < 2; synced++) {
		e = f.entry[0];
		e.info.chunk_id++;
		cr_assert_eq(read_entry(&f, &e), -EBADMSG);
		e = f.entry[0];
		e.info.stored_len--;
		cr_assert_eq(read_entry(&f, &e), -EBADMSG);
		e = f.entry[0];
		e.info.raw_len++;
		cr_assert_eq(read_entry(&f, &e), -EBADMSG);
		e = f.entry[0];
		e.info.codec = CODEC_LZ4;
		cr_assert_eq(read_entry(&f, &e), -EBADMSG);
		e = f.entry[0];
		e.info.tenant++;
		cr_assert_eq(read_entry(&f, &e), -EBADMSG);
		e = f.entry[0];
		e.info.hash.hi++;
		cr_assert_eq(read_entry(&f, &e), -EBADMSG);
		e = f.entry[0];
		e.loc.offset++;
		cr_assert_eq(read_entry(&f, &e), -EBADMSG);
		e = f.entry[0];
		e.loc.offset = UINT32_MAX;
		cr_assert_eq(read_entry(&f, &e), -EBADMSG);
		e = f.entry[0];
		e.loc.segment = 99;
		cr_assert_eq(read_entry(&f, &e), -EBADMSG);
		cr_assert_eq(segset_sync(f.set), 0);
	}
	tear_down(&f);
}

Test(segment, lengths_that_lie_reach_no_memory)
{
	static const uint32_t lengths[] = { 0, RECORD_MAX + 1, UINT32_MAX };
	struct fixture f;
	uint8_t byte;

	set_up(&f, 2 * MIB, false);
	append(&f, 5000);
	for (int i = 0; i < 3; i++) {
		struct record_info info = f.entry[0].info;

		info.stored_len = lengths[i];
		cr_assert_eq(segset_read(f.set, f.entry[0].loc, &info, &byte), -EBADMSG);
	}
	tear_down(&f);
}

Test(segment, an_unknown_codec_is_not_handed_out)
{
	struct fixture f;
	struct record_info info = { .raw_len = 1, .stored_len = 1, .codec = 200 };
	struct segment_loc loc;
	uint8_t byte = 1;

	set_up(&f, 2 * MIB, false);
	cr_assert_eq(segset_append(f.set, &info, &byte, &loc), 0);
	cr_assert_eq(segset_read(f.set, loc, &info, &byte), -EBADMSG);
	tear_down(&f);
}

Test(segment, damage_is_found_and_stays_where_it_is)
{
	struct fixture f;
	uint64_t damaged;

	set_up(&f, 32 * MIB, false);
	for (int i = 0; i < 200; i++)
		append(&f, draw_length(&f));
	cr_assert_eq(segset_sync(f.set), 0);
	for (int run = 0; run < 60; run++) {
		const struct entry *e = &f.entry[draw(&f, f.n)];
		uint64_t len = sizeof(struct record_header) + e->info.stored_len;
		uint64_t at = (uint64_t)e->loc.offset * RECORD_ALIGN +
			      draw(&f, draw(&f, 2) ? sizeof(struct record_header) : len);

		damage(&f, e->loc.segment, at);
		cr_assert_eq(read_entry(&f, e), -EBADMSG);
		cr_assert_eq(read_all(&f, 0).failed, 1);
		cr_assert_eq(scan_all(&f, &damaged), f.n - 1);
		cr_assert_gt(damaged, 0);
		cr_assert_leq(damaged, record_size(e->info.stored_len));
		damage(&f, e->loc.segment, at);
	}
	cr_assert_eq(scan_all(&f, &damaged), f.n);
	cr_assert_eq(damaged, 0);
	tear_down(&f);
}

Test(segment, an_unreadable_block_costs_its_records_only)
{
	struct fixture f;
	uint64_t damaged;
	size_t failed;

	set_up(&f, 8 * MIB, true);
	for (int i = 0; i < 500; i++)
		append(&f, 3000);
	cr_assert_eq(segset_sync(f.set), 0);
	f.faults.read_error_at = 100;
	failed = read_all(&f, 0).failed;
	cr_assert_geq(failed, 2);
	cr_assert_leq(failed, 3);
	cr_assert_geq(scan_all(&f, &damaged), f.n - 3);
	cr_assert_gt(damaged, 0);
	tear_down(&f);
}

Test(segment, a_copy_of_a_record_elsewhere_is_none)
{
	struct fixture f;
	struct record_info info = { .raw_len = 30000, .stored_len = 30000 };
	struct found s = { .f = &f };
	uint8_t *payload = malloc(30000);
	struct segment_loc loc;
	uint64_t damaged;
	int fd;

	set_up(&f, 2 * MIB, false);
	append(&f, 10000);
	cr_assert_eq(segset_sync(f.set), 0);
	/* A file may well hold a segment: its records must not pass for ours. */
	fd = openat(f.dirfd, "00000001.seg", O_RDONLY);
	cr_assert_eq(pread(fd, payload, 30000, 4096), 30000);
	close(fd);
	cr_assert_eq(segset_append(f.set, &info, payload, &loc), 0);
	cr_assert_eq(segset_sync(f.set), 0);
	damage(&f, 1, (uint64_t)loc.offset * RECORD_ALIGN);
	cr_assert_eq(segset_scan(f.set, 1, on_found, &s, &damaged), 0);
	cr_assert_eq(s.seen, 1);
	free(payload);
	tear_down(&f);
}

Test(segment, a_scan_wants_the_right_header)
{
	struct segset_options other = { .io = &io_system,
					.uuid = "00000000-0000-0000-0000-000000000000",
					.segment_size = MIB };
	struct segset *set;
	struct fixture f;
	uint64_t damaged;

	set_up(&f, 2 * MIB, false);
	append(&f, 100);
	cr_assert_eq(segset_sync(f.set), 0);
	other.dirfd = f.dirfd;
	cr_assert_eq(segset_open(&other, &set), 0);
	cr_assert_eq(segset_scan(set, 1, on_found, NULL, &damaged), -EBADMSG);
	segset_close(set);
	cr_assert_eq(segset_scan(f.set, 2, on_found, NULL, &damaged), -ENOENT);
	cr_assert_eq(renameat(f.dirfd, "00000001.seg", f.dirfd, "00000002.seg"), 0);
	cr_assert_eq(segset_scan(f.set, 2, on_found, NULL, &damaged), -EBADMSG);
	cr_assert_eq(renameat(f.dirfd, "00000002.seg", f.dirfd, "00000001.seg"), 0);
	damage(&f, 1, 20);
	cr_assert_eq(segset_scan(f.set, 1, on_found, NULL, &damaged), -EBADMSG);
	tear_down(&f);
}

Test(segment, what_was_not_written_is_not_there)
{
	struct fixture f;
	uint64_t damaged;

	set_up(&f, 4 * MIB, false);
	append(&f, 1000);
	segset_close(f.set);
	cr_assert_eq(file_size(&f, 1), UINT64_MAX, "a segment that never had a record is removed");
	f.n = 0;
	open_set(&f, 1, false);
	append(&f, 1000);
	cr_assert_eq(segset_sync(f.set), 0);
	append(&f, 1000);
	segset_close(f.set);
	cr_assert_eq(file_size(&f, 1), 8192, "sealed at what was written");
	open_set(&f, 2, false);
	cr_assert_eq(read_entry(&f, &f.entry[0]), 0);
	cr_assert_eq(read_entry(&f, &f.entry[1]), -EBADMSG);
	cr_assert_eq(scan_all(&f, &damaged), 1);
	tear_down(&f);
}

Test(segment, segments_are_preallocated_sealed_and_numbered_past_what_exists)
{
	struct fixture f;
	uint32_t last;

	set_up(&f, MIB, false);
	close(openat(f.dirfd, "00000002.seg", O_CREAT | O_WRONLY, 0600));
	cr_assert_eq(segset_room(f.set), 0);
	cr_assert_eq(segset_active(f.set), 1);
	append(&f, 1000);
	cr_assert_eq(file_size(&f, 1), MIB);
	cr_assert_eq(segset_used(f.set, 1), SEGMENT_HEADER + record_size(1000));
	cr_assert_eq(segset_room(f.set), MIB - SEGMENT_HEADER - record_size(1000));
	while (f.entry[f.n - 1].loc.segment == 1)
		append(&f, 100000);
	last = segset_active(f.set);
	cr_assert_eq(last, 3);
	cr_assert_eq(segset_used(f.set, 2), 0);
	cr_assert_eq(segset_used(f.set, 77), 0);
	cr_assert_eq(segset_remove(f.set, 1), -EBUSY, "not durable yet");
	cr_assert_eq(segset_sync(f.set), 0);
	cr_assert_eq(file_size(&f, 1), segset_used(f.set, 1));
	cr_assert_lt(file_size(&f, 1), MIB);
	cr_assert_eq(file_size(&f, 3), MIB);
	cr_assert_eq(segset_remove(f.set, 3), -EBUSY);
	expect_all_readable(&f);
	cr_assert_eq(segset_remove(f.set, 1), 0);
	cr_assert_eq(read_entry(&f, &f.entry[0]), -EBADMSG);
	cr_assert_eq(segset_remove(f.set, 1), -ENOENT);
	tear_down(&f);
}

Test(segment, trimming_never_lengthens)
{
	struct fixture f;
	int fd;

	set_up(&f, MIB, false);
	fd = openat(f.dirfd, "00000009.seg", O_CREAT | O_WRONLY, 0600);
	cr_assert_eq(ftruncate(fd, 100000), 0);
	close(fd);
	cr_assert_eq(segset_trim(f.set, 9, 200000), 0);
	cr_assert_eq(file_size(&f, 9), 100000);
	cr_assert_eq(segset_trim(f.set, 9, 5000), 0);
	cr_assert_eq(file_size(&f, 9), 8192);
	append(&f, 10);
	cr_assert_eq(segset_trim(f.set, 1, 0), -EBUSY);
	cr_assert_eq(segset_trim(f.set, 50, 0), -ENOENT);
	tear_down(&f);
}

/* What a store from elsewhere has in the place of a segment. */
Test(segment, nothing_but_a_file_is_a_segment, .timeout = 10)
{
	struct segment_loc loc = { .segment = 9, .offset = SEGMENT_HEADER / RECORD_ALIGN };
	struct record_info info = { .raw_len = 65536, .stored_len = 65536 };
	char *payload = malloc(RECORD_MAX);
	struct stat before, after;
	struct fixture f;
	int fd;

	set_up(&f, MIB, false);
	fd = openat(f.dirfd, "victim", O_CREAT | O_WRONLY, 0600);
	cr_assert_eq(posix_fallocate(fd, 0, 200000), 0);
	close(fd);
	fstatat(f.dirfd, "victim", &before, 0);
	cr_assert_eq(symlinkat("victim", f.dirfd, "00000009.seg"), 0);
	cr_assert_eq(segset_trim(f.set, 9, 5000), -ELOOP);
	cr_assert_eq(segset_punch(f.set, loc, info.stored_len), -ELOOP);
	cr_assert_lt(segset_read(f.set, loc, &info, payload), 0);
	fstatat(f.dirfd, "victim", &after, 0);
	cr_assert_eq(after.st_size, before.st_size);
	cr_assert_eq(after.st_blocks, before.st_blocks);
	cr_assert_eq(segset_remove(f.set, 9), 0);
	cr_assert_eq(mkfifoat(f.dirfd, "00000009.seg", 0600), 0);
	cr_assert_lt(segset_read(f.set, loc, &info, payload), 0);
	cr_assert_lt(segset_trim(f.set, 9, 5000), 0);
	free(payload);
	tear_down(&f);
}

Test(segment, punching_frees_the_dead_and_keeps_the_rest)
{
	struct fixture f;
	struct stat before, after;
	uint64_t damaged;

	set_up(&f, 16 * MIB, false);
	for (int i = 0; i < 40; i++)
		append(&f, i % 2 ? LONGEST : 1000 + (uint32_t)draw(&f, 9000));
	cr_assert_eq(segset_punch(f.set, f.entry[39].loc, LONGEST), -EBUSY);
	cr_assert_eq(segset_sync(f.set), 0);
	fstatat(f.dirfd, "00000001.seg", &before, 0);
	for (size_t i = 0; i < f.n; i += 3)
		cr_assert_eq(segset_punch(f.set, f.entry[i].loc, f.entry[i].info.stored_len), 0);
	fstatat(f.dirfd, "00000001.seg", &after, 0);
	cr_assert_lt(after.st_blocks + 6 * (LONGEST / 512), before.st_blocks);
	for (size_t i = 0; i < f.n; i++) {
		if (i % 3)
			cr_assert_eq(read_entry(&f, &f.entry[i]), 0);
	}
	cr_assert_geq(scan_all(&f, &damaged), f.n - 14);
	cr_assert_eq(damaged, 0);
	tear_down(&f);
}

/* Fails the first write, the second, and so on, until one run has none that fails. */
Test(segment, a_failed_write_is_reported_from_then_on)
{
	bool failed = true;

	for (int nth = 1; failed; nth++) {
		struct fixture f;
		size_t durable = 0;

		set_up(&f, 4 * MIB, true);
		f.faults.fail_write = nth;
		f.faults.write_error = -EIO;
		failed = false;
		for (int i = 0; i < 60 && !failed; i++) {
			failed = try_append(&f, LONGEST) != 0;
			if (i % 20 == 19 && !failed) {
				failed = segset_sync(f.set) != 0;
				durable = failed ? durable : f.n;
			}
		}
		if (failed) {
			for (int i = 0; i < 3; i++) {
				cr_assert_eq(try_append(&f, 10), -EIO);
				cr_assert_eq(segset_sync(f.set), -EIO, "not clean by repeating");
				cr_assert_eq(segset_flush(f.set), -EIO);
			}
			cr_assert_eq(segset_error(f.set), -EIO);
			f.n = durable;
		}
		expect_all_readable(&f);
		tear_down(&f);
	}
}

Test(segment, a_failed_sync_is_reported_from_then_on)
{
	struct fixture f;

	set_up(&f, 4 * MIB, true);
	append(&f, 1000);
	cr_assert_eq(segset_sync(f.set), 0);
	append(&f, 1000);
	f.faults.sync_error = -EIO;
	cr_assert_eq(segset_sync(f.set), -EIO);
	f.faults.sync_error = 0;
	cr_assert_eq(segset_sync(f.set), -EIO);
	cr_assert_eq(try_append(&f, 10), -EIO);
	f.n = 1;
	expect_all_readable(&f);
	tear_down(&f);
}

Test(segment, a_full_file_system_breaks_nothing)
{
	struct fixture f;

	set_up(&f, MIB, true);
	f.faults.space_error = -ENOSPC;
	cr_assert_eq(try_append(&f, 1000), -ENOSPC);
	cr_assert_eq(file_size(&f, 1), UINT64_MAX, "nothing is left behind");
	cr_assert_eq(segset_sync(f.set), 0);
	f.faults.space_error = 0;
	while (segset_room(f.set) > 100000 || !f.n)
		append(&f, 90000);
	f.faults.space_error = -ENOSPC;
	cr_assert_eq(try_append(&f, 100000), -ENOSPC);
	append(&f, 1000);
	cr_assert_eq(f.entry[f.n - 1].loc.segment, 1, "what fits still goes in");
	cr_assert_eq(segset_sync(f.set), 0);
	f.faults.space_error = 0;
	append(&f, 100000);
	cr_assert_eq(f.entry[f.n - 1].loc.segment, 2);
	cr_assert_eq(segset_sync(f.set), 0);
	expect_all_readable(&f);
	tear_down(&f);
}

Test(segment, nonsense_options_are_refused)
{
	struct segset_options opt = { .io = &io_system, .uuid = UUID, .segment_size = MIB + 1 };
	struct segset *set = NULL;

	cr_assert_eq(segset_open(&opt, &set), -EINVAL);
	opt.segment_size = 2048 * MIB;
	cr_assert_eq(segset_open(&opt, &set), -EINVAL);
	opt.segment_size = MIB;
	opt.uuid = "short";
	cr_assert_eq(segset_open(&opt, &set), -EINVAL);
	cr_assert_null(set);
	segset_close(NULL);
}

/* ---- Threads ---- */

struct worker {
	struct fixture view; /* of the shared set, with entries of its own */
	pthread_t thread;
	int failures; /* of a set whose writes fail now and then */
};

static void *work(void *arg)
{
	struct worker *w = arg;
	struct fixture *f = &w->view;

	for (int i = 0; i < 300; i++) {
		append(f, draw_length(f));
		if (!draw(f, 10))
			cr_assert_eq(segset_sync(f->set), 0);
		if (!draw(f, 3))
			cr_assert_eq(read_entry(f, &f->entry[draw(f, f->n)]), 0);
		if (!draw(f, 60))
			expect_all_readable(f);
	}
	cr_assert_eq(segset_sync(f->set), 0);
	return NULL;
}

static void hire(struct worker w[4], const struct fixture *f)
{
	for (unsigned i = 0; i < 4; i++) {
		w[i] = (struct worker){ .view = *f };
		w[i].view.random = i + 1;
		w[i].view.entry = calloc(1000, sizeof(struct entry));
	}
}

static void run_threads(bool faulty)
{
	struct worker w[4];
	struct fixture f;

	set_up(&f, 4 * MIB, faulty);
	hire(w, &f);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(w[i].thread, NULL);
	segset_close(f.set);
	open_set(&f, 1000, true);
	for (unsigned i = 0; i < 4; i++) {
		w[i].view.set = f.set;
		expect_all_readable(&w[i].view);
		free(w[i].view.entry);
	}
	tear_down(&f);
}

Test(segment, threads_append_read_and_sync)
{
	run_threads(false);
}

Test(segment, threads_append_read_and_sync_without_io_uring)
{
	run_threads(true);
}

/* What a thread was told is durable is there, whoever's write fails. */
static void *work_through_failures(void *arg)
{
	struct worker *w = arg;
	struct fixture *f = &w->view;
	size_t durable = 0;

	for (int i = 0; i < 300 && !w->failures; i++) {
		int rc = 0;

		for (int k = 0; k < 3 && !rc; k++)
			rc = try_append(f, draw_length(f));
		if (!rc)
			rc = segset_sync(f->set);
		if (!rc)
			durable = f->n;
		w->failures += rc != 0;
	}
	f->n = durable;
	return NULL;
}

Test(segment, a_sync_that_succeeds_is_true_whatever_others_suffer)
{
	struct worker w[4];
	struct fixture f;
	int failures = 0;

	set_up(&f, 4 * MIB, true);
	hire(w, &f);
	f.faults.write_error = -EIO;
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&w[i].thread, NULL, work_through_failures, &w[i]), 0);
	usleep(50000);
	__atomic_store_n(&f.faults.fail_write,
			 __atomic_load_n(&f.faults.writes, __ATOMIC_RELAXED) + 3, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(w[i].thread, NULL);
		failures += w[i].failures;
		expect_all_readable(&w[i].view);
		free(w[i].view.entry);
	}
	cr_assert_gt(failures, 0);
	tear_down(&f);
}
