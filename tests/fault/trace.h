/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace: what a run did to the files of its store, step by step, for cuts.c: in memory that outlives it.
 * Every path is absolute and lies in the folder that trace_init() names; the caller keeps steps apart.
 */
#ifndef FAULT_TRACE_H
#define FAULT_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum step_type {
	STEP_MAKE,     /* name in dir is file now */
	STEP_REMOVE,   /* name in dir is nothing now */
	STEP_WRITE,    /* len bytes of data at off */
	STEP_TRUNCATE, /* to off */
	STEP_RESERVE,  /* the size is off at least */
	STEP_PUNCH,    /* len zeros at off */
	STEP_SYNC,     /* of a file or a folder */
	STEP_MARK,     /* off: what the workload says */
};
struct step {
	enum step_type type;
	int file, dir;
	uint64_t off, len;
	char name[24];
	bool folder;
	uint64_t data; /* offset in trace->data */
};
#define TRACE_STEPS (1u << 20)
#define TRACE_DATA  (1ull << 30)
#define TRACE_FILES 256
struct trace {
	size_t n;
	uint64_t used;
	int files; /* numbers given out; 0 is the folder */
	bool overflow;
	struct step step[TRACE_STEPS];
	uint8_t data[TRACE_DATA];
};
extern struct trace *trace; /* NULL: nothing is taken down */

#define TRACE_PATH 512

void trace_init(const char *folder);
/* The number of what has that name; what has none yet gets one, and is taken down as made. -1: no room. */
int trace_open(const char *path, bool folder);
void trace_remove(const char *path);
/* data: len bytes of a write; else NULL. */
void trace_step(enum step_type type, int file, uint64_t off, uint64_t len, const void *data);

#endif
