/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is mounted where, from /proc/self/mountinfo, and what must be so before something can be
 * mounted. Must never touch a mount that is not a FUSE mount whose daemon is dead, other than the
 * one it was asked for.
 */
#include "mount/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

/* ---- mountinfo -------------------------------------------------------------------------------- */

/* Copies up to the next blank; spaces, tabs, newlines and backslashes come as \ooo. */
static const char *field_copy(const char *p, char *ret, size_t size)
{
	size_t n = 0;

	while (*p == ' ')
		p++;
	for (; *p && *p != ' ' && *p != '\n'; p++) {
		char c = *p;

		if (c == '\\' && p[1] >= '0' && p[1] <= '3' && p[2] >= '0' && p[2] <= '7' &&
		    p[3] >= '0' && p[3] <= '7') {
			c = (char)((p[1] - '0') << 6 | (p[2] - '0') << 3 | (p[3] - '0'));
			p += 3;
		}
		if (n + 1 < size)
			ret[n++] = c;
	}
	ret[n] = '\0';
	return p;
}

/* 36 35 98:0 /root /point rw,noatime master:1 - fuse.kvfs /source rw */
int mounts_parse(const char *line, struct mount_entry *ret)
{
	char skipped[PATH_MAX];
	const char *p = line;
	int used = 0;

	if (sscanf(line, "%*d %*d %u:%u %n", &ret->major, &ret->minor, &used) != 2 || !used)
		return -EINVAL;
	p = field_copy(line + used, skipped, sizeof(skipped));
	p = field_copy(p, ret->point, sizeof(ret->point));
	p = strstr(p, " - ");
	if (!p)
		return -EINVAL;
	p = field_copy(p + 3, ret->type, sizeof(ret->type));
	field_copy(p, ret->source, sizeof(ret->source));
	return ret->point[0] == '/' && ret->type[0] ? 0 : -EINVAL;
}

/* The last entry, which is the topmost mount, for which want() holds. */
static int mounts_find(bool (*want)(const struct mount_entry *m, void *arg), void *arg,
		       struct mount_entry *ret)
{
	struct mount_entry m;
	char *line = NULL;
	size_t size = 0;
	int r = -ENOENT;
	FILE *f = fopen("/proc/self/mountinfo", "re");

	if (!f)
		return -errno;
	while (getline(&line, &size, f) > 0) {
		if (mounts_parse(line, &m) < 0 || !want(&m, arg))
			continue;
		*ret = m;
		r = 0;
	}
	free(line);
	fclose(f);
	return r;
}

static bool want_point(const struct mount_entry *m, void *arg)
{
	return !strcmp(m->point, (const char *)arg);
}

int mounts_at(const char *point, struct mount_entry *ret)
{
	return mounts_find(want_point, (void *)point, ret);
}

struct deepest {
	const char *path;
	size_t len; /* of the mount point found so far */
};

/* The deepest mount at or above a path is the one it lies in; of several at one point the last. */
static bool want_deepest(const struct mount_entry *m, void *arg)
{
	struct deepest *d = arg;

	if (!path_below(d->path, m->point) || strlen(m->point) < d->len)
		return false;
	d->len = strlen(m->point);
	return true;
}

int mounts_kvfs_of(const char *path, struct mount_entry *ret)
{
	struct deepest d = { .path = path };
	struct mount_entry m;
	int r = mounts_find(want_deepest, &d, &m);

	if (r < 0)
		return r;
	if (strcmp(m.type, KVFS_FSTYPE))
		return -ENOENT;
	*ret = m;
	return 0;
}

/* ---- Paths ------------------------------------------------------------------------------------ */

int path_resolve(const char *path, char ret[static PATH_MAX])
{
	char copy[PATH_MAX], dir[PATH_MAX], *name;
	size_t len = strlen(path);

	if (realpath(path, ret))
		return 0;
	if (errno != ENOENT && !mount_error_is_dead(-errno))
		return -errno;
	if (len == 0 || len >= sizeof(copy))
		return len ? -ENAMETOOLONG : -ENOENT;
	memcpy(copy, path, len + 1);
	while (len > 1 && copy[len - 1] == '/')
		copy[--len] = '\0';
	name = strrchr(copy, '/');
	if (name)
		*name++ = '\0';
	if (!realpath(!name ? "." : *copy ? copy : "/", dir))
		return -errno;
	if (!name)
		name = copy;
	if (!strcmp(name, ".") || !strcmp(name, ".."))
		return -ENOENT;
	len = (size_t)snprintf(ret, PATH_MAX, "%s/%s", strcmp(dir, "/") ? dir : "", name);
	return len < PATH_MAX ? 0 : -ENAMETOOLONG;
}

