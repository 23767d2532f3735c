/* SPDX-License-Identifier: Apache-2.0 */
/* Stores from elsewhere, made by somebody who knows the format: they are refused or read as far as they make
 * sense, whatever their rows, records and names say. */
#include "tests/unit/store_folder.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 100000u

static const struct store_options options = { .hot_bytes = 64u << 20, .warm_bytes = 1u << 20 };
static char content[SIZE];

static void by_hand(const char *sql)
{
	char path[128];
	sqlite3 *db;

	snprintf(path, sizeof(path), "%s/meta.db", store_path);
	cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
	cr_assert_eq(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
	sqlite3_close(db);
}

/* A file 100 in a store that is closed, nothing of it in memory. */
static void setup(void)
{
	struct object *o;

	for (size_t i = 0; i < SIZE; i++)
		content[i] = (char)(i * i >> 7);
	folder_make();
	folder_open(options);
	cr_assert_eq(object_create(s, 100, 0, &o), 0);
	cr_assert_eq(object_write(o, content, SIZE, 0), SIZE);
	cr_assert_eq(object_settle(o), 0);
	cr_assert_eq(meta_commit(folder_put(o), true), 0);
	cr_assert_eq(object_evict(o, TIER_COLD), 0);
	object_unref(o);
	store_close(s, true);
	s = NULL;
}

TestSuite(hostile_store, .init = setup, .fini = folder_remove, .timeout = 20);

static void expect_content(void)
{
	static char got[SIZE];
	struct object *o;

	cr_assert_eq(object_get(s, 100, 0, &o), 0);
	cr_assert_eq(object_read(o, got, SIZE, 0), SIZE);
	cr_assert_arr_eq(got, content, SIZE);
	object_unref(o);
}

static void make(const char *name)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/segments/%s", store_path, name);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	cr_assert_geq(fd, 0);
	close(fd);
}

static bool is_there(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/segments/%s", store_path, name);
	return !access(path, F_OK);
}

Test(hostile_store, a_segment_of_the_last_number)
{
	struct object *o;

	make("ffffffff.seg");
	folder_open(options);
	expect_content();
	cr_assert(!is_there("ffffffff.seg"), "no row is in it");
	/* Until the next mount there is no number for a segment. */
	cr_assert_eq(object_create(s, 101, 0, &o), 0);
	cr_assert_eq(object_write(o, content, SIZE / 2, 1), SIZE / 2);
	cr_assert_eq(object_settle(o), -ENOSPC);
	object_discard(o);
	object_unref(o);
}

Test(hostile_store, names_that_are_no_segments_stay)
{
	make("-1.seg");
	make("7.seg");
	make("00000007.seg.more");
	folder_open(options);
	expect_content();
	cr_assert(is_there("-1.seg") && is_there("7.seg") && is_there("00000007.seg.more"));
}

Test(hostile_store, a_row_that_names_a_segment_of_a_high_number)
{
	by_hand("INSERT INTO chunks SELECT 1000, hash, tenant, 4294967294, offset, raw, stored,"
		" codec, params, 1 FROM chunks LIMIT 1");
	folder_open(options);
	expect_content();
}

static void refused(const char *sql)
{
	struct store_options o = options;
	struct store_error err = { "" };

	o.path = store_path;
	o.rundir = run_path;
	by_hand(sql);
	cr_assert_eq(store_open(&o, &s, &err), -EUCLEAN, "%s", sql);
	cr_assert(err.text[0] && !strchr(err.text, '\n'));
	s = NULL;
}

/* With right sums in its record such a chunk would be decoded into a buffer for the longest. */
Test(hostile_store, a_chunk_longer_than_any)
{
	refused("UPDATE chunks SET raw = 262145 WHERE id = 1");
}

Test(hostile_store, a_chunk_stored_longer_than_any)
{
	refused("UPDATE chunks SET stored = 4294967295 WHERE id = 1");
}

