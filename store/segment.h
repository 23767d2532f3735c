/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment: append-only files of records, and their format on disk.
 *
 * A segment is STORE/segments/NNNNNNNN.seg (hexadecimal, 8 digits): SEGMENT_HEADER bytes that begin
 * with a struct segment_header, then records, each a struct record_header and its payload, padded to
 * 8 bytes. A flush pads the segment to 4 KiB with zeros, so between records, and behind the last,
 * may be zeros, and a scan goes on at the next multiple of 8 where a valid header stands.
 * Everything is little-endian. Segments are preallocated to their full size, so that appending
 * never meets a full file system; sealing gives the rest back.
 *
 * One appender at a time (an internal lock), any number of readers and of callers of sync; any
 * thread may call anything.
 */
#ifndef STORE_SEGMENT_H
#define STORE_SEGMENT_H

#include "store/codec.h"
#include "store/hash.h"
#include "store/io.h"

#include <stdbool.h>
#include <stdint.h>

#define SEGMENT_MAGIC   0x746e656d67657376ull /* "vsegment" */
#define SEGMENT_VERSION 1u
#define SEGMENT_HEADER  4096u
#define RECORD_MAGIC    0x6b63564bu /* "KVck" */
#define RECORD_VERSION  1u
#define RECORD_ALIGN    8u
#define RECORD_MAX      (1u << 20) /* raw and stored length at most, whatever a header says */

/* On disk, 64 bytes; zeros up to SEGMENT_HEADER. */
struct segment_header {
	uint64_t magic;
	uint32_t version;
	uint32_t number; /* as in its name */
	char uuid[40];   /* of the store, 36 characters, then zeros */
	uint64_t sum;    /* XXH3_64bits of the 56 bytes before */
};

/* On disk, 64 bytes. */
struct record_header {
	uint32_t magic;
	uint8_t version;
	uint8_t type; /* 1: chunk */
	uint8_t codec;
	uint8_t flags; /* 0; kept for encrypted records */
	uint32_t tenant;
	uint32_t raw_len;
	uint32_t stored_len;
	uint8_t params[CODEC_PARAMS];
	uint64_t chunk_id;
	uint64_t hash_lo, hash_hi;
	uint64_t payload_sum; /* XXH3_64bits of the payload */
	/* XXH3_64bits of the 56 bytes before, with the record's place as seed: segment << 32 | offset
	 * in bytes. So neither a misdirected write nor a copy of a record inside a payload is one. */
	uint64_t header_sum;
};

struct segment_loc {
	uint32_t segment;
	uint32_t offset; /* of the record's header, bytes / RECORD_ALIGN */
};

/* What is known of a chunk without its payload. */
struct record_info {
	uint64_t chunk_id;
	struct hash128 hash; /* of the raw bytes */
	uint32_t tenant;
	uint32_t raw_len, stored_len;
	uint8_t codec;
	uint8_t params[CODEC_PARAMS];
};

struct segset;

struct segset_options {
	const struct io_ops *io;
	int dirfd;             /* of STORE/segments; stays the caller's */
	const char *uuid;      /* 36 characters, written to each header */
	uint64_t segment_size; /* bytes to preallocate, a multiple of 1 MiB; at most 1 GiB */
	uint32_t next; /* number of the next segment to create: above every one that exists */
	bool read_only;
};

/* Creates no segment yet: the first append does. */
int segset_open(const struct segset_options *opt, struct segset **ret);
/* Flushes nothing: what is not synced is forgotten. Seals the active segment. NULL is fine. */
void segset_close(struct segset *s);
bool segset_is_direct(const struct segset *s); /* O_DIRECT is in use */
bool segset_is_uring(const struct segset *s);

/*
 * Appends a record. The payload is copied; writing happens behind. *ret: where it will be, readable
 * with segset_read at once. -ENOSPC when no new segment can be preallocated: nothing is broken, and
 * a later append works when there is space again; so with -EMFILE and the like. -EINVAL when a
 * length is 0 or above RECORD_MAX.
 */
int segset_append(struct segset *s, const struct record_info *info, const void *payload,
		  struct segment_loc *ret);
int segset_error(struct segset *s); /* of the write or sync that ended appending; 0 */
/* Between the two, appends, flushes and syncs of others wait: what this thread appends lies
 * together. It may append and read. */
void segset_run_begin(struct segset *s);
void segset_run_end(struct segset *s);

/*
 * Waits until everything appended is written and durable (fdatasync of each touched segment, fsync
 * of the directory when one was created). Concurrent callers share one sync, and appends go on
 * meanwhile.
 *
 * When a write or a sync fails, every record appended since the last sync that succeeded may be
 * lost, and repeating it would prove nothing: every append, flush and sync returns that error from
 * then on, and what was appended stays readable until the set is closed.
 */
int segset_sync(struct segset *s);

/* Leaves the active segment, makes it durable and gives what is unused of it back: the next append begins
 * another. */
int segset_seal(struct segset *s);

/* As segset_sync without durability: the bytes have left this process. */
int segset_flush(struct segset *s);

