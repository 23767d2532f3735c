/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io: the one place where store/ touches a device, and so the place where faults are injected.
 *
 * struct io_ops is a small table of calls; tests replace it. struct io_ring is a queue of
 * asynchronous reads and writes: io_uring where the kernel allows it, else plain pread and pwrite
 * by the one who waits.
 */
#ifndef STORE_IO_H
#define STORE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define IO_ALIGN 4096u /* offsets, lengths and buffers of O_DIRECT I/O are multiples of this */

struct io_ops {
	int (*openat)(void *arg, int dirfd, const char *name, int flags, mode_t mode);
	ssize_t (*pread)(void *arg, int fd, void *buf, size_t len, uint64_t off);
	ssize_t (*pwrite)(void *arg, int fd, const void *buf, size_t len, uint64_t off);
	int (*fdatasync)(void *arg, int fd);
	int (*fsync)(void *arg, int fd); /* for directories, whose names fdatasync may leave out */
	int (*fallocate)(void *arg, int fd, int mode, uint64_t off, uint64_t len);
	int (*ftruncate)(void *arg, int fd, uint64_t len);
	int (*unlinkat)(void *arg, int dirfd, const char *name);
	int (*close)(void *arg, int fd);
	bool direct_only; /* tests: never use io_uring, so that every call comes through here */
	void *arg;
};
/* The real thing. Every call returns negative errno on failure; EINTR is retried. */
extern const struct io_ops io_system;

/* Whole transfers: loops over short counts. -ENODATA for a read past the end of the file. */
int io_read_full(const struct io_ops *io, int fd, void *buf, size_t len, uint64_t off);
int io_write_full(const struct io_ops *io, int fd, const void *buf, size_t len, uint64_t off);
/* As io_write_full with plain pwritev, for files that are no device. iov is used up. */
int io_writev_full(int fd, struct iovec *iov, size_t n, uint64_t off);

/* A buffer aligned to IO_ALIGN, in 2 MiB pages where len allows; zeroed. NULL when out of memory. */
void *io_buffer_alloc(size_t len);
void io_buffer_free(void *buf, size_t len); /* len as at its allocation; NULL is fine */

/*
 * A ring. The only calls that may run at the same time are one io_ring_submit and one io_ring_wait:
 * callers keep submitters apart from each other, and waiters likewise. Any thread may submit, and
 * may end before the request does.
 */
struct io_ring;
struct io_request {
	int fd;
	bool write;
	void *buf;
	size_t len; /* at most IO_REQUEST_MAX */
	uint64_t off;
	int result; /* set at completion: 0, or negative errno; short transfers are finished inside */
	void *user;
};
#define IO_REQUEST_MAX (1u << 30)

/* depth: requests in flight at most. */
int io_ring_new(const struct io_ops *io, unsigned depth, struct io_ring **ret);
void io_ring_free(struct io_ring *r); /* waits for what is in flight; NULL is fine */
bool io_ring_is_uring(const struct io_ring *r);
/* The request stays the caller's and must live until io_ring_wait returns it. -EAGAIN when depth
 * requests are in flight: wait for one first. */
int io_ring_submit(struct io_ring *r, struct io_request *req);
/* The next completed request; NULL when none is in flight. */
struct io_request *io_ring_wait(struct io_ring *r);
unsigned io_ring_inflight(struct io_ring *r);

#endif
