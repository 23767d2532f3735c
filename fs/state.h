/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state: struct fs, what all of fs/ hangs off, and the small modules that have no header of their
 * own.
 *
 * Locks, outermost first; who holds one may take those after it:
 *   open lock (one of fs->open_locks, by inode)   backing ids and counts of handles
 *   fs->lock                                      the namespace, and what says so below
 *   the locks of handles, notifier, prefetcher, memcg: leaves
 * Functions of store/ that may wait for I/O are called with none of them but an open lock.
 */
#ifndef FS_STATE_H
#define FS_STATE_H

#define FUSE_USE_VERSION 317
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "fs/fs.h"
#include "fs/known.h"
#include "fs/list.h"
#include "fs/namespace.h"
#include "store/store.h"

#define MAX_IO     (1u << 20) /* bytes of a READ or WRITE */
#define READ_AHEAD (4u << 20) /* through the page cache; the kernel's default of 128 KiB is small */
#define OPEN_LOCKS 64u

/* The kernel may keep names, present or not, and attributes as long as it likes: every change comes
 * through it, and of what does not (st_blocks after a settle, atime at an open) it is told. But not
 * of stores through a mapping, which nobody sees. */
#define ENTRY_TIMEOUT    3600.0
#define ATTR_TIMEOUT     3600.0
#define CHANGING_TIMEOUT 1.0 /* see attr_timeout() */

/* ---- requests.c: counters by opcode ---------------------------------------------------------- */

enum request {
	REQ_LOOKUP,
	REQ_FORGET,
	REQ_GETATTR,
	REQ_SETATTR,
	REQ_READLINK,
	REQ_MKNOD,
	REQ_MKDIR,
	REQ_UNLINK,
	REQ_RMDIR,
	REQ_SYMLINK,
	REQ_RENAME,
	REQ_LINK,
	REQ_OPEN,
	REQ_READ,
	REQ_WRITE,
	REQ_FLUSH,
	REQ_RELEASE,
	REQ_FSYNC,
	REQ_OPENDIR,
	REQ_READDIR,
	REQ_READDIRPLUS,
	REQ_RELEASEDIR,
	REQ_FSYNCDIR,
	REQ_STATFS,
	REQ_SETXATTR,
	REQ_GETXATTR,
	REQ_LISTXATTR,
	REQ_REMOVEXATTR,
	REQ_CREATE,
	REQ_TMPFILE,
	REQ_FALLOCATE,
	REQ_LSEEK,
	REQ_COPY_FILE_RANGE,
	REQ_COUNT,
};
const char *request_name(enum request r);

/* ---- notify.c: telling the kernel ------------------------------------------------------------ */

struct notifier {
	pthread_mutex_t flushing; /* held while the kernel writes back for a seek; taken first */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread;
	bool running, stop;
	bool overflow;  /* some were not queued: every cached stored size is in doubt */
	bool readahead; /* raise the read-ahead of our mount */
	struct notices {
		struct notice {
			uint64_t ino;
			bool stored;      /* see notify_stored() */
			int64_t until_ms; /* 0: not tried yet */
		} * v;
		size_t n, cap;
	} queue, again; /* again: the thread's own */
};
void notify_init(struct fs *fs);
int notify_start(struct fs *fs);
void notify_stop(struct fs *fs);
/* Attributes that the kernel may have are not so any more. */
void notify_queue(struct fs *fs, uint64_t ino);
/* Before the answer to a change of attributes that the kernel does not order with a stat on its way:
 * what that brings is dropped. For handlers whose request holds the inode; no lock is held. */
void notify_changed(struct fs *fs, uint64_t ino);
/* As notify_queue() of what a file takes: nothing is said if that is what stat() showed last. */
void notify_stored(struct fs *fs, uint64_t ino);
/* Soon after the INIT request, when the mount is there. */
void notify_raise_readahead(struct fs *fs);

/* ---- prefetch.c: the next files of a session ------------------------------------------------- */

#define PREFETCH_QUEUE 16u

struct prefetcher {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread;
	bool running, stop;
	unsigned head, n;
	struct prefetch_task {
		uint64_t dir;
		char name[NAME_LIMIT + 1];
	} task[PREFETCH_QUEUE];
};
void prefetch_init(struct fs *fs);
int prefetch_start(struct fs *fs);
void prefetch_stop(struct fs *fs);
/* A cold file of this directory was opened. Drops the task when busy. */
void prefetch_after(struct fs *fs, uint64_t dir, const char *name);

/* ---- copier.c: threads that copy files ------------------------------------------------------- */

#define COPIERS 64u

struct copiers {
	pthread_mutex_t lock;
	struct copier {
		pid_t pid;
		uint64_t opened; /* the file it opened last, if settled and for reading, until its close */
		int64_t opened_ms;
		int64_t copied_ms; /* that it shared content; 0: not lately */
	} slot[COPIERS];
};
void copier_init(struct fs *fs);
/* The thread opened settled content for reading; a handle that it opened is closed. */
void copier_opened(struct fs *fs, pid_t pid, uint64_t ino);
void copier_closed(struct fs *fs, pid_t pid, uint64_t ino);
/* And now makes a file right behind that: probably a copy of it. */
bool copier_makes_copy(struct fs *fs, pid_t pid);
/* It shared content a moment ago, so it will not read what it opens now. */
bool copier_is_at_work(struct fs *fs, pid_t pid);
/* It does read. */
void copier_reads(struct fs *fs, pid_t pid);

