/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck: the order of things. The store is locked, meta.db opened so that nothing in it changes, and the rows
 * are checked against each other and against the segments.
 */
#include "store/fsck_impl.h"
#include "store/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool fsck_cancelled(const struct fsck *f)
{
	return f->opt->cancel && *f->opt->cancel;
}

int fsck_fail(struct fsck *f, int error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(f->err->text, sizeof(f->err->text), fmt, ap);
	va_end(ap);
	return error;
}

int fsck_room(void **v, size_t n, size_t *cap, size_t size)
{
	size_t want = *cap ? *cap + *cap / 2 : 1024;
	void *p;

	if (n < *cap)
		return 0;
	p = reallocarray(*v, want, size);
	if (!p)
		return -ENOMEM;
	*v = p;
	*cap = want;
	return 0;
}

/* ---- the directory ---- */

static int open_dirs(struct fsck *f)
{
	const char *path = f->opt->path;

	f->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->dir_fd < 0)
		return fsck_fail(f, -errno, "%s: %s: name the directory of a store", path,
				 strerror(errno));
	f->path = realpath(path, NULL);
	if (!f->path)
		return -ENOMEM;
	if (faccessat(f->dir_fd, "lock", F_OK, 0) && faccessat(f->dir_fd, "meta.db", F_OK, 0))
		return fsck_fail(f, -EMEDIUMTYPE, "%s: no kvfs store: name the directory of one",
				 f->path);
	f->seg_fd = openat(f->dir_fd, "segments", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->seg_fd < 0)
		return fsck_fail(f, -errno, "%s/segments: %s: put it back from where it went",
				 f->path, strerror(errno));
	return 0;
}

static int take_lock(struct fsck *f)
{
	int flags = f->opt->repair ? O_RDWR | O_CREAT : O_RDONLY;

	f->lock_fd = openat(f->dir_fd, "lock", flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (f->lock_fd < 0 && errno == ENOENT) /* nobody can have it mounted */
		return 0;
	if (f->lock_fd < 0)
		return fsck_fail(f, -errno, "%s/lock: %s", f->path, strerror(errno));
	if (lock_file(f->lock_fd) == 0)
		return 0;
	if (errno != EWOULDBLOCK)
		return fsck_fail(f, -errno, "%s/lock: %s", f->path, strerror(errno));
	return fsck_fail(f, -EBUSY, "%s: mounted, or being checked: unmount it first", f->path);
}

/* ---- the checks ---- */

static void forget_rows(struct fsck *f)
{
	free(f->inode);
	free(f->chunk);
	free(f->place);
	free(f->segment);
	free(f->wanted);
	for (size_t k = 0; k < f->mends; k++)
		free(f->mend[k].blob);
	free(f->mend);
	f->inode = NULL;
	f->chunk = NULL;
	f->place = NULL;
	f->segment = NULL;
	f->wanted = NULL;
	f->mend = NULL;
	f->inodes = f->inodes_cap = f->chunks = f->chunks_cap = 0;
	f->unreadable = false;
	f->max_dentry_id = f->unread = f->bad_headers = 0;
	f->segments = f->segments_cap = f->wanteds = f->wanteds_cap = f->mends = f->mends_cap = 0;
}

int fsck_check(struct fsck *f)
{
	int r;

	forget_rows(f);
	/* What is repaired again and again is counted anew each time. */
	*f->ret = (struct fsck_result){ .repaired = f->ret->repaired };
	r = fsck_db_check(f);

	if (r)
		return r;
	r = fsck_db_meta(f);
	if (!r)
		r = fsck_inodes_load(f);
	if (!r)
		r = fsck_names_check(f);
	if (!r)
		r = fsck_chunks_load(f);
	if (!r)
		r = fsck_segments_open(f);
	if (!r)
		r = fsck_chunks_check(f);
	if (!r)
		r = fsck_segments_check(f);
	if (!r)
		r = fsck_content_check(f);
	return r;
}

/* What SQLite cannot read is checked as far as its rows can be read without it. */
static int check_any(struct fsck *f)
{
	uint64_t before;
	int r = fsck_check(f);

	if (r != 1)
		return r;
	before = f->ret->mended;
	r = fsck_salvage(f);
	if (!r)
		r = fsck_check(f);
	f->ret->mended += before;
	return r == 1 ? -EUCLEAN : r;
}

static void done(struct fsck *f)
{
	forget_rows(f);
	segset_close(f->segs);
	sqlite3_close(f->db);
	if (f->seg_fd >= 0)
		close(f->seg_fd);
	if (f->lock_fd >= 0)
		close(f->lock_fd);
	if (f->dir_fd >= 0)
		close(f->dir_fd);
	free(f->path);
}

int store_fsck(const struct fsck_options *opt, struct fsck_result *ret, struct store_error *err)
{
	struct fsck f = {
		.opt = opt, .ret = ret, .err = err, .dir_fd = -1, .lock_fd = -1, .seg_fd = -1
	};
	int r;

	memset(ret, 0, sizeof(*ret));
	err->text[0] = 0;
	r = open_dirs(&f);
	if (!r)
		r = take_lock(&f);
	if (!r)
		r = fsck_db_open(&f);
	if (!r)
		r = check_any(&f);
	if (!r && opt->repair && ret->mended)
		r = fsck_repair(&f);
	if (r < 0 && !err->text[0])
		fsck_fail(&f, r, "%s: %s", opt->path, strerror(-r));
	done(&f);
	return r < 0 ? r : 0;
}
