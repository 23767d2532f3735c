/* SPDX-License-Identifier: Apache-2.0 */
/* io: whole transfers over calls that do less than asked, and rings of both kinds. */
#include "store/io.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS 64u
#define BLOCK  65536u

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % below;
}

static int temporary(int flags)
{
	const char *dir = getenv("CASE_DIR");
	int fd = open(dir ? dir : "/tmp", O_TMPFILE | O_RDWR | flags, 0600);

	cr_assert_geq(fd, 0);
	return fd;
}

/* ---- Calls that misbehave ---- */

struct faults {
	unsigned calls;
	unsigned fail_at; /* the call that fails, from 1; 0: none */
	int error;
	bool shorten;   /* each call does a part */
	bool interrupt; /* every other call is interrupted */
};

static ssize_t some(struct faults *f, size_t len)
{
	f->calls++;
	if (f->calls == f->fail_at)
		return f->error;
	if (f->interrupt && f->calls % 2)
		return -EINTR;
	return f->shorten && len > 1 ? (ssize_t)(1 + draw(len - 1)) : (ssize_t)len;
}

static ssize_t faulty_pread(void *arg, int fd, void *buf, size_t len, uint64_t off)
{
	ssize_t n = some(arg, len);

	return n < 0 ? n : io_system.pread(NULL, fd, buf, (size_t)n, off);
}

static ssize_t faulty_pwrite(void *arg, int fd, const void *buf, size_t len, uint64_t off)
{
	ssize_t n = some(arg, len);

	return n < 0 ? n : io_system.pwrite(NULL, fd, buf, (size_t)n, off);
}

static struct io_ops faulty(struct faults *f)
{
	struct io_ops ops = io_system;

	ops.pread = faulty_pread;
	ops.pwrite = faulty_pwrite;
	ops.direct_only = true;
	ops.arg = f;
	return ops;
}

Test(io, whole_transfers_survive_short_and_interrupted_calls)
{
	struct faults f = { .shorten = true, .interrupt = true };
	struct io_ops ops = faulty(&f);
	char out[10000], in[10000];
	int fd = temporary(0);

	seed = 1;
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (char)draw(256);
	cr_assert_eq(io_write_full(&ops, fd, out, sizeof(out), 77), 0);
	cr_assert_eq(io_read_full(&ops, fd, in, sizeof(in), 77), 0);
	cr_assert_eq(memcmp(in, out, sizeof(in)), 0);
	cr_assert_gt(f.calls, 8);
	cr_assert_eq(io_read_full(&ops, fd, in, sizeof(in), 78), -ENODATA);
	close(fd);
}

Test(io, whole_transfers_report_the_error)
{
	struct faults f = { .shorten = true, .fail_at = 3, .error = -ENOSPC };
	struct io_ops ops = faulty(&f);
	char buf[10000] = { 0 };
	int fd = temporary(0);

	cr_assert_eq(io_write_full(&ops, fd, buf, sizeof(buf), 0), -ENOSPC);
	cr_assert_eq(f.calls, 3);
	f = (struct faults){ .fail_at = 1, .error = -EIO };
	cr_assert_eq(io_read_full(&ops, fd, buf, sizeof(buf), 0), -EIO);
	f = (struct faults){ .fail_at = 1, .error = 0 };
	cr_assert_eq(io_write_full(&ops, fd, buf, sizeof(buf), 0), -EIO, "no progress");
	close(fd);
}

Test(io, the_end_of_a_file_between_blocks_is_its_end_with_o_direct_too)
{
	uint8_t *buf = io_buffer_alloc(2 * IO_ALIGN);
	int fd = temporary(O_DIRECT);

	cr_assert_eq(io_write_full(&io_system, fd, buf, 2 * IO_ALIGN, 0), 0);
	cr_assert_eq(io_system.ftruncate(NULL, fd, IO_ALIGN + 100), 0);
	cr_assert_eq(io_read_full(&io_system, fd, buf, 2 * IO_ALIGN, 0), -ENODATA);
	close(fd);
	io_buffer_free(buf, 2 * IO_ALIGN);
}

Test(io, system_calls_return_errors_as_numbers)
{
	char c;

	cr_assert_eq(io_system.openat(NULL, AT_FDCWD, "/nonexistent/x", O_RDONLY, 0), -ENOENT);
	cr_assert_eq(io_system.pread(NULL, -1, &c, 1, 0), -EBADF);
	cr_assert_eq(io_system.pwrite(NULL, -1, &c, 1, 0), -EBADF);
	cr_assert_eq(io_system.fdatasync(NULL, -1), -EBADF);
	cr_assert_eq(io_system.fsync(NULL, -1), -EBADF);
	cr_assert_eq(io_system.fallocate(NULL, -1, 0, 0, 1), -EBADF);
	cr_assert_eq(io_system.ftruncate(NULL, -1, 0), -EBADF);
	cr_assert_eq(io_system.unlinkat(NULL, AT_FDCWD, "/nonexistent/x"), -ENOENT);
	cr_assert_eq(io_system.close(NULL, -1), -EBADF);
}

Test(io, buffers_are_aligned_and_zeroed)
{
	static const size_t lengths[] = { 1, 4096, 4097, 1 << 20, 2 << 20, (2 << 20) + 1, 9 << 20 };

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint8_t *p = io_buffer_alloc(lengths[i]);

		cr_assert_not_null(p);
		cr_assert_eq((uintptr_t)p % (lengths[i] >= 2u << 20 ? 2u << 20 : IO_ALIGN), 0);
		cr_assert_eq(p[0] | p[lengths[i] - 1], 0);
		memset(p, 1, lengths[i]);
		io_buffer_free(p, lengths[i]);
	}
	io_buffer_free(NULL, 5);
	cr_assert_null(io_buffer_alloc(0));
	cr_assert_null(io_buffer_alloc(SIZE_MAX - 5));
}

