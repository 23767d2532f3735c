/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who keeps a mount busy. Reads /proc as far as the caller may; a hint for a message, never a base
 * for a decision.
 */
#include "mount/mount.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Enough for any host that a person looks after, and an end on one with a million descriptors. */
#define LOOKS_MAX 200000
#define NAMES_MAX 5

/* AT_NO_AUTOMOUNT and DONT_SYNC: never wait for a file system to answer. */
static bool on_device(int dir, const char *name, const struct mount_entry *m)
{
	struct statx sx;

	if (statx(dir, name, AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, STATX_TYPE, &sx) < 0)
		return false;
	return sx.stx_dev_major == m->major && sx.stx_dev_minor == m->minor;
}

static bool has_descriptor(int proc, const struct mount_entry *m, unsigned *looks)
{
	int fd = openat(proc, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	bool found = false;

	if (!d) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while (!found && *looks < LOOKS_MAX && (e = readdir(d))) {
		(*looks)++;
		found = on_device(dirfd(d), e->d_name, m);
	}
	closedir(d);
	return found;
}

/* Addresses, permissions, offset, device, inode, name: the device is what is asked for. */
static bool has_mapping(int proc, const struct mount_entry *m)
{
	int fd = openat(proc, "maps", O_RDONLY | O_CLOEXEC);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	char line[PATH_MAX + 128];
	unsigned major, minor;
	bool found = false;

	if (!f) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while (!found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%*s %*s %*s %x:%x", &major, &minor) == 2 &&
			major == m->major && minor == m->minor;
	fclose(f);
	return found;
}

static bool process_uses(int proc, const struct mount_entry *m, unsigned *looks)
{
	*looks += 2;
	return on_device(proc, "cwd", m) || on_device(proc, "root", m) ||
	       has_descriptor(proc, m, looks) || has_mapping(proc, m);
}

static void name_process(int proc, const char *pid, char *ret, size_t size)
{
	char comm[32] = "";
	int fd = openat(proc, "comm", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, comm, sizeof(comm) - 1);
	size_t len = strlen(ret);

	if (fd >= 0)
		close(fd);
	comm[n > 0 ? n : 0] = '\0';
	comm[strcspn(comm, "\n")] = '\0';
	snprintf(ret + len, size - len, "%s%s%s%s%s", len ? ", " : "", pid, *comm ? " (" : "", comm,
		 *comm ? ")" : "");
}

void users_of_mount(const struct mount_entry *m, char *ret, size_t size)
{
	DIR *d = opendir("/proc");
	unsigned looks = 0, found = 0;
	struct dirent *e;

	ret[0] = '\0';
	if (!d)
		return;
	while (found < NAMES_MAX && looks < LOOKS_MAX && (e = readdir(d))) {
		int proc;

		if (e->d_name[0] < '0' || e->d_name[0] > '9')
			continue;
		proc = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (proc < 0)
			continue;
		if (process_uses(proc, m, &looks)) {
			name_process(proc, e->d_name, ret, size);
			found++;
		}
		close(proc);
	}
	closedir(d);
}
