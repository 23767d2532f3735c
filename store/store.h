/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store: the tiers behind the files.
 *
 * The only header of store/ that other folders include. It offers four things:
 *
 *   store    an opened store directory with its run directory: tiers, budgets, counters
 *   object   the bytes of one regular file, wherever they are: hot image, warm and cold chunks
 *   meta     rows of meta.db: inodes, names, xattrs; read at any time, written in transactions
 *   journal  the redo log in the run directory that makes an answered operation survive a kill
 *
 * store/ knows nothing of FUSE and nothing of paths: a file is its inode number. What must be told
 * upwards goes through struct store_hooks.
 *
 * Errors are negative errno everywhere. Nothing here logs, except through the log hook.
 */
#ifndef KVFS_STORE_H
#define KVFS_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct store;
struct object;
struct meta_txn;
struct io_ops;

/* ---------------------------------------------------------------------------------------------
 * store
 */

/* Called by store/ from its own threads and from within its functions, never with a lock of
 * store/ held that an object_ or store_ function needs. */
struct store_hooks {
	void *arg;
	/* One line of diagnosis, no newline. level is a syslog(3) priority. */
	void (*log)(void *arg, int level, const char *line);
	/* The stored size (st_blocks) or tier of a file changed: tell the kernel, later. */
	void (*changed)(void *arg, uint64_t ino);
	/* Dirty bytes press on a budget: settle and commit soon. May be called often. */
	void (*pressure)(void *arg);
};

/* Which codecs the chunks of a file may get; raw where none of them pays. */
enum codec_choice {
	CODEC_CHOICE_STORE, /* of a file: as the mount says; of a mount: auto */
	CODEC_CHOICE_AUTO,  /* as fast, those that decode faster than the store's device reads */
	CODEC_CHOICE_FAST,  /* lz4, planes */
	CODEC_CHOICE_DENSE, /* and dense, quants: smallest, whatever it costs */
	CODEC_CHOICE_LZ4,
	CODEC_CHOICE_NONE,
	CODEC_CHOICES,
};
const char *codec_choice_name(enum codec_choice choice);
/* -EINVAL: no such choice. */
int codec_choice_parse(const char *name, enum codec_choice *ret);

/* Where the slabs of a file without a header are, so that chunks end there. All zero: it is not known. */
struct raw_layout {
	uint32_t slabs;  /* that many of equal size, or */
	uint64_t stride; /* one each so many bytes */
	uint64_t offset; /* of the first */
};
#define RAW_LAYOUT_TEXT 64
/* From slabs=N or stride=BYTES, with offset=BYTES before or after it and a comma. -EINVAL. */
int raw_layout_parse(const char *text, size_t len, struct raw_layout *ret);
/* The same as text; of one that is known. Its length. */
int raw_layout_format(const struct raw_layout *l, char ret[static RAW_LAYOUT_TEXT]);

/* Whose files may share a chunk. */
enum dedup_scope {
	DEDUP_OWNER, /* those of one owner (uid) */
	DEDUP_STORE, /* all that are settled so: who may write a file can find out what others hold */
	DEDUP_NONE,
	DEDUP_SCOPES,
};
const char *dedup_scope_name(enum dedup_scope scope);
int dedup_scope_parse(const char *name, enum dedup_scope *ret); /* -EINVAL */

struct store_options {
	const char *path;      /* the store directory; created when missing */
	const char *rundir;    /* NULL: chosen from the store's path and the caller's rights */
	uint64_t hot_bytes;    /* budget of the hot tier; 0: half of the machine's memory */
	uint64_t warm_bytes;   /* budget of the warm tier; 0: an eighth of the machine's memory */
	uint64_t index_bytes;  /* budget of the dedup index; 0: a sixty-fourth */
	uint64_t scrub_rate;   /* bytes/s that a scrub reads; 0: none */
	unsigned idle_s;       /* a hot file not used for so long goes warm */
	unsigned open_wait_ms; /* an open may wait so long for its fill */
	enum codec_choice codec;
	enum dedup_scope dedup;
	bool read_only; /* the store is not written; the run directory is: images are filled there */
	bool same_hash; /* for tests: all contents collide */
	/* For tests: what touches segments, outlives the store; NULL: the system. */
	const struct io_ops *io;
	struct store_hooks hooks;
};

