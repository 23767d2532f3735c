/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control: tiers through extended attributes, user.kvfs.NAME of files and directories. They are not
 * listed by listxattr, so nothing copies them.
 */
#ifndef FS_CONTROL_H
#define FS_CONTROL_H

#include "fs/files.h"

/* The part of the name after "user.kvfs."; NULL when it is another attribute. */
const char *control_name(const char *xattr);
/* The value as text; its length, or -ENODATA and other errors. i is held, the lock is not. */
ssize_t control_get(struct fs *fs, struct inode *i, const char *name, char *buf, size_t size);
int control_set(struct fs *fs, struct inode *i, const char *name, const char *value, size_t len);

/*
 * Settles, commits, and drops what is in the way of the tier. Waits so long for handles that are
 * being closed. -EBUSY: it is in use, and will be evicted at its last close.
 */
int control_evict_file(struct fs *fs, struct inode *i, enum object_tier to, int wait_ms);

/* walk.c: calls fn for every regular file below a held directory, or for a held file; the inode is
 * held during the call. A non-zero return ends the walk. -E2BIG: more than WALK_LIMIT. */
#define WALK_LIMIT 1000000u
int walk_files(struct fs *fs, struct inode *top, int (*fn)(void *arg, struct inode *i), void *arg);

#endif
