/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck_impl: what the parts of fsck share.
 *
 *   fsck.c           the order of things
 *   fsck_db.c        meta.db as a database: opening it, integrity, queries
 *   fsck_report.c    findings and the paths in them
 *   fsck_names.c     inodes, dentries, xattrs: is it a tree
 *   fsck_chunks.c    rows of chunks, and what the segments hold in their places
 *   fsck_content.c   extents, references, counters
 *   fsck_segments.c  segments as files, and records that no row names
 *   fsck_pages.c     rows of a database that SQLite cannot read
 *   fsck_mend.c      the copy that is repaired
 *
 * Rows are loaded into sorted arrays, so that each table is read once and in order. Beside meta*.c only these
 * files see SQLite, as they look at what no open store would take for rows.
 */
#ifndef STORE_FSCK_IMPL_H
#define STORE_FSCK_IMPL_H

#include "store/meta_impl.h"
#include "store/segment.h"

enum fsck_fault {
	FAULT_NONE,
	FAULT_SEGMENT, /* there is no such segment, or it ends before */
	FAULT_HEADER,  /* no record begins there */
	FAULT_OTHER,   /* a record does, of another chunk */
	FAULT_ROW,     /* the record is of this chunk, but the row says something else of it */
	FAULT_PAYLOAD, /* its sum is wrong, or the device cannot read it */
	FAULT_DECODE,  /* it does not decode, or not to what its hash says */
	FAULT_LOST,    /* the row stands for a chunk whose record is nowhere */
};

struct fsck_chunk {
	struct record_info info;
	struct segment_loc loc;
	uint32_t refs, found; /* as the row has it, and counted */
	uint8_t fault;        /* enum fsck_fault */
};

#define NO_PARENT UINT32_MAX

struct fsck_inode {
	uint64_t ino, size;
	uint32_t mode, nlink;
	uint32_t names, dirs; /* that lead to it; directories in it */
	uint32_t parent;      /* index of the directory of its first name; NO_PARENT: none */
	bool extents;         /* has a row of them */
	uint8_t walk;         /* fsck_names.c: whether it hangs on the root */
};

/* A statement that mends, and its parameters, kept until the table it is about was read. */
struct fsck_mend {
	const char *sql;
	int64_t number[3]; /* ?1 to ?3 */
	void *blob;        /* ?4; owned */
	size_t len;
};

/* A chunk whose record is looked for in all segments. */
struct fsck_wanted {
	uint64_t id;
	const struct fsck_chunk *row; /* NULL: there is none */
	uint32_t need;                /* bytes of it that extents use */
	uint32_t refs;
	struct record_info info; /* of the one found last */
	struct segment_loc loc;
	bool found, differ; /* several, and not of the same content */
};

/* A file in segments/. */
struct fsck_segment {
	uint32_t n;
	bool bad;    /* its header is */
	bool chunks; /* rows of chunks are in it, whose records are right */
};

struct fsck {
	const struct fsck_options *opt;
	struct fsck_result *ret;
	struct store_error *err;
	char *path;
	int dir_fd, lock_fd, seg_fd;
	sqlite3 *db; /* what is checked: meta.db, or the copy that is being repaired */
	bool copied; /* it is the copy */
	char uuid[37];
	bool quiet; /* findings are counted, not told */
	struct segset *segs;

	struct fsck_inode *inode; /* by ino */
	size_t inodes, inodes_cap;
	struct fsck_chunk *chunk; /* by id */
	size_t chunks, chunks_cap;
	uint32_t *place; /* indexes of chunks by location */
	uint64_t max_dentry_id;
	struct fsck_segment *segment; /* by number */
	size_t segments, segments_cap;
	struct fsck_wanted *wanted; /* by id */
	size_t wanteds, wanteds_cap;
	uint64_t unread; /* bytes of segments that are no records, so might have been */
	uint32_t bad_headers;
	bool unreadable; /* extents that cannot be decoded may use more chunks than were counted */

	struct fsck_mend *mend; /* with repair */
	size_t mends, mends_cap;
};

/* fsck.c */
bool fsck_cancelled(const struct fsck *f);
int fsck_fail(struct fsck *f, int error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Room for one more in an array of elements of that size. -ENOMEM. */
int fsck_room(void **v, size_t n, size_t *cap, size_t size);

/* All checks, once. 1: the database cannot be read as one, which was told. */
int fsck_check(struct fsck *f);

/* fsck_db.c. Negative errno. */
int fsck_db_open(struct fsck *f);
/* Application id, format, schema, SQLite's own check. 1: its pages are damaged, which is told. */
int fsck_db_check(struct fsck *f);
/* The key/value pairs: uuid and epoch. */
int fsck_db_meta(struct fsck *f);
int fsck_query(struct fsck *f, const char *sql, sqlite3_stmt **ret);
int fsck_step(struct fsck *f, sqlite3_stmt *st);                /* 1: a row; 0: the end */
int fsck_number(struct fsck *f, const char *sql, int64_t *ret); /* -ENOENT: no row */

/* fsck_report.c. The path is made from the inodes that are loaded. */
struct fsck_about {
	const char *kind;
	uint64_t ino, off, len;
	enum fsck_remedy remedy;
	const char *repair;
};
void fsck_found(struct fsck *f, const struct fsck_about *about, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
#define FSCK_NAME_TEXT 1024
/* A name as it may be shown: what does not print, as \ooo. */
const char *fsck_name(const void *name, size_t len, char ret[static FSCK_NAME_TEXT]);

/* fsck_mend.c */
/* The row of a chunk, whether there is one or not. */
int fsck_mend_chunk(struct fsck *f, const struct meta_chunk *c);
/* Without repair does nothing. blob: copied; NULL is fine. -ENOMEM. */
int fsck_mend(struct fsck *f, const char *sql, int64_t a, int64_t b, int64_t c, const void *blob,
	      size_t len);

/* The rows that can be read of a database that cannot, in a new one, which is checked from then on: the copy, or,
 * without repair, one that nobody sees. */
int fsck_salvage(struct fsck *f);
/* fsck_pages.c: those rows. */
int fsck_pages_copy(struct fsck *f, sqlite3 *to);
/* Puts right what was found, in a copy that takes the place of meta.db. */
int fsck_repair(struct fsck *f);

/* fsck_names.c */
struct fsck_inode *fsck_inode_find(const struct fsck *f, uint64_t ino); /* NULL */
int fsck_inodes_load(struct fsck *f);
int fsck_names_check(struct fsck *f);

/* fsck_chunks.c */
struct fsck_chunk *fsck_chunk_find(const struct fsck *f, uint64_t id, size_t hint); /* NULL */
int fsck_chunks_load(struct fsck *f);
int fsck_chunks_check(struct fsck *f);
const char *fsck_fault_text(enum fsck_fault fault);

/* fsck_segments.c */
int fsck_segments_open(struct fsck *f);  /* and whose they are, which decides on the store's uuid */
int fsck_segments_check(struct fsck *f); /* headers, rows */
int fsck_segments_mend(struct fsck *f);  /* headers, in place */
/* Looks through all segments for what is wanted. */
int fsck_segments_scan(struct fsck *f);

/* fsck_content.c */
int fsck_content_check(struct fsck *f); /* extents, then what follows from them */

#endif
