/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io: the system calls behind struct io_ops, whole transfers, and buffers for O_DIRECT. Nothing here
 * knows what the bytes are.
 */
#include "store/io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* The result of a system call as a negative errno, asked again when a signal came first. */
#define SYSCALL(call)                                                                              \
	({                                                                                         \
		__typeof__(call) rc_;                                                              \
		do                                                                                 \
			rc_ = (call);                                                              \
		while (rc_ < 0 && errno == EINTR);                                                 \
		rc_ < 0 ? (__typeof__(call))-errno : rc_;                                          \
	})

static int system_openat(void *arg, int dirfd, const char *name, int flags, mode_t mode)
{
	(void)arg;
	return SYSCALL(openat(dirfd, name, flags, mode));
}

static ssize_t system_pread(void *arg, int fd, void *buf, size_t len, uint64_t off)
{
	(void)arg;
	return SYSCALL(pread(fd, buf, len, (off_t)off));
}

static ssize_t system_pwrite(void *arg, int fd, const void *buf, size_t len, uint64_t off)
{
	(void)arg;
	return SYSCALL(pwrite(fd, buf, len, (off_t)off));
}

static int system_fdatasync(void *arg, int fd)
{
	(void)arg;
	return SYSCALL(fdatasync(fd));
}

static int system_fsync(void *arg, int fd)
{
	(void)arg;
	return SYSCALL(fsync(fd));
}

static int system_fallocate(void *arg, int fd, int mode, uint64_t off, uint64_t len)
{
	(void)arg;
	return SYSCALL(fallocate(fd, mode, (off_t)off, (off_t)len));
}

static int system_ftruncate(void *arg, int fd, uint64_t len)
{
	(void)arg;
	return SYSCALL(ftruncate(fd, (off_t)len));
}

static int system_unlinkat(void *arg, int dirfd, const char *name)
{
	(void)arg;
	return SYSCALL(unlinkat(dirfd, name, 0));
}

static int system_close(void *arg, int fd)
{
	(void)arg;
	/* Linux frees the descriptor even when a signal comes, so this one is not repeated. */
	return close(fd) < 0 && errno != EINTR ? -errno : 0;
}

const struct io_ops io_system = {
	.openat = system_openat,
	.pread = system_pread,
	.pwrite = system_pwrite,
	.fdatasync = system_fdatasync,
	.fsync = system_fsync,
	.fallocate = system_fallocate,
	.ftruncate = system_ftruncate,
	.unlinkat = system_unlinkat,
	.close = system_close,
};

int io_read_full(const struct io_ops *io, int fd, void *buf, size_t len, uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = io->pread(io->arg, fd, (char *)buf + done, len - done, off + done);

		/* O_DIRECT refuses to go on where a file ends between two blocks. */
		if (n == 0 || (n == -EINVAL && (off + done) % IO_ALIGN))
			return -ENODATA;
		if (n == -EINTR)
			continue;
		if (n < 0)
			return (int)n;
		done += (size_t)n;
	}
	return 0;
}

int io_write_full(const struct io_ops *io, int fd, const void *buf, size_t len, uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n =
			io->pwrite(io->arg, fd, (const char *)buf + done, len - done, off + done);

		if (n == -EINTR)
			continue;
		if (n < 0)
			return (int)n;
		/* No error and no progress: repeating it would not end. */
		if (n == 0)
			return -EIO;
		done += (size_t)n;
	}
	return 0;
}

int io_writev_full(int fd, struct iovec *iov, size_t n, uint64_t off)
{
	while (n) {
		size_t count = n < IOV_MAX ? n : IOV_MAX;
		ssize_t done = SYSCALL(pwritev(fd, iov, (int)count, (off_t)off));

		if (done <= 0)
			return done ? (int)done : -EIO;
		off += (size_t)done;
		for (; n && (size_t)done >= iov->iov_len; iov++, n--)
			done -= (ssize_t)iov->iov_len;
		if (n) {
			iov->iov_base = (char *)iov->iov_base + done;
			iov->iov_len -= (size_t)done;
		}
	}
	return 0;
}

static size_t round_to(size_t n, size_t unit)
{
	return (n + unit - 1) & ~(unit - 1);
}

void *io_buffer_alloc(size_t len)
{
	size_t align = len >= HUGE_PAGE ? HUGE_PAGE : IO_ALIGN, slack = align - IO_ALIGN;
	size_t head, tail;
	char *p;

	if (!len || len > SIZE_MAX / 2)
		return NULL;
	len = round_to(len, IO_ALIGN);
	p = mmap(NULL, len + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	head = round_to((uintptr_t)p, align) - (uintptr_t)p;
	tail = slack - head;
	if (head)
		munmap(p, head);
	if (tail)
		munmap(p + head + len, tail);
	/* Advice: fewer pages to pin for each transfer. */
	if (align == HUGE_PAGE)
		(void)madvise(p + head, len, MADV_HUGEPAGE);
	return p + head;
}

void io_buffer_free(void *buf, size_t len)
{
	if (buf)
		munmap(buf, round_to(len, IO_ALIGN));
}
