/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rundir: the run directory: images, journal, pid file. It must outlive the daemon and be in
 * memory, so it is a tmpfs of its own where the daemon may mount one, with huge pages, and a folder
 * on an existing tmpfs where not.
 */
#include "store/hash.h"
#include "store/store_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <syslog.h>
#include <unistd.h>

#define BOOT_LEN 64
/* Beside the images: journal, its successor during a checkpoint, and small files. */
#define OVERHEAD ((uint64_t)256 << 20)

static int fail(struct store_error *err, int r, const char *path, const char *what)
{
	snprintf(err->text, sizeof(err->text), "%.300s: %s: %s", path, what, strerror(-r));
	return r;
}

/* mkdir -p with mode 0700 for what is missing. */
static int make_dirs(const char *path)
{
	char *p = strdup(path);
	int r = 0;

	if (!p)
		return -ENOMEM;
	for (char *s = p + 1; !r; s++) {
		char c = *s;

		if (c && c != '/')
			continue;
		*s = 0;
		if (mkdir(p, 0700) && errno != EEXIST)
			r = -errno;
		*s = c;
		if (!c)
			break;
	}
	free(p);
	return r;
}

static bool on_tmpfs(const char *path)
{
	struct statfs f;

	return statfs(path, &f) == 0 && f.f_type == TMPFS_MAGIC;
}

static bool is_mount_point(const char *path)
{
	struct stat here, up;
	char parent[4096];

	snprintf(parent, sizeof(parent), "%s/..", path);
	return !stat(path, &here) && !stat(parent, &up) && here.st_dev != up.st_dev;
}

/* A tmpfs that a killed daemon left, and nobody else's: what is resized and unmounted later. */
static bool is_our_tmpfs(const char *path)
{
	FILE *f = setmntent("/proc/self/mounts", "re");
	struct mntent *m;
	bool ours = false;

	while (f && (m = getmntent(f)))
		if (!strcmp(m->mnt_dir, path)) /* the last one is on top */
			ours = !strcmp(m->mnt_fsname, "kvfs") && !strcmp(m->mnt_type, "tmpfs");
	if (f)
		endmntent(f);
	return ours;
}

/* Mounting over a folder with things in it would hide them. */
static bool holds_others_things(const char *path)
{
	static const char *const ours[] = { ".",       "..",          "images", "small",
					    "journal", "journal.new", "pid",    "boot" };
	DIR *d = opendir(path);
	struct dirent *e;
	bool others = false;

	while (d && !others && (e = readdir(d))) {
		others = true;
		for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
			others &= strcmp(e->d_name, ours[i]) != 0;
	}
	if (d)
		closedir(d);
	return others;
}

/* Where nobody said: named after the store's place, so that a restart finds it again. */
static char *default_rundir(const struct store *s)
{
	uint64_t h = sum64(s->path, strlen(s->path));
	const char *xdg = getenv("XDG_RUNTIME_DIR");
	char *p = NULL;
	int n;

	if (geteuid() == 0)
		n = asprintf(&p, "/run/kvfs/%016" PRIx64, h);
	else if (xdg && *xdg == '/' && on_tmpfs(xdg))
		n = asprintf(&p, "%s/kvfs/%016" PRIx64, xdg, h);
	else
		n = asprintf(&p, "/dev/shm/kvfs-%u/%016" PRIx64, geteuid(), h);
	return n < 0 ? NULL : p;
}

/* Best first: kernels before 6.4 know no noswap, some are built without huge pages. One left by a
 * killed daemon takes the new size; what it holds stays. */
