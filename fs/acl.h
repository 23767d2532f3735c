/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acl: POSIX access control lists, as values of their extended attributes. The kernel checks them; what
 * is left to the file system is how they and the mode follow from each other (POSIX 1003.1e draft 17).
 *
 * A value is what the kernel sends and asks for: 4 bytes of version, 2, then 8 for each entry (tag 2, permissions
 * 2, id 4), little-endian, sorted by tag. All functions but acl_check() take values that it has found good.
 */
#ifndef FS_ACL_H
#define FS_ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define ACL_ACCESS  "system.posix_acl_access"
#define ACL_DEFAULT "system.posix_acl_default"

/* Of an extended attribute. */
bool acl_is_name(const char *name);
/* -EINVAL: the value is no ACL. */
int acl_check(const void *value, size_t len);
/* The permission bits of the mode that goes with it. */
mode_t acl_mode(const void *value, size_t len);
/* It says nothing that its mode does not. */
bool acl_is_mode(size_t len);
/* The mode was changed to that. */
void acl_chmod(void *value, size_t len, mode_t mode);
/* value, the default ACL of a directory, becomes the access ACL of what is made in it with that mode, which
 * loses what the ACL does not grant. */
void acl_inherit(void *value, size_t len, mode_t *mode);

/* Who asks, for the ACL of a file with that owner. */
struct acl_asker {
	uid_t uid;
	uid_t owner;
	gid_t group;                             /* of the file */
	bool (*is_member)(void *arg, gid_t gid); /* the one who asks */
	void *arg;
};
/* Whether it grants all of the bits of want (4 read, 2 write, 1 search). */
bool acl_grants(const void *value, size_t len, const struct acl_asker *who, unsigned want);

#endif