/* Why store_open failed, for the user: names the file, what is wrong and what to do. */
struct store_error {
	char text[512];
};

/*
 * Opens (creates) the store, takes its lock, mounts the tmpfs of the run directory where allowed,
 * loads the chunk table and replays what store/ itself wrote to the journal: chunks, extents,
 * images. Records of the namespace are kept for journal_replay(). Starts no thread that touches
 * objects before store_start().
 *
 * -EBUSY: another daemon holds the store. -EMEDIUMTYPE: not a store, or of a newer format.
 * -EUCLEAN: damaged. On failure *ret is untouched and err says why in one line.
 */
int store_open(const struct store_options *opt, struct store **ret, struct store_error *err);

/* Starts the tier manager and the fill workers. To be called once the namespace is recovered. */
int store_start(struct store *s);

/*
 * Stops the threads and frees everything. Durable state is what commits made so; a caller that
 * wants all of it durable settles and commits before. With clean true the run directory is
 * emptied and its tmpfs unmounted, unless an image is still open or mapped by somebody.
 */
void store_close(struct store *s, bool clean);

struct store_tier {
	uint64_t bytes;  /* occupied now: hot in image blocks, warm and cold in encoded bytes */
	uint64_t budget; /* 0 for cold */
	uint64_t files;  /* hot: images; warm: files wholly warm is not tracked: always 0 */
};

struct store_gc_status {
	uint64_t dead_bytes;        /* that segments occupy for nothing, as of a second ago */
	uint64_t moved_bytes_total; /* counters since mount: of records that were copied */
	uint64_t freed_bytes_total; /* of segments compacted or empty, before the copies */
	uint64_t segments_total;    /* compacted */
	uint64_t left_segments;     /* to be compacted yet, of what is worth it now */
	uint64_t left_bytes;        /* to be copied for it */
	uint64_t asked, done;       /* calls of store_gc(), and how many have been carried out */
	int error;                  /* of the last of them: negative errno, 0 */
};

/* What reads the live chunks now and then and finds those that are damaged. */
struct scrub_status {
	uint64_t rate; /* bytes/s; 0: off */
	uint64_t next,
		last; /* ids of chunks: where the pass is, and its end; above that it is over */
	int64_t began, ended;   /* of the last passes, seconds since 1970; 0: none */
	uint64_t pass_damaged;  /* damaged chunks that the last pass has met since mount */
	uint64_t damaged_total; /* and all of them since mount, each once */
	uint64_t bytes_total;   /* read since mount */
	uint64_t chunks_total;
};

struct store_status {
	const char *path;
	const char *rundir;
	char uuid[37];
	struct store_tier hot, warm, cold;
	uint64_t logical_bytes; /* sum of the extents of all committed files, holes not counted */
	uint64_t unique_bytes;  /* raw bytes of distinct chunks */
	uint64_t stored_bytes;  /* encoded bytes of distinct chunks, record headers included */
	uint64_t chunks;
	struct {
		uint64_t bytes, budget; /* of memory */
		uint64_t entries;       /* chunks that dedup finds */
		uint64_t replaced;      /* entries since mount, as the budget was full */
	} index;
	bool loaded; /* false: chunks are still being read from meta.db, so there are more */
	uint64_t segments;
	struct store_gc_status gc;
	uint64_t dirty_bytes;         /* in images, not yet in a segment */
	uint64_t unsettled_bytes;     /* of them, those of files that have a name */
	uint64_t pinned_bytes;        /* of images that openers or mappings hold */
	uint64_t settled_bytes_total; /* counters since mount */
	uint64_t filled_bytes_total;
	uint64_t dedup_bytes_total;
	uint64_t damaged_reads_total; /* EIO answers */
	uint64_t evicted_files_total;
	enum codec_choice codec;
	enum dedup_scope dedup;
	struct scrub_status scrub;
	uint64_t read_rate; /* of the store's device, bytes/s; 0: not measured yet */
	bool direct_io;     /* segments are written with O_DIRECT */
	bool io_uring;
	bool huge_pages; /* the run directory's tmpfs has them */
	bool own_tmpfs;  /* the run directory is a tmpfs of our own */
	bool read_only;
};
void store_status(struct store *s, struct store_status *ret);

