/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file: data requests of files the daemon serves, and what concerns the content of any file:
 * fsync, fallocate, lseek. FSYNC, FALLOCATE and WRITE come under the kernel's lock of the inode:
 * nothing here waits for another request on it.
 */
#include "fs/files.h"

#include "fs/commit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/statvfs.h>

/* Bytes of a read from which on the image is mapped for the reply. */
#define MAPPED_MIN 65536u

void *file_buffer(struct fs *fs)
{
	void *buf = pthread_getspecific(fs->buffer_key);

	if (buf)
		return buf;
	if (posix_memalign(&buf, 4096, MAX_IO))
		return NULL;
	if (pthread_setspecific(fs->buffer_key, buf)) {
		free(buf);
		return NULL;
	}
	return buf;
}

/* A copy: the handle, and the text with it, may end before the call that replies returns. */
static void read_text(fuse_req_t req, const struct handle *h, size_t size, uint64_t off)
{
	void *buf = file_buffer(req_fs(req));

	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	if (size > MAX_IO)
		size = MAX_IO;
	if (off >= h->text_len)
		size = 0;
	else if (size > h->text_len - off)
		size = h->text_len - off;
	if (size)
		memcpy(buf, h->text + off, size);
	fuse_reply_buf(req, buf, size);
}

/* The reply goes out from the image itself: one copy, by the kernel. */
static int reply_mapped(void *req, const void *bytes, size_t len)
{
	return fuse_reply_buf(req, bytes, len);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct handle *h = handle_get(&fs->handles, fi->fh);
	void *buf;
	ssize_t n;

	(void)ino;
	count(fs, REQ_READ);
	if (!h || h->mode == HANDLE_DIR) {
		fuse_reply_err(req, EBADF);
		return;
	}
	if (h->mode == HANDLE_TEXT) {
		read_text(req, h, size, (uint64_t)off);
		return;
	}
	if (atomic_load_explicit(&h->lazy, memory_order_relaxed))
		open_first_read(fs, h, fuse_req_ctx(req)->pid);
	/* Small ones gain nothing by it. A reply that failed half way has not been sent. */
	if (size >= MAPPED_MIN) {
		int r = object_read_mapped(h->o, size < MAX_IO ? size : MAX_IO, (uint64_t)off,
					   reply_mapped, req);

		if (r != -EAGAIN)
			return;
	}
	buf = file_buffer(fs);
	n = buf ? object_read(h->o, buf, size < MAX_IO ? size : MAX_IO, (uint64_t)off) : -ENOMEM;
	if (n < 0)
		fuse_reply_err(req, (int)-n);
	else
		fuse_reply_buf(req, buf, (size_t)n);
}

/* Whoever writes: who may keep them is not told to the daemon. */
int file_kill_privileges(struct fs *fs, struct inode *i)
{
	struct nsop op;
	int r = 0;

	ns_lock(fs);
	nsop_begin(&op, fs);
	if (attr_kill_privileges(&op, i))
		r = nsop_run(&op);
	ns_unlock(fs);
	return r;
}

