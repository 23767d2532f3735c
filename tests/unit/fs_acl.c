/* SPDX-License-Identifier: Apache-2.0 */
/* ACLs and modes, against the examples of acl(5) and what the kernel does on ext4. */
#include "fs/acl.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

enum { USER_OBJ = 1, USER = 2, GROUP_OBJ = 4, GROUP = 8, MASK = 16, OTHER = 32, END = 0 };

struct acl {
	uint8_t v[256];
	size_t len;
};

/* tag, permissions, id, ..., END */
static struct acl make(int tag, ...)
{
	struct acl a = { .v = { 2 }, .len = 4 };
	va_list ap;

	va_start(ap, tag);
	for (int t = tag; t != END; t = va_arg(ap, int)) {
		a.v[a.len] = (uint8_t)t;
		a.v[a.len + 2] = (uint8_t)va_arg(ap, int);
		a.v[a.len + 4] = (uint8_t)va_arg(ap, int);
		a.len += 8;
	}
	va_end(ap);
	return a;
}

static struct acl named(int user, int mask)
{
	return make(USER_OBJ, 7, 0, USER, user, 10, USER, 1, 11, GROUP_OBJ, 5, 0, GROUP, 6, 20,
		    MASK, mask, 0, OTHER, 0, 0, END);
}

Test(fs_acl, what_is_none)
{
	struct acl good = named(6, 7), a;

	cr_assert_eq(acl_check(good.v, good.len), 0);
	for (size_t len = 0; len < good.len; len++)
		cr_assert(acl_check(good.v, len) == -EINVAL || len == 0, "%zu bytes", len);
	cr_assert_eq(acl_check(good.v, 0), -EINVAL);
	a = good;
	a.v[0] = 3;
	cr_assert_eq(acl_check(a.v, a.len), -EINVAL, "another version");
	a = good;
	a.v[4 + 2] = 8;
	cr_assert_eq(acl_check(a.v, a.len), -EINVAL, "no permission");
	a = good;
	a.v[4] = 3;
	cr_assert_eq(acl_check(a.v, a.len), -EINVAL, "no tag");
	a = good;
	a.v[4 + 8 + 1] = 0x80;
	cr_assert_eq(acl_check(a.v, a.len), -EINVAL, "a tag beyond the last");
	a = make(USER_OBJ, 7, 0, USER, 7, 10, GROUP_OBJ, 7, 0, OTHER, 7, 0, END);
	cr_assert_eq(acl_check(a.v, a.len), -EINVAL, "names without a mask");
	a = make(GROUP_OBJ, 7, 0, USER_OBJ, 7, 0, OTHER, 7, 0, END);
	cr_assert_eq(acl_check(a.v, a.len), -EINVAL, "not sorted");
	a = make(USER_OBJ, 7, 0, GROUP_OBJ, 7, 0, OTHER, 7, 0, OTHER, 7, 0, END);
	cr_assert_eq(acl_check(a.v, a.len), -EINVAL, "others twice");
}

Test(fs_acl, mode)
{
	struct acl plain = make(USER_OBJ, 6, 0, GROUP_OBJ, 4, 0, OTHER, 1, 0, END), a = named(6, 3);

	cr_assert_eq(acl_mode(plain.v, plain.len), 0641);
	cr_assert(acl_is_mode(plain.len));
	cr_assert_eq(acl_mode(a.v, a.len), 0730, "the mask is the group's");
	cr_assert_not(acl_is_mode(a.len));
	acl_chmod(a.v, a.len, 0100644);
	cr_assert_eq(acl_mode(a.v, a.len), 0644);
	cr_assert_eq(a.v[4 + 3 * 8 + 2], 5, "the owning group's own entry stays");
	acl_chmod(plain.v, plain.len, 0750);
	cr_assert_eq(acl_mode(plain.v, plain.len), 0750);
}

Test(fs_acl, inherited)
{
	struct acl a = named(6, 7);
	mode_t mode = 0102666;

	/* open(2) with 0666 in a directory with default:other::--- */
	acl_inherit(a.v, a.len, &mode);
	cr_assert_eq(mode, 0102660, "%o", mode);
	cr_assert_eq(acl_mode(a.v, a.len), 0660);
	cr_assert_eq(a.v[4 + 8 + 2], 6, "names stay, under the mask");
}

static bool in_groups(void *arg, gid_t gid)
{
	for (const gid_t *g = arg; *g; g++)
		if (*g == gid)
			return true;
	return false;
}

static bool grants(const struct acl *a, uid_t uid, gid_t *groups, unsigned want)
{
	struct acl_asker who = { uid, 1, 30, in_groups, groups };

	return acl_grants(a->v, a->len, &who, want);
}

Test(fs_acl, whom_it_grants_what)
{
	gid_t none[] = { 0 }, own[] = { 30, 0 }, other[] = { 20, 0 }, both[] = { 30, 20, 0 };
	struct acl a = named(6, 6);

	cr_assert(grants(&a, 1, none, 7), "the owner, whatever the mask");
	cr_assert(grants(&a, 10, none, 6));
	cr_assert_not(grants(&a, 10, both, 1), "who is named, by that alone");
	cr_assert_not(grants(&a, 11, both, 4), "though a group would");
	cr_assert(grants(&a, 50, own, 4));
	cr_assert_not(grants(&a, 50, own, 1), "the mask does not");
	cr_assert(grants(&a, 50, other, 6));
	cr_assert(grants(&a, 50, both, 2), "any group that grants it");
	cr_assert_not(grants(&a, 50, none, 4), "others");
}