/*
 * Asks for compaction now, of every segment with an eighth of dead bytes, as fast as the device can; it goes
 * on in the background at leisure without being asked. Returns at once: it is carried out when
 * store_gc_status.done has reached what asked was afterwards. What has been deleted is to be committed
 * before. -EROFS.
 */
int store_gc(struct store *s);

/* Free space of the file system under the store, for statfs(2), less what dirty bytes have
 * reserved. */
struct statvfs;
int store_statvfs(struct store *s, struct statvfs *ret);

const char *store_rundir(const struct store *s);
/* The run directory held what a dead daemon had not put into the store. */
bool store_recovered(const struct store *s);

/* True while an image may be written that cannot give blocks back before its last close: the pool has
 * room for want bytes beside what was granted, and the store for every byte that could become
 * dirty. */
bool store_admits_writer(struct store *s, uint64_t want);
/* The same, and keeps keep bytes (at most want) of it from the next one, until store_grant_end(): after
 * object_handle_end(), when what was written is counted. unseen: the writer will ask for no block, so
 * the room must be there now; where only images that can go are in the way, they go soon. */
bool store_grant(struct store *s, uint64_t want, uint64_t keep, bool unseen);
void store_grant_end(struct store *s, uint64_t granted);
/* About how many chunks the content of a file of so many bytes is cut into. */
uint64_t store_chunks_of(uint64_t file_size);

/* Makes every byte appended to segments so far durable. */
int store_sync_data(struct store *s);

/* ---------------------------------------------------------------------------------------------
 * object: the bytes of a regular file
 *
 * An object holds a settled part (extents over chunks) and, when hot, an image in the run
 * directory with a map of valid and dirty blocks of OBJECT_BLOCK bytes. Any thread may call any
 * function; an object locks itself. A caller holds a reference.
 *
 * Generations: every content change raises the object's write generation. object_settle() brings
 * the settled generation up to what the write generation was when it began. Passthrough writers
 * change content unseen, so while one may exist (object_handle_begin(..., true) without its end,
 * or a mapping found by the lease probe) the object counts as dirty and each settle reads it whole.
 */
#define OBJECT_BLOCK 65536u
#define OBJECT_MAX   ((uint64_t)16 << 40) /* bytes of a file */

enum object_tier { TIER_HOT, TIER_WARM, TIER_COLD };
const char *tier_name(enum object_tier t);

struct object_stat {
	uint64_t size;
	struct timespec mtime, ctime; /* of the last content change; {0,0} when nothing newer than
	                                 what object_set_mtime() said */
	uint64_t stored; /* encoded bytes of the chunks, in full for each use, but under dirty
	                         blocks; those raw */
	uint64_t dirty;  /* bytes not settled */
	enum object_tier tier;
	bool partial;        /* has an image that is not complete */
	bool writer;         /* a passthrough writer may exist */
	bool orphan;         /* and it may be a handle that outlived a killed daemon */
	uint64_t wgen, sgen; /* write and settled generation */
	uint64_t load_us;    /* estimate: time to fill the image now */
};

/* A new, empty object for a file just created; tenant is the dedup domain (the owner's uid).
 * Counts as dirty until settled once. */
int object_create(struct store *s, uint64_t ino, uint32_t tenant, struct object **ret);

/* The object of an existing file: from memory, else its extents are read from meta.db. */
int object_get(struct store *s, uint64_t ino, uint32_t tenant, struct object **ret);
void object_ref(struct object *o);
/* For what is settled from now on. An object that leaves memory forgets it. */
void object_set_codec(struct object *o, enum codec_choice choice);
/* The same. Goes before what a header says; all zero: the header counts. */
void object_set_layout(struct object *o, const struct raw_layout *layout);
/* Drops a reference; NULL is fine. Objects with images or dirty bytes stay in memory. */
void object_unref(struct object *o);
uint64_t object_ino(const struct object *o);