/* Bytes the active segment still has room for, preallocated; 0 when there is none yet. */
uint64_t segset_room(struct segset *s);
/* Number of the active segment, or of the next when there is none. */
uint32_t segset_active(struct segset *s);
/* The next segment has at least this number: those below may have been in use before. */
void segset_skip_to(struct segset *s, uint32_t next);
/* Nothing is written to segment n any more, and all of it is durable. */
bool segset_is_sealed(struct segset *s, uint32_t n);
/* Bytes in use of segment number n: header, records and padding, as far as this process knows: 0
 * for one it did not write. */
uint64_t segset_used(struct segset *s, uint32_t n);

/* Bytes/s that the device gives to reads of 1 MiB, eight at a time, past the page cache: reads 32 MiB.
 * -ENODATA: no segment is so long and full; -EOPNOTSUPP: no O_DIRECT; -EIO, -ENOMEM. */
int segset_read_rate(struct segset *s, uint64_t *ret);

/* Reads and verifies one record: header, that it says what info says, checksum. payload holds
 * info->stored_len bytes. -EBADMSG when anything does not fit, or nothing is there; -EIO. */
int segset_read(struct segset *s, struct segment_loc loc, const struct record_info *info,
		void *payload);

/*
 * Bulk reads for restores. Requests should be sorted by location; neighbours are read together in
 * pieces up to 3 MiB, several in flight. For each, done is called in order of submission
 * with the verified payload (valid during the call only) or NULL and the error; a non-zero return
 * stops and is returned. A failure of one record does not touch its neighbours. Thread-safe: each
 * reader has a ring and buffers (4 MiB) of its own from a small pool.
 */
struct segset_read_req {
	struct segment_loc loc;
	const struct record_info *info;
	void *user;
};
int segset_by_location(const void *a, const void *b); /* for qsort of requests */
int segset_read_many(struct segset *s, const struct segset_read_req *req, size_t n,
		     int (*done)(void *arg, const struct segset_read_req *req, const void *payload,
				 int err),
		     void *arg);

/*
 * The same in steps, to do something else while the device reads: begin sends off what the buffers
 * take, finish hands out everything (once), end must follow and waits for what is still in flight.
 * req stays the caller's and must live until then. One thread at a time.
 */
struct segset_read;
int segset_read_begin(struct segset *s, const struct segset_read_req *req, size_t n,
		      struct segset_read **ret);
/* Asked before finish. True: all fits the buffers, and payloads are valid until end. */
bool segset_read_holds(const struct segset_read *r);
/* Returns when what begin has sent off is there; finish waits by itself. */
void segset_read_wait(struct segset_read *r);
int segset_read_finish(struct segset_read *r,
		       int (*done)(void *arg, const struct segset_read_req *req,
				   const void *payload, int err),
		       void *arg);
void segset_read_end(struct segset_read *r); /* NULL is fine */

/* Gives the tail of a segment left by an earlier daemon back: truncates to used bytes rounded up to
 * 4 KiB, unless it is smaller already. -EBUSY for the active one. */
int segset_trim(struct segset *s, uint32_t n, uint64_t used);
/* Removes a segment without live chunks; not one that is still written to (-EBUSY). */
int segset_remove(struct segset *s, uint32_t n);
/* Returns the whole 4 KiB blocks inside a dead record's payload to the file system; its header
 * stays, so that a scan finds the next record. The record must be durable: -EBUSY when it is still
 * being written. -EOPNOTSUPP when the file system cannot. */
int segset_punch(struct segset *s, struct segment_loc loc, uint32_t stored_len);

/* Calls fn for every valid record of segment n, in order, until it returns non-zero, which is
 * returned. Damaged bytes are skipped and counted in *ret_damaged; zeros and punched records are
 * no damage. -EBADMSG when the header is of no segment, or of another store or number; an
 * all-zero header is that of a segment that never had a record. */
int segset_scan(struct segset *s, uint32_t n,
		int (*fn)(void *arg, struct segment_loc loc, const struct record_info *info),
		void *arg, uint64_t *ret_damaged);

/*
 * Headers alone, of one segment, best in ascending order: reads 16 KiB at a time. -ENOENT: there is no such
 * segment. One thread at a time.
 */
struct segset_peek;
int segset_peek_open(struct segset *s, uint32_t n, struct segset_peek **ret);
void segset_peek_close(struct segset_peek *p);          /* NULL is fine */
uint64_t segset_peek_size(const struct segset_peek *p); /* of the file, bytes */
/* Of the segment itself: -EBADMSG: it is of no segment, or of another store or number; 1: it is all zeros. uuid:
 * whose it is, if anybody's; else empty. */
int segset_peek_segment(struct segset_peek *p, char ret_uuid[static 37]);
/* Of the record there. -EBADMSG: there is none. */
int segset_peek_record(struct segset_peek *p, uint32_t offset, struct record_info *ret);

/* Bytes that a record with so many stored bytes takes in a segment. */
static inline uint64_t record_size(uint32_t stored_len)
{
	uint64_t n = sizeof(struct record_header) + (uint64_t)stored_len;

	return (n + RECORD_ALIGN - 1) & ~(uint64_t)(RECORD_ALIGN - 1);
}

#endif
