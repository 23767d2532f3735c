/* SPDX-License-Identifier: Apache-2.0 */
/* store_folder: a store in a folder of its own, for the tests of what lies in one. */
#ifndef UNIT_STORE_FOLDER_H
#define UNIT_STORE_FOLDER_H

#include "store/store.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char base[64], store_path[96], run_path[96];
static struct store *s;

static inline void folder_make(void)
{
	snprintf(base, sizeof(base), "%s/kvfs-unit-XXXXXX", getenv("TMPDIR") ?: "/tmp");
	cr_assert(mkdtemp(base));
	snprintf(store_path, sizeof(store_path), "%s/store", base);
	snprintf(run_path, sizeof(run_path), "%s/run", base);
}

/* The paths of opt are filled in. */
static inline void folder_open(struct store_options opt)
{
	struct store_error err;

	opt.path = store_path;
	opt.rundir = run_path;
	cr_assert_eq(store_open(&opt, &s, &err), 0, "%s", err.text);
	cr_assert_eq(store_start(s), 0);
}

static inline void folder_remove(void)
{
	char cmd[256];

	store_close(s, true);
	snprintf(cmd, sizeof(cmd), "umount -l %s 2>/dev/null; rm -rf %s", run_path, base);
	if (system(cmd))
		fprintf(stderr, "%s: cannot be removed\n", base);
}

/* A transaction with what is settled of it. */
static inline struct meta_txn *folder_put(struct object *o)
{
	struct meta_inode i = { .ino = object_ino(o), .mode = S_IFREG | 0600, .nlink = 1 };
	struct meta_txn *t;
	uint64_t gen;

	cr_assert_eq(store_sync_data(s), 0);
	cr_assert_eq(meta_begin(s, &t), 0);
	cr_assert_eq(meta_put_file(t, &i, o, &gen), 0);
	return t;
}

#endif