/* Never blocks on I/O to the store. With a passthrough writer the size and mtime come from the
 * image. */
int object_stat(struct object *o, struct object_stat *ret);

/* utimensat and chown: mtime as the file system knows it, put on the image, so that a later
 * passthrough write is seen as newer. */
int object_set_mtime(struct object *o, const struct timespec *mtime);
/* mtime as the file system knows it, before a writer comes and after a fill. An image that was filled has the
 * time of that, which after a kill would pass for a write's. */
void object_know_mtime(struct object *o, const struct timespec *mtime);
void object_set_tenant(struct object *o, uint32_t tenant);

/* The file has no name (or has one again), so that nothing of it outlives its last close: its bytes
 * are settled only where the pool needs their room. */
void object_set_unlinked(struct object *o, bool unlinked);
/* A guess at what a new file will grow to; 0: none. Only costs depend on it. */
void object_expect_size(struct object *o, uint64_t size);

/* Daemon-mode data paths. Return bytes done, short only at end of file (read), or an errno:
 * -EIO damaged chunk in the range, -ENOSPC store or pool full. Writes extend the file. */
ssize_t object_read(struct object *o, void *buf, size_t len, uint64_t off);
/*
 * As object_read() without a copy, where the whole range lies in a complete image: fn gets its
 * bytes in the image, which stay as they are during the call only as far as nobody writes them.
 * Returns what fn returned, or -EAGAIN when object_read() must do. Touching the bytes outside of
 * a system call is not safe: the image may be cut by somebody unseen.
 */
int object_read_mapped(struct object *o, size_t len, uint64_t off,
		       int (*fn)(void *arg, const void *bytes, size_t len), void *arg);
ssize_t object_write(struct object *o, const void *buf, size_t len, uint64_t off);
/* At the end of the file, atomically. *ret_off: where the bytes went. */
ssize_t object_append(struct object *o, const void *buf, size_t len, uint64_t *ret_off);
int object_truncate(struct object *o, uint64_t size);
/*
 * len bytes of `from` become those of `to` at to_off, without being moved: both name the same chunks
 * then. Returns bytes, short only at the end of the source. -EOPNOTSUPP where that cannot be: the
 * source has bytes in the range that are not committed or a writer that is not seen, the target has an image,
 * the two are of different tenants. Counts as settled; durable as any change is.
 */
ssize_t object_share(struct object *from, uint64_t off, struct object *to, uint64_t to_off,
		     uint64_t len);
/* mode as fallocate(2): 0, KEEP_SIZE, PUNCH_HOLE|KEEP_SIZE, ZERO_RANGE[|KEEP_SIZE]; others
 * -EOPNOTSUPP. */
int object_fallocate(struct object *o, int mode, uint64_t off, uint64_t len);
/* SEEK_DATA, SEEK_HOLE: the offset, or -ENXIO. */
int64_t object_seek(struct object *o, uint64_t off, int whence);

/*
 * For opens. object_image_prepare() brings the object to a complete image if it can within
 * open_wait (or at once with create_empty for O_CREAT/O_TRUNC) and returns 1 when complete, 0 when
 * it stays partial or imageless (serve it by object_read), negative on error other than damage.
 */
int object_image_prepare(struct object *o, bool create_empty);
/* Starts filling in the background, in file order; returns at once. */
int object_prefetch(struct object *o);
/* A new O_RDONLY descriptor of the complete image, to register as a backing file; -ENODATA when
 * there is no complete image. The caller closes it. */
int object_image_open(struct object *o);
/* Images that the kernel reads take half of the hot budget: no more of them for now. */
bool store_backed_much(struct store *s);
/* True if somebody has the complete image mapped whose handle is closed, or may have; asked while the
 * kernel has no backing file of it. All must see the same then: other mappings have to be of the image too. */
bool object_image_mapped(struct object *o);
/* The backing file made from it is closed: to be called once for each success of the above. */
void object_image_close(struct object *o);

