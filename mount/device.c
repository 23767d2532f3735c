/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device: how requests are read from /dev/fuse. A thread that sleeps in read(2) takes longer to wake
 * than most requests take to serve, the more so on a virtual machine, where a halted processor is
 * woken through the host: 20 to 30 us of the 50 that a lookup costs. So while requests follow one
 * another closely, the threads that have just answered look for the next for a moment before they
 * sleep. Not so where others want the processor: a thread that looks uses up its share of it, and then
 * waits for its turn while requests wait for it.
 */
#include "mount/server.h"

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 17)
#include <fuse_lowlevel.h>

#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS      50000
#define SPINNERS_MAX 2
/* A thread that was away for so long while it looked was made to wait for others, and for so long after
 * that nobody looks. Whoever asked and woke on its processor is back sooner. */
#define AWAY_NS    200000
#define CROWDED_NS 1000000000

static atomic_int_fast64_t answered_ns; /* when a thread last came back for more */
static atomic_bool close_by;            /* the last request came less than SPIN_NS after that */
static atomic_int_fast64_t crowded_until_ns;
static atomic_int spinners;
static int spinners_max;

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void spin(int fd, int64_t begin)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int64_t now = begin, last;
	int ready;

	do {
		last = now;
		ready = poll(&p, 1, 0);
		now = now_ns();
		if (now - last > AWAY_NS) {
			atomic_store(&crowded_until_ns, now + CROWDED_NS);
			return;
		}
	} while (ready == 0 && now - begin < SPIN_NS);
}

static ssize_t device_read(int fd, void *buf, size_t len, void *userdata)
{
	int64_t begin = now_ns();
	ssize_t n;

	(void)userdata;
	atomic_store(&answered_ns, begin);
	if (atomic_load(&close_by) && begin >= atomic_load(&crowded_until_ns)) {
		if (atomic_fetch_add(&spinners, 1) < spinners_max)
			spin(fd, begin);
		atomic_fetch_sub(&spinners, 1);
	}
	n = read(fd, buf, len);
	atomic_store(&close_by, now_ns() - atomic_load(&answered_ns) < SPIN_NS);
	return n;
}

static ssize_t device_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	(void)userdata;
	return writev(fd, iov, count);
}

int device_use(struct fuse_session *se)
{
	static const struct fuse_custom_io io = { .read = device_read, .writev = device_writev };
	int others;
	cpu_set_t set;

	/* Whoever asks needs a processor too. */
	others = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) - 1 : 0;
	spinners_max = others < SPINNERS_MAX ? others : SPINNERS_MAX;
	/* The session stays the owner of its descriptor; only how it is read changes. */
	return fuse_session_custom_io(se, &io, sizeof(io), fuse_session_fd(se));
}
