/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is mounted where, from /proc/self/mountinfo, and what must be so before something can be
 * mounted. Must never touch a mount that is not a FUSE mount whose daemon is dead, other than the
 * one it was asked for.
 */
#include "mount/mount.h"

#include <errno.h>
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
	if (errno != ENOENT && errno != ENOTCONN && errno != ECONNABORTED)
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

/* Attributes of the root may be cached and outlive the daemon; statfs(2) always asks it. */
bool mount_is_dead(const char *path)
{
	struct statfs fs;

	return statfs(path, &fs) < 0 && (errno == ENOTCONN || errno == ECONNABORTED);
}

/* fusermount3 has the rights an ordinary user lacks. Its own message stays on stderr. */
static int fusermount(const char *point, bool lazy)
{
	const char *argv[] = { "fusermount3",       "-u", lazy ? "-z" : "--", lazy ? "--" : point,
			       lazy ? point : NULL, NULL };
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return -errno;
	if (pid == 0) {
		execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		return -ENOEXEC;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPERM;
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
