/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/acl.h"

#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#define VERSION 2u
#define HEADER  4u
#define ENTRY   8u
#define NONE    SIZE_MAX

enum tag {
	USER_OBJ = 0x01,
	USER = 0x02,
	GROUP_OBJ = 0x04,
	GROUP = 0x08,
	MASK = 0x10,
	OTHER = 0x20,
};

struct entry {
	uint16_t tag, perm;
	uint32_t id;
};

static size_t count(size_t len)
{
	return (len - HEADER) / ENTRY;
}

static struct entry get(const void *value, size_t k)
{
	struct entry e;

	memcpy(&e, (const uint8_t *)value + HEADER + k * ENTRY, sizeof(e));
	return (struct entry){ le16toh(e.tag), le16toh(e.perm), le32toh(e.id) };
}

static void set_perm(void *value, size_t k, unsigned perm)
{
	uint16_t le = htole16((uint16_t)perm);

	memcpy((uint8_t *)value + HEADER + k * ENTRY + offsetof(struct entry, perm), &le,
	       sizeof(le));
}

/* The only entry with that tag, or NONE. */
static size_t find(const void *value, size_t len, enum tag tag)
{
	for (size_t k = 0; k < count(len); k++)
		if (get(value, k).tag == tag)
			return k;
	return NONE;
}

static unsigned perm_of(const void *value, size_t k)
{
	return get(value, k).perm & 7;
}

/* What the group bits of the mode stand for: the mask, where there is one. */
static size_t group_class(const void *value, size_t len)
{
	size_t k = find(value, len, MASK);

	return k == NONE ? find(value, len, GROUP_OBJ) : k;
}

bool acl_is_name(const char *name)
{
	return !strcmp(name, ACL_ACCESS) || !strcmp(name, ACL_DEFAULT);
}

int acl_check(const void *value, size_t len)
{
	size_t n[OTHER + 1] = { 0 };
	uint32_t version;
	unsigned last = 0;

	if (len < HEADER || (len - HEADER) % ENTRY)
		return -EINVAL;
	memcpy(&version, value, sizeof(version));
	if (le32toh(version) != VERSION)
		return -EINVAL;
	for (size_t k = 0; k < count(len); k++) {
		struct entry e = get(value, k);

		if (!e.tag || e.tag > OTHER || (e.tag & (e.tag - 1)) || e.tag < last || e.perm > 7)
			return -EINVAL;
		n[e.tag]++;
		last = e.tag;
	}
	if (n[USER_OBJ] != 1 || n[GROUP_OBJ] != 1 || n[OTHER] != 1 || n[MASK] > 1)
		return -EINVAL;
	return (n[USER] || n[GROUP]) && !n[MASK] ? -EINVAL : 0;
}

mode_t acl_mode(const void *value, size_t len)
{
	return perm_of(value, find(value, len, USER_OBJ)) << 6 |
	       perm_of(value, group_class(value, len)) << 3 |
	       perm_of(value, find(value, len, OTHER));
}

bool acl_is_mode(size_t len)
{
	/* There can be no fewer than the owner, the group and the others. */
	return count(len) == 3;
}

void acl_chmod(void *value, size_t len, mode_t mode)
{
	set_perm(value, find(value, len, USER_OBJ), mode >> 6 & 7);
	set_perm(value, group_class(value, len), mode >> 3 & 7);
	set_perm(value, find(value, len, OTHER), mode & 7);
}

void acl_inherit(void *value, size_t len, mode_t *mode)
{
	mode_t both = *mode & acl_mode(value, len);

	acl_chmod(value, len, both);
	*mode = (*mode & ~(mode_t)0777) | both;
}

/* The first entry that fits of the class between owner and others: users by name, else groups, of which
 * any that grants it will do. False: none fits. */
static bool middle_class(const void *value, size_t len, const struct acl_asker *who, unsigned want,
			 unsigned *ret)
{
	bool fits = false;

	for (size_t k = 0; k < count(len); k++) {
		struct entry e = get(value, k);
		bool user = e.tag == USER && e.id == who->uid;
		bool group = (e.tag == GROUP_OBJ && who->is_member(who->arg, who->group)) ||
			     (e.tag == GROUP && who->is_member(who->arg, e.id));

		if (!user && !group)
			continue;
		*ret = e.perm;
		fits = true;
		if (user || (e.perm & want) == want)
			break;
	}
	return fits;
}

bool acl_grants(const void *value, size_t len, const struct acl_asker *who, unsigned want)
{
	size_t mask = find(value, len, MASK);
	unsigned perm;

	if (who->uid == who->owner)
		perm = perm_of(value, find(value, len, USER_OBJ));
	else if (!middle_class(value, len, who, want, &perm))
		perm = perm_of(value, find(value, len, OTHER));
	else if (mask != NONE)
		perm &= perm_of(value, mask);
	return (perm & want) == want;
}
