/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs: making, starting and stopping the whole; the INIT request and the table of handlers.
 */
#include "fs/commit.h"

#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#define MAX_BACKGROUND 64u

/* ---- hooks of the store ---- */

void fs_hook_changed(void *slot, uint64_t ino)
{
	struct fs *fs = *(struct fs **)slot;

	if (fs)
		notify_stored(fs, ino);
}

void fs_hook_pressure(void *slot)
{
	struct fs *fs = *(struct fs **)slot;

	if (fs)
		writeback_press(fs);
}

/* ---- INIT ---- */

static void want(struct fuse_conn_info *conn, uint64_t cap)
{
	if (conn->capable_ext & cap)
		fuse_set_feature_flag(conn, cap);
}

static void set_passthrough(struct fs *fs, bool on, const char *why)
{
	atomic_store(&fs->passthrough, on);
	atomic_store(&fs->passthrough_why, on ? "" : why);
}

static void init_passthrough(struct fs *fs, struct fuse_conn_info *conn)
{
	if (!fs->opt.passthrough)
		set_passthrough(fs, false, "switched off");
	else if (fs->opt.test_mask & (FS_MASK_NO_PASSTHROUGH | FS_MASK_NO_DIRECT_MMAP))
		set_passthrough(fs, false, "masked for a test");
	else if (!(conn->capable_ext & FUSE_CAP_PASSTHROUGH))
		set_passthrough(fs, false, "the kernel is older than 6.9");
	else if (geteuid() != 0)
		set_passthrough(fs, false, "not root: needs CAP_SYS_ADMIN");
	else
		set_passthrough(fs, true, "");
	if (!atomic_load(&fs->passthrough)) {
		fuse_unset_feature_flag(conn, FUSE_CAP_PASSTHROUGH);
		return;
	}
	fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH);
	/* Images lie on a tmpfs, which stacks on nothing; the run directory may be put elsewhere. */
	conn->max_backing_stack_depth = FUSE_BACKING_STACKED_OVER;
}

static void init_direct_mmap(struct fs *fs, struct fuse_conn_info *conn)
{
	bool direct = (conn->capable_ext & FUSE_CAP_DIRECT_IO_ALLOW_MMAP) &&
		      !(fs->opt.test_mask & FS_MASK_NO_DIRECT_MMAP);

	if (direct)
		fuse_set_feature_flag(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	else
		fuse_unset_feature_flag(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	/* In the cached mode every change of content goes through the kernel's pages. Throwing pages
	 * away because the times changed while a write is under way lets a mapping read the old
	 * bytes again and keep them. */
	if (direct)
		want(conn, FUSE_CAP_AUTO_INVAL_DATA);
	else
		fuse_unset_feature_flag(conn, FUSE_CAP_AUTO_INVAL_DATA);
	atomic_store(&fs->cached_mode, !direct);
}

/* With ACLs the umask counts only where none says otherwise, so it is for this side to apply. */
static void init_acls(struct fs *fs, struct fuse_conn_info *conn)
{
	uint64_t both = FUSE_CAP_POSIX_ACL | FUSE_CAP_DONT_MASK;

	fs->acls = (conn->capable_ext & both) == both;
	if (fs->acls)
		fuse_set_feature_flag(conn, both);
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs *fs = userdata;

	init_direct_mmap(fs, conn);
	init_passthrough(fs, conn);
	init_acls(fs, conn);
	/* Without it every passthrough write asks for security.capability. */
	want(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
	want(conn, FUSE_CAP_ATOMIC_O_TRUNC);
	want(conn, FUSE_CAP_PARALLEL_DIROPS);
	want(conn, FUSE_CAP_READDIRPLUS);
	want(conn, FUSE_CAP_READDIRPLUS_AUTO);
	want(conn, FUSE_CAP_ASYNC_READ);
	want(conn, FUSE_CAP_ASYNC_DIO);
	want(conn, FUSE_CAP_CACHE_SYMLINKS);
	fuse_unset_feature_flag(conn, FUSE_CAP_WRITEBACK_CACHE);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_READ);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_WRITE);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_MOVE);
	conn->max_write = MAX_IO;
	/* The kernel takes the smaller of this and what is set, be that raised before the answer or
	 * after it. */
	conn->max_readahead = READ_AHEAD;
	conn->max_background = MAX_BACKGROUND;
	conn->congestion_threshold = MAX_BACKGROUND * 3 / 4;
	/* Every request is answered in bounded time. */
	conn->no_interrupt = 1;
	notify_raise_readahead(fs);
}

