/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvfs gc: gives the space of what was deleted back now. A cover over an fsync of the root, so that what was
 * deleted is, over the xattr user.kvfs.gc, which asks the daemon, and over the status, which tells of it.
 */
#include "mount/mount.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define POLL_MS 20

struct job {
	bool quiet, json;
	const char *path;
	char point[PATH_MAX];
	struct progress progress;
};

/* What .kvfs/status says of it. */
struct state {
	uint64_t asked, done, moved, freed, segments, left_segments, left_bytes, dead;
	char error[128];
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct job *j = state->input;

	switch (key) {
	case 'q':
		j->quiet = true;
		return 0;
	case 'j':
		j->json = true;
		return 0;
	case ARGP_KEY_ARG:
		if (j->path)
			usage_fail(state->name, "%s: one mount point at a time", arg);
		j->path = arg;
		return 0;
	case ARGP_KEY_NO_ARGS:
		usage_fail(state->name, "no mount point: give one");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option option_table[] = {
	{ "quiet", 'q', NULL, 0, "Do not show progress", 0 },
	{ "json", 'j', NULL, 0, "Print a summary as JSON", 0 },
	{ 0 },
};

static const struct argp argp = {
	.options = option_table,
	.parser = parse,
	.args_doc = "MOUNTPOINT",
	.doc = "Gives the space of deleted files back now, as fast as the device can: segments of the "
	       "store with an eighth of dead bytes or more are compacted. The daemon does that by itself, "
	       "at leisure.",
};

static int fail(const struct job *j, int error)
{
	if (mount_error_is_dead(-error))
		control_complain_dead(j->path);
	else if (error == EPERM || error == EACCES)
		complain("%s: not permitted: run this as the owner of the mount's root or as root",
			 j->path);
	else if (error == EROFS)
		complain("%s: mounted read-only: mount with rw", j->path);
	else
		complain("%s: %s: see the log of kvfs", j->path, strerror(error));
	return KVFS_EXIT_FAILED;
}

/* ---- the status ------------------------------------------------------------------------------- */

static uint64_t number(const json_t *gc, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(gc, key));
}

static int get_state(const struct job *j, struct state *ret)
{
	const char *error;
	json_t *status, *gc;
	char *text;
	int r = control_status_text(j->point, &text);

	if (r < 0)
		return r;
	status = json_loads(text, 0, NULL);
	free(text);
	gc = json_object_get(status, "gc");
	error = json_string_value(json_object_get(gc, "error"));
	*ret = (struct state){
		.asked = number(gc, "asked"),
		.done = number(gc, "done"),
		.moved = number(gc, "moved_bytes_total"),
		.freed = number(gc, "freed_bytes_total"),
		.segments = number(gc, "segments_total"),
		.left_segments = number(gc, "left_segments"),
		.left_bytes = number(gc, "left_bytes"),
		.dead = number(gc, "dead_bytes"),
	};
	snprintf(ret->error, sizeof(ret->error), "%s", error ? error : "");
	r = error ? 0 : -EPROTO; /* a daemon without it */
	json_decref(status);
	return r;
}

/* ---- the work --------------------------------------------------------------------------------- */

static int sync_root(const struct job *j)
{
	int fd = open(j->point, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r;

	if (fd < 0)
		return -errno;
	r = fsync(fd) ? -errno : 0;
	close(fd);
	return r;
}

static void show(struct job *j, const struct state *begin, const struct state *now)
{
	struct progress *p = &j->progress;
	uint64_t segments = now->segments - begin->segments, moved = now->moved - begin->moved;

	p->total_files = segments + now->left_segments;
	p->total_bytes = moved + now->left_bytes;
	progress_add(p, (unsigned)(segments - p->files), moved - p->bytes);
}

static int work(struct job *j, struct state *begin, struct state *now)
{
	const struct timespec poll = { .tv_nsec = POLL_MS * 1000000L };
	uint64_t mine;
	int r = sync_root(j);

	if (!r)
		r = get_state(j, begin);
	if (!r && setxattr(j->point, "user.kvfs.gc", "1", 1, 0))
		r = -errno;
	if (!r)
		r = get_state(j, now);
	mine = now->asked;
	while (!r && now->done < mine) {
		nanosleep(&poll, NULL);
		r = get_state(j, now);
		if (!r)
			show(j, begin, now);
	}
	return r;
}

static void print(const struct job *j, const struct state *begin, const struct state *end,
		  double seconds)
{
	uint64_t moved = end->moved - begin->moved, gross = end->freed - begin->freed;
	uint64_t freed = gross > moved ? gross - moved : 0;
	char a[SIZE_TEXT], b[SIZE_TEXT], c[SIZE_TEXT];

	if (j->json)
		printf("{\"freed\": %lu, \"moved\": %lu, \"segments\": %lu, \"seconds\": %.3f, "
		       "\"dead\": %lu}\n",
		       (unsigned long)freed, (unsigned long)moved,
		       (unsigned long)(end->segments - begin->segments), seconds,
		       (unsigned long)end->dead);
	else
		printf("freed %s, moved %s of %lu segments in %.1f s; %s are dead still\n",
		       size_format(freed, a), size_format(moved, b),
		       (unsigned long)(end->segments - begin->segments), seconds,
		       size_format(end->dead, c));
}

static double seconds_since(const struct timespec *t)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - t->tv_sec) + (double)(now.tv_nsec - t->tv_nsec) / 1e9;
}

int cmd_gc(int argc, char **argv)
{
	struct job j = { 0 };
	struct state begin = { 0 }, end = { 0 };
	struct mount_entry m;
	struct timespec t;
	int r;

	arguments_parse(&argp, argc, argv, 0, &j);
	if (control_find_live(j.path, &m) < 0)
		return KVFS_EXIT_FAILED;
	snprintf(j.point, sizeof(j.point), "%s", m.point);
	clock_gettime(CLOCK_MONOTONIC, &t);
	progress_begin(&j.progress, "compacting", j.quiet);
	j.progress.unit = "segments";
	r = work(&j, &begin, &end);
	progress_clear(&j.progress);
	if (r < 0)
		return fail(&j, -r);
	print(&j, &begin, &end, seconds_since(&t));
	if (!*end.error)
		return KVFS_EXIT_OK;
	complain("%s: not all of it: %s: see the log of kvfs", j.path, end.error);
	return KVFS_EXIT_FAILED;
}
