/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta: meta.db, as the rest of store/ sees it. The rows of the namespace are in store/store.h;
 * here are those of chunks, segments and extents. SQL appears in meta*.c only.
 */
#ifndef STORE_META_H
#define STORE_META_H

#include "store/extmap.h"
#include "store/segment.h"
#include "store/store.h"

struct meta;

struct meta_chunk {
	struct record_info info; /* chunk_id, hash, tenant, lengths, codec, params */
	struct segment_loc loc;
	uint32_t refs; /* extents of committed files that use it */
};

/*
 * Opens or creates dir/meta.db (WAL). -EMEDIUMTYPE: not ours, or format newer than ours; -EUCLEAN:
 * damaged; -EBUSY: another program holds its lock; -EROFS: read_only, and a crash left changes that
 * cannot be read without writing. err receives the sentence for the user. uuid is made at creation.
 * A writable database has a thread that runs checkpoints: do not fork afterwards.
 */
int meta_open(const char *dir, bool read_only, struct meta **ret, struct store_error *err);
/* No transaction and no read may be under way. NULL is fine. */
void meta_close(struct meta *m);
const char *meta_uuid(const struct meta *m);

/* Raised by one, durably, at each writable open, once journal_open() has looked at the journal;
 * tells whether a journal belongs to this database. */
uint64_t meta_epoch(const struct meta *m);
int meta_bump_epoch(struct meta *m);

/* Those with ids from first to last. */
int meta_for_chunks(struct meta *m, uint64_t first, uint64_t last,
		    int (*fn)(void *arg, const struct meta_chunk *c), void *arg);
/* The lowest id at or above from, and the highest of all. -ENOENT: none at or above it. */
int meta_next_chunk(struct meta *m, uint64_t from, uint64_t *ret, uint64_t *ret_max);
/* The committed extents of every file that has some. */
int meta_for_extents(struct meta *m, int (*fn)(void *arg, uint64_t ino, const struct extmap *map),
		     void *arg);
int meta_for_segments(struct meta *m, int (*fn)(void *arg, uint32_t n, uint64_t used), void *arg);
/* The committed extents of a file; an empty map when it has none. -ENOENT: no such inode. */
int meta_get_extents(struct meta *m, uint64_t ino, struct extmap **ret, uint64_t *ret_size);
/* Sum of meta_inode.size of regular files and their number, kept as counters in the database. */
int meta_totals(struct meta *m, uint64_t *ret_logical_bytes, uint64_t *ret_files);

/* The reads of store.h, which are one-line covers over these. */
int meta_row_get_inode(struct meta *m, uint64_t ino, struct meta_inode *ret);
int meta_row_lookup(struct meta *m, uint64_t parent, const char *name, struct meta_dentry *ret);
int meta_row_list(struct meta *m, uint64_t parent, uint64_t after,
		  int (*fn)(void *arg, const struct meta_dentry *d), void *arg);
int meta_row_get_xattrs(struct meta *m, uint64_t ino,
			int (*fn)(void *arg, const char *name, const void *value, size_t len),
			void *arg);
uint64_t meta_row_max_ino(struct meta *m);
uint64_t meta_row_max_dentry_id(struct meta *m);
uint64_t meta_row_count_inodes(struct meta *m);

/*
 * The transaction of the caller: chunk rows beside the namespace rows of store.h. Deleting what is
 * not there is no error. What is refused before it reaches SQLite (-EINVAL, -ENAMETOOLONG, -E2BIG,
 * -EFBIG) leaves the transaction as it was; after any other error it can only be aborted, and every
 * later call and the commit return that error. -EEXIST: the id of a dentry is taken by another name.
 */
int meta_put_chunk(struct meta_txn *t, const struct meta_chunk *c);      /* insert or replace */
int meta_set_refs(struct meta_txn *t, uint64_t chunk_id, uint32_t refs); /* -ENOENT: no such row */
/* Its record is there from now on; refs stay. -ENOENT: no such row. */
int meta_move_chunk(struct meta_txn *t, uint64_t chunk_id, struct segment_loc to);
int meta_del_chunk(struct meta_txn *t, uint64_t chunk_id);
/* One that has a row keeps the larger number: it only grows. */
int meta_put_segment(struct meta_txn *t, uint32_t n, uint64_t used);
int meta_del_segment(struct meta_txn *t, uint32_t n);
/* Where the scrub is: next, last, began and ended. Without a row they are 0. */
int meta_put_scrub(struct meta_txn *t, const struct scrub_status *at);
int meta_get_scrub(struct meta *m, struct scrub_status *ret);
/* len 0 removes the row. */
int meta_put_extents(struct meta_txn *t, uint64_t ino, const uint8_t *packed, size_t len);
/* As meta_get_extents, but what this transaction has put counts already. */
int meta_txn_get_extents(struct meta_txn *t, uint64_t ino, struct extmap **ret, uint64_t *ret_size);
struct meta *store_meta(struct store *s); /* in store.c */

/* meta_begin, meta_commit, meta_abort, meta_put_file and meta_del_inode of store.h are covers over
 * these in refs.c, which keep chunk references in step; everything else is in meta*.c. begin and
 * commit or abort are called by the same thread. */
int meta_txn_begin(struct meta *m, struct store *s, struct meta_txn **ret);
/*
 * A failed commit is rolled back, with one exception: when durable was asked for and the sync itself
 * fails (-EIO), the rows are committed but nobody knows whether they survive. From then on every
 * meta_txn_begin fails with -EIO until the database is opened again.
 */
int meta_txn_commit(struct meta_txn *t, bool durable);
void meta_txn_abort(struct meta_txn *t);
struct store *meta_txn_store(struct meta_txn *t);
int meta_row_put_inode(struct meta_txn *t, const struct meta_inode *i);
int meta_row_del_inode(struct meta_txn *t, uint64_t ino); /* inode, xattrs, extents rows */

#endif
