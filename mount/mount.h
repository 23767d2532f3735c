/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount: the program. Command line, mount options, the FUSE session and the subcommands.
 *
 * Private to mount/. Everything here runs on behalf of a person at a terminal or of mount(8): it
 * may print. What it prints about a failure is one line that names the thing, what is wrong with
 * it and what to do.
 */
#ifndef KVFS_MOUNT_H
#define KVFS_MOUNT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "store/store.h"

/* ---- Exit codes --------------------------------------------------------------------------------
 */
enum {
	KVFS_EXIT_OK = 0,
	KVFS_EXIT_FAILED = 1,
	KVFS_EXIT_USAGE = 2,
};

/* ---- main.c and one file a command -------------------------------------------------------------
 * argv[0] is what --help shows as the program. Each returns the exit code.
 */
int cmd_mount(int argc, char **argv);
int cmd_mount_helper(int argc, char **argv); /* as mount(8) calls mount.kvfs */
int cmd_umount(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_evict(int argc, char **argv);
int cmd_prefetch(int argc, char **argv);
int cmd_gc(int argc, char **argv);
int cmd_analyze(int argc, char **argv);
int cmd_fsck(int argc, char **argv);
int cmd_gpu_check(int argc, char **argv);

void version_print(void);

/* ---- arguments.c -------------------------------------------------------------------------------
 * argp_parse(3), with one line that says what to do for an option that is wrong. */
struct argp;
void arguments_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* ---- size.c: sizes as people write them --------------------------------------------------------
 * Binary units: 1.5G is 1.5 * 2^30 bytes. "25%" is a share of whole, allowed when whole is not 0.
 * -EINVAL: not a size. -ERANGE: more than 64 bits hold, or more than 100%. *ret untouched then.
 */
int size_parse(const char *text, uint64_t whole, uint64_t *ret);

#define SIZE_TEXT 16
/* At most SIZE_TEXT bytes with the NUL: "512", "1.5G", "23M". Returns buf. */
const char *size_format(uint64_t bytes, char buf[static SIZE_TEXT]);

/* A whole number from min to max and nothing else. -EINVAL, -ERANGE. */
int number_parse(const char *text, uint64_t min, uint64_t max, uint64_t *ret);

/* ---- options.c: what follows -o ----------------------------------------------------------------
 */
#define TESTMASK_NO_PASSTHROUGH 1u
#define TESTMASK_NO_DIRECT_MMAP 2u
#define TESTMASK_SAME_HASH      4u

#define OPTIONS_ERROR 512

struct mount_options {
	uint64_t memory; /* of the machine: what a percentage is of, and the limit. Bytes */
	uint64_t hot, warm, index; /* bytes; 0: the store's default */
	uint64_t scrub;            /* bytes/s; 0: off */
	unsigned idle_s, commit_s, open_wait_ms;
	enum codec_choice codec;
	enum dedup_scope dedup;
	bool nopassthrough;
	bool allow_other;
	bool read_only;
	bool nodev, nosuid, noexec, noatime, nodiratime; /* flags of the mount itself */
	bool sloppy;       /* ignore options nobody knows (mount -s) */
	unsigned testmask; /* TESTMASK_*; for tests alone */
	char *rundir;      /* absolute; NULL: the store chooses */
};

/* Defaults, for a machine of so many bytes of memory. */
void options_init(struct mount_options *o, uint64_t memory);
void options_done(struct mount_options *o);
uint64_t options_machine_memory(void);

/* One comma-separated list; may be called again for a further -o. -EINVAL with a line in err. */
int options_parse(struct mount_options *o, const char *list, char err[static OPTIONS_ERROR]);

/* Whether the options make sense together. -EINVAL with a line in err. */
int options_check(const struct mount_options *o, char err[static OPTIONS_ERROR]);

/* ---- log.c: where lines go ---------------------------------------------------------------------
 * State of the process, like syslog(3): libfuse's log function and signal-time code have no
 * argument to carry it in. Any thread may log.
 */
enum log_target {
	LOG_TO_TERMINAL, /* "kvfs: warning: line", and nothing that is as it should be */
	LOG_TO_STDERR,   /* the same, with all but debugging: somebody keeps it */
	LOG_TO_SYSLOG,
};
void log_open(enum log_target target);
__attribute__((format(printf, 2, 3))) void log_line(int level, const char *fmt, ...);
/* For hooks: a finished line. */
void log_hook(void *arg, int level, const char *line);
/* From here on the lines of libfuse are kept back; the last of them is in log_held_line(). */
void log_hold_fuse(bool hold);
const char *log_held_line(void);

/* For commands, and for a mount that fails: "kvfs: ..." on stderr, one line whatever is in it. */
__attribute__((format(printf, 1, 2))) void complain(const char *fmt, ...);
/* For a wrong command line: one line, and the end. */
__attribute__((format(printf, 2, 3), noreturn)) void usage_fail(const char *program,
								const char *fmt, ...);

/* ---- mounts.c: what is mounted where -----------------------------------------------------------
 */
struct mount_entry {
	unsigned major, minor; /* st_dev of what is in it */
	char type[64];         /* "fuse.kvfs" */
	char source[PATH_MAX];
	char point[PATH_MAX];
};
#define KVFS_FSTYPE "fuse.kvfs"

/* The topmost mount at exactly this absolute path. -ENOENT. */
int mounts_at(const char *point, struct mount_entry *ret);
/* The kvfs mount that path, absolute and resolved, lies in. -ENOENT: it lies in none. */
int mounts_kvfs_of(const char *path, struct mount_entry *ret);
/* The entry of one line of /proc/self/mountinfo. -EINVAL. */
int mounts_parse(const char *line, struct mount_entry *ret);

/* path made absolute, without symbolic links; the last component may be missing, or a mount
 * whose daemon is dead. */
int path_resolve(const char *path, char ret[static PATH_MAX]);
/* Whether path is dir or lies below it; both resolved. */
bool path_below(const char *path, const char *dir);

/* A call on a FUSE mount failed with that negative errno because its daemon is dead, or just died. */
bool mount_error_is_dead(int error);
bool mount_is_dead(const char *path);
/* Detaches or, with lazy false, unmounts: by umount2(2) as root, else through fusermount3. */
int mount_remove(const char *point, bool lazy);
/* Makes sure that something can be mounted at path, resolved into ret; a dead FUSE mount there is
 * removed. 0, or negative after complaining. */
int mountpoint_prepare(const char *path, char ret[static PATH_MAX]);

/* ---- users.c -----------------------------------------------------------------------------------
 * The processes that hold something of the mount, or that file, open or mapped, as "PID (name),
 * ...", for a message; "" when none is to be seen. Looks at a bounded number of descriptors. */
void users_of_mount(const struct mount_entry *m, char *ret, size_t size);
/* Those in whose mount namespace, another than the caller's, it is mounted too: there it stays. */
void users_of_mount_elsewhere(const struct mount_entry *m, char *ret, size_t size);
struct stat;
void users_of_file(const struct stat *st, char *ret, size_t size);

/* ---- daemon.c: what makes a process a daemon ---------------------------------------------------
 */
/* Limits of descriptors and of core dumps, umask, stray descriptors. Before the first thread. */
void daemon_prepare(void);
/* Forks. In the parent waits for daemon_ready() or the end of the child, and returns the exit code
 * in *ret_status (>= 0); in the child returns 0 and *ret_status is -1. Negative on failure. */
int daemon_fork(int *ret_status);
/* In the child of daemon_fork(), when all is well: own session, stdio to /dev/null, and the parent
 * is told. Without daemon_fork() does nothing. */
void daemon_ready(void);
/* RUNDIR/pid, for service managers. */
int daemon_pidfile_write(const char *rundir);
void daemon_pidfile_remove(const char *rundir);
/* CAP_SYS_ADMIN is in effect. */
bool daemon_privileged(void);

/* ---- privileges.c ------------------------------------------------------------------------------
 * Of daemons of root's; those of others have nothing to give up, and both do nothing there. */
/* Gives up all capabilities that serving does not need, and what exec could win. Before the first
 * thread. Negative errno. */
int privileges_drop(void);
/* Once mounted: system calls that a file server does not make fail in all threads, EPERM. Negative
 * errno; -EBUSY: a thread has a filter of its own. */
int privileges_filter(void);
/* This build knows how to. */
bool privileges_has_filter(void);

/* ---- serve.c -----------------------------------------------------------------------------------
 */
struct mount_request {
	const char *store;
	const char *mountpoint;
	bool foreground;
	bool fake; /* check the options, look at nothing else and mount nothing */
	struct mount_options opt;
};
/* Mounts and, in the daemon or with foreground, serves until unmounted. The exit code. */
int serve_mount(struct mount_request *req);

/* ---- control.c: talking to a mounted kvfs ------------------------------------------------------
 */
/* The kvfs mount that path lies in; with root true path must be its mount point. 0, or negative
 * after complaining. */
int control_find(const char *path, bool root, struct mount_entry *ret);
/* The same for any path, and its daemon must be alive. */
int control_find_live(const char *path, struct mount_entry *ret);
/* Says that the daemon of the mount is dead and what to do. -ENOTCONN. */
int control_complain_dead(const char *path);
/* The text of .kvfs/status below the mount point, to be freed. 0 or negative errno. */
int control_status_text(const char *point, char **ret);

/* ---- progress.c: a line on a terminal ----------------------------------------------------------
 */
struct progress {
	const char *verb; /* "evicting" */
	const char *unit; /* "files", unless set after the begin */
	bool shown;       /* stderr is a terminal and nobody asked for quiet */
	bool drawn;
	uint64_t files, bytes;             /* done */
	uint64_t total_files, total_bytes; /* 0: not known */
	double started, last;
};
void progress_begin(struct progress *p, const char *verb, bool quiet);
void progress_add(struct progress *p, unsigned files, uint64_t bytes);
/* Takes the line away, so that a message can be printed. */
void progress_clear(struct progress *p);

/* A terminal wide bar of used of whole in ret: "[####......]". */
#define BAR_TEXT 16
const char *bar_format(uint64_t used, uint64_t whole, char buf[static BAR_TEXT]);

#endif
