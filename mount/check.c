/* SPDX-License-Identifier: Apache-2.0 */
/* What is checked before a mount changes anything. */
#include "mount/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int check_device(void)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC), r = fd < 0 ? -errno : 0;

	if (r == 0)
		close(fd);
	else if (r == -ENOENT)
		complain("/dev/fuse: missing: load the fuse module (modprobe fuse), or give the "
			 "container the device");
	else if (r == -EACCES || r == -EPERM)
		complain("/dev/fuse: not permitted: mount as root, or let all users open it "
			 "(chmod 666), which is safe");
	else
		complain("/dev/fuse: %s: load the fuse module (modprobe fuse)", strerror(-r));
	return r;
}

static bool conf_has(const char *path, const char *word)
{
	FILE *f = fopen(path, "re");
	char line[256];
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f)) {
		line[strcspn(line, " \t\n")] = '\0';
		found = !strcmp(line, word);
	}
	if (f)
		fclose(f);
	return found;
}

/* What fusermount3 would refuse, with a message of its own. */
static int check_rights(const struct server *s)
{
	if (geteuid() == 0)
		return 0;
	if (s->req->opt.allow_other && !conf_has("/etc/fuse.conf", "user_allow_other")) {
		complain(
			"allow_other: not allowed to ordinary users here: put user_allow_other into "
			"/etc/fuse.conf, or mount as root");
		return -EPERM;
	}
	if (access(s->point, W_OK) < 0) {
		complain("%s: you may not write there, so not mount there: choose a directory of "
			 "yours, or mount as root",
			 s->point);
		return -EACCES;
	}
	return 0;
}

/* A store below its own mount point would be served by a daemon that waits for itself. */
static int check_paths(struct server *s)
{
	const char *store = s->req->store;
	int r = path_resolve(store, s->store_path);

	if (r < 0) {
		complain("%s: %s: give a store directory; the directory that it lies in must exist",
			 store, strerror(-r));
		return r;
	}
	if (path_below(s->store_path, s->point)) {
		complain("%s: the store is below the mount point %s: choose another", store,
			 s->point);
		return -EINVAL;
	}
	if (path_below(s->point, s->store_path)) {
		complain("%s: the mount point is inside the store %s: choose another", s->point,
			 s->store_path);
		return -EINVAL;
	}
	return 0;
}

int server_check(struct server *s)
{
	int r = mountpoint_prepare(s->req->mountpoint, s->point);

	if (r == 0)
		r = check_paths(s);
	if (r == 0)
		r = check_device();
	if (r == 0)
		r = check_rights(s);
	return r;
}
