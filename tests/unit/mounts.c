/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of mountinfo and paths. */
#include "mount/mount.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Test(mounts, parse)
{
	struct mount_entry m;

	cr_assert_eq(mounts_parse("43 27 0:40 / /kv rw,relatime shared:7 master:1 - fuse.kvfs "
				  "/var/lib/kvfs rw,user_id=0\n",
				  &m),
		     0);
	cr_assert_eq(m.major, 0);
	cr_assert_eq(m.minor, 40);
	cr_assert_str_eq(m.point, "/kv");
	cr_assert_str_eq(m.type, "fuse.kvfs");
	cr_assert_str_eq(m.source, "/var/lib/kvfs");
}

Test(mounts, parse_escapes)
{
	struct mount_entry m;

	cr_assert_eq(mounts_parse("1 2 8:1 / /a\\040b\\134c\\012 rw - ext4 /dev/x\\011y rw\n", &m),
		     0);
	cr_assert_str_eq(m.point, "/a b\\c\n");
	cr_assert_str_eq(m.source, "/dev/x\ty");
}

Test(mounts, parse_nonsense)
{
	static const char *const bad[] = {
		"", "\n", "1 2", "1 2 8:1", "1 2 8:1 / /a rw", "1 2 8:1 / a rw - ext4 x rw", "x y",
	};
	struct mount_entry m;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		cr_assert_eq(mounts_parse(bad[i], &m), -EINVAL, "'%s'", bad[i]);
}

Test(mounts, below)
{
	cr_assert(path_below("/a/b", "/a"));
	cr_assert(path_below("/a", "/a"));
	cr_assert(path_below("/a", "/"));
	cr_assert_not(path_below("/ab", "/a"));
	cr_assert_not(path_below("/", "/a"));
}

Test(mounts, root_is_a_mount)
{
	struct mount_entry m;

	cr_assert_eq(mounts_at("/", &m), 0);
	cr_assert_eq(mounts_kvfs_of("/proc", &m), -ENOENT);
	cr_assert_eq(mounts_at("/no/such/point", &m), -ENOENT);
}

/* The last component may be missing, no other. */
Test(mounts, resolve)
{
	char dir[] = "/tmp/kvfs-unit-XXXXXX", path[64], want[64], got[PATH_MAX];

	cr_assert(mkdtemp(dir));
	snprintf(want, sizeof(want), "%s/new", dir);
	snprintf(path, sizeof(path), "%s/./new//", dir);
	cr_assert_eq(path_resolve(path, got), 0);
	cr_assert_str_eq(got, want);
	cr_assert_eq(chdir(dir), 0);
	cr_assert_eq(path_resolve("new", got), 0);
	cr_assert_str_eq(got, want);
	cr_assert_eq(path_resolve("/no-such-name", got), 0);
	cr_assert_str_eq(got, "/no-such-name");
	cr_assert_eq(path_resolve("new/deeper", got), -ENOENT);
	cr_assert_eq(path_resolve("", got), -ENOENT);
	cr_assert_eq(chdir("/"), 0);
	cr_assert_eq(rmdir(dir), 0);
}