bool path_below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	if (!strcmp(dir, "/"))
		return true;
	return !strncmp(path, dir, len) && (path[len] == '/' || path[len] == '\0');
}

/* ---- Mount points ----------------------------------------------------------------------------- */

/* Requests that are on their way when the daemon dies are aborted, later ones refused. */
bool mount_error_is_dead(int error)
{
	return error == -ENOTCONN || error == -ECONNABORTED;
}

/* Attributes of the root may be cached and outlive the daemon; statfs(2) always asks it. */
bool mount_is_dead(const char *path)
{
	struct statfs fs;

	return statfs(path, &fs) < 0 && mount_error_is_dead(-errno);
}

/* The beginning of what comes, up to the end. */
static void read_text(int fd, char *ret, size_t size)
{
	char rest[256];
	size_t len = 0;
	ssize_t n;

	do {
		bool full = len + 1 >= size;

		n = read(fd, full ? rest : ret + len, full ? sizeof(rest) : size - 1 - len);
		if (n > 0 && !full)
			len += (size_t)n;
	} while (n > 0 || (n < 0 && errno == EINTR));
	ret[len] = '\0';
}

/* fusermount3 has the rights an ordinary user lacks. What it says is not for the user, who gets one
 * line; it always speaks English. */
static int fusermount(const char *point, bool lazy)
{
	const char *argv[] = { "fusermount3",       "-u", lazy ? "-z" : "--", lazy ? "--" : point,
			       lazy ? point : NULL, NULL };
	char said[512] = "";
	int status, fds[2], r = 0;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid == 0) {
		if (dup2(fds[1], STDERR_FILENO) >= 0)
			execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	if (pid < 0)
		r = -errno;
	close(fds[1]);
	if (pid > 0)
		read_text(fds[0], said, sizeof(said));
	close(fds[0]);
	if (r < 0)
		return r;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		return -ENOEXEC;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	return strstr(said, "busy") ? -EBUSY : -EPERM;
}

int mount_remove(const char *point, bool lazy)
{
	if (umount2(point, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0)
		return 0;
	if (errno != EPERM || geteuid() == 0)
		return -errno;
	return fusermount(point, lazy);
}

/* What a crashed daemon left. Several can lie on each other. */
static int dead_mounts_remove(const char *point)
{
	struct mount_entry m;
	int r;

	while (mount_is_dead(point)) {
		r = mounts_at(point, &m);
		if (r == 0 && strncmp(m.type, "fuse", 4))
			r = -ENOTCONN;
		if (r == 0)
			r = mount_remove(point, true);
		if (r < 0) {
			complain("%s: the daemon of what is mounted there is dead, and it cannot be "
				 "detached: %s: try 'umount -l %s' as root",
				 point, strerror(-r), point);
			return r;
		}
		log_line(LOG_NOTICE, "%s: detached a mount whose daemon had died", point);
	}
	return 0;
}

int mountpoint_prepare(const char *path, char ret[static PATH_MAX])
{
	struct mount_entry m;
	struct stat st;
	int r = path_resolve(path, ret);

	if (r == 0)
		r = dead_mounts_remove(ret);
	else
		complain("%s: %s: give a directory to mount on", path, strerror(-r));
	if (r < 0)
		return r;
	if (stat(ret, &st) < 0) {
		r = -errno;
		complain("%s: %s: %s", path,
			 r == -ENOENT ? "the mount point is missing" : strerror(-r),
			 r == -ENOENT ? "create the directory first (mkdir)" : "choose another");
		return r;
	}
	if (!S_ISDIR(st.st_mode)) {
		complain("%s: not a directory: choose a directory to mount on", path);
		return -ENOTDIR;
	}
	/* An automounter waits at the point for just this mount. */
	if (mounts_at(ret, &m) == 0 && strcmp(m.type, "autofs")) {
		complain("%s: already the mount point of %s (%s): unmount that first, or choose "
			 "another directory",
			 path, m.source, m.type);
		return -EBUSY;
	}
	return 0;
}
