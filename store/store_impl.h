/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sources of store/ share: the store, the object, and the small modules between them.
 *
 * Lock order, outermost first:
 *   object.settle_lock   one settle of an object at a time
 *   object.rw            content: shared to read it, exclusive to change it or to drop the image
 *   object.mu            the object's fields and block maps
 *   store.objects_lock   the table and the lists of objects
 *   chunk table, journal, space: leaves
 * The lock of the metadata writer is taken before object.mu and never while it is held; reap_lock before
 * that.
 */
#ifndef STORE_STORE_IMPL_H
#define STORE_STORE_IMPL_H

#include "store/chunk.h"
#include "store/journal.h"
#include "store/layout.h"
#include "store/meta.h"
#include "store/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

/* An add that finds no memory leaves hh.tbl NULL instead of ending the process. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

/* ---- blockmap: a bit for each OBJECT_BLOCK bytes of a file; bits past the end are 0 ---- */
struct blockmap {
	uint64_t *word;
	uint64_t words;
	uint64_t set; /* bits set */
};
int blockmap_set(struct blockmap *b, uint64_t first, uint64_t count); /* grows; -ENOMEM */
void blockmap_clear(struct blockmap *b, uint64_t first, uint64_t count);
bool blockmap_get(const struct blockmap *b, uint64_t block);
/* The next run of bits that are set (value) or clear, from block on and below end: its first block;
 * *ret_count its length, 0 when there is none. */
uint64_t blockmap_next(const struct blockmap *b, uint64_t block, uint64_t end, bool value,
		       uint64_t *ret_count);
void blockmap_done(struct blockmap *b); /* frees and empties */

/* Where an image lies: a huge page for 4 KiB costs clearing 2 MiB twice, so files that are or will
 * probably be small have a tmpfs of their own that gives pages by the size of the write. */
enum image_place { IMAGE_HUGE, IMAGE_SMALL, IMAGE_PLACES };
#define SMALL_MAX (1u << 20)
extern const char *const image_place_name[IMAGE_PLACES]; /* below the run directory */

enum image_state { IMAGE_NONE, IMAGE_PARTIAL, IMAGE_COMPLETE };

/* What a transaction writes for a file: its content as of the last settle. */
struct snapshot {
	struct extmap *map;
	uint64_t size;
	struct timespec mtime;
	uint64_t gen;
};

struct object {
	/* constant */
	struct store *store;
	uint64_t ino;

	/* store.objects_lock */
	UT_hash_handle hh;
	TAILQ_ENTRY(object) lru; /* while there is an image; oldest first */
	TAILQ_ENTRY(object) pending;
	unsigned refs;
	bool in_lru, in_pending;

	pthread_mutex_t settle_lock;
	struct slabs slabs; /* settle_lock: as found last, head 0: never */
	pthread_rwlock_t rw;
	pthread_mutex_t mu;
	pthread_cond_t filled; /* blocks came out of filling */

	/* mu from here on */
	uint32_t tenant;
	enum codec_choice codec;
	struct raw_layout layout;
	enum image_state image;
	enum image_place place;
	uint64_t expected; /* size a new file will probably get */
	int fd;            /* O_RDONLY of the image, -1 when not open */
	int wfd;           /* O_RDWR, while daemon-mode writers or a fill need it */
	unsigned wfd_users;
	char *map;      /* of the image, read-only, while handles read through the daemon */
	size_t map_len; /* may reach beyond the end */
	uint64_t size;
	struct timespec mtime;       /* of the last content change; tv_nsec -1: none known */
	struct timespec image_mtime; /* what the image showed when content was last known: a newer
	                                one means a passthrough write */
	struct extmap *under;  /* the settled content beneath the image; holes where it was cut */
	uint64_t under_stored; /* its encoded bytes */
	struct snapshot snap;
	struct extmap *db;   /* what meta.db holds; metadata writer's lock */
	unsigned db_flights; /* db was put by a transaction that is not committed yet */
	struct blockmap valid, filling, dirty, redirty;
	bool all_dirty;        /* somebody may have written unseen: the whole image is dirty */
	bool orphan;           /* and a killed daemon's handles may be among them */
	uint32_t hidden_epoch; /* raised by each open of a hidden writer */
	bool settling;
	bool cut_while_settling;
	bool cut_unknown; /* the journal took no note of the last cut: again before the file grows */
	bool discarded;
	bool unlinked;   /* has no name: nobody settles it but to make room */
	bool clean_mark; /* the image carries the xattr */
	uint64_t wgen, sgen;
	unsigned handles, writers, hidden;
	unsigned backed; /* descriptors given out as backing files: the kernel reads the image */
	uint64_t backed_bytes;               /* its size when the first was */
	uint64_t blocks;                     /* real bytes of the image, as last seen */
	int64_t last_use_ms, dirty_since_ms; /* CLOCK_MONOTONIC */
	_Atomic int64_t last_close_ms;       /* read without the lock to order a list */
	int64_t resettle_ms; /* a mapping without handle: not settled again before */
	unsigned resettle_s;
	int fill_error;
	bool fill_queued;
	uint64_t fill_span; /* blocks up to here were given to threads to fill, a span each */
};

