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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <syslog.h>
#include <unistd.h>

/* Beside the images: journal, its successor during a checkpoint, and small files. */
#define OVERHEAD ((uint64_t)256 << 20)

static int fail(struct store_error *err, int r, const char *path, const char *what)
{
	snprintf(err->text, sizeof(err->text), "%s: %s: %s", path, what, strerror(-r));
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

/* Best first. Kernels before 6.4 know no noswap; some are built without huge pages. */
static int mount_tmpfs(struct store *s)
{
	static const char *const extra[] = { ",huge=always,noswap", ",huge=always", "" };
	uint64_t size = s->opt.hot_bytes + OVERHEAD;
	char opts[128];
	int r = 0;

	for (size_t i = 0; i < sizeof(extra) / sizeof(extra[0]); i++) {
		snprintf(opts, sizeof(opts), "size=%" PRIu64 ",mode=0700%s", size, extra[i]);
		if (!mount("kvfs", s->rundir, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, opts)) {
			s->huge_pages = extra[i][0] != 0;
			return 0;
		}
		r = -errno;
		if (r != -EINVAL)
			break;
	}
	return r;
}

/* One left by a killed daemon takes the new size; what it holds stays. */
static int take_over_tmpfs(struct store *s)
{
	char opts[64];

	snprintf(opts, sizeof(opts), "size=%" PRIu64, s->opt.hot_bytes + OVERHEAD);
	if (mount("kvfs", s->rundir, "tmpfs", MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOEXEC, opts))
		return -errno;
	s->huge_pages = true;
	return 0;
}

static int open_dirs(struct store *s, struct store_error *err)
{
	s->run_fd = open(s->rundir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (s->run_fd < 0)
		return fail(err, -errno, s->rundir, "cannot open the run directory");
	if (flock(s->run_fd, LOCK_EX | LOCK_NB)) {
		fail(err, -errno, s->rundir,
		     "in use by another daemon: give each store a rundir= of its own");
		return -EBUSY;
	}
	if (mkdirat(s->run_fd, "images", 0700) && errno != EEXIST)
		return fail(err, -errno, s->rundir, "cannot make images/");
	s->img_fd = openat(s->run_fd, "images", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (s->img_fd < 0)
		return fail(err, -errno, s->rundir, "cannot open images/");
	return 0;
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
		return fail(err, r, s->rundir, "cannot make the run directory: choose another with rundir=");
	abs = realpath(s->rundir, NULL);
	if (!abs)
		return fail(err, -errno, s->rundir, "cannot resolve the run directory");
	free(s->rundir);
	s->rundir = abs;
	if (on_tmpfs(s->rundir) && is_mount_point(s->rundir))
		s->own_tmpfs = take_over_tmpfs(s) == 0;
	else
		s->own_tmpfs = mount_tmpfs(s) == 0;
	if (!s->own_tmpfs && !on_tmpfs(s->rundir))
		store_log(s, LOG_WARNING,
			  "%s: not on a tmpfs and none could be mounted: hot files are as slow as its "
			  "disk: choose one on a tmpfs with rundir=",
			  s->rundir);
	r = open_dirs(s, err);
	if (!r)
		rundir_measure(s);
	return r;
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

/* True if somebody has an image open or mapped still: then all of it stays for the next daemon. */
static bool images_held(struct store *s)
{
	size_t n;
	struct object **v = object_list(s, &n);
	bool held = !v;

	for (size_t i = 0; i < n && !held; i++) {
		pthread_mutex_lock(&v[i]->mu);
		held = v[i]->image != IMAGE_NONE && !image_unused(v[i], false);
		pthread_mutex_unlock(&v[i]->mu);
	}
	object_list_free(v, n);
	return held;
}

static void remove_images(struct store *s)
{
	int fd = openat(s->img_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!d && fd >= 0)
		close(fd);
	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.')
			unlinkat(s->img_fd, e->d_name, 0);
	if (d)
		closedir(d);
	unlinkat(s->run_fd, "journal", 0);
	unlinkat(s->run_fd, "pid", 0);
	unlinkat(s->run_fd, "images", AT_REMOVEDIR);
}

void rundir_close(struct store *s, bool clean)
{
	bool empty = clean && s->img_fd >= 0 && !images_held(s);

	if (empty)
		remove_images(s);
	if (s->img_fd >= 0)
		close(s->img_fd);
	if (s->run_fd >= 0)
		close(s->run_fd);
	s->img_fd = s->run_fd = -1;
	if (empty && s->own_tmpfs)
		umount2(s->rundir, MNT_DETACH);
	if (empty)
		rmdir(s->rundir);
}