Test(hostile_store, a_chunk_without_bytes)
{
	refused("UPDATE chunks SET raw = 0 WHERE id = 1");
}

Test(hostile_store, the_last_chunk_id)
{
	refused("UPDATE chunks SET id = 9223372036854775807 WHERE id = 1");
}

Test(hostile_store, a_high_chunk_id)
{
	by_hand("INSERT INTO chunks SELECT 4000000000000000000, hash, tenant, segment, offset, raw, stored,"
		" codec, params, 1 FROM chunks LIMIT 1");
	folder_open(options);
	expect_content();
}

Test(hostile_store, the_last_inode_number)
{
	refused("UPDATE meta SET value = 9223372036854775807 WHERE key = 'max_ino'");
}

Test(hostile_store, an_inode_of_the_last_number)
{
	refused("UPDATE inodes SET ino = 9223372036854775807 WHERE ino = 100");
}

Test(hostile_store, the_last_dentry_id)
{
	refused("UPDATE meta SET value = 9223372036854775807 WHERE key = 'max_dentry_id'");
}

Test(hostile_store, a_uuid_of_other_characters)
{
	refused("UPDATE meta SET value = replace(value, '-', char(10)) WHERE key = 'uuid'");
}

Test(hostile_store, a_view_without_an_end)
{
	refused("ALTER TABLE segments RENAME TO other; CREATE VIEW segments(n, used) AS"
		" WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
		" SELECT x, x FROM c");
}

Test(hostile_store, a_trigger)
{
	refused("CREATE TRIGGER t AFTER UPDATE ON meta BEGIN DELETE FROM inodes; END");
}

Test(hostile_store, a_file_larger_than_any)
{
	struct object *o;

	by_hand("UPDATE inodes SET size = 17592186044417 WHERE ino = 100");
	folder_open(options);
	cr_assert_eq(object_get(s, 100, 0, &o), -EUCLEAN);
}

Test(hostile_store, an_inode_above_the_highest)
{
	by_hand("UPDATE meta SET value = 1 WHERE key = 'max_ino'");
	folder_open(options);
	cr_assert_eq(meta_max_ino(s), 100);
}

/* They stay what the next mount takes. */
Test(hostile_store, counters_that_are_no_sums)
{
	struct object *o;

	by_hand("UPDATE meta SET value = 9223372036854775807 WHERE key IN ('logical_bytes', 'inodes')");
	by_hand("UPDATE meta SET value = 0 WHERE key = 'files'");
	folder_open(options);
	for (int round = 0; round < 2; round++) {
		struct meta_txn *t;

		cr_assert_eq(object_create(s, 101 + (uint64_t)round, 0, &o), 0);
		cr_assert_eq(object_write(o, content, SIZE, 0), SIZE);
		cr_assert_eq(object_settle(o), 0);
		t = folder_put(o);
		cr_assert_eq(meta_del_inode(t, round ? 101 : 100), 0);
		cr_assert_eq(meta_commit(t, true), 0);
		object_unref(o);
	}
	store_close(s, true);
	folder_open(options);
}

/* What is removed is removed, and what else there is to commit with it is committed. */
static void removable(const char *sql)
{
	struct meta_inode none;
	struct meta_txn *t;

	by_hand(sql);
	folder_open(options);
	cr_assert_eq(meta_begin(s, &t), 0);
	cr_assert_eq(meta_del_inode(t, 100), 0);
	cr_assert_eq(meta_commit(t, true), 0);
	cr_assert_eq(meta_get_inode(s, 100, &none), -ENOENT);
	store_close(s, true);
	s = NULL;
}

Test(hostile_store, a_file_whose_chunks_have_no_rows)
{
	removable("DELETE FROM chunks");
}

Test(hostile_store, a_file_whose_chunks_nobody_counts)
{
	removable("UPDATE chunks SET refs = 0");
}
