/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copier: copy_file_range, and who will ask for it. Content can be shared only with a file whose image the
 * kernel does not write, and a source that is only to be shared need not become hot: both are decided at
 * the opens, before the copy is asked for. cp and its like open one file for reading and make the
 * other right behind that, so it is guessed from what the thread did just before. A wrong guess costs
 * speed only.
 */
#include "fs/commit.h"
#include "fs/files.h"

#include <errno.h>

#define SOON_MS   200  /* from the open of the source to that of the copy */
#define STILL_MS  2000 /* from one copy to the next open */
#define SHARE_MAX (1u << 30)

void copier_init(struct fs *fs)
{
	pthread_mutex_init(&fs->copiers.lock, NULL);
}

/* The thread's slot, which may have been another's. The lock is held. */
static struct copier *slot_of(struct fs *fs, pid_t pid)
{
	struct copier *c = &fs->copiers.slot[(unsigned)pid % COPIERS];

	if (c->pid != pid)
		*c = (struct copier){ .pid = pid };
	return c;
}

void copier_opened(struct fs *fs, pid_t pid, uint64_t ino)
{
	struct copier *c;

	pthread_mutex_lock(&fs->copiers.lock);
	c = slot_of(fs, pid);
	c->opened = ino;
	c->opened_ms = clock_ms();
	pthread_mutex_unlock(&fs->copiers.lock);
}

void copier_closed(struct fs *fs, pid_t pid, uint64_t ino)
{
	struct copier *c;

	pthread_mutex_lock(&fs->copiers.lock);
	c = slot_of(fs, pid);
	if (c->opened == ino)
		c->opened = 0;
	pthread_mutex_unlock(&fs->copiers.lock);
}

bool copier_makes_copy(struct fs *fs, pid_t pid)
{
	struct copier *c;
	bool yes;

	pthread_mutex_lock(&fs->copiers.lock);
	c = slot_of(fs, pid);
	yes = c->opened && clock_ms() - c->opened_ms <= SOON_MS;
	c->opened = 0;
	pthread_mutex_unlock(&fs->copiers.lock);
	return yes;
}

bool copier_is_at_work(struct fs *fs, pid_t pid)
{
	struct copier *c;
	bool yes;

	pthread_mutex_lock(&fs->copiers.lock);
	c = slot_of(fs, pid);
	yes = c->copied_ms && clock_ms() - c->copied_ms <= STILL_MS;
	pthread_mutex_unlock(&fs->copiers.lock);
	return yes;
}

static void set_copied(struct fs *fs, pid_t pid, int64_t ms)
{
	pthread_mutex_lock(&fs->copiers.lock);
	slot_of(fs, pid)->copied_ms = ms;
	pthread_mutex_unlock(&fs->copiers.lock);
}

void copier_reads(struct fs *fs, pid_t pid)
{
	set_copied(fs, pid, 0);
}

/* -EOPNOTSUPP: the kernel copies by reading and writing then. */
static ssize_t share(struct fs *fs, struct handle *in, uint64_t off_in, struct handle *out,
		     uint64_t off_out, size_t len)
{
	ssize_t n = 0;
	int r;

	if (!in || !in->inode || !out || !out->inode)
		return -EBADF;
	if (!in->o || !out->o || !out->write || out->mode == HANDLE_PASSTHROUGH ||
	    out->mode == HANDLE_BACKED)
		return -EOPNOTSUPP;
	r = file_kill_privileges(fs, out->inode);
	if (r == 0)
		n = object_share(in->o, off_in, out->o, off_out, len);
	if (journal_wants_checkpoint(fs->store)) {
		ns_lock(fs);
		commit_kick(fs);
		ns_unlock(fs);
	}
	return r ? r : n;
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
			struct fuse_file_info *fi_out, size_t len, int flags)
{
	struct fs *fs = req_fs(req);
	struct handle *in = handle_get(&fs->handles, fi_in->fh);
	struct handle *out = handle_get(&fs->handles, fi_out->fh);
	ssize_t n;
	int r = 0;

	(void)ino_in;
	(void)ino_out;
	count(fs, REQ_COPY_FILE_RANGE);
	/* The reply has 32 bits for the count. */
	if (len > SHARE_MAX)
		len = SHARE_MAX;
	n = flags ? -EINVAL : share(fs, in, (uint64_t)off_in, out, (uint64_t)off_out, len);
	if (n > 0) {
		set_copied(fs, fuse_req_ctx(req)->pid, clock_ms());
		if (out->sync)
			r = commit_file(fs, out->inode, out);
	}
	if (n < 0 || r)
		fuse_reply_err(req, n < 0 ? (int)-n : -r);
	else
		fuse_reply_write(req, (size_t)n);
}
