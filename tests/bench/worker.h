/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker: what the measuring programs share.
 *
 * A worker does one thing, times it itself and prints "UNITS SECONDS" (bytes or operations, and the
 * wall time they took) on one line. tests/bench/run starts the workers in turn, one rival after the
 * other, and does the arithmetic. A worker that cannot do its work prints one line to stderr and
 * exits 1; it never prints a time for work that was not done.
 */
#ifndef BENCH_WORKER_H
#define BENCH_WORKER_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MIB       (1024u * 1024u)
#define HUGE_PAGE (2u * MIB)
#define TIMED_S   0.3 /* work is repeated until this much time is measured */

#define die(...) die_at(__FILE__, __LINE__, __VA_ARGS__)

__attribute__((noreturn, format(printf, 3, 4))) static inline void
die_at(const char *file, int line, const char *format, ...)
{
	int err = errno;
	va_list ap;

	fprintf(stderr, "%s:%d: ", file, line);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fprintf(stderr, ": %s\n", strerror(err));
	exit(1);
}

static inline double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static inline void report(double units, double seconds)
{
	printf("%.0f %.9f\n", units, seconds);
}

/* A positive number with an optional K, M or G. */
static inline uint64_t parse_size(const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 10);

	switch (*end) {
	case 'G':
		n *= 1024;
		/* fallthrough */
	case 'M':
		n *= 1024;
		/* fallthrough */
	case 'K':
		n *= 1024;
		end++;
		break;
	}
	if (*end || !n) {
		fprintf(stderr, "not a size: %s\n", text);
		exit(2);
	}
	return n;
}

/* Zeroed, touched, on huge pages where there are some, aligned for O_DIRECT. Never freed. */
static inline void *buffer_new(size_t len)
{
	size_t whole = (len + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
	void *p = aligned_alloc(HUGE_PAGE, whole);

	if (!p)
		die("%zu bytes of memory", whole);
	madvise(p, whole, MADV_HUGEPAGE);
	memset(p, 0, whole);
	return p;
}

static inline void write_all(int fd, const void *buf, size_t len, const char *path)
{
	const char *p = buf;

	while (len) {
		ssize_t n = write(fd, p, len);

		if (n <= 0)
			die("write %s", path);
		p += n;
		len -= (size_t)n;
	}
}

static inline int open_or_die(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0600);

	if (fd < 0)
		die("open %s", path);
	return fd;
}

static inline void close_or_die(int fd, const char *path)
{
	if (close(fd))
		die("close %s", path);
}

#endif