struct fill_pool;
struct gc;
struct loader;
struct scrub;
struct undo;
struct found;
struct scratch;

/* A record of the namespace; all zero: the end of a group. */
struct saved_record {
	struct journal_record rec;
	void *copy;
};

struct store {
	char *path, *rundir;
	struct store_options opt;
	unsigned processors;
	int lock_fd, dir_fd, seg_fd, run_fd;
	int img_fd[IMAGE_PLACES];
	bool small_mounted; /* RUNDIR/small is a tmpfs of its own */
	bool own_tmpfs, huge_pages, read_only;
	atomic_bool failed; /* sync.c */
	atomic_uint_fast64_t
		run_overhead; /* bytes of the run directory's tmpfs that are not images */
	const struct io_ops *io;
	struct hash128 (*hash)(const void *buf, size_t len); /* of a chunk's content */
	struct meta *meta;
	struct segset *segs;
	struct chunk_table *chunks;
	struct loader *loader;
	struct gc *gc;
	struct scrub *scrub;     /* NULL: off */
	uint32_t found_segments; /* the highest number there was at the open */
	struct journal *journal;
	struct scratch *scratch;

	pthread_mutex_t objects_lock;
	struct object *objects; /* uthash by ino */
	TAILQ_HEAD(object_list, object) lru;
	struct object_list pending;
	size_t pending_count;

	struct fill_pool *fill;
	pthread_t tier_thread;
	bool started, stopping;
	pthread_mutex_t tier_lock;
	pthread_cond_t tier_wake;

	/* space.c */
	pthread_mutex_t space_lock;
	uint64_t free_cached;
	int64_t free_at_ms;
	uint64_t slack;
	atomic_uint_fast64_t dirty_bytes;
	atomic_uint_fast64_t named_bytes; /* of them, those of files that have a name */
	atomic_uint_fast64_t image_bytes; /* sum of object.blocks */
	atomic_uint_fast64_t images;
	atomic_uint_fast64_t hidden_writers;
	atomic_uint_fast64_t granted_bytes; /* store_grant() */
	atomic_uint_fast64_t room_wanted;   /* bytes the next grant needs free; 0 */
	atomic_uint_fast64_t backed_bytes;

	pthread_mutex_t reap_lock; /* a reap; before the lock of the metadata writer */

	/* segments: live bytes, seglive.c */
	pthread_mutex_t seg_lock;
	struct seg_live *seg_live; /* uthash by number */

	/* refs.c: what a transaction changed in memory; the metadata writer's lock */
	struct undo *undo;
	size_t undo_n, undo_cap;

	/* fill.c: bytes a second, and what it is estimated from */
	atomic_uint_fast64_t fill_rate;
	atomic_uint_fast64_t read_rate; /* of the device, bytes/s; 0: not known yet */
	bool rate_known;                /* the tier manager's: or never will be */
	pthread_mutex_t rate_lock;
	unsigned rate_active; /* windows being filled now */
	int64_t rate_since_us;
	uint64_t rate_bytes, rate_us;

	atomic_uint_fast64_t settled_total, filled_total, dedup_total, damaged_total, evicted_total;

	/* records of the namespace found in the journal, until journal_replay() */
	struct saved_record *saved;
	size_t saved_n, saved_cap;
	struct found *found; /* recover.c, while replaying */
	bool recovered;      /* there was something to replay */
};

