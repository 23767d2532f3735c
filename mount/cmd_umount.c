/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvfs umount: umount(8) returns while the daemon still settles; this returns when everything is
 * durable and the daemon has gone. A failure before the unmount leaves the mount as it was; one of
 * the daemon's last settle is found by what it leaves in the run directory.
 */
#include "mount/mount.h"

#include <argp.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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

/* ---- The daemon ------------------------------------------------------------------------------- */

/* What a mount's status says of its daemon, while there is one to ask. */
struct daemon {
	pid_t pid;
	int pidfd; /* -1: not to be seen from here */
	char store[PATH_MAX], rundir[PATH_MAX];
};

static void copy_text(const json_t *status, const char *field, char ret[static PATH_MAX])
{
	const char *text = json_string_value(json_object_get(status, field));

	snprintf(ret, PATH_MAX, "%s", text ? text : "");
}

static void daemon_ask(struct daemon *d, const char *point)
{
	char *text;
	json_t *status;

	if (control_status_text(point, &text) < 0)
		return;
	status = json_loads(text, 0, NULL);
	free(text);
	if (!status)
		return;
	d->pid = (pid_t)json_integer_value(json_object_get(status, "pid"));
	copy_text(status, "store", d->store);
	copy_text(status, "rundir", d->rundir);
	json_decref(status);
}

/* The number may mean another process here than where the daemon lives. Only the daemon has the lock
 * of its store open, and that early, so the search is short. */
static bool daemon_is_there(const struct daemon *d)
{
	char name[PATH_MAX + 8], link[PATH_MAX + 8];
	struct dirent *e;
	bool found = false;
	DIR *dir;

	snprintf(name, sizeof(name), "/proc/%d/fd", (int)d->pid);
	dir = opendir(name);
	if (!dir)
		return false;
	snprintf(name, sizeof(name), "%s/lock", d->store);
	while (!found && (e = readdir(dir))) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, link, sizeof(link) - 1);

		link[n > 0 ? n : 0] = '\0';
		found = !strcmp(link, name);
	}
	closedir(dir);
	return found;
}

static void daemon_open(struct daemon *d, const char *point)
{
	*d = (struct daemon){ .pid = -1, .pidfd = -1 };
	daemon_ask(d, point);
	if (d->pid <= 0)
		return;
	d->pidfd = (int)syscall(SYS_pidfd_open, d->pid, 0);
	if (d->pidfd >= 0 && !daemon_is_there(d)) {
		close(d->pidfd);
		d->pidfd = -1;
	}
}

static void daemon_close(struct daemon *d)
{
	if (d->pidfd >= 0)
		close(d->pidfd);
}

static void daemon_wait(const struct daemon *d, bool quiet)
{
	struct pollfd p = { .fd = d->pidfd, .events = POLLIN };
	bool tell = !quiet, told = false;
	int n;

	do {
		n = poll(&p, 1, tell && !told ? PATIENCE_MS : -1);
		if (n == 0 && !told) {
			fprintf(stderr, "kvfs: waiting for the daemon (pid %d) to finish\n",
				(int)d->pid);
			told = true;
		}
	} while (n == 0 || (n < 0 && errno == EINTR));
}

/* A daemon that could settle everything takes its journal along. One that has taken over since has
 * a journal of its own, and holds the lock of the run directory. */
static bool daemon_left_something(const struct daemon *d)
{
	int dir = *d->rundir ? open(d->rundir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	bool left;

	if (dir < 0)
		return false;
	left = faccessat(dir, "journal", F_OK, 0) == 0 && flock(dir, LOCK_SH | LOCK_NB) == 0;
	close(dir);
	return left;
}

/* ---- Unmounting ------------------------------------------------------------------------------- */

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

static int finish(const struct arguments *a, const struct mount_entry *m, const struct daemon *d)
{
	if (d->pidfd < 0) {
		complain("%s: unmounted, but its daemon is not to be seen from here (it lives in "
			 "another pid namespace, or is another user's), so whether it has ended is "
			 "not known: look on the host",
			 m->point);
		return KVFS_EXIT_OK;
	}
	daemon_wait(d, a->quiet);
	if (!daemon_left_something(d))
		return KVFS_EXIT_OK;
	complain("%s: unmounted, but the daemon could not finish: what the store lacks is only in %s, "
		 "which a reboot empties: see the log of kvfs, mend the store, then mount %s again",
		 m->point, d->rundir, d->store);
	return KVFS_EXIT_FAILED;
}

/* Unmounted here, and where mounts are propagated to. A container that was started with the mount has one
 * of its own, and with it the daemon stays. */
static bool is_mounted_elsewhere(const struct mount_entry *m, bool durable)
{
	char where[512];

	users_of_mount_elsewhere(m, where, sizeof(where));
	if (!*where)
		return false;
	complain("%s: unmounted here%s, but the mount namespace of %s has it still: the daemon serves it "
		 "until that ends",
		 m->point, durable ? ", all is durable" : "", where);
	return true;
}

static int umount_asked(const struct arguments *a, const struct mount_entry *m,
			const struct daemon *d)
{
	int r = make_durable(m->point);
	bool durable = r == 0;

	/* It may die while it is asked. */
	if (mount_error_is_dead(r))
		return remove_dead(m);
	if (r < 0)
		complain("%s: not everything could be made durable: %s: %s", m->point, strerror(-r),
			 a->force ? "unmounting all the same" :
				    "see the log of kvfs; --force unmounts all the same");
	if (r < 0 && !a->force)
		return KVFS_EXIT_FAILED;
	r = mount_remove(m->point, false);
	if (r < 0)
		return complain_removal(m, r);
	return is_mounted_elsewhere(m, durable) ? KVFS_EXIT_FAILED : finish(a, m, d);
}

static int umount_live(const struct arguments *a, const struct mount_entry *m)
{
	struct daemon d;
	int status;

	daemon_open(&d, m->point);
	status = umount_asked(a, m, &d);
	daemon_close(&d);
	return status;
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
