/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Talking to a mounted kvfs: which mount a path lies in, and its status file. Control goes through
 * the mount, under file permissions; there is no other channel.
 */
#include "mount/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Some kilobytes in practice. */
#define STATUS_MAX (1u << 20)

int control_complain_dead(const char *path)
{
	complain("%s: the daemon of this mount is dead: mount again, or take the mount away with "
		 "'kvfs umount'",
		 path);
	return -ENOTCONN;
}

int control_find(const char *path, bool root, struct mount_entry *ret)
{
	char abs[PATH_MAX];
	struct stat st;
	int r = path_resolve(path, abs);

	/* A dead mount can be asked for, a missing file not. */
	if (r == 0 && lstat(abs, &st) < 0 && errno == ENOENT)
		r = -ENOENT;
	if (mount_error_is_dead(r))
		return control_complain_dead(path);
	if (r < 0) {
		complain("%s: %s: give a path on a mounted kvfs", path, strerror(-r));
		return r;
	}
	r = mounts_kvfs_of(abs, ret);
	if (r == 0 && (!root || !strcmp(abs, ret->point)))
		return 0;
	if (r == 0) {
		complain("%s: not the mount point itself: give %s", path, ret->point);
		return -EINVAL;
	}
	if (r == -ENOENT)
		complain("%s: not on a mounted kvfs: mount it with 'kvfs mount STORE MOUNTPOINT', "
			 "or see 'findmnt -t %s'",
			 path, KVFS_FSTYPE);
	else
		complain("/proc/self/mountinfo: %s: /proc must be mounted", strerror(-r));
	return r;
}

int control_find_live(const char *path, struct mount_entry *ret)
{
	int r = control_find(path, false, ret);

	if (r == 0 && mount_is_dead(ret->point))
		r = control_complain_dead(ret->point);
	return r;
}

static int read_all(int fd, char **ret)
{
	size_t len = 0, size = 16384;
	char *text = malloc(size + 1);

	while (text) {
		ssize_t n = read(fd, text + len, size - len);
		char *more;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 || size >= STATUS_MAX) {
			int r = n < 0 ? -errno : -EFBIG;

			free(text);
			return r;
		}
		if (n == 0) {
			text[len] = '\0';
			*ret = text;
			return 0;
		}
		len += (size_t)n;
		if (len < size)
			continue;
		size *= 2;
		more = realloc(text, size + 1);
		if (!more)
			free(text);
		text = more;
	}
	return -ENOMEM;
}

int control_status_text(const char *point, char **ret)
{
	char name[PATH_MAX + 16];
	int fd, r;

	snprintf(name, sizeof(name), "%s/.kvfs/status", point);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = read_all(fd, ret);
	close(fd);
	return r;
}
