/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which the layers come up, the FUSE session, and the way down, which ends only when
 * all is durable.
 */
#include "mount/server.h"

#include "fs/fs.h"
#include "store/store.h"

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 17)
#include <fuse_lowlevel.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#define MAX_THREADS      64
#define MAX_IDLE_THREADS 16

/* ---- The way up ------------------------------------------------------------------------------- */

/* The layers know best what is wrong; should they say nothing, the errno does. */
static void complain_layer(const struct server *s, const char *what, int r,
			   const struct store_error *err)
{
	if (*err->text)
		complain("%s", err->text);
	else
		complain("%s: %s: %s: see kvfs(8)", s->store_path, what, strerror(-r));
}

static int server_open_store(struct server *s)
{
	const struct mount_options *o = &s->req->opt;
	struct store_options so = {
		.path = s->store_path,
		.rundir = o->rundir,
		.hot_bytes = o->hot,
		.warm_bytes = o->warm,
		.index_bytes = o->index,
		.scrub_rate = o->scrub,
		.idle_s = o->idle_s,
		.open_wait_ms = o->open_wait_ms,
		.codec = o->codec,
		.dedup = o->dedup,
		.read_only = o->read_only,
		.same_hash = o->testmask & TESTMASK_SAME_HASH,
		.hooks = { .arg = &s->fs,
			   .log = log_hook,
			   .changed = fs_hook_changed,
			   .pressure = fs_hook_pressure },
	};
	struct store_error err = { "" };
	int r = store_open(&so, &s->store, &err);

	if (r < 0)
		complain_layer(s, "cannot be opened", r, &err);
	return r;
}

static int server_new_fs(struct server *s)
{
	const struct mount_options *o = &s->req->opt;
	struct fs_options fo = {
		.store = s->store,
		.mountpoint = s->point,
		.commit_s = o->commit_s,
		.passthrough = !o->nopassthrough,
		.allow_other = o->allow_other,
		.read_only = o->read_only,
		.noatime = o->noatime,
		.log = log_hook,
	};
	struct store_error err = { "" };
	int r;

	if (o->testmask & TESTMASK_NO_PASSTHROUGH)
		fo.test_mask |= FS_MASK_NO_PASSTHROUGH;
	if (o->testmask & TESTMASK_NO_DIRECT_MMAP)
		fo.test_mask |= FS_MASK_NO_DIRECT_MMAP;
	r = fs_new(&fo, &s->fs, &err);
	if (r < 0)
		complain_layer(s, "its names cannot be recovered", r, &err);
	return r;
}

static void add(char **opts, const char *word, int *r)
{
	if (*r == 0 && fuse_opt_add_opt(opts, word) < 0)
		*r = -ENOMEM;
}

/* libfuse sets nodev and nosuid unless told otherwise, and only root may tell it so. */
static int fuse_options(const struct server *s, char **ret)
{
	const struct mount_options *o = &s->req->opt;
	bool root = geteuid() == 0;
	char fsname[PATH_MAX + 8], *opts = NULL;
	int r = 0;

	snprintf(fsname, sizeof(fsname), "fsname=%s", s->store_path);
	if (fuse_opt_add_opt_escaped(&opts, fsname) < 0)
		r = -ENOMEM;
	add(&opts, "subtype=kvfs", &r);
	add(&opts, "default_permissions", &r);
	if (o->allow_other)
		add(&opts, "allow_other", &r);
	if (o->read_only)
		add(&opts, "ro", &r);
	if (root && !o->nodev)
		add(&opts, "dev", &r);
	if (root && !o->nosuid)
		add(&opts, "suid", &r);
	if (o->noexec)
		add(&opts, "noexec", &r);
	if (o->noatime)
		add(&opts, "noatime", &r);
	if (o->nodiratime)
		add(&opts, "nodiratime", &r);
	if (r < 0)
		free(opts);
	else
		*ret = opts;
	return r;
}

