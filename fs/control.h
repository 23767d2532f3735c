/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control: tiers through extended attributes, user.kvfs.NAME of files and directories. They are not
 * listed by listxattr, so nothing copies them.
 */
#ifndef FS_CONTROL_H
#define FS_CONTROL_H

#include "fs/acl.h"
#include "fs/files.h"

/* The part of the name after "user.kvfs."; NULL when it is another attribute. */
const char *control_name(const char *xattr);

/* Who asks, until the reply. The kernel has checked what the request may do to the file or directory
 * it names, but knows nothing of what lies below. */
#define CALLER_GROUPS 256
struct caller {
	fuse_req_t req;
	uid_t uid;
	gid_t gid;
	int n_groups; /* -1: not asked for yet */
	gid_t groups[CALLER_GROUPS];
};
void caller_init(struct caller *c, fuse_req_t req);
/* Where the groups cannot be had, it is in none but its own. */
bool caller_is_member(struct caller *c, gid_t gid);

/* The value as text; its length, or -ENODATA and other errors. i is held, the lock is not. Of a
 * directory: the sum of what the caller can reach. */
ssize_t control_get(struct caller *c, struct inode *i, const char *name, char *buf, size_t size);
/* Of a directory: for the caller's own files that it can reach; root's are all. */
int control_set(struct caller *c, struct inode *i, const char *name, const char *value, size_t len);
/* Of those that are a state which can be taken away; -EPERM: it is none. */
int control_remove(struct caller *c, struct inode *i, const char *name);

/*
 * Settles, commits, and drops what is in the way of the tier. Waits so long for handles that are
 * being closed. -EBUSY: it is in use, and will be evicted at its last close.
 */
int control_evict_file(struct fs *fs, struct inode *i, enum object_tier to, int wait_ms);

/* walk.c: calls fn for a held file, or for every regular file below a held directory that the caller
 * can reach; own: only its own, unless it is root. The inode is held during the call. A non-zero
 * return ends the walk. -E2BIG: more than WALK_LIMIT, of them or of directories. */
#define WALK_LIMIT 1000000u
int walk_files(struct caller *c, struct inode *top, bool own, int (*fn)(void *arg, struct inode *i),
	       void *arg);

/* ---- acls.c ---------------------------------------------------------------------------------- */

/* An ACL is set or removed; the inode is held, the lock is not. -EINVAL: the value is none. */
int acls_set(struct caller *c, struct inode *i, const char *name, const void *value, size_t len);
int acls_remove(struct fs *fs, struct inode *i, const char *name);
/* Whether the caller may do all of want (4 read, 2 write, 1 search), by ACL or mode: 1, 0 or an error. The
 * inode is held, and the lock; as _load functions. */
int acls_permit(struct caller *c, struct inode *i, unsigned want);

#endif
