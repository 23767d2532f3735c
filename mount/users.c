/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who keeps a mount, or a file on it, busy. Reads /proc as far as the caller may; a hint for a
 * message, never a base for a decision.
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

struct sought {
	unsigned major, minor; /* of the device */
	uint64_t ino;          /* 0: whatever lies on it */
	/* Who has it mounted, in another mount namespace than ours; else NULL. */
	const struct mount_entry *mount;
};

static bool is_sought(const struct sought *s, unsigned major, unsigned minor, uint64_t ino)
{
	return major == s->major && minor == s->minor && (!s->ino || ino == s->ino);
}

/* AT_NO_AUTOMOUNT and DONT_SYNC: never wait for a file system to answer. */
static bool leads_there(int dir, const char *name, const struct sought *s)
{
	struct statx sx;

	if (statx(dir, name, AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &sx) < 0)
		return false;
	return is_sought(s, sx.stx_dev_major, sx.stx_dev_minor, sx.stx_ino);
}

static bool has_descriptor(int proc, const struct sought *s, unsigned *looks)
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
		found = leads_there(dirfd(d), e->d_name, s);
	}
	closedir(d);
	return found;
}

/* Addresses, permissions, offset, device, inode, name. */
static bool has_mapping(int proc, const struct sought *s)
{
	int fd = openat(proc, "maps", O_RDONLY | O_CLOEXEC);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	char line[PATH_MAX + 128];
	unsigned major, minor;
	unsigned long ino;
	bool found = false;

	if (!f) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while (!found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%*s %*s %*s %x:%x %lu", &major, &minor, &ino) == 3 &&
			is_sought(s, major, minor, ino);
	fclose(f);
	return found;
}

static bool same_namespace(int proc)
{
	struct stat own, its;

	/* What cannot be looked at is taken for ours. */
	return stat("/proc/self/ns/mnt", &own) || fstatat(proc, "ns/mnt", &its, 0) ||
	       (own.st_dev == its.st_dev && own.st_ino == its.st_ino);
}

/* A number of a device that is gone is soon that of another mount. */
static bool is_mount(const char *line, const struct mount_entry *sought,
		     struct mount_entry *scratch)
{
	return mounts_parse(line, scratch) == 0 && scratch->major == sought->major &&
	       scratch->minor == sought->minor && !strcmp(scratch->type, sought->type) &&
	       !strcmp(scratch->source, sought->source);
}

static bool has_mounted(int proc, const struct sought *s)
{
	int fd = same_namespace(proc) ? -1 : openat(proc, "mountinfo", O_RDONLY | O_CLOEXEC);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	struct mount_entry m;
	bool found = false;
	char line[8192];

	if (!f) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while (!found && fgets(line, sizeof(line), f))
		found = is_mount(line, s->mount, &m);
	fclose(f);
	return found;
}

static bool process_uses(int proc, const struct sought *s, unsigned *looks)
{
	if (s->mount) {
		*looks += 2;
		return has_mounted(proc, s);
	}
	*looks += 2;
	return leads_there(proc, "cwd", s) || leads_there(proc, "root", s) ||
	       has_descriptor(proc, s, looks) || has_mapping(proc, s);
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

static void find_users(const struct sought *s, char *ret, size_t size)
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
		/* What this process has inherited from the shell tells the user nothing. */
		if (s->ino && atoi(e->d_name) == (int)getpid())
			continue;
		proc = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (proc < 0)
			continue;
		if (process_uses(proc, s, &looks)) {
			name_process(proc, e->d_name, ret, size);
			found++;
		}
		close(proc);
	}
	closedir(d);
}

void users_of_mount_elsewhere(const struct mount_entry *m, char *ret, size_t size)
{
	struct sought s = { .mount = m };

	find_users(&s, ret, size);
}

void users_of_mount(const struct mount_entry *m, char *ret, size_t size)
{
	struct sought s = { .major = m->major, .minor = m->minor };

	find_users(&s, ret, size);
}

void users_of_file(const struct stat *st, char *ret, size_t size)
{
	struct sought s = { .major = major(st->st_dev),
			    .minor = minor(st->st_dev),
			    .ino = st->st_ino };

	find_users(&s, ret, size);
}