static int server_new_session(struct server *s)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	char *opts = NULL;
	int r = fuse_options(s, &opts);

	if (r == 0 && (fuse_opt_add_arg(&args, "kvfs") < 0 || fuse_opt_add_arg(&args, "-o") < 0 ||
		       fuse_opt_add_arg(&args, opts) < 0))
		r = -ENOMEM;
	if (r == 0) {
		s->se = fuse_session_new(&args, fs_ops(), sizeof(*fs_ops()), s->fs);
		if (!s->se)
			r = -EINVAL;
	}
	fuse_opt_free_args(&args);
	free(opts);
	return r;
}

static int server_mount(struct server *s)
{
	const char *why;
	int r;

	log_hold_fuse(true);
	r = server_new_session(s);
	if (r == 0 && fuse_session_mount(s->se, s->point) != 0)
		r = -EPERM;
	log_hold_fuse(false);
	s->mounted = r == 0;
	if (r == 0) {
		r = device_use(s->se);
		if (r < 0)
			complain("%s: cannot read requests: %s: free some memory", s->point,
				 strerror(-r));
		return r;
	}
	why = log_held_line();
	complain("%s: cannot mount: %s: %s", s->point, *why ? why : strerror(-r),
		 geteuid() == 0 ?
			 "see dmesg" :
			 "own the directory, have fusermount3 installed, or mount as root");
	return r;
}

static int server_start(struct server *s)
{
	int r;

	fs_attach(s->fs, s->se);
	r = store_start(s->store);
	if (r == 0)
		r = fs_start(s->fs);
	s->started = r == 0;
	if (r == 0 && !s->req->opt.read_only) {
		r = daemon_pidfile_write(store_rundir(s->store));
		s->pidfile = r == 0;
	}
	if (r < 0)
		complain("%s: cannot start: %s: free memory or room in %s and mount again",
			 s->point, strerror(-r), store_rundir(s->store));
	return r;
}

static int server_open(struct server *s)
{
	int r = server_open_store(s);

	if (r == 0)
		r = server_new_fs(s);
	if (r == 0)
		r = server_mount(s);
	if (r == 0)
		r = server_start(s);
	return r;
}

/* ---- Serving, and the way down ---------------------------------------------------------------- */

static int server_loop(struct server *s)
{
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	int r;

	if (!config)
		return -ENOMEM;
	fuse_loop_cfg_set_clone_fd(config, 0);
	fuse_loop_cfg_set_max_threads(config, MAX_THREADS);
	fuse_loop_cfg_set_idle_threads(config, MAX_IDLE_THREADS);
	r = fuse_session_loop_mt(s->se, config);
	fuse_loop_cfg_destroy(config);
	if (r < 0)
		log_line(LOG_ERR, "%s: the FUSE session ended: %s", s->point, strerror(-r));
	return r < 0 ? r : 0;
}

static void log_loss(const struct server *s, int r)
{
	struct store_status st;
	char bytes[SIZE_TEXT];

	store_status(s->store, &st);
	log_line(LOG_ERR,
		 "%s: the final settle failed: %s: %s are not in the store, and lost if %s is lost "
		 "(a reboot); mend the store and mount it again before",
		 s->store_path, strerror(-r), size_format(st.dirty_bytes, bytes), st.rundir);
}

/* As root; libfuse would run umount(8), which is refused by then. The descriptor tells whether
 * somebody has unmounted it already: what is at that place now may be another's. */
static void unmount_own(const struct server *s)
{
	struct pollfd p = { .fd = fuse_session_fd(s->se) };

	if (geteuid() == 0 && poll(&p, 1, 0) == 0)
		umount2(s->point, MNT_DETACH | UMOUNT_NOFOLLOW);
}

/* Accepts what server_open() left half done. What could not be settled stays in the run directory,
 * so that the next mount can. */