static ssize_t write_all(struct object *o, const char *buf, size_t size, uint64_t off, bool append)
{
	size_t done = 0;
	uint64_t at;

	while (done < size) {
		ssize_t n = append ? object_append(o, buf + done, size - done, &at) :
				     object_write(o, buf + done, size - done, off + done);

		if (n <= 0)
			return done ? (ssize_t)done : n ? n : -EIO;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
	      struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct handle *h = handle_get(&fs->handles, fi->fh);
	ssize_t n;
	int r;

	(void)ino;
	count(fs, REQ_WRITE);
	if (!h || !h->o) {
		fuse_reply_err(req, EBADF);
		return;
	}
	r = file_kill_privileges(fs, h->inode);
	/* Of the page cache, appends have their offset already. */
	n = r ? r :
		write_all(h->o, buf, size, (uint64_t)off, (fi->flags & O_APPEND) && !fi->writepage);
	if (n > 0 && (fi->flags & (O_SYNC | O_DSYNC)))
		r = commit_file(fs, h->inode, h);
	if (n < 0 || r)
		fuse_reply_err(req, n < 0 ? (int)-n : -r);
	else
		fuse_reply_write(req, (size_t)n);
}

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct handle *h = handle_get(&fs->handles, fi->fh);

	(void)ino;
	count(fs, REQ_FLUSH);
	fuse_reply_err(req, h && h->o ? -commit_take_error(fs, h) : 0);
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct handle *h = handle_get(&fs->handles, fi->fh);

	(void)ino;
	(void)datasync;
	count(fs, REQ_FSYNC);
	if (!h)
		fuse_reply_err(req, EBADF);
	else if (!h->o || fs->opt.read_only)
		fuse_reply_err(req, 0);
	else
		fuse_reply_err(req, -commit_file(fs, h->inode, h));
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct handle *h = handle_get(&fs->handles, fi->fh);

	(void)datasync;
	count(fs, REQ_FSYNCDIR);
	if (ino_is_virtual(ino) || fs->opt.read_only || !h)
		fuse_reply_err(req, 0);
	else if (h->mode != HANDLE_DIR)
		fuse_reply_err(req, EBADF);
	else if (ino == INO_ROOT)
		fuse_reply_err(req, -commit_all(fs));
	else
		fuse_reply_err(req, -commit_dir(fs, h->inode));
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct handle *h = handle_get(&fs->handles, fi->fh);
	int r;

	(void)ino;
	count(fs, REQ_FALLOCATE);
	if (!h || !h->o || !h->write)
		r = -EBADF;
	else if (off < 0 || len <= 0)
		r = -EINVAL;
	else
		r = file_kill_privileges(fs, h->inode);
	if (r == 0)
		r = object_fallocate(h->o, mode, (uint64_t)off, (uint64_t)len);
	/* A stat on its way may carry what was, and what failed may be half done. */
	notify_queue(fs, ino);
	fuse_reply_err(req, -r);
}

/*
 * Stores through a mapping of the kernel's pages are the daemon's to know only when they are written back,
 * which the kernel does before a read, but not before a seek: it is made to. One at a time, as writing
 * back takes another thread of the daemon; false: one is at it.
 */
static bool write_back_mapped(struct fs *fs, struct inode *i)
{
	bool todo;

	ns_lock(fs);
	todo = i->file.mappable && i->nopen;
	ns_unlock(fs);
	if (!todo || !fs->se)
		return true;
	if (pthread_mutex_trylock(&fs->notifier.flushing))
		return false;
	fuse_lowlevel_notify_inval_inode(fs->se, i->ino, 0, 0);
	pthread_mutex_unlock(&fs->notifier.flushing);
	return true;
}

/* As of a file system that knows no holes. */
static int64_t seek_without_holes(struct object *o, uint64_t off, int whence)
{
	struct object_stat os;

	object_stat(o, &os);
	if (off >= os.size)
		return -ENXIO;
	return (int64_t)(whence == SEEK_DATA ? off : os.size);
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
	struct handle *h = handle_get(&req_fs(req)->handles, fi->fh);
	int64_t at;

	(void)ino;
	count(req_fs(req), REQ_LSEEK);
	if (!h || !h->o) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	if (write_back_mapped(req_fs(req), h->inode))
		at = object_seek(h->o, (uint64_t)off, whence);
	else
		at = seek_without_holes(h->o, (uint64_t)off, whence);
	if (at < 0)
		fuse_reply_err(req, (int)-at);
	else
		fuse_reply_lseek(req, at);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = req_fs(req);
	struct statvfs sv;
	unsigned long scale;
	int r;

	(void)ino;
	count(fs, REQ_STATFS);
	r = store_statvfs(fs->store, &sv);
	if (r) {
		fuse_reply_err(req, -r);
		return;
	}
	/* Clients compare sizes with f_bsize to decide about O_DIRECT: it is 4096, whatever the
	 * store lies on. */
	scale = sv.f_frsize ? sv.f_frsize : 4096;
	sv.f_blocks = (fsblkcnt_t)((unsigned __int128)sv.f_blocks * scale / 4096);
	sv.f_bfree = (fsblkcnt_t)((unsigned __int128)sv.f_bfree * scale / 4096);
	sv.f_bavail = (fsblkcnt_t)((unsigned __int128)sv.f_bavail * scale / 4096);
	sv.f_bsize = sv.f_frsize = 4096;
	sv.f_namemax = NAME_LIMIT;
	/* A file system without a table of inodes counts none. */
	if (!sv.f_files)
		sv.f_files = sv.f_ffree = sv.f_favail = sv.f_bfree;
	fuse_reply_statfs(req, &sv);
}
