/* SPDX-License-Identifier: Apache-2.0 */
/*
 * known: files that the kernel knows and the cache of inodes has let go.
 *
 * The kernel keeps an inode, and its references to it, for as long as it has memory, which may be
 * millions of them. What the daemon has to remember of one that is idle is how to find it again:
 * 32 bytes here, in tables that grow to be between 3/8 and 3/4 full and do not shrink, instead of about 700.
 *
 * Guarded by the namespace lock. A call costs the same whatever the table holds, but for a shard
 * that grows: it has 1/256 of the entries.
 */
#ifndef FS_KNOWN_H
#define FS_KNOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNOWN_SHARDS 256u

struct known_file {
	uint64_t ino;        /* not 0 */
	uint64_t parent, id; /* its only name: the directory, and the row there */
	uint32_t nlookup;    /* the kernel's references; not 0 */
	uint32_t idle_since; /* last close, seconds of CLOCK_MONOTONIC; 0: not opened */
};

/* All zero: empty. */
struct known {
	struct known_shard {
		struct known_file *slot; /* open addressing; ino 0: free */
		size_t n, size;          /* size: 0 or a power of two */
	} shard[KNOWN_SHARDS];
};

/* ino is not in it. -ENOMEM. */
int known_add(struct known *k, const struct known_file *f);
bool known_find(struct known *k, uint64_t ino, struct known_file *ret);
/* The same, and takes it out. */
bool known_take(struct known *k, uint64_t ino, struct known_file *ret);
/* The kernel gave n references back. */
void known_forget(struct known *k, uint64_t ino, uint64_t n);
void known_free(struct known *k); /* it is empty afterwards */

#endif
