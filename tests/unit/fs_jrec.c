/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal records of the namespace: what is written is read back, and bytes that cannot be a
 * record are refused without being touched beyond their length.
 */
#include "fs/state.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct meta_inode sample(void)
{
	return (struct meta_inode){
		.ino = 77,
		.mode = S_IFREG | 0640,
		.uid = 1000,
		.gid = 1001,
		.nlink = 3,
		.rdev = 5,
		.flags = META_PIN,
		.size = 1ull << 40,
		.atime = { 1, 2 },
		.mtime = { -3, 999999999 },
		.ctime = { 5, 6 },
		.btime = { 7, 8 },
	};
}

Test(fs_jrec, inode_comes_back)
{
	struct meta_inode a = sample(), b;
	size_t size = jrec_inode_size(&a);
	void *buf = malloc(size);

	jrec_inode_write(buf, &a);
	cr_assert_eq(jrec_inode_read(buf, size, &b), 0);
	cr_assert_eq(memcmp(&a, &b, sizeof(a)), 0);
	free(buf);
}

Test(fs_jrec, symlink_comes_back)
{
	struct meta_inode a = sample(), b;
	char target[] = "../somewhere else";
	size_t size;
	void *buf;

	a.mode = S_IFLNK | 0777;
	a.target = target;
	size = jrec_inode_size(&a);
	buf = malloc(size);
	jrec_inode_write(buf, &a);
	cr_assert_eq(jrec_inode_read(buf, size, &b), 0);
	cr_assert_str_eq(b.target, target);
	meta_inode_done(&b);
	free(buf);
}

Test(fs_jrec, dentry_comes_back)
{
	struct jrec_dentry a = { .parent = 1, .ino = 9, .id = 44, .mode = S_IFDIR, .gap = true }, b;
	char buf[512];

	strcpy(a.name, "layer 0\xff");
	jrec_dentry_write(buf, &a);
	cr_assert_eq(jrec_dentry_read(buf, jrec_dentry_size(strlen(a.name)), &b), 0);
	cr_assert_eq(b.parent, 1);
	cr_assert_eq(b.ino, 9);
	cr_assert_eq(b.id, 44);
	cr_assert_eq(b.mode, S_IFDIR);
	cr_assert(b.gap);
	cr_assert_str_eq(b.name, a.name);
}

Test(fs_jrec, xattr_comes_back)
{
	const char value[] = "with\0zero";
	struct jrec_xattr x;
	char buf[512];
	size_t size = jrec_xattr_size(strlen("user.a"), sizeof(value));

	jrec_xattr_write(buf, 5, "user.a", value, sizeof(value), true);
	cr_assert_eq(jrec_xattr_read(buf, size, &x), 0);
	cr_assert_eq(x.ino, 5);
	cr_assert(x.present);
	cr_assert_str_eq(x.name, "user.a");
	cr_assert_eq(x.len, sizeof(value));
	cr_assert_eq(memcmp(x.value, value, sizeof(value)), 0);
}

/* Every shorter length of a good record, on the heap, so that a sanitizer sees a read behind it. */
Test(fs_jrec, cut_records_are_refused)
{
	struct meta_inode a = sample(), b;
	struct jrec_dentry d = { .parent = 1, .ino = 2, .id = 3, .name = "name" };
	struct jrec_xattr x;
	char buf[512];

	for (size_t len = 0; len < jrec_inode_size(&a); len++) {
		void *cut = malloc(len + !len);

		jrec_inode_write(buf, &a);
		memcpy(cut, buf, len);
		cr_assert_eq(jrec_inode_read(cut, len, &b), -EBADMSG);
		free(cut);
	}
	for (size_t len = 0; len < jrec_dentry_size(4); len++) {
		void *cut = malloc(len + !len);

		jrec_dentry_write(buf, &d);
		memcpy(cut, buf, len);
		cr_assert_eq(jrec_dentry_read(cut, len, &d), -EBADMSG);
		free(cut);
	}
	for (size_t len = 0; len < jrec_xattr_size(6, 4); len++) {
		void *cut = malloc(len + !len);

		jrec_xattr_write(buf, 5, "user.a", "1234", 4, true);
		memcpy(cut, buf, len);
		cr_assert_eq(jrec_xattr_read(cut, len, &x), -EBADMSG);
		free(cut);
	}
}

Test(fs_jrec, impossible_values_are_refused)
{
	struct meta_inode a = sample(), b;
	char buf[512];

	a.mtime.tv_nsec = 1000000000;
	jrec_inode_write(buf, &a);
	cr_assert_eq(jrec_inode_read(buf, jrec_inode_size(&a), &b), -EBADMSG);
	a = sample();
	a.mode = S_IFLNK; /* without a target */
	jrec_inode_write(buf, &a);
	cr_assert_eq(jrec_inode_read(buf, jrec_inode_size(&a), &b), -EBADMSG);
}

/* Whole and with right sums, but of what no file system has: loops, ways out, numbers without a next one. */
Test(fs_jrec, what_cannot_be_is_refused)
{
	static const char *const name[] = { ".", "..", "a/b", "/" };
	struct jrec_dentry d = { .parent = 1, .ino = 20, .id = 44, .mode = S_IFDIR }, back;
	struct meta_inode a = sample(), b;
	char buf[512];

	for (size_t k = 0; k < 4; k++) {
		strcpy(d.name, name[k]);
		jrec_dentry_write(buf, &d);
		cr_assert_eq(jrec_dentry_read(buf, jrec_dentry_size(strlen(d.name)), &back),
			     -EBADMSG, "%s", d.name);
	}
	strcpy(d.name, "a");
	d.id = UINT64_MAX;
	jrec_dentry_write(buf, &d);
	cr_assert_eq(jrec_dentry_read(buf, jrec_dentry_size(1), &back), -EBADMSG);
	a.ino = UINT64_MAX;
	jrec_inode_write(buf, &a);
	cr_assert_eq(jrec_inode_read(buf, jrec_inode_size(&a), &b), -EBADMSG);
	a = sample();
	a.size = OBJECT_MAX + 1;
	jrec_inode_write(buf, &a);
	cr_assert_eq(jrec_inode_read(buf, jrec_inode_size(&a), &b), -EBADMSG);
}