/*
 * Handles. A handle is begun before the open is answered and ended at its RELEASE. While handles
 * exist the image is not evicted. write: the handle may write; hidden: it can write (or map
 * writable) without the daemon seeing it, so the whole image counts as dirty from now on until a
 * settle finds no writer left. The loss of the image's clean mark is recorded before return.
 * object_handle_end() of the last handle gives the image's unused tail back and probes.
 */
int object_handle_begin(struct object *o, bool write, bool hidden);
void object_handle_end(struct object *o, bool write, bool hidden);

/*
 * Settles: afterwards sgen >= wgen at entry, or an errno: -ENOSPC, -EIO. The bytes are in
 * segments, not yet durable (store_sync_data) nor named by meta.db (meta_put_file).
 * frozen: no write(2) can run now (inside FSYNC).
 */
int object_settle(struct object *o);

/* True if there is anything object_settle() would do. */
bool object_is_dirty(struct object *o);
/* True if what was settled last is not what meta.db holds; the store settles under pressure too. */
bool object_is_uncommitted(struct object *o);

/* Drops the image (and with TIER_COLD the warm chunks only this file uses). The object must be
 * settled: -EAGAIN when it is dirty; -EBUSY when handles or mappings hold the image. */
int object_evict(struct object *o, enum object_tier to);

/* The file is gone (no name, no handle): image, extents and dirty bytes are dropped. The chunks
 * go when a transaction that deleted the row is durable. */
void object_discard(struct object *o);

/* Calls fn for every object in memory that is dirty and has a name, least recently written first,
 * without locks held; a non-zero return ends the walk. wait_s: only those whose last writer closed (or, still
 * open, that were dirtied) at least so many seconds ago; dirtied by a mapping counts as closed.
 */
#define DIRTY_OPEN    1u /* also those with open writers */
#define DIRTY_PUT_OFF 2u /* also those whose next settle has been put off */
#define DIRTY_THREADS 4u /* fn is called by several threads at once */
int store_for_dirty(struct store *s, unsigned wait_s, unsigned which,
		    int (*fn)(void *arg, struct object *o), void *arg);

/* ---------------------------------------------------------------------------------------------
 * meta: rows of meta.db
 */

/* The highest number that an inode, a chunk or a dentry may have: no store gets half as far as a column, and
 * there is always a next one. */
#define META_NUMBER_MAX ((uint64_t)1 << 62)

struct meta_inode {
	uint64_t ino;
	uint32_t mode; /* type and permissions */
	uint32_t uid, gid;
	uint32_t nlink;
	uint32_t rdev;
	uint32_t flags; /* META_PIN, META_CODEC(), META_LAYOUT */
	uint64_t size;  /* directories: 0; symlinks: length of the target */
	struct timespec atime, mtime, ctime, btime;
	char *target; /* symlinks: owned by the struct, freed by meta_inode_done(); else NULL */
};
#define META_PIN           1u
#define META_CODEC_MASK    0x70u
#define META_CODEC(choice) ((uint32_t)(choice) << 4)
#define META_LAYOUT        0x80u /* of files and directories: the xattr META_LAYOUT_XATTR says what */
#define META_LAYOUT_XATTR  "user.kvfs.layout"
/* What a new inode has from its directory; of the last, the xattr too. */
#define META_INHERITED (META_PIN | META_CODEC_MASK | META_LAYOUT)
void meta_inode_done(struct meta_inode *i);

/* A number that is no choice, which only another kvfs or an accident has written, is none. */
static inline enum codec_choice meta_codec_of(uint32_t flags)
{
	uint32_t choice = (flags & META_CODEC_MASK) >> 4;

	return choice < CODEC_CHOICES ? (enum codec_choice)choice : CODEC_CHOICE_STORE;
}

struct meta_dentry {
	uint64_t id; /* grows with every name made; the readdir cookie */
	uint64_t parent;
	uint64_t ino;
	uint32_t mode;    /* type bits of the inode */
	const char *name; /* NUL-terminated, any other byte but '/' */
};
/* A name that a directory can have. */
bool meta_name_ok(const char *name);

