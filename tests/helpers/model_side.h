/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One side of the model checker: a folder, with its open files and mappings. What works on it returns its
 * result or a negative errno and leaves what it read in `out`; the sides know nothing of each other,
 * comparing is the player's.
 */
#ifndef MODEL_SIDE_H
#define MODEL_SIDE_H

#include <dirent.h>
#include <errno.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "model_op.h"

#define OUT_ROOM  (2 * SIZE_MAX_DRAWN)
#define NOTHING   INT64_MIN /* there was nothing to work on */
#define PATH_ROOM 1024
#define IO_ALIGN  4096
/* Times that are set lie before this one, all others after it: the clock's are not compared. */
#define TIME_SET_MAX 1200000000

struct open_file {
	bool used;
	int fd;
	unsigned flags;
};

struct kept_map {
	unsigned char *at; /* NULL: none */
	size_t len;
	bool writable;
	int fd; /* the reference's: tells the size; kvfs's is -1, so that a mapping outlives its handles */
};

struct side {
	bool is_kvfs;
	char top[PATH_ROOM - 64];
	struct open_file slots[SLOTS];
	struct kept_map maps[MAPS];
	size_t map_limit; /* the size of the mapped file: a store beyond it is SIGBUS */
	unsigned char *out;
	size_t out_len;
	unsigned char *in; /* what is to be written, aligned */
};

static int64_t result(int64_t r)
{
	return r < 0 ? -errno : r;
}

/* Two paths of one operation may be needed at a time. */
static const char *side_path(const struct side *s, unsigned path)
{
	static char room[2][PATH_ROOM];
	static unsigned turn;
	char *p = room[turn++ % 2];

	snprintf(p, PATH_ROOM, "%s/%s", s->top, op_paths[path]);
	return p;
}

#endif
