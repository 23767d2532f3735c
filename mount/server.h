/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mount from beginning to end, shared by the files that make it: check.c before anything is
 * changed, signals.c for its end, serve.c for all between.
 */
#ifndef KVFS_MOUNT_SERVER_H
#define KVFS_MOUNT_SERVER_H

#include "mount/mount.h"

#include <pthread.h>
#include <stdatomic.h>

struct fs;
struct fuse_session;
struct store;

struct server {
	struct mount_request *req;
	char store_path[PATH_MAX], point[PATH_MAX];
	struct store *store;
	struct fs *fs; /* its address is the argument of the store's hooks */
	struct fuse_session *se;
	bool mounted, started, pidfile;

	pthread_t main_thread, signal_thread;
	bool signal_thread_runs;
	atomic_bool looped; /* the session loop has ended */
};

/* Mount point, store path, device, rights. Resolves the paths; negative after complaining. */
int server_check(struct server *s);
/* Makes the mounted session read its requests as device.c does. Negative errno. */
int device_use(struct fuse_session *se);

/* Blocks SIGTERM, SIGINT and SIGHUP in this and all later threads. Those that come while the mount
 * is on its way up are kept until it is up. */
void signals_block(void);
/* From here on such a signal settles everything and then ends the session's loop, which the
 * calling thread is about to run. */
int signals_begin(struct server *s);
/* The loop has ended: nothing interrupts the calls of this thread any more. */
void signals_loop_ended(struct server *s);
/* The signals stay blocked: a second one must not kill a daemon that settles. To be called when
 * the session is closed, so that a wait for an answer of the daemon itself has ended. */
void signals_end(struct server *s);

#endif