/* Reads see committed rows only. Safe from any thread (one reader connection a thread or a pool).
 * -ENOENT when there is no such row. */
int meta_get_inode(struct store *s, uint64_t ino, struct meta_inode *ret);
int meta_lookup(struct store *s, uint64_t parent, const char *name, struct meta_dentry *ret);
/* Names of a directory in order of id, from the first id > after; fn returns non-zero to stop,
 * which is returned. The dentry is valid during the call only. */
int meta_list(struct store *s, uint64_t parent, uint64_t after,
	      int (*fn)(void *arg, const struct meta_dentry *d), void *arg);
int meta_get_xattrs(struct store *s, uint64_t ino,
		    int (*fn)(void *arg, const char *name, const void *value, size_t len),
		    void *arg);
uint64_t meta_max_ino(struct store *s);       /* the highest ino ever committed or reserved */
uint64_t meta_max_dentry_id(struct store *s); /* likewise */
uint64_t meta_count_inodes(struct store *s);

/*
 * One transaction at a time; begin waits for the other. meta_commit(durable): when it returns 0
 * and durable was true, this and all earlier transactions survive power loss. The caller has
 * made the data durable (store_sync_data) after the last object_settle() of a file it puts.
 * meta_abort rolls back, in memory too. A failed commit is rolled back: -ENOSPC, -EIO.
 */
int meta_begin(struct store *s, struct meta_txn **ret);
int meta_put_inode(struct meta_txn *t, const struct meta_inode *i);
/* As meta_put_inode, and the object's settled extents with it, with the size they belong to.
 * *ret_gen: the settled generation that was written. */
int meta_put_file(struct meta_txn *t, const struct meta_inode *i, struct object *o,
		  uint64_t *ret_gen);
/* Removes the inode, its xattrs and, for a file, its extents. */
int meta_del_inode(struct meta_txn *t, uint64_t ino);
int meta_put_dentry(struct meta_txn *t, const struct meta_dentry *d); /* replaces (parent, name) */
int meta_del_dentry(struct meta_txn *t, uint64_t parent, const char *name);
int meta_put_xattr(struct meta_txn *t, uint64_t ino, const char *name, const void *v, size_t len);
int meta_del_xattr(struct meta_txn *t, uint64_t ino, const char *name);
int meta_commit(struct meta_txn *t, bool durable);
void meta_abort(struct meta_txn *t);

/* ---------------------------------------------------------------------------------------------
 * journal
 *
 * Records are after-images: "this name is now that inode", "this inode now has these attributes".
 * Replaying them all, in order, over any committed state that is older than the last of them gives
 * the state at the kill, so a record may stay in the journal after its content was committed.
 * A group is applied whole or not at all. Appending costs a memcpy under a lock.
 */
#define JOURNAL_NAMESPACE 64u /* types from here on belong to fs/; below, to store/ */

struct journal_record {
	uint32_t type;
	uint32_t len;
	const void *data;
};

/* -ENOSPC when it is full even after a checkpoint; -EROFS when mounted read-only. */
int journal_append(struct store *s, const struct journal_record *rec, unsigned n);

/* Hands every namespace record left by a killed daemon to fn, in order. To be called once, between
 * store_open and store_start. Group borders: fn is called with rec NULL after each group. */
int journal_replay(struct store *s, int (*fn)(void *arg, const struct journal_record *rec),
		   void *arg);

/* True when the journal holds so much that a checkpoint is worth it. */
bool journal_wants_checkpoint(struct store *s);

/*
 * Rewrites the journal to what is still needed: store/ writes its own records, then fn is called to
 * write those of the namespace with journal_checkpoint_append(). The caller keeps its namespace
 * from changing meanwhile. The old journal stays until the new one is whole.
 */
struct journal_checkpoint;
int journal_checkpoint(struct store *s, int (*fn)(void *arg, struct journal_checkpoint *c),
		       void *arg);
int journal_checkpoint_append(struct journal_checkpoint *c, const struct journal_record *rec,
			      unsigned n);

/* ---------------------------------------------------------------------------------------------
 * fsck: is a store that is not mounted what it should be, and what can be made of it
 */
