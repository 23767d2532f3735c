/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvfs umount: umount(8) returns while the daemon still settles; this returns when everything is
 * durable and the daemon has gone. A failure before the unmount leaves the mount as it was.
 */
#include "mount/mount.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATIENCE_MS 2000

struct arguments {
	bool force;
	bool quiet;
	const char *mountpoint;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;

	switch (key) {
	case 'f':
		a->force = true;
		return 0;
	case 'q':
		a->quiet = true;
		return 0;
	case ARGP_KEY_ARG:
		if (a->mountpoint)
			usage_fail(state->name, "%s: one mount point at a time", arg);
		a->mountpoint = arg;
		return 0;
	case ARGP_KEY_NO_ARGS:
		usage_fail(state->name, "no mount point: give one");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option option_table[] = {
	{ "force", 'f', NULL, 0, "Unmount even if not everything could be made durable", 0 },
	{ "quiet", 'q', NULL, 0, "Do not say what is being waited for", 0 },
	{ 0 },
};

static const struct argp argp = {
	.options = option_table,
	.parser = parse,
	.args_doc = "MOUNTPOINT",
	.doc = "Makes everything durable, unmounts, and waits for the daemon to finish.",
};

static pid_t daemon_pid(const char *point)
{
	char *status;
	json_t *s;
	pid_t pid = -1;

	if (control_status_text(point, &status) < 0)
		return -1;
	s = json_loads(status, 0, NULL);
	free(status);
	if (s)
		pid = (pid_t)json_integer_value(json_object_get(s, "pid"));
	json_decref(s);
	return pid > 0 ? pid : -1;
}

/* A descriptor to wait for the daemon with, or -1: it lives in another pid namespace, say. */
static int daemon_open(const char *point, pid_t *ret_pid)
{
	pid_t pid = daemon_pid(point);

	*ret_pid = pid;
	return pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
}

/* fsync of the root directory is the barrier for everything. */
static int make_durable(const char *point)
{
	int fd = open(point, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;

	if (fd < 0)
		return -errno;
	if (fsync(fd) < 0)
		r = -errno;
	close(fd);
	return r;
}

static void daemon_wait(int pidfd, pid_t pid, bool quiet)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };
	bool tell = !quiet && isatty(STDERR_FILENO), told = false;
	int n;

	do {
		n = poll(&p, 1, tell && !told ? PATIENCE_MS : -1);
		if (n == 0 && !told) {
			fprintf(stderr, "kvfs: waiting for the daemon (pid %d) to finish\n",
				(int)pid);
			told = true;
		}
	} while (n == 0 || (n < 0 && errno == EINTR));
}

static int complain_removal(const struct mount_entry *m, int r)
{
	char users[512];

	if (r == -EBUSY) {
		users_of_mount(m, users, sizeof(users));
		complain("%s: in use%s%s: end what uses it and try again", m->point,
			 *users ? " by " : "", users);
	} else if (r == -ENOEXEC) {
		complain("%s: cannot unmount: fusermount3 is not on PATH: install fuse3, or run "
			 "this as root",
			 m->point);
	} else {
		complain("%s: cannot unmount: %s: run this as root or as the user who mounted it",
			 m->point, strerror(-r));
	}
	return KVFS_EXIT_FAILED;
}

static int remove_dead(const struct mount_entry *m)
{
	int r = mount_remove(m->point, true);

	if (r < 0)
		return complain_removal(m, r);
	complain("%s: its daemon was dead: detached; the next mount of %s recovers what was written",
		 m->point, m->source);
	return KVFS_EXIT_OK;
}

static int umount_live(const struct arguments *a, const struct mount_entry *m)
{
	pid_t pid;
	int pidfd = daemon_open(m->point, &pid);
	int r = make_durable(m->point);

	/* It may die while it is asked. */
	if (mount_error_is_dead(r)) {
		if (pidfd >= 0)
			close(pidfd);
		return remove_dead(m);
	}
	if (r < 0)
		complain("%s: not everything could be made durable: %s: %s", m->point, strerror(-r),
			 a->force ? "unmounting all the same" :
				    "see the log of kvfs; --force unmounts all the same");
	if (r == 0 || a->force) {
		r = mount_remove(m->point, false);
		if (r < 0)
			complain_removal(m, r);
	}
	if (r == 0 && pidfd >= 0)
		daemon_wait(pidfd, pid, a->quiet);
	else if (r == 0)
		complain("%s: unmounted and durable, but the daemon is not to be seen from here, so "
			 "whether it has ended is not known: look on the host",
			 m->point);
	if (pidfd >= 0)
		close(pidfd);
	return r < 0 ? KVFS_EXIT_FAILED : KVFS_EXIT_OK;
}

int cmd_umount(int argc, char **argv)
{
	struct arguments a = { 0 };
	struct mount_entry m;

	arguments_parse(&argp, argc, argv, 0, &a);
	if (control_find(a.mountpoint, true, &m) < 0)
		return KVFS_EXIT_FAILED;
	if (mount_is_dead(m.point))
		return remove_dead(&m);
	return umount_live(&a, &m);
}