static int server_close(struct server *s)
{
	int r = 0;

	if (s->fs) {
		r = fs_stop(s->fs);
		if (r < 0)
			log_loss(s, r);
	}
	if (s->mounted) {
		unmount_own(s);
		fuse_session_unmount(s->se);
	}
	signals_end(s);
	if (s->se)
		fuse_session_destroy(s->se);
	if (s->pidfile)
		daemon_pidfile_remove(store_rundir(s->store));
	/* A file system that never started has committed nothing of what it found. */
	if (s->store)
		store_close(s->store, r == 0 && (s->started || !store_recovered(s->store)));
	fs_free(s->fs);
	return r;
}

static void say_privileges(const struct server *s)
{
	if (!daemon_privileged() && !s->req->opt.nopassthrough)
		log_line(LOG_NOTICE,
			 "%s: no passthrough without CAP_SYS_ADMIN: all data goes through the "
			 "daemon; mount as root for full speed",
			 s->point);
}

/* A kernel or a container that does not let it is no reason not to serve. */
static void give_up(const struct server *s, int r)
{
	if (r < 0)
		log_line(LOG_WARNING, "%s: the daemon keeps more rights than it needs: %s",
			 s->point, strerror(-r));
}

static int server_serve(struct server *s)
{
	int r = signals_begin(s), closed;

	if (r == 0) {
		say_privileges(s);
		give_up(s, privileges_filter());
		if (!s->req->foreground)
			log_open(LOG_TO_SYSLOG);
		log_line(LOG_INFO, "%s: mounted, store %s", s->point, s->store_path);
		daemon_ready();
		r = server_loop(s);
		signals_loop_ended(s);
	}
	closed = server_close(s);
	if (r == 0 && closed == 0)
		log_line(LOG_INFO, "%s: unmounted, everything is durable", s->point);
	return r < 0 ? r : closed;
}

/* ---- The command ------------------------------------------------------------------------------ */

/* In the process that stays, or that becomes the daemon. */
static int server_main(struct mount_request *req)
{
	struct server *s = calloc(1, sizeof(*s));
	int r;

	if (!s) {
		complain("out of memory: free some");
		return KVFS_EXIT_FAILED;
	}
	s->req = req;
	signals_block();
	r = server_check(s);
	/* All paths are absolute now; the caller's directory may be on a drive to be removed. */
	if (r == 0 && chdir("/") < 0)
		r = -errno;
	if (r == 0)
		give_up(s, privileges_drop());
	if (r == 0) {
		r = server_open(s);
		if (r == 0)
			r = server_serve(s);
		else
			server_close(s);
	}
	free(s);
	return r < 0 ? KVFS_EXIT_FAILED : KVFS_EXIT_OK;
}

/* Waits for the daemon's answer to the kernel's first request, so a mount that was reported is one
 * that works. */
static int check_answer(const struct mount_request *req)
{
	struct stat st;

	if (stat(req->mountpoint, &st) == 0)
		return KVFS_EXIT_OK;
	complain("%s: mounted, but does not answer: %s: see the system's log", req->mountpoint,
		 strerror(errno));
	return KVFS_EXIT_FAILED;
}

int serve_mount(struct mount_request *req)
{
	char err[OPTIONS_ERROR];
	int status = -1, r;

	if (options_check(&req->opt, err) < 0) {
		complain("%s", err);
		return KVFS_EXIT_USAGE;
	}
	if (req->fake)
		return KVFS_EXIT_OK;
	daemon_prepare();
	log_open(req->foreground ? LOG_TO_STDERR : LOG_TO_TERMINAL);
	if (!req->foreground) {
		r = daemon_fork(&status);
		if (r < 0) {
			complain("cannot start the daemon: %s: end some processes", strerror(-r));
			return KVFS_EXIT_FAILED;
		}
	}
	if (status < 0)
		return server_main(req);
	return status == KVFS_EXIT_OK ? check_answer(req) : status;
}