enum fsck_remedy {
	FSCK_MENDED, /* repair puts it right (or: has done so) */
	FSCK_KEPT, /* reads of that range, or file, give EIO and go on to: nothing gives it back */
};

/* One thing that is wrong. Strings are valid during the call only. */
struct fsck_finding {
	const char *kind;   /* a word for programs, such as "nlink" */
	uint64_t ino;       /* 0: not about an inode */
	const char *path;   /* of ino below the mount, as far as its names lead to the root; NULL */
	uint64_t off, len;  /* the bytes of the file; len 0: not about a range */
	const char *what;   /* is wrong */
	const char *repair; /* what repair does about it */
	enum fsck_remedy remedy;
};

struct fsck_options {
	const char *path; /* of the store */
	bool repair;
	bool deep;        /* read every payload too */
	unsigned threads; /* that read segments; 0: one a processor */
	void *arg;
	void (*found)(void *arg, const struct fsck_finding *f);
	/* Bytes of segments looked at, of so many; from the thread that called, several times a second. */
	void (*progress)(void *arg, uint64_t bytes, uint64_t total);
	const volatile int *cancel; /* not 0: stop as soon as can be, with -ECANCELED; NULL */
};

struct fsck_result {
	uint64_t inodes, files, directories, names, xattrs, extents, chunks, segments;
	uint64_t logical_bytes; /* sizes of files */
	uint64_t stored_bytes;  /* records of chunks that are used */
	uint64_t dead_bytes;    /* of those that are not */
	uint64_t payload_bytes; /* read and verified */
	uint64_t mended, kept;  /* findings; without repair mended are those that it would mend */
	bool repaired;          /* meta.db was replaced, or a segment's header written */
};

/*
 * Checks the store and, asked to, repairs it. Takes the store's lock: -EBUSY when it is mounted; without
 * repair nothing in the store changes. Repair works on a copy of meta.db and renames it into place when it
 * was checked and is durable; the one before is kept as meta.db.before-fsck. It may be killed at any
 * moment and run again. What cannot be read stays what it is: EIO, never other bytes.
 * Memory: 76 to 114 bytes a chunk, 40 to 60 an inode, more for what is wrong, and 3 MiB a thread. err says why it failed: -EMEDIUMTYPE, no store or of
 * another format; -ECANCELED; others of the system.
 */
int store_fsck(const struct fsck_options *opt, struct fsck_result *ret, struct store_error *err);

/* ---------------------------------------------------------------------------------------------
 * analyze: what a store would make of bytes anywhere, without one
 */
enum analyze_element {
	ELEMENT_NOISE, /* nothing gains a sixty-fourth */
	ELEMENT_OTHER, /* text, padding: lz4 does best */
	ELEMENT_BF16,
	ELEMENT_FP16,
	ELEMENT_E4M3,
	ELEMENT_E5M2,
	ELEMENT_F32,
	ELEMENTS,
};
const char *analyze_element_name(enum analyze_element e);

/* What is measured for each of the choices lz4, fast and dense, in this order. */
#define ANALYZE_CHOICES 3
extern const enum codec_choice analyze_choices[ANALYZE_CHOICES];

/* Bytes but for the times. Sums may be added. */
struct analysis {
	uint64_t size;
	uint64_t holes;  /* that would not be stored */
	uint64_t shared; /* in chunks seen before, in this file or an earlier one */
	uint64_t chunks; /* number of those that were not; their raw bytes are size - holes - shared */
	uint64_t element[ELEMENTS]; /* raw bytes of those by what is in them */
	struct {
		uint64_t stored, encode_ns, decode_ns;
	} by[ANALYZE_CHOICES];
};

struct analyzer;
int analyzer_new(struct analyzer **ret);
void analyzer_free(struct analyzer *a); /* NULL is fine */
/* Reads the whole file; what it shares with those read before counts as shared. done: called with the
 * bytes as they are. One thread. */
int analyzer_file(struct analyzer *a, int fd, void (*done)(void *arg, uint64_t bytes), void *arg,
		  struct analysis *ret);

#endif
