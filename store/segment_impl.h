/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_impl: what the parts of segment share.
 *
 *   segment.c         the set: opening, closing, whole segments
 *   segment_format.c  headers as bytes
 *   segment_buffers.c what is on its way to the device
 *   segment_write.c   appending
 *   segment_sync.c    making durable
 *   segment_read.c    reading records
 *   segment_files.c   descriptors for reading
 *   segment_rate.c    how fast the device reads
 *   segment_peek.c    reading headers alone
 *   segment_scan.c    reading a segment without knowing what is in it
 *
 * Locks, outermost first; none but lock is held while waiting for the device:
 *
 *   syncing      a flag under lock, not a mutex: held by the leader of a sync
 *   append_lock  one appender; guards where the next record goes
 *   lock         the append buffers as readers see them, counters, errors
 *   pool_lock    open files and contexts of readers
 */
#ifndef STORE_SEGMENT_IMPL_H
#define STORE_SEGMENT_IMPL_H

#include "store/segment.h"

#include <pthread.h>

#define SEGMENT_BUFFERS 4u
#define SEGMENT_BUFFER  ((size_t)2 << 20)

#define PIECES 32u /* in flight, of one reader */
/* What one reader holds: 2 MiB of a file and what the chunks at its ends and the gaps add. Small, as
 * what the device reads is verified and copied while it is in the processor's cache: the device
 * here reads 2.9 GB/s into 2 MiB used again and again and 2.4 GB/s into 16 MiB. */
#define READ_BUFFER ((size_t)3 << 20)
#define PIECE_MAX   ((size_t)5 << 19) /* bytes read at once */
#define IDLE_READS  6u                /* kept for the next reader; a thread that fills has two */
#define OPEN_FILES  64u               /* segments kept open for readers */

#define SEGMENT_NAME_MAX 16

/* A segment this process writes or has written, until it is durable. */
struct segment_file {
	uint32_t n;
	int fd;
	bool dirty;   /* lock: written since its last fdatasync */
	uint64_t end; /* lock: bytes handed to the device */
	struct segment_file *next;
};

enum append_state {
	BUFFER_FREE,
	BUFFER_FILLING,
	BUFFER_WRITING,
	BUFFER_FAILED, /* kept for readers */
};

/* A stretch of a segment that is not on the device yet, or not surely. The bytes below fill do not
 * change; those above are the appender's. */
struct append_buffer {
	uint8_t *data;
	enum append_state state;
	uint32_t segment;
	uint64_t off; /* in the segment, a multiple of IO_ALIGN */
	size_t fill;
	uint64_t seq; /* of its submission */
	struct io_request req;
};

/* A segment open for readers. */
struct read_file {
	uint32_t n;
	int fd;
	unsigned refs;
	bool removed;  /* to be closed by the last who reads it */
	uint64_t tick; /* of its last use */
	struct read_file *next;
};

struct segset {
	const struct io_ops *io;
	int dirfd;
	char uuid[37];
	uint64_t segment_size;
	bool read_only;
	bool direct; /* atomic */

	pthread_mutex_t append_lock;
	struct append_buffer *filling; /* append_lock; NULL when none is begun */

	pthread_mutex_t lock;
	pthread_cond_t changed; /* any of what lock guards */
	/* lock, and changed with append_lock held only: */
	struct segment_file *active;
	struct segment_file *retired; /* full, not durable yet */
	uint64_t tail;                /* of the active segment: where the next record goes */
	uint32_t next;                /* number of the next segment */
	bool names_dirty;             /* a segment was created since the last sync */
	/* lock: */
	struct append_buffer buffers[SEGMENT_BUFFERS];
	struct io_ring *ring; /* submitted to under lock, waited for by the one who set reaping */
	bool reaping;
	bool syncing;
	int error;         /* of a write or sync; sticky */
	uint64_t seq;      /* submissions so far */
	uint64_t appended; /* records so far */
	uint64_t synced;   /* of them durable */
	uint64_t *used;    /* bytes of each segment from first on */
	uint32_t first, n_used;

	pthread_mutex_t pool_lock;
	struct read_file *files;  /* pool_lock */
	unsigned n_files;         /* pool_lock */
	uint64_t tick;            /* pool_lock */
	struct segset_read *idle; /* pool_lock */
	unsigned n_idle;          /* pool_lock */
};

static inline uint64_t align_down(uint64_t off)
{
	return off & ~(uint64_t)(IO_ALIGN - 1);
}

static inline uint64_t align_up(uint64_t off)
{
	return align_down(off + IO_ALIGN - 1);
}

static inline uint64_t loc_offset(struct segment_loc loc)
{
	return (uint64_t)loc.offset * RECORD_ALIGN;
}

/* segment_format.c */
void segment_header_pack(uint8_t out[SEGMENT_HEADER], uint32_t n, const char *uuid);
bool segment_header_ok(const uint8_t *p, uint32_t n, const char *uuid);
void record_pack(struct record_header *ret, const struct record_info *info, struct segment_loc loc,
		 uint64_t payload_sum);
/* -EBADMSG when there is no valid header for a record at loc. */
int record_parse(const uint8_t *p, struct segment_loc loc, struct record_info *ret,
		 uint64_t *ret_payload_sum);

/* segment.c. The descriptor of segment n, with O_DIRECT if it can be had. */
int segment_open(struct segset *s, uint32_t n, int flags);
void segment_name(uint32_t n, char ret[SEGMENT_NAME_MAX]);

/* segment_buffers.c */

/* With lock held: */
void segment_fail(struct segset *s, int error); /* from now on; the first error stays */
void segment_set_tail(struct segset *s, uint64_t tail);
/* Sends the buffer that fills on its way, with zeros up to a whole block; later records come behind
 * these. append_lock is held too. */
void segment_submit(struct segset *s);
/* Waits until one more buffer is written, or until something else changed; lock is let go
 * meanwhile. */
void segment_wait(struct segset *s);
/* Waits for all submissions up to seq, whether they fail or not. */
void segment_wait_written(struct segset *s, uint64_t seq);

/* For readers; these take lock: */
/* True while some of [off, off + len) of segment n is in a buffer. */
bool segment_is_pending(struct segset *s, uint32_t n, uint64_t off, uint64_t len);
struct segment_gap {
	uint64_t off, len;
};
/* Copies what of [off, off + len), whole blocks of IO_ALIGN, of segment n is in buffers to dst, and
 * names the rest, which is on the device. Returns the number of gaps. */
size_t segment_copy_pending(struct segset *s, uint32_t n, uint64_t off, uint64_t len, uint8_t *dst,
			    struct segment_gap gaps[SEGMENT_BUFFERS + 1]);

/* segment_write.c */
/* Leaves the active segment for good; append_lock and lock are held. */
void segment_retire(struct segset *s);
/* Removes and frees a segment that has no records. */
void segment_discard(struct segset *s, struct segment_file *f);
/* True while n may not be removed: it is written to, or not durable. */
bool segment_is_busy(struct segset *s, uint32_t n);

/* segment_sync.c */
int segment_writer_open(struct segset *s);
void segment_writer_close(struct segset *s);

/* segment_read.c */
void segment_readers_close(struct segset *s);

/* segment_files.c */
int read_file_get(struct segset *s, uint32_t n, struct read_file **ret);
void read_file_put(struct segset *s, struct read_file *f);
void read_file_forget(struct segset *s, uint32_t n);
void read_files_close(struct segset *s);

#endif