/* ---- Rings ---- */

/* Writes all blocks in random order, several in flight, and reads them back likewise. */
static void exercise(const struct io_ops *ops, int fd, unsigned depth)
{
	struct io_request req[BLOCKS];
	uint8_t *data = io_buffer_alloc(BLOCKS * BLOCK), *back = io_buffer_alloc(BLOCKS * BLOCK);
	struct io_ring *ring;

	cr_assert_eq(io_ring_new(ops, depth, &ring), 0);
	cr_assert(!ops->direct_only || !io_ring_is_uring(ring));
	for (size_t i = 0; i < BLOCKS * BLOCK; i++)
		data[i] = (uint8_t)draw(256);
	for (int pass = 0; pass < 2; pass++) {
		unsigned first = (unsigned)draw(BLOCKS), next = 0, done = 0;

		while (done < BLOCKS) {
			unsigned b = (first + next * 5) % BLOCKS;
			struct io_request *r = &req[b];

			*r = (struct io_request){
				.fd = fd,
				.write = !pass,
				.buf = (pass ? back : data) + b * BLOCK,
				.len = BLOCK,
				.off = b * BLOCK,
				.result = 1,
				.user = r,
			};
			if (next < BLOCKS && !io_ring_submit(ring, r)) {
				next++;
				continue;
			}
			cr_assert(next == BLOCKS || io_ring_inflight(ring) == depth);
			r = io_ring_wait(ring);
			cr_assert_eq(r->user, r);
			cr_assert_eq(r->result, 0);
			done++;
		}
		cr_assert_null(io_ring_wait(ring));
	}
	cr_assert_eq(memcmp(data, back, BLOCKS * BLOCK), 0);
	io_ring_free(ring);
	io_buffer_free(data, BLOCKS * BLOCK);
	io_buffer_free(back, BLOCKS * BLOCK);
}

Test(io, rings_move_every_byte)
{
	struct faults f = { .shorten = true };
	struct io_ops ops = faulty(&f);
	int direct = temporary(O_DIRECT), plain = temporary(0);

	seed = 2;
	exercise(&io_system, direct, 8);
	exercise(&io_system, plain, 3);
	exercise(&ops, plain, 8);
	close(direct);
	close(plain);
}

static void expect_result(const struct io_ops *ops, struct io_request r, int result)
{
	struct io_ring *ring;

	cr_assert_eq(io_ring_new(ops, 1, &ring), 0);
	cr_assert_eq(io_ring_submit(ring, &r), 0);
	cr_assert_eq(io_ring_submit(ring, &r), -EAGAIN);
	cr_assert_eq(io_ring_wait(ring), &r);
	cr_assert_eq(r.result, result);
	cr_assert_eq(io_ring_inflight(ring), 0);
	io_ring_free(ring);
}

Test(io, rings_report_errors_and_the_end_of_the_file)
{
	struct io_ops plain = io_system;
	char buf[100] = { 0 };
	int fd = temporary(0);
	struct io_request bad = { .fd = -1, .buf = buf, .len = 1 };
	struct io_request beyond = { .fd = fd, .buf = buf, .len = 100, .off = 50 };

	plain.direct_only = true;
	cr_assert_eq(io_system.ftruncate(NULL, fd, 100), 0);
	expect_result(&io_system, bad, -EBADF);
	expect_result(&plain, bad, -EBADF);
	expect_result(&io_system, beyond, -ENODATA);
	expect_result(&plain, beyond, -ENODATA);
	close(fd);
	io_ring_free(NULL);
}

struct submission {
	struct io_ring *ring;
	struct io_request *req;
	unsigned n;
};

static void *submit_and_end(void *arg)
{
	struct submission *s = arg;

	for (unsigned i = 0; i < s->n; i++)
		cr_assert_eq(io_ring_submit(s->ring, &s->req[i]), 0);
	return NULL;
}

/* The kernel may cancel what a thread leaves behind when it ends: here writes that lengthen a file, which
 * wait for each other. */
Test(io, requests_outlive_the_thread_that_submitted_them)
{
	uint8_t *data = io_buffer_alloc(8 * BLOCK), *back = io_buffer_alloc(8 * BLOCK);
	int fd = temporary(O_DIRECT);

	seed = 3;
	for (int run = 0; run < 50; run++) {
		struct io_request req[8];
		struct submission s = { .req = req, .n = 8 };
		pthread_t t;

		memset(data, run + 1, 8 * BLOCK);
		cr_assert_eq(io_system.ftruncate(NULL, fd, 0), 0);
		for (unsigned i = 0; i < 8; i++)
			req[i] = (struct io_request){ .fd = fd,
						      .write = true,
						      .buf = data + i * BLOCK,
						      .len = BLOCK,
						      .off = i * BLOCK };
		cr_assert_eq(io_ring_new(&io_system, 8, &s.ring), 0);
		cr_assert_eq(pthread_create(&t, NULL, submit_and_end, &s), 0);
		pthread_join(t, NULL);
		for (unsigned i = 0; i < 8; i++)
			cr_assert_eq(io_ring_wait(s.ring)->result, 0);
		io_ring_free(s.ring);
		cr_assert_eq(io_read_full(&io_system, fd, back, 8 * BLOCK, 0), 0);
		cr_assert_eq(memcmp(data, back, 8 * BLOCK), 0);
	}
	close(fd);
	io_buffer_free(data, 8 * BLOCK);
	io_buffer_free(back, 8 * BLOCK);
}