int64_t now_ms(void);
void store_log(struct store *s, int level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

int lock_file(int fd); /* flock(2), exclusive, with a little patience; errno as that sets it */

/* ---- scratch.c: private buffers of SCRATCH_SIZE bytes, uncleared ---- */
#define SCRATCH_SIZE (5u << 20)
struct scratch *scratch_new(void);
void scratch_free(struct scratch *p);
void *scratch_get(struct store *s); /* NULL when out of memory */
void scratch_put(struct store *s, void *buf);

/* ---- rundir.c: the run directory and its tmpfs ---- */
int rundir_open(struct store *s, struct store_error *err);
void rundir_close(struct store *s, bool clean);
/* What the tmpfs holds beside images, so that budgets count images only. */
void rundir_measure(struct store *s);

/* ---- space.c: room in the store for what is dirty ---- */
/* Room for len more dirty bytes; -ENOSPC. */
int space_reserve(struct store *s, uint64_t len);
void space_refresh(struct store *s); /* something was freed or written: ask the file system again */
uint64_t space_free(struct store *s);
/* Room for a copy of so many bytes, at most a segment: that is what a part of the slack is kept for. */
bool space_for_copy(struct store *s, uint64_t bytes);

/* ---- pool.c: the budget of the hot tier ---- */
uint64_t pool_used(struct store *s);
/* Makes room for want bytes: evicts idle images, then settles; self may be NULL or an object whose
 * rw the caller does not hold. -ENOSPC when nothing more can go. */
int pool_make_room(struct store *s, uint64_t want, struct object *self);
int tier_start(struct store *s);
void tier_stop(struct store *s);
/* Deletes the rows of dead chunks durably and gives their bytes back. Returns chunks done. */
int reap_dead(struct store *s, size_t max);

/* ---- gc.c: compaction ---- */
int gc_start(struct store *s);
void gc_stop(struct store *s);
/* Space is wanted. */
void gc_wake(struct store *s);
void gc_status(struct store *s, struct store_gc_status *ret);

/* ---- loader.c: the chunk table, from meta.db ---- */
/* What fits in about a second, before the store is open. */
int loader_open(struct store *s);
int loader_start(struct store *s); /* the rest, by a thread */
void loader_close(struct store *s);
/* The chunks of a map, or one, are in the table afterwards if meta.db has them. What memory has references
 * to, is. */
int loader_need(struct store *s, const struct extmap *m);
int loader_need_id(struct store *s, uint64_t id);
bool loader_done(struct store *s); /* all are there */

/* ---- scrub.c: damaged chunks are found before they are needed ---- */
int scrub_start(struct store *s);
void scrub_stop(struct store *s);
void scrub_get_status(struct store *s, struct scrub_status *ret);

/* ---- store.c ---- */
/* Once all chunks are loaded: what of the segments found at the open nobody uses is cut off. */
void segments_tidy(struct store *s);

/* ---- seglive.c: live bytes of each segment ---- */
int seglive_add(struct store *s, uint32_t segment, int64_t bytes);
uint64_t seglive_get(struct store *s, uint32_t segment);
/* A chunk that was there before. fresh: the journal knows it, meta.db does not. */
int seglive_load(struct store *s, struct segment_loc loc, uint32_t stored_len, bool fresh);
/* Where the last of those of a segment ends, 0: it has none; and whether there is a fresh one. */
uint64_t seglive_end(struct store *s, uint32_t segment, bool *ret_fresh);
/* The segments touched by appends since the last call, for meta_put_segment. */
size_t seglive_segments(struct store *s, uint32_t *ret, size_t max);
uint32_t seglive_highest(struct store *s); /* number of the last one ever heard of; 0 */
size_t seglive_count(struct store *s);
bool seglive_gone(struct store *s, uint32_t segment);
void seglive_forget(struct store *s, uint32_t segment);
/* What gc.c chooses by. */
struct segment_use {
	uint32_t segment;
	bool look;     /* held is to be found out */
	uint64_t live; /* bytes of records */
	uint64_t held; /* bytes of its file */
	int64_t died_ms, retry_ms;
};
/* All there are, to be freed; NULL when out of memory. */
size_t seglive_list(struct store *s, struct segment_use **ret);
void seglive_looked(struct store *s, uint32_t segment, uint64_t held);
/* INT64_MAX: until the next mount. */
void seglive_put_off(struct store *s, uint32_t segment, int64_t until_ms);
void seglive_retry(struct store *s); /* all others now */
void seglive_free(struct store *s);

/* ---- image.c: the image file; object.mu held unless said otherwise ---- */
void image_name(uint64_t ino, char ret[32]);
int image_create(struct object *o, enum image_state state, uint64_t size);
int image_dir(const struct object *o);       /* the folder its image is in */
int image_open(struct object *o, int flags); /* a new descriptor, the caller's */
int image_fd(struct object *o);      /* opens when needed; the descriptor stays the object's */
int image_wfd_get(struct object *o); /* a writable descriptor with a user count */
void image_wfd_put(struct object *o);
void image_unmap(struct object *o); /* rw (exclusive) held, or no handle left */
bool image_map(struct object *o);
void image_close_idle(struct object *o); /* closes both when nobody uses them */
void image_drop(struct object *o);       /* unlinks; the object has no image afterwards */
void image_mark_clean(struct object *o);
void image_unmark(struct object *o);
bool image_is_marked(int fd, const struct extmap *map, uint64_t size);
/* The lease probe: true when nobody but the daemon has the image open or mapped (writable). */
bool image_unused(struct object *o, bool by_writers_only);
void image_update_blocks(struct object *o, const uint64_t *bytes);
void image_note_blocks(struct object *o, int fd);
void image_refresh(struct object *o); /* size, mtime and blocks from the file */
void image_punch_tail(struct object *o);
void image_touch(struct object *o); /* the content changed now */
void image_restore_mtime(struct object *o);
uint64_t object_blocks(uint64_t size); /* blocks of a file of that size */

/* ---- dedup.c: content the store has already ---- */
#define TENANT_ALL UINT32_MAX /* of chunks that belong to all; no uid */

/* The tenant of what an object's settle stores. */
uint32_t dedup_tenant(struct object *o);

struct cut {
	size_t at; /* in the data */
	uint32_t len;
	struct hash128 hash;
	struct chunk *chunk; /* the first candidate, with a reference; NULL */
	bool same;           /* it has been read, and is the same */
	const struct codec *codec;
	size_t stored; /* bytes encoded */
	uint8_t params[CODEC_PARAMS];
};
/* Looks for the first candidate of each cut and compares it. scratch: 2 * CHUNK_MAX bytes. */
void dedup_first(struct store *s, uint32_t tenant, struct cut *cut, size_t n, const char *data,
		 char *scratch);
/* The chunk that is the same, with a reference, after the first candidate if that is not: NULL when
 * there is none. Takes the cut's reference over. Finds what was added since dedup_first if that had
 * no candidate. */
struct chunk *dedup_next(struct store *s, uint32_t tenant, const struct cut *cut, const char *data,
			 char *scratch);

/* ---- fetch.c: a range of the extents, not of the image; holes are zeros ---- */
#define FETCH_MAX (2u << 20) /* bytes that go to a file at once; to memory, any number */
struct fetch;
/* Sends the reads off. The object must stay as it is until the end: rw held, mu not. before: NULL or
 * a fetch that will be got first and ended before this one: where it ends in the chunk that this one
 * begins with, that is read once. */
int fetch_begin(struct object *o, uint64_t off, size_t len, struct fetch *before,
		struct fetch **ret);
void fetch_wait(struct fetch *f); /* until the device has read; the next two do that too */
/* One of these two, once. -EIO: some of it is damaged, which has been reported. */
int fetch_to_memory(struct fetch *f, void *buf);
int fetch_to_file(struct fetch *f, int fd); /* at the same offset */
void fetch_end(struct fetch *f);            /* NULL is fine */
/* All of it. */
int fetch_extents(struct object *o, void *buf, size_t len, uint64_t off);

/* ---- fill.c: cold and warm to hot ---- */
/* Makes blocks [first, first + count) valid, waiting for whoever fills them already. rw held. */
int fill_blocks(struct object *o, uint64_t first, uint64_t count);
int fill_whole(struct object *o); /* every block, about in file order; rw not held */
int fill_start(struct store *s);
/* That decode at the same time, as far as there are processors. */
unsigned fill_threads(struct store *s);
void fill_stop(struct store *s);
void fill_enqueue(struct object *o);
uint64_t fill_estimate_us(struct object *o); /* mu held */

/* ---- object_io.c ---- */
/* The bytes as they are now, without bringing any into the image; what lies behind the end is zeros. rw
 * held, mu not. */
int object_peek(struct object *o, void *buf, size_t len, uint64_t off);

/* ---- object.c ---- */
void object_destroy(struct object *o);     /* frees; not from the table */
void object_dirty_begin(struct object *o); /* mu held: content is about to change */
void object_account(struct object *o, uint64_t dirty_before); /* mu held: dirty_bytes moved */
/* mu held: the store stopped writing before what was settled of it became durable. */
bool object_is_only_copy(const struct object *o);
uint64_t object_dirty_bytes(const struct object *o);    /* mu held */
bool object_dirty_locked(const struct object *o);       /* mu held */
bool object_uncommitted_locked(const struct object *o); /* mu held */
/* Replaces under (takes m over), with chunk references kept; mu held. */
int object_set_under(struct object *o, struct extmap *m);
void object_set_snap(struct object *o, uint64_t size, uint64_t gen);
struct object *object_find(struct store *s, uint64_t ino); /* in memory only, with a reference */
void object_touch(struct object *o);
void object_lru_add(struct object *o);
void object_lru_remove(struct object *o);
/* Snapshot of the LRU, oldest first, with references; freed with object_list_free. */
struct object **object_list(struct store *s, size_t *ret_n);
/* The first of it, with references: up to max that were not used after before_ms. */
size_t object_oldest(struct store *s, int64_t before_ms, struct object **v, size_t max);
/* Behind all others in it, whenever it was used: it cannot go now. */
void object_requeue(struct object *o);
/* Every object in memory, likewise: dirty ones need not have an image. */
struct object **object_all(struct store *s, size_t *ret_n);
void object_list_free(struct object **v, size_t n);

/* ---- pending.c ---- */
void pending_note(struct object *o);   /* mu held: something is to be settled or committed */
void pending_forget(struct object *o); /* objects_lock held */

/* ---- sync.c ---- */
/* The appender failed with err: nothing is written any more until the next mount. */
void segments_failed(struct store *s, int err);

/* ---- recover.c: records of store/ in the journal ---- */
enum {
	J_CHUNK = 1,   /* struct j_chunk */
	J_SETTLED = 2, /* struct j_settled, packed extents */
	J_IMAGE = 3,   /* struct j_image: an image begins; forgets earlier dirty blocks */
	J_DIRTY = 4,   /* struct j_range, in blocks */
	J_CLEAN = 5,   /* struct j_range, in blocks; count 0: everything */
	J_CUT = 6,     /* struct j_range, in bytes: the settled content has a hole there now */
	J_DISCARD = 7, /* struct j_range: ino only */
	J_TIMES = 8,   /* struct j_range: ino only; the inode says its mtime, not the last settle */
};
struct j_chunk {
	uint64_t id, hash_lo, hash_hi;
	uint32_t tenant, raw_len, stored_len, segment, offset;
	uint8_t codec, params[CODEC_PARAMS], pad[3];
};
struct j_settled {
	uint64_t ino, size;
	int64_t mtime_s, mtime_ns;
	uint32_t tenant, pad;
};
struct j_image {
	uint64_t ino;
	uint32_t tenant;
	uint32_t flags;
};
#define J_IMAGE_COMPLETE  1u
#define J_IMAGE_ALL_DIRTY 2u
struct j_range {
	uint64_t ino, first, count;
};
int j_put_image(struct object *o);
int j_put_range(struct store *s, uint32_t type, uint64_t ino, uint64_t first, uint64_t count);
/* One group: the new chunks, the settled map, and what is dirty still. changed: the
 * file did change meanwhile, be it only in size. mu held. */
int j_put_settled(struct object *o, struct chunk *const *chunks, size_t n, const struct extmap *m,
		  uint64_t size, const struct timespec *mtime, const struct blockmap *dirty,
		  bool all_dirty, bool changed);
/* What the journal must say of o after a checkpoint: to the new one. mu held. */
int j_checkpoint_object(struct object *o);
int recover_record(void *store, const struct journal_record *rec);
int recover_finish(struct store *s);
int recover_checkpoint(struct store *s);

#endif