static int mount_tmpfs(struct store *s, const char *path, const char *huge)
{
	const char *const extra[] = { ",noswap", "", NULL };
	unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
	uint64_t size = s->opt.hot_bytes + OVERHEAD;
	char opts[128];
	int r = 0;

	if (is_our_tmpfs(path)) {
		snprintf(opts, sizeof(opts), "size=%" PRIu64, size);
		return mount("kvfs", path, "tmpfs", MS_REMOUNT | flags, opts) ? -errno : 0;
	}
	for (int i = 0; i < 3; i++) {
		snprintf(opts, sizeof(opts), "size=%" PRIu64 ",mode=0700%s%s%s", size,
			 extra[i] ? ",huge=" : "", extra[i] ? huge : "", extra[i] ? extra[i] : "");
		if (!mount("kvfs", path, "tmpfs", flags, opts)) {
			s->huge_pages |= extra[i] != NULL;
			return 0;
		}
		r = -errno;
		if (r != -EINVAL)
			break;
	}
	return r;
}

static int open_place(struct store *s, enum image_place place, struct store_error *err)
{
	const char *name = image_place_name[place];
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", s->rundir, name);
	if (mkdir(path, 0700) && errno != EEXIST)
		return fail(err, -errno, path, "cannot make it");
	if (place == IMAGE_SMALL && s->own_tmpfs)
		s->small_mounted = mount_tmpfs(s, path, "within_size") == 0;
	s->img_fd[place] = openat(s->run_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return s->img_fd[place] < 0 ? fail(err, -errno, path, "cannot open it") : 0;
}

/* Opens and locks the run directory, which must be nobody else's to write. */
static int lock_dir(struct store *s, struct store_error *err)
{
	struct stat st;

	s->run_fd = open(s->rundir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (s->run_fd < 0)
		return fail(err, -errno, s->rundir, "cannot open the run directory");
	if (fstat(s->run_fd, &st) || st.st_uid != geteuid() || st.st_mode & 022)
		return fail(err, -EPERM, s->rundir,
			    "others may write there: give a folder of your own as rundir=");
	if (lock_file(s->run_fd) == 0)
		return 0;
	fail(err, -errno, s->rundir,
	     "in use by another daemon: give each store a rundir= of its own");
	return -EBUSY;
}

/* The lock comes before anything is changed; a fresh tmpfs covers the folder, and is locked then. */
static int take_dir(struct store *s, struct store_error *err)
{
	bool ours = is_our_tmpfs(s->rundir);
	int r = lock_dir(s, err);

	if (r)
		return r;
	/* Somebody's mount is taken as it is. */
	if (ours || !is_mount_point(s->rundir))
		s->own_tmpfs = mount_tmpfs(s, s->rundir, "always") == 0;
	if (ours || !s->own_tmpfs)
		return 0;
	close(s->run_fd);
	return lock_dir(s, err);
}

static int open_dirs(struct store *s, struct store_error *err)
{
	int r = 0;

	for (int i = 0; i < IMAGE_PLACES && !r; i++)
		r = open_place(s, i, err);
	return r;
}

static void empty_place(struct store *s, enum image_place place)
{
	int fd = openat(s->img_fd[place], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!d && fd >= 0)
		close(fd);
	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.')
			unlinkat(s->img_fd[place], e->d_name, 0);
	if (d)
		closedir(d);
}

/* The number the kernel draws at each boot; empty when it tells none. */
static void read_boot(int dir, const char *path, char ret[BOOT_LEN])
{
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t n = fd < 0 ? 0 : read(fd, ret, BOOT_LEN - 1);

	ret[n < 0 ? 0 : n] = 0;
	if (fd >= 0)
		close(fd);
}

/* What lies on a disk and is older than this boot may be torn: pages reached it in any order. */
static int forget_other_boots(struct store *s, struct store_error *err)
{
	char now[BOOT_LEN], then[BOOT_LEN];
	int fd, r = 0;

	read_boot(AT_FDCWD, "/proc/sys/kernel/random/boot_id", now);
	read_boot(s->run_fd, "boot", then);
	if (!strcmp(now, then))
		return 0;
	if (*then) {
		store_log(s, LOG_WARNING,
			  "%s: from before the last boot: what was not durable then is dropped",
			  s->rundir);
		for (int i = 0; i < IMAGE_PLACES; i++)
			empty_place(s, i);
		unlinkat(s->run_fd, "journal", 0);
		unlinkat(s->run_fd, "journal.new", 0);
	}
	fd = openat(s->run_fd, "boot", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return fail(err, -errno, s->rundir, "cannot write there");
	if (write(fd, now, strlen(now)) != (ssize_t)strlen(now))
		r = fail(err, -EIO, s->rundir, "cannot write there");
	close(fd);
	return r;
}

int rundir_open(struct store *s, struct store_error *err)
{
	char *abs;
	int r;

	s->rundir = s->opt.rundir ? strdup(s->opt.rundir) : default_rundir(s);
	if (!s->rundir)
		return -ENOMEM;
	r = make_dirs(s->rundir);
	if (r)
		return fail(err, r, s->rundir,
			    "cannot make the run directory: choose another with rundir=");
	abs = realpath(s->rundir, NULL);
	if (!abs)
		return fail(err, -errno, s->rundir, "cannot resolve the run directory");
	free(s->rundir);
	s->rundir = abs;
	if (holds_others_things(s->rundir)) {
		snprintf(err->text, sizeof(err->text),
			 "%.300s: not empty: give an empty or new folder as rundir=", s->rundir);
		return -ENOTEMPTY;
	}
	r = take_dir(s, err);
	if (r)
		return r;
	if (!s->own_tmpfs && !on_tmpfs(s->rundir))
		store_log(
			s, LOG_WARNING,
			"%s: not on a tmpfs and none could be mounted: hot files are as slow as its "
			"disk: choose one on a tmpfs with rundir=",
			s->rundir);
	r = open_dirs(s, err);
	return r ? r : forget_other_boots(s, err);
}

void rundir_measure(struct store *s)
{
	int fd = s->own_tmpfs ? openat(s->run_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	struct stat st;
	uint64_t sum = 0;

	if (!d) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((e = readdir(d)))
		if (!fstatat(s->run_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode))
			sum += (uint64_t)st.st_blocks * 512;
	closedir(d);
	atomic_store(&s->run_overhead, sum);
}

/* True if something is not in the store, or may not be since somebody has an image open or mapped
 * still: then all of it stays for the next daemon. */
static bool is_needed(struct store *s)
{
	size_t n;
	struct object **v = object_all(s, &n);
	bool held = !v;

	for (size_t i = 0; i < n && !held; i++) {
		held = object_is_dirty(v[i]) || object_is_uncommitted(v[i]);
		pthread_mutex_lock(&v[i]->mu);
		held |= v[i]->image != IMAGE_NONE && !image_unused(v[i], false);
		pthread_mutex_unlock(&v[i]->mu);
	}
	object_list_free(v, n);
	return held;
}

static void remove_all(struct store *s)
{
	char path[4096];

	for (int i = 0; i < IMAGE_PLACES; i++) {
		empty_place(s, i);
		close(s->img_fd[i]);
		s->img_fd[i] = -1;
		snprintf(path, sizeof(path), "%s/%s", s->rundir, image_place_name[i]);
		if (i == IMAGE_SMALL && s->small_mounted)
			umount2(path, MNT_DETACH);
		rmdir(path);
	}
	unlinkat(s->run_fd, "journal", 0);
	unlinkat(s->run_fd, "pid", 0);
	unlinkat(s->run_fd, "boot", 0);
	close(s->run_fd);
	s->run_fd = -1;
	if (s->own_tmpfs)
		umount2(s->rundir, MNT_DETACH);
	rmdir(s->rundir);
}

void rundir_close(struct store *s, bool clean)
{
	if (clean && s->img_fd[IMAGE_SMALL] >= 0 && !is_needed(s))
		remove_all(s);
	for (int i = 0; i < IMAGE_PLACES; i++)
		if (s->img_fd[i] >= 0)
			close(s->img_fd[i]);
	if (s->run_fd >= 0)
		close(s->run_fd);
	s->run_fd = s->img_fd[IMAGE_HUGE] = s->img_fd[IMAGE_SMALL] = -1;
}