/* ---- memcg.c: whom the pages will be charged to ----------------------------------------------- */

#define MEMCG_CACHE 256u
#define MEMCG_PATHS 32u
#define MEMCG_PATH  512u

struct memcg {
	pthread_mutex_t lock;
	char own[MEMCG_PATH]; /* a line of /proc/PID/cgroup, as below */
	struct {
		pid_t pid;
		bool ours;
		int64_t until_ms;
	} cache[MEMCG_CACHE];
	struct memcg_path {
		char line[MEMCG_PATH];
		bool is_free;
		int64_t until_ms;
	} path[MEMCG_PATHS];
};
void memcg_init(struct fs *fs);
/* Whether the process may be charged for pages of images: no memory cgroup that it is in and the
 * daemon is not has a limit. */
bool memcg_is_ours(struct fs *fs, pid_t pid);

/* ---- the whole ------------------------------------------------------------------------------- */

struct commit_request;

struct handle;
struct handles {
	pthread_mutex_t lock;
	struct handle **slot; /* a file handle is an index + 1 */
	uint32_t size, used;
	uint32_t free_head; /* index + 1 of a free slot; free ones are chained through next_free */
	uint32_t *next_free;
};

struct fs {
	struct store *store;
	struct fs_options opt;
	char *mountpoint;
	struct fuse_session *se;
	struct timespec started; /* CLOCK_MONOTONIC */

	pthread_mutex_t lock;
	/* From here to the next blank line: guarded by lock. */
	struct inode *inodes;
	struct dentry *dentries;
	struct inode *root;
	struct list resting; /* inode.rest_link, longest first */
	size_t n_resting;
	struct known known; /* files the kernel knows that are not in inodes */
	struct list dirty;  /* inode.dirty_link, oldest first */
	size_t n_dirty;
	size_t n_unsettled; /* of them, those with more than an atime */
	struct list vacant; /* dentry.child of clean vacant names, oldest first */
	unsigned n_vacant;
	struct list dirlists; /* dirlist.kept */
	size_t dirlist_bytes;
	struct inode *discards; /* to be done when the lock is given up */
	uint64_t next_ino, next_id;
	uint64_t dirty_seq;    /* grows with every inode that becomes dirty and every snapshot */
	uint64_t commit_seq;   /* grows when entries become clean: what was read before is stale */
	uint64_t mark;         /* of closures */
	uint64_t round;        /* of background commits */
	uint64_t last_size;    /* of the file closed last: a guess at that of a new one */
	uint64_t stored_epoch; /* starts at 1 */
	struct list evictions; /* inode.file.evict_link: closed, to be evicted */

	/* The committer; guarded by lock. */
	pthread_cond_t commit_wake; /* a request, a settle that ended, a round, the stop */
	pthread_cond_t commit_done; /* a request answered, a commit ended */
	pthread_t committer;
	struct list requests; /* commit_request.link */
	bool committer_runs, committer_stop;
	bool round_wanted;
	bool commit_kick; /* something happened since the committer looked */
	int commit_error; /* of the last transaction; 0: fine */

	/* The settler. */
	pthread_mutex_t settle_lock;
	pthread_cond_t settle_wake;
	pthread_t settler;
	bool settler_runs, settler_stop; /* settle_lock */
	bool pressure;                   /* settle_lock */

	pthread_mutex_t open_locks[OPEN_LOCKS];

	pthread_key_t buffer_key; /* file_buffer() */
	struct handles handles;
	struct notifier notifier;
	struct prefetcher prefetcher;
	struct memcg memcg;
	struct copiers copiers;

	/* Set by the INIT request or a failed registration, read anywhere. */
	atomic_bool passthrough;
	_Atomic(const char *) passthrough_why; /* a string literal; "" while it works */
	bool acls;                             /* the kernel checks ACLs; set by INIT */
	atomic_bool cached_mode;               /* neither passthrough nor direct I/O with mmap */
	_Atomic uint64_t requests_by[REQ_COUNT];
};

static inline struct fs *req_fs(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static inline void count(struct fs *fs, enum request r)
{
	atomic_fetch_add_explicit(&fs->requests_by[r], 1, memory_order_relaxed);
}

static inline bool ino_is_virtual(uint64_t ino)
{
	return ino != INO_ROOT && ino < INO_FIRST;
}

static inline pthread_mutex_t *open_lock(struct fs *fs, uint64_t ino)
{
	return &fs->open_locks[ino % OPEN_LOCKS];
}

/* Gives up the lock, and then tells the store of files that went away under it. */
void ns_unlock(struct fs *fs);
void ns_lock(struct fs *fs);
/* The lock is held and given up for the wait. timeout_ms < 0: none. False when it ran out. */
bool ns_wait(struct fs *fs, pthread_cond_t *cond, int timeout_ms);

__attribute__((format(printf, 3, 4))) void fs_log(struct fs *fs, int level, const char *fmt, ...);
int64_t clock_ms(void);           /* monotonic */
struct timespec clock_wall(void); /* as the kernel stamps files: coarse */
void cond_init_monotonic(pthread_cond_t *cond);
/* False when the time ran out. */
bool cond_wait_ms(pthread_cond_t *cond, pthread_mutex_t *lock, int timeout_ms);
static inline bool time_after(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

#endif
