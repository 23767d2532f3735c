/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon of root's may not do any more, in threads that were there before too. Each test is a process of
 * its own. */
#include "mount/mount.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static sem_t go;
static char seen[4096]; /* the thread's status */

static bool is_root(void)
{
	if (daemon_privileged() && geteuid() == 0)
		return true;
	fprintf(stderr, "privileges: nothing to test without root\n");
	return false;
}

static void read_status(const char *path)
{
	FILE *f = fopen(path, "r");
	size_t n;

	cr_assert(f);
	n = fread(seen, 1, sizeof(seen) - 1, f);
	seen[n] = '\0';
	fclose(f);
}

static uint64_t status_hex(const char *name)
{
	const char *at = strstr(seen, name);

	cr_assert(at, "%s", name);
	return strtoull(at + strlen(name), NULL, 16);
}

/* CHOWN, DAC_OVERRIDE, FOWNER, IPC_LOCK, SYS_ADMIN, SYS_RESOURCE, LEASE and no other, and no way back. */
Test(privileges, few_capabilities)
{
	uint64_t most = UINT64_C(1) << 0 | 1 << 1 | 1 << 3 | 1 << 14 | 1 << 21 | 1 << 24 | 1 << 28;

	if (!is_root())
		return;
	cr_assert_eq(privileges_drop(), 0);
	read_status("/proc/self/status");
	cr_assert_eq(status_hex("CapEff:") & ~most, 0);
	cr_assert_eq(status_hex("CapPrm:") & ~most, 0);
	cr_assert_eq(status_hex("CapBnd:") & ~most, 0);
	cr_assert_eq(status_hex("CapInh:"), 0);
	cr_assert_eq(status_hex("CapAmb:"), 0);
	cr_assert_eq(status_hex("NoNewPrivs:"), 1);
	cr_assert(daemon_privileged());
}

static void *other_thread(void *arg)
{
	(void)arg;
	sem_wait(&go);
	cr_assert(syscall(SYS_unshare, CLONE_NEWNS) == -1 && errno == EPERM);
	read_status("/proc/thread-self/status");
	return NULL;
}

#define REFUSED(call) cr_assert((call) == -1 && errno == EPERM, "%s: %s", #call, strerror(errno))

Test(privileges, calls_that_are_refused)
{
	char *argv[] = { "/bin/true", NULL };
	pthread_t thread;
	int fd;

	if (!is_root() || !privileges_has_filter())
		return;
	sem_init(&go, 0, 0);
	cr_assert_eq(privileges_drop(), 0);
	cr_assert_eq(pthread_create(&thread, NULL, other_thread, NULL), 0);
	cr_assert_eq(privileges_filter(), 0);
	REFUSED(execv(argv[0], argv));
	REFUSED(mount("none", "/tmp", "tmpfs", 0, NULL));
	REFUSED(ptrace(PTRACE_ATTACH, getppid(), NULL, NULL));
	REFUSED(socket(AF_INET, SOCK_STREAM, 0));
	REFUSED(socket(AF_NETLINK, SOCK_RAW, 0));
	REFUSED(setns(0, 0));
	REFUSED(syscall(SYS_bpf, 0, NULL, 0));
	/* What is left: unmounting, a line to syslog, threads, files. */
	cr_assert(umount2("/nowhere-at-all", UMOUNT_NOFOLLOW) == -1 && errno == ENOENT);
	fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	cr_assert_geq(fd, 0);
	close(fd);
	sem_post(&go);
	cr_assert_eq(pthread_join(thread, NULL), 0);
	cr_assert(strstr(seen, "Seccomp:\t2"), "the other thread has no filter");
}
