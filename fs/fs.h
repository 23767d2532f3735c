/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs: the file system behind the mount. Namespace, inodes, open files, attributes, xattrs, and the
 * control files under .kvfs.
 *
 * The only header of fs/ that other folders include. Its user opens a store, makes a struct fs on
 * it, hands fs_ops() with that struct fs as user data to a FUSE session, runs the session's loop
 * and stops it all in the reverse order:
 *
 *   static struct fs *slot;                         the argument of the hooks, NULL at first
 *   hooks = { .arg = &slot, .changed = fs_hook_changed, .pressure = fs_hook_pressure, .log = ... }
 *   store_open(), fs_new(&opt, &slot, &err), fuse_session_new(.., fs_ops(), .., slot),
 *   fuse_session_mount(), fs_attach(slot, se), store_start(), fs_start(slot),
 *   fuse_session_loop_mt(), fs_stop(slot), fuse_session_unmount() and _destroy(),
 *   store_close(), fs_free(slot)
 *
 * fs_free() comes last because the hooks may be called until store_close() returns.
 *
 * Errors are negative errno. Nothing here prints; what a person should know goes to log.
 */
#ifndef KVFS_FS_H
#define KVFS_FS_H

#include <stdbool.h>
#include <stdint.h>

struct fs;
struct fuse_lowlevel_ops;
struct fuse_session;
struct store;
struct store_error;

/* For tests: behave as a kernel that lacks something. */
#define FS_MASK_NO_PASSTHROUGH 1u /* before 6.9 */
#define FS_MASK_NO_DIRECT_MMAP 2u /* before 6.6, so without passthrough too: cached mode */

struct fs_options {
	struct store *store;    /* opened, not started; outlives the struct fs */
	const char *mountpoint; /* absolute, without symbolic links; copied */
	unsigned commit_s;      /* settle and commit what was closed so long ago */
	bool passthrough;       /* wanted; whether it works shows in the status */
	bool allow_other;       /* for the status alone */
	bool read_only;
	bool noatime;       /* an open for reading leaves atime as it is */
	uint32_t test_mask; /* FS_MASK_* */
	/* As the hook of the store. Any thread; may be NULL. */
	void (*log)(void *arg, int level, const char *line);
	void *log_arg;
};

/*
 * Recovers the namespace: what meta.db holds and, over it, what a killed daemon left in the
 * journal. On failure *ret is untouched and err says why in one line.
 */
int fs_new(const struct fs_options *opt, struct fs **ret, struct store_error *err);

/* The handlers; the session's user data is the struct fs. */
const struct fuse_lowlevel_ops *fs_ops(void);

/* The session notifications go to. Before fs_start(). */
void fs_attach(struct fs *fs, struct fuse_session *se);

/* Starts the threads: commit, settle, notify. May be called before the kernel's first request. */
int fs_start(struct fs *fs);

/*
 * Once no request is served any more: settles and commits everything durably, stops the threads
 * and lets go of every object. The error of what could not be made durable; it stays in the
 * journal and in the run directory then. Also undoes an fs_new() without fs_start().
 */
int fs_stop(struct fs *fs);

/* After fs_stop() and store_close(). NULL is fine. */
void fs_free(struct fs *fs);

/* The text of .kvfs/status and .kvfs/metrics, to be freed; NULL when memory is short. */
char *fs_status_json(struct fs *fs);
char *fs_metrics_text(struct fs *fs);

/* Hooks of the store; slot is a struct fs **, and calls are ignored while *slot is NULL. */
void fs_hook_changed(void *slot, uint64_t ino);
void fs_hook_pressure(void *slot);

#endif
