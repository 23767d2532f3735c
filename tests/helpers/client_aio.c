/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NIXL's POSIX backend does for SGLang: files in buckets, opened with O_DIRECT for each transfer and
 * closed after it, all requests of a transfer sent off at once, by libaio's system calls or io_uring.
 *
 *	client_aio aio|uring write|read DIR     exits 77 where the kernel has no such thing
 *
 * Each file is several requests, sent in the wrong order. A request that is short has failed.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <liburing.h>

#include "pattern.h"

#define FILES    16u
#define PARTS    4u
#define PART     (256u << 10)
#define REQUESTS (FILES * PARTS)

struct transfer {
	bool write;
	const char *engine; /* a part of the seed, too: the two write different content */
	char path[FILES][4096];
	int fd[FILES];
	char *memory[FILES];
};

static void die(const char *what, const char *path, int error)
{
	fprintf(stderr, "client_aio: %s %s: %s\n", what, path, strerror(error));
	exit(1);
}

static void no_engine(const char *what, int error)
{
	if (error != ENOSYS && error != EPERM)
		die(what, "", error);
	fprintf(stderr, "client_aio: %s: %s\n", what, strerror(error));
	exit(77);
}

static uint64_t seed_of(const struct transfer *t, unsigned file)
{
	return 1000u * (unsigned char)t->engine[0] + file;
}

static void open_file(struct transfer *t, const char *dir, unsigned i)
{
	char *path = t->path[i];

	snprintf(path, sizeof(t->path[i]), "%s/%02x", dir, i % 5);
	if (t->write && mkdir(path, 0755) && errno != EEXIST)
		die("mkdir", path, errno);
	snprintf(path, sizeof(t->path[i]), "%s/%02x/%s_key_%u", dir, i % 5, t->engine, i);
	t->fd[i] = open(path, O_RDWR | O_DIRECT | (t->write ? O_CREAT : 0), 0644);
	if (t->fd[i] < 0)
		die("open", path, errno);
	t->memory[i] = aligned_alloc(4096, PARTS * PART);
	if (!t->memory[i])
		die("memory for", path, ENOMEM);
	memset(t->memory[i], 0, PARTS * PART);
	if (t->write)
		pattern_fill(t->memory[i], PARTS * PART, seed_of(t, i), 0);
}

static void close_file(struct transfer *t, unsigned i)
{
	unsigned char expected;
	size_t right;

	if (close(t->fd[i]))
		die("close", t->path[i], errno);
	right = pattern_check(t->memory[i], PARTS * PART, seed_of(t, i), 0);
	if (right != PARTS * PART) {
		pattern_fill(&expected, 1, seed_of(t, i), right);
		fprintf(stderr, "client_aio: %s: byte %zu: got %02x, expected %02x\n", t->path[i],
			right, (unsigned char)t->memory[i][right], expected);
		exit(1);
	}
	free(t->memory[i]);
}

/* Request k is a part of a file: first the last parts of all files. */
static unsigned file_of(unsigned k)
{
	return k % FILES;
}

static size_t offset_of(unsigned k)
{
	return (PARTS - 1 - k / FILES) * (size_t)PART;
}

static void completed(const struct transfer *t, uint64_t k, long long result)
{
	if (result == PART)
		return;
	fprintf(stderr, "client_aio: %s: request at %zu: got %lld, expected %u\n",
		t->path[file_of(k)], offset_of(k), result, PART);
	exit(1);
}

static void run_aio(struct transfer *t)
{
	static struct iocb cb[REQUESTS];
	static struct io_event event[REQUESTS];
	struct iocb *list[REQUESTS];
	aio_context_t ctx = 0;
	long n;

	if (syscall(SYS_io_setup, REQUESTS, &ctx))
		no_engine("io_setup", errno);
	for (unsigned k = 0; k < REQUESTS; k++) {
		cb[k] = (struct iocb){
			.aio_data = k,
			.aio_lio_opcode = t->write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD,
			.aio_fildes = (uint32_t)t->fd[file_of(k)],
			.aio_buf = (uint64_t)(uintptr_t)(t->memory[file_of(k)] + offset_of(k)),
			.aio_nbytes = PART,
			.aio_offset = (int64_t)offset_of(k),
		};
		list[k] = &cb[k];
	}
	n = syscall(SYS_io_submit, ctx, REQUESTS, list);
	if (n != REQUESTS)
		die("io_submit", "", n < 0 ? errno : EAGAIN);
	n = syscall(SYS_io_getevents, ctx, REQUESTS, REQUESTS, event, NULL);
	if (n != REQUESTS)
		die("io_getevents", "", n < 0 ? errno : EAGAIN);
	for (unsigned k = 0; k < REQUESTS; k++)
		completed(t, event[k].data, event[k].res);
	syscall(SYS_io_destroy, ctx);
}

static void run_uring(struct transfer *t)
{
	struct io_uring ring;
	struct io_uring_cqe *cqe;
	int r = io_uring_queue_init(REQUESTS, &ring, 0);

	if (r)
		no_engine("io_uring_setup", -r);
	for (unsigned k = 0; k < REQUESTS; k++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
		char *part = t->memory[file_of(k)] + offset_of(k);

		if (t->write)
			io_uring_prep_write(sqe, t->fd[file_of(k)], part, PART, offset_of(k));
		else
			io_uring_prep_read(sqe, t->fd[file_of(k)], part, PART, offset_of(k));
		io_uring_sqe_set_data64(sqe, k);
	}
	r = io_uring_submit(&ring);
	if (r != REQUESTS)
		die("io_uring_submit", "", r < 0 ? -r : EAGAIN);
	for (unsigned k = 0; k < REQUESTS; k++) {
		r = io_uring_wait_cqe(&ring, &cqe);
		if (r)
			die("io_uring_wait_cqe", "", -r);
		completed(t, io_uring_cqe_get_data64(cqe), cqe->res);
		io_uring_cqe_seen(&ring, cqe);
	}
	io_uring_queue_exit(&ring);
}

int main(int argc, char **argv)
{
	static struct transfer t;

	if (argc != 4) {
		fprintf(stderr, "usage: client_aio aio|uring write|read DIR\n");
		return 2;
	}
	t.engine = argv[1];
	t.write = !strcmp(argv[2], "write");
	for (unsigned i = 0; i < FILES; i++)
		open_file(&t, argv[3], i);
	if (!strcmp(t.engine, "aio"))
		run_aio(&t);
	else
		run_uring(&t);
	for (unsigned i = 0; i < FILES; i++)
		close_file(&t, i);
	return 0;
}
