/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvfs evict and kvfs prefetch: move files and whole sessions between the tiers. A cover over the
 * xattrs user.kvfs.evict and user.kvfs.prefetch, one call a file.
 */
#include "mount/mount.h"

#include <argp.h>
#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Each look for the holders of a file goes through all of /proc. */
#define NAMED_MAX 20

struct job {
	const char *xattr, *value;
	const char *verb;
	bool evicts;
	bool quiet, json;
	char **paths; /* NULL-terminated, in argv */
	struct progress progress;
	uint64_t busy, failed; /* files */
	bool dead;             /* the daemon: there is no sense in going on */
};

/* ---- Arguments -------------------------------------------------------------------------------- */

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct job *j = state->input;

	switch (key) {
	case 't':
		if (strcmp(arg, "warm") && strcmp(arg, "cold"))
			usage_fail(state->name, "--to=%s: no such tier: use warm or cold", arg);
		j->value = arg;
		return 0;
	case 'q':
		j->quiet = true;
		return 0;
	case 'j':
		j->json = true;
		return 0;
	case ARGP_KEY_ARGS:
		j->paths = state->argv + state->next;
		return 0;
	case ARGP_KEY_NO_ARGS:
		usage_fail(state->name, "no path: give files or sessions");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

#define COMMON_OPTIONS                                                                             \
	{ "quiet", 'q', NULL, 0, "Do not show progress", 0 },                                      \
		{ "json", 'j', NULL, 0, "Print a summary as JSON", 0 },                            \
	{                                                                                          \
		0                                                                                  \
	}

static const struct argp_option evict_options[] = {
	{ "to", 't', "TIER", 0, "warm (kept encoded in memory) or cold (the default: on disk only)",
	  0 },
	COMMON_OPTIONS,
};

static const struct argp_option prefetch_options[] = { COMMON_OPTIONS };

static const struct argp evict_argp = {
	.options = evict_options,
	.parser = parse,
	.args_doc = "PATH...",
	.doc = "Settles files and whole sessions (directories) and frees the memory they take. A file "
	       "that is open, mapped or pinned is settled and stays; the exit code is then 1.",
};

static const struct argp prefetch_argp = {
	.options = prefetch_options,
	.parser = parse,
	.args_doc = "PATH...",
	.doc = "Brings files and whole sessions (directories) into memory, ahead of their use.",
};

/* ---- One file --------------------------------------------------------------------------------- */

static bool is_pinned(const char *path)
{
	char pin;

	return getxattr(path, "user.kvfs.pin", &pin, 1) == 1 && pin == '1';
}

static void complain_busy(struct job *j, const char *path)
{
	char users[512] = "";
	struct stat st;

	j->busy++;
	if (is_pinned(path)) {
		complain("%s: pinned, settled but kept hot: 'setfattr -n user.kvfs.pin -v 0' unpins "
			 "it",
			 path);
		return;
	}
	if (j->busy > NAMED_MAX) {
		complain("%s: in use, settled but kept hot: close it and try again", path);
		return;
	}
	if (stat(path, &st) == 0)
		users_of_file(&st, users, sizeof(users));
	if (*users)
		complain("%s: in use by %s, settled but kept hot: close it and try again", path,
			 users);
	else
		complain("%s: in use by a process that is not to be seen from here, settled but "
			 "kept hot: %s",
			 path, geteuid() == 0 ? "close it and try again" : "root may see which");
}

static void complain_file(struct job *j, const char *path, int error)
{
	progress_clear(&j->progress);
	j->failed++;
	j->dead = mount_error_is_dead(-error);
	if (j->dead) {
		control_complain_dead(path);
		return;
	}
	switch (error) {
	case EBUSY:
		complain_busy(j, path);
		break;
	case EAGAIN:
		j->busy++;
		complain("%s: being written, kept hot: try again when the writer is done", path);
		break;
	case ENOSPC:
		complain("%s: no space left: remove files, or %s", path,
			 j->evicts ? "give the file system under the store more room" :
				     "mount with a larger hot=");
		break;
	case EIO:
		complain("%s: I/O error or damaged data: see the log of kvfs", path);
		break;
	case EROFS:
		complain("%s: mounted read-only: mount with rw", path);
		break;
	case EPERM:
	case EACCES:
		complain("%s: not permitted: run this as the owner or as root", path);
		break;
	default:
		complain("%s: %s: see the log of kvfs", path, strerror(error));
	}
}

static void move_file(struct job *j, const char *path, uint64_t size)
{
	if (setxattr(path, j->xattr, j->value, strlen(j->value), 0) == 0)
		progress_add(&j->progress, 1, size);
	else if (errno != ENOENT) /* gone since it was listed */
		complain_file(j, path, errno);
}

static void count_file(struct job *j, const char *path, uint64_t size)
{
	(void)path;
	j->progress.total_files++;
	j->progress.total_bytes += size;
}

/* ---- Many files ------------------------------------------------------------------------------- */

static void complain_walk(struct job *j, const FTSENT *e)
{
	if (mount_error_is_dead(-e->fts_errno)) {
		complain_file(j, e->fts_path, e->fts_errno);
		return;
	}
	progress_clear(&j->progress);
	complain("%s: %s: give paths that exist and may be read", e->fts_path,
		 strerror(e->fts_errno));
	j->failed++;
}

static int walk(struct job *j, void (*file)(struct job *j, const char *path, uint64_t size),
		bool tell)
{
	FTS *fts = fts_open(j->paths, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_XDEV | FTS_NOCHDIR, NULL);
	FTSENT *e;

	if (!fts)
		return -errno;
	while (errno = 0, !j->dead && (e = fts_read(fts))) {
		if (e->fts_info == FTS_F)
			file(j, e->fts_path, (uint64_t)e->fts_statp->st_size);
		else if (tell && (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR ||
				  e->fts_info == FTS_NS))
			complain_walk(j, e);
	}
	if (errno) {
		int r = -errno;

		fts_close(fts);
		return r;
	}
	return fts_close(fts) < 0 ? -errno : 0;
}

static void print_summary(const struct job *j)
{
	printf("{\"files\": %lu, \"bytes\": %lu, \"busy\": %lu, \"failed\": %lu}\n",
	       (unsigned long)j->progress.files, (unsigned long)j->progress.bytes,
	       (unsigned long)j->busy, (unsigned long)(j->failed - j->busy));
}

static int run(struct job *j)
{
	struct mount_entry m;
	int r;

	/* All of them before the first is touched. */
	for (char **p = j->paths; *p; p++)
		if (control_find_live(*p, &m) < 0)
			return KVFS_EXIT_FAILED;
	progress_begin(&j->progress, j->verb, j->quiet);
	if (j->progress.shown)
		walk(j, count_file, false);
	r = walk(j, move_file, true);
	progress_clear(&j->progress);
	if (r < 0) {
		complain("%s: %s: see the log of kvfs", j->paths[0], strerror(-r));
		j->failed++;
	}
	if (j->json)
		print_summary(j);
	return j->failed ? KVFS_EXIT_FAILED : KVFS_EXIT_OK;
}

int cmd_evict(int argc, char **argv)
{
	struct job j = {
		.xattr = "user.kvfs.evict", .value = "cold", .verb = "evicting", .evicts = true
	};

	arguments_parse(&evict_argp, argc, argv, 0, &j);
	return run(&j);
}

int cmd_prefetch(int argc, char **argv)
{
	struct job j = { .xattr = "user.kvfs.prefetch", .value = "1", .verb = "prefetching" };

	arguments_parse(&prefetch_argp, argc, argv, 0, &j);
	return run(&j);
}
