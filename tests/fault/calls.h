/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls: the system calls on files below one folder, those of SQLite too, as this program's own
 * functions stand before libc's: counted, made to fail at the Nth, and taken down (trace.h).
 *
 * A run is made in a child: what it counts and takes down is in memory shared with its parent.
 */
#ifndef FAULT_CALLS_H
#define FAULT_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fault_kind {
	FAULT_NONE,
	FAULT_EIO,    /* the call fails, nothing is done */
	FAULT_ENOSPC, /* of those that take room */
	FAULT_EDQUOT, /* likewise */
	FAULT_EINTR,  /* a signal came first */
	FAULT_SHORT,  /* half of a read or a write */
	FAULT_TORN,   /* half of a write, then EIO */
	FAULT_DELAY,  /* 30 ms */
	FAULT_KILL,   /* the process ends before the call; that is behind the one before it, too */
	FAULT_EIO_ON, /* from the Nth on, everything on the store that writes or syncs */
	FAULT_ENOSPC_ON,   /* from the Nth on, everything that takes room */
	FAULT_ROT_READ,    /* a byte of a read of a segment is another */
	FAULT_ROT_WRITE,   /* a byte of a write to a segment, as it is on the device */
	FAULT_LOST_WRITE,  /* a write to a segment that is not done, and says it is */
	FAULT_MALLOC,      /* not a call: the Nth allocation of kvfs fails; memory.c */
	FAULT_SQLITE,      /* or the Nth of SQLite */
	FAULT_MALLOC_SOME, /* from the Nth allocation on, 20 in a row */
	FAULT_KINDS,
};
const char *fault_name(enum fault_kind kind);

/* Shared with the parent. */
struct calls {
	enum fault_kind kind;
	uint64_t at; /* the Nth of those that the kind can be done to; 0: count only */
	_Atomic uint64_t count;
	_Atomic uint64_t fired;
	char what[160];   /* was done to what */
	uint64_t seen[4]; /* counted by place: segments, meta.db, run directory, anything else */
};
extern struct calls *calls;

/* Before any child: the folder, that holds store/ and run/. */
void calls_init(const char *folder);
/* In the child: from now on calls count. */
void calls_arm(void);
/* Between these no other call is taken down. */
void calls_lock(void);
void calls_unlock(void);
/* Counts one more of what the kind can be done to. True: this is the one. */
bool calls_is_it(void);
void calls_note(const char *what, const char *name);

#define KILLED 99 /* exit status of a child that FAULT_KILL ended */

#endif