static const struct fuse_lowlevel_ops ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.open = op_open,
	.read = op_read,
	.write = op_write,
	.flush = op_flush,
	.release = op_release,
	.fsync = op_fsync,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.fsyncdir = op_fsyncdir,
	.statfs = op_statfs,
	.setxattr = op_setxattr,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.removexattr = op_removexattr,
	.create = op_create,
	.tmpfile = op_tmpfile,
	.fallocate = op_fallocate,
	.lseek = op_lseek,
	.copy_file_range = op_copy_file_range,
};

const struct fuse_lowlevel_ops *fs_ops(void)
{
	return &ops;
}

/* ---- making ---- */

static void init_locks(struct fs *fs)
{
	pthread_mutex_init(&fs->lock, NULL);
	pthread_mutex_init(&fs->settle_lock, NULL);
	for (unsigned k = 0; k < OPEN_LOCKS; k++)
		pthread_mutex_init(&fs->open_locks[k], NULL);
	cond_init_monotonic(&fs->commit_wake);
	cond_init_monotonic(&fs->commit_done);
	cond_init_monotonic(&fs->settle_wake);
}

static int init(struct fs *fs, const struct fs_options *opt)
{
	fs->store = opt->store;
	fs->opt = *opt;
	fs->mountpoint = strdup(opt->mountpoint ? opt->mountpoint : "");
	fs->stored_epoch = 1;
	clock_gettime(CLOCK_MONOTONIC, &fs->started);
	list_init(&fs->dirty);
	list_init(&fs->resting);
	list_init(&fs->vacant);
	list_init(&fs->dirlists);
	list_init(&fs->evictions);
	list_init(&fs->requests);
	init_locks(fs);
	notify_init(fs);
	prefetch_init(fs);
	memcg_init(fs);
	copier_init(fs);
	handles_init(&fs->handles);
	set_passthrough(fs, false, "not mounted yet");
	if (pthread_key_create(&fs->buffer_key, free))
		return -ENOMEM;
	return fs->mountpoint ? 0 : -ENOMEM;
}

/* A new store: its root belongs to who mounts it first. */
static int make_root(struct fs *fs, struct inode **ret)
{
	struct meta_inode a = {
		.ino = INO_ROOT,
		.mode = S_IFDIR | 0755,
		.uid = geteuid(),
		.gid = getegid(),
		.nlink = 2,
	};
	struct nsop op;
	int r;

	a.atime = a.mtime = a.ctime = a.btime = clock_wall();
	r = inode_enter(fs, &a, false, ret);
	if (r)
		return r;
	(*ret)->refs++;
	if (fs->opt.read_only)
		return 0;
	nsop_begin(&op, fs);
	nsop_inode(&op, *ret);
	return nsop_run(&op);
}

static int load_root(struct fs *fs)
{
	int r;

	ns_lock(fs);
	r = inode_load(fs, INO_ROOT, &fs->root);
	if (r == -ENOENT)
		r = make_root(fs, &fs->root);
	if (r == 0 && !inode_is_dir(fs->root))
		r = -EUCLEAN;
	if (r == 0)
		fs->root->nlookup = 1;
	ns_unlock(fs);
	return r;
}

