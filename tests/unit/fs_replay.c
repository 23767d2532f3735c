/* SPDX-License-Identifier: Apache-2.0 */
/* What a killed daemon left in its journal, in any order a rewritten journal may have. */
#include "fs/fs.h"
#include "fs/namespace.h"
#include "tests/unit/store_folder.h"

#include <errno.h>
#include <string.h>

#define DIR_INO 100u

static const struct store_options options = { .hot_bytes = 64u << 20, .warm_bytes = 1u << 20 };

/* A directory "a" below the root, committed. */
static void setup(void)
{
	struct meta_inode dir = { .ino = DIR_INO, .mode = S_IFDIR | 0755, .nlink = 2 }, root;
	struct meta_dentry d = { DENTRY_FIRST, INO_ROOT, DIR_INO, S_IFDIR, "a" };
	struct meta_txn *t;

	folder_make();
	folder_open(options);
	cr_assert_eq(meta_get_inode(s, INO_ROOT, &root), 0);
	root.nlink = 3;
	cr_assert_eq(meta_begin(s, &t), 0);
	cr_assert_eq(meta_put_inode(t, &root), 0);
	cr_assert_eq(meta_put_inode(t, &dir), 0);
	cr_assert_eq(meta_put_dentry(t, &d), 0);
	cr_assert_eq(meta_commit(t, true), 0);
}

TestSuite(fs_replay, .init = setup, .fini = folder_remove, .timeout = 30);

static void journal_name(const char *name, uint64_t ino, uint64_t id)
{
	struct jrec_dentry d = {
		.parent = INO_ROOT, .ino = ino, .id = id, .mode = S_IFDIR, .gap = !ino
	};
	uint8_t buf[512];
	struct journal_record rec = { J_DENTRY, (uint32_t)jrec_dentry_size(strlen(name)), buf };

	strcpy(d.name, name);
	jrec_dentry_write(buf, &d);
	cr_assert_eq(journal_append(s, &rec, 1), 0);
}

/* As a mount after a kill. */
static void recover(void)
{
	struct fs_options o = { .mountpoint = "/nowhere", .commit_s = 1 };
	struct store_error err = { "" };
	struct meta_dentry d;
	struct fs *fs;

	store_close(s, false);
	s = NULL;
	{
		struct store_options again = options;

		again.path = store_path;
		again.rundir = run_path;
		cr_assert_eq(store_open(&again, &s, &err), 0, "%s", err.text);
	}
	o.store = s;
	cr_assert_eq(fs_new(&o, &fs, &err), 0, "%s", err.text);
	cr_assert_eq(store_start(s), 0);
	cr_assert_eq(fs_start(fs), 0);
	cr_assert_eq(fs_stop(fs), 0);
	cr_assert_eq(meta_lookup(s, INO_ROOT, "a", &d), -ENOENT);
	cr_assert_eq(meta_lookup(s, INO_ROOT, "b", &d), 0);
	cr_assert_eq(d.ino, DIR_INO);
	store_close(s, true);
	s = NULL;
	fs_free(fs);
}

Test(fs_replay, a_renamed_directory_old_name_first)
{
	journal_name("a", 0, DENTRY_FIRST);
	journal_name("b", DIR_INO, DENTRY_FIRST + 1);
	recover();
}

Test(fs_replay, a_renamed_directory_new_name_first)
{
	journal_name("b", DIR_INO, DENTRY_FIRST + 1);
	journal_name("a", 0, DENTRY_FIRST);
	recover();
}