static void explain(struct store_error *err, const char *what, int r)
{
	if (err)
		snprintf(err->text, sizeof(err->text), "%s: %s", what, strerror(-r));
}

int fs_new(const struct fs_options *opt, struct fs **ret, struct store_error *err)
{
	struct fs *fs = calloc(1, sizeof(*fs));
	int r = fs ? init(fs, opt) : -ENOMEM;

	if (r) {
		explain(err, "cannot start", r);
		fs_free(fs);
		return r;
	}
	r = replay_run(fs);
	if (r)
		explain(err, "cannot recover what the last daemon left in its journal", r);
	if (r == 0) {
		r = load_root(fs);
		if (r)
			explain(err, "cannot read the root directory from meta.db", r);
	}
	if (r) {
		fs_stop(fs);
		fs_free(fs);
		return r;
	}
	*ret = fs;
	return 0;
}

void fs_attach(struct fs *fs, struct fuse_session *se)
{
	fs->se = se;
}

int fs_start(struct fs *fs)
{
	int r = notify_start(fs);

	if (r == 0)
		r = prefetch_start(fs);
	if (r || fs->opt.read_only)
		return r;
	r = commit_start(fs);
	return r ? r : writeback_start(fs);
}

/* ---- stopping ---- */

/* The kernel is gone, and what it held. */
static void release_kernel(struct fs *fs)
{
	struct handle *h;

	while ((h = handle_take_any(&fs->handles)))
		open_end(fs, h);
	ns_lock(fs);
	for (struct inode *i = fs->inodes; i; i = i->hh.next) {
		i->nlookup = 0;
		/* Only queues it: what goes is dropped when the lock is given up. */
		if (inode_is_file(i) && !i->a.nlink && !i->discarded)
			inode_rest(fs, i);
	}
	ns_unlock(fs);
}

static void free_cache(struct fs *fs)
{
	struct dentry *d, *nd;
	struct inode *i, *ni;

	HASH_ITER(hh, fs->dentries, d, nd) {
		HASH_DEL(fs->dentries, d);
		free(d);
	}
	HASH_ITER(hh, fs->inodes, i, ni) {
		HASH_DEL(fs->inodes, i);
		if (inode_is_file(i) && i->file.pin_held)
			object_handle_end(i->file.o, false, false);
		if (inode_is_dir(i))
			dirlist_forget(fs, i);
		inode_free(i);
	}
	known_free(&fs->known);
	fs->root = NULL;
}

int fs_stop(struct fs *fs)
{
	int r = 0;

	writeback_stop(fs);
	prefetch_stop(fs);
	release_kernel(fs);
	if (fs->committer_runs)
		r = commit_all(fs);
	commit_stop(fs);
	notify_stop(fs);
	free_cache(fs);
	return r;
}

void fs_free(struct fs *fs)
{
	if (!fs)
		return;
	free(pthread_getspecific(fs->buffer_key));
	pthread_setspecific(fs->buffer_key, NULL);
	pthread_key_delete(fs->buffer_key);
	handles_done(&fs->handles);
	for (unsigned k = 0; k < OPEN_LOCKS; k++)
		pthread_mutex_destroy(&fs->open_locks[k]);
	pthread_mutex_destroy(&fs->lock);
	pthread_mutex_destroy(&fs->settle_lock);
	pthread_mutex_destroy(&fs->notifier.lock);
	pthread_mutex_destroy(&fs->notifier.flushing);
	pthread_mutex_destroy(&fs->prefetcher.lock);
	pthread_mutex_destroy(&fs->memcg.lock);
	pthread_cond_destroy(&fs->commit_wake);
	pthread_cond_destroy(&fs->commit_done);
	pthread_cond_destroy(&fs->settle_wake);
	pthread_cond_destroy(&fs->notifier.wake);
	pthread_cond_destroy(&fs->prefetcher.wake);
	free(fs->mountpoint);
	free(fs);
}
