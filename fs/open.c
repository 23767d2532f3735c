/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open: opening and closing regular files: what the object must know, whether the file gets its
 * image, and in which mode the kernel serves it (backing.c).
 */
#include "fs/files.h"

#include "fs/commit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define DAY_S     86400
#define ADMIT_MIN (1ull << 30)
/* A file in a directory of so many blocks, of between so many bytes, will be one of them. */
#define ALIKE     8u
#define BLOCK_MIN (256u << 10)
#define BLOCK_MAX (64u << 20)
#define KEEP_MIN  (16ull << 20) /* bytes kept for such a one */

struct opening {
	struct fs *fs;
	struct inode *i;
	struct object *o;
	int flags;
	pid_t pid;
	bool write;
	bool fresh;       /* just created */
	bool new_content; /* that, or truncated */
	bool privileged;  /* carries suid, sgid or capabilities */
	bool own;         /* its mode lets nobody but the owner in, as mkstemp() makes files */
	bool held;        /* a handle of a dead daemon, or a mapping without handle, may write its
	                     image: all must see the same */
	bool cold;        /* had no complete image */
	bool prefetched;  /* has one because a reader walks this directory */
	bool settled;     /* has content, all of it in chunks */
	bool lazy;        /* is filled when it is read, not before */
	uint64_t largest; /* of its directory */
	uint32_t alike;
	uint32_t error_seq;
	int backing_id;
	uint64_t granted; /* bytes; 0: no grant */
	bool hidden;
	enum handle_mode mode;
};

/* As relatime: enough to tell "read since it was written" and "not read for days". In memory; it
 * reaches meta.db when there is other reason to write. */
static void touch_atime(struct fs *fs, struct inode *i, int flags)
{
	struct timespec now = clock_wall();

	if (fs->opt.read_only || fs->opt.noatime || (flags & O_NOATIME) ||
	    (flags & O_ACCMODE) == O_WRONLY)
		return;
	if (time_after(&i->a.atime, &i->a.mtime) && time_after(&i->a.atime, &i->a.ctime) &&
	    now.tv_sec - i->a.atime.tv_sec < DAY_S)
		return;
	i->a.atime = now;
	i->version++;
	notify_queue(fs, i->ino);
	i->dirty |= INODE_TIMES;
	inode_update_dirty(fs, i);
}

/* The inode's part: the object, and that it is open from now on. */
static int begin(struct opening *op)
{
	struct inode *i = op->i;
	struct dentry *d;
	int r;

	ns_lock(op->fs);
	r = i->discarded ? -ESTALE : inode_object_load(op->fs, i, &op->o);
	if (r == 0 && op->write)
		r = xattrs_load(op->fs, i);
	if (r) {
		object_unref(op->o);
		ns_unlock(op->fs);
		return r;
	}
	op->privileged = op->write && attr_has_privileges(i);
	op->own = (i->a.mode & 07777) == (S_IRUSR | S_IWUSR);
	d = inode_a_name(i);
	op->error_seq = i->file.error_seq;
	op->largest = d ? d->parent->dir.largest : 0;
	op->alike = d ? d->parent->dir.alike : 0;
	if (op->new_content)
		object_expect_size(op->o, op->largest ? op->largest : op->fs->last_size);
	touch_atime(op->fs, i, op->flags);
	i->nopen++;
	i->file.opened = true;
	i->file.mappable |= (op->flags & O_ACCMODE) == O_RDWR;
	i->file.fresh |= op->fresh;
	op->prefetched = i->file.prefetched;
	i->file.prefetched = false;
	list_del(&i->file.evict_link);
	ns_unlock(op->fs);
	return 0;
}

static void end(struct fs *fs, struct inode *i)
{
	ns_lock(fs);
	i->nopen--;
	inode_rest(fs, i);
	ns_unlock(fs);
}

static int truncate_content(struct opening *op)
{
	struct object_stat os;
	struct nsop ns;
	int r = object_truncate(op->o, 0);

	if (r)
		return r;
	ns_lock(op->fs);
	object_stat(op->o, &os);
	inode_fold(op->i, &os);
	nsop_begin(&ns, op->fs);
	attr_kill_privileges(&ns, op->i);
	nsop_touch(&ns, op->i, false);
	r = nsop_run(&ns);
	op->privileged = attr_has_privileges(op->i);
	ns_unlock(op->fs);
	return r;
}

/* An image would be in the way of content that is shared (copier.c). */
static bool makes_copy(const struct opening *op)
{
	return (op->flags & O_ACCMODE) == O_WRONLY && copier_makes_copy(op->fs, op->pid);
}

/* Brings the image about where that is wanted. What fails here only costs speed: the file is
 * served by the daemon then. */
static bool prepare(struct opening *op)
{
	struct object_stat os;

	object_stat(op->o, &os);
	op->held = os.orphan;
	op->cold = os.size && (os.tier != TIER_HOT || os.partial);
	op->settled = os.size && !os.dirty && !os.writer;
	if (op->new_content)
		return !makes_copy(op) && object_image_prepare(op->o, true) == 1;
	if (op->write)
		return !op->cold;
	if (!(op->cold && copier_is_at_work(op->fs, op->pid)) &&
	    object_image_prepare(op->o, false) == 1)
		return true;
	op->lazy = op->cold;
	return false;
}

/* The files beside it tell what it will be. Small ones do not: they may be what describes large ones. */
static bool is_block(const struct opening *op)
{
	return op->alike >= ALIKE && op->largest >= BLOCK_MIN && op->largest <= BLOCK_MAX;
}

/* An image under a backing id cannot give blocks back before its last close, so the pool must have
 * room for what the writer may make of it. */
static bool may_grow(struct opening *op, bool unseen)
{
	uint64_t want = op->largest * 2 > ADMIT_MIN ? op->largest * 2 : ADMIT_MIN;
	uint64_t keep = want;

	if (!atomic_load(&op->fs->passthrough))
		return false;
	/* Amendments seldom make a file grow. */
	if (!op->new_content)
		return store_admits_writer(op->fs->store, want);
	if (is_block(op))
		keep = op->largest * 4 > KEEP_MIN ? op->largest * 4 : KEEP_MIN;
	if (store_grant(op->fs->store, want, keep, unseen))
		op->granted = keep;
	return op->granted;
}

static void end_grant(struct opening *op)
{
	if (op->granted)
		store_grant_end(op->fs->store, op->granted);
	op->granted = 0;
}

/* The kernel may write new content into the image unseen. With O_DIRECT come also files of terabytes, with
 * holes, whose writers must be made to wait: blocks do not. */
static bool may_write_unseen(const struct opening *op)
{
	return op->new_content && (op->flags & O_ACCMODE) == O_WRONLY &&
	       !(op->flags & (O_SYNC | O_DSYNC)) && (!(op->flags & O_DIRECT) || is_block(op)) &&
	       !op->privileged && memcg_is_ours(op->fs, op->pid);
}

/* An engine's cache in one file, of terabytes with holes: its image could not give blocks back while it is
 * open, and the writer would meet a full pool. Some set O_DIRECT only after mkstemp(). Until the last close
 * such a file is mapped through the page cache, where a store counts after an fsync only. */
static bool is_slots(const struct opening *op)
{
	return op->new_content && (op->flags & O_ACCMODE) == O_RDWR &&
	       ((op->flags & O_DIRECT) || ((op->flags & O_EXCL) && op->own));
}

/* Through a writable mapping a foreign process would be charged for pages of the image. */
static bool may_map(const struct opening *op)
{
	return (op->flags & O_ACCMODE) != O_RDWR || memcg_is_ours(op->fs, op->pid);
}

/* A mapping of the image outlives its handle. With one through the page cache beside it each would undo
 * the other's stores to a page: the kernel keeps the two apart only while handles are open. */
static bool is_mapped(const struct opening *op)
{
	const struct file_state *f = &op->i->file;

	if (op->fresh || f->backing_id || f->n_direct || !atomic_load(&op->fs->passthrough))
		return false;
	/* Other readers get the image in any case. */
	return (op->write || store_backed_much(op->fs->store)) && object_image_mapped(op->o);
}

/* open_lock is held. */
static int choose(struct opening *op, bool image)
{
	bool plain = image && op->write && may_write_unseen(op) && may_grow(op, true);
	bool room = plain || !op->write ||
		    (image && !op->held && !is_slots(op) && may_grow(op, false));
	struct backing_want want = {
		.write = op->write,
		.plain = plain,
		.image = image && (op->held || (may_map(op) && room)),
		.held = op->held,
	};
	int r;

	op->mode = backing_choose(op->fs, op->i, op->o, &want);
	op->backing_id = op->i->file.backing_id;
	op->hidden = op->write &&
		     (op->mode == HANDLE_PASSTHROUGH ||
		      (op->mode == HANDLE_BACKED && (op->flags & O_ACCMODE) == O_RDWR));
	if (!op->write)
		return 0;
	if (op->mode != HANDLE_PASSTHROUGH && op->mode != HANDLE_BACKED)
		end_grant(op);
	r = object_handle_begin(op->o, true, op->hidden);
	if (r) {
		backing_end(op->fs, op->i, op->mode);
		end_grant(op);
	}
	/* What it stores through a mapping changes what the kernel has cached. */
	if (r == 0 && op->hidden && op->mode == HANDLE_BACKED && !op->fresh)
		notify_queue(op->fs, op->i->ino);
	return r;
}

/* After a kill the image tells when the content last changed, if it was to change: one that was just filled has
 * the time of that. */
static void know_mtime(struct opening *op)
{
	ns_lock(op->fs);
	object_know_mtime(op->o, &op->i->a.mtime);
	ns_unlock(op->fs);
}

/* From here to the end of the open a handle for reading keeps the image. */
static int with_object(struct opening *op)
{
	bool image;
	int r = object_handle_begin(op->o, false, false);

	if (r)
		return r;
	if ((op->flags & O_TRUNC) && !op->new_content) {
		r = truncate_content(op);
		op->new_content = true;
	}
	if (r == 0) {
		image = prepare(op);
		if (op->write || op->cold)
			know_mtime(op);
		pthread_mutex_lock(open_lock(op->fs, op->i->ino));
		op->held |= image && is_mapped(op);
		r = choose(op, image);
		pthread_mutex_unlock(open_lock(op->fs, op->i->ino));
	}
	/* A reader goes on with this handle. */
	if (r || op->write)
		object_handle_end(op->o, false, false);
	return r;
}

static void describe(const struct opening *op, struct fuse_file_info *fi)
{
	fi->noflush = !op->write || op->mode == HANDLE_PASSTHROUGH;
	fi->keep_cache = op->mode == HANDLE_CACHED;
	fi->direct_io = op->mode == HANDLE_BACKED || op->mode == HANDLE_DIRECT;
	if (op->mode == HANDLE_PASSTHROUGH || op->mode == HANDLE_BACKED)
		fi->backing_id = op->backing_id;
}

static int make_handle(struct opening *op, struct fuse_file_info *fi)
{
	struct handle *h = handle_new(op->mode, op->i);
	int r = h ? handle_add(&op->fs->handles, h, &fi->fh) : -ENOMEM;

	if (r == 0) {
		h->o = op->o;
		h->write = op->write;
		h->sync = op->flags & (O_SYNC | O_DSYNC);
		h->hidden = op->hidden;
		h->granted = op->granted;
		atomic_init(&h->lazy, op->lazy);
		if (!op->write && op->settled) {
			h->copier = op->pid;
			copier_opened(op->fs, op->pid, op->i->ino);
		}
		h->error_seen = op->error_seq;
		describe(op, fi);
		return 0;
	}
	if (h)
		handle_free(h);
	pthread_mutex_lock(open_lock(op->fs, op->i->ino));
	backing_end(op->fs, op->i, op->mode);
	pthread_mutex_unlock(open_lock(op->fs, op->i->ino));
	object_handle_end(op->o, op->write, op->hidden);
	end_grant(op);
	return r;
}

/* A pinned file keeps its image with a handle of its own. */
static void pin(struct opening *op)
{
	bool todo;

	ns_lock(op->fs);
	todo = (op->i->a.flags & META_PIN) && !op->i->file.pin_held;
	if (todo)
		op->i->file.pin_held = true;
	ns_unlock(op->fs);
	if (todo && object_handle_begin(op->o, false, false)) {
		ns_lock(op->fs);
		op->i->file.pin_held = false;
		ns_unlock(op->fs);
	}
}

static void prefetch_next(struct fs *fs, struct inode *i)
{
	char name[NAME_LIMIT + 1];
	struct dentry *d;
	uint64_t dir = 0;

	ns_lock(fs);
	d = inode_a_name(i);
	if (d) {
		dir = d->parent_ino;
		memcpy(name, d->name, d->len + 1u);
	}
	ns_unlock(fs);
	if (dir)
		prefetch_after(fs, dir, name);
}

void open_first_read(struct fs *fs, struct handle *h, pid_t pid)
{
	if (!atomic_exchange(&h->lazy, false))
		return;
	copier_reads(fs, pid);
	object_prefetch(h->o);
	prefetch_next(fs, h->inode);
}

int open_file(fuse_req_t req, struct inode *i, struct fuse_file_info *fi, bool fresh)
{
	struct opening op = {
		.fs = req_fs(req),
		.i = i,
		.flags = fi->flags,
		.pid = fuse_req_ctx(req)->pid,
		.write = (fi->flags & O_ACCMODE) != O_RDONLY,
		.fresh = fresh,
		.new_content = fresh,
	};
	int r = begin(&op);

	if (r)
		return r;
	r = with_object(&op);
	if (r == 0)
		r = make_handle(&op, fi);
	if (r) {
		if (op.flags & O_TRUNC) /* that may be done */
			notify_queue(op.fs, i->ino);
		object_unref(op.o);
		end(op.fs, i);
		return r;
	}
	pin(&op);
	if (!op.write && !op.lazy && (op.cold || op.prefetched) &&
	    !copier_is_at_work(op.fs, op.pid))
		prefetch_next(op.fs, i);
	return 0;
}

/* ---- closing ---- */

static void note_size(struct dir_state *dir, uint64_t size, bool fresh)
{
	bool alike = size >= dir->largest / 2 && size / 2 <= dir->largest;

	if (fresh && size)
		dir->alike = alike ? dir->alike + 1 : 0;
	if (size > dir->largest)
		dir->largest = size;
}

/* The lock is held; that was the last handle. */
static void last_close(struct fs *fs, struct inode *i, struct object *o)
{
	struct object_stat os;
	struct dentry *d = inode_a_name(i);

	object_stat(o, &os);
	inode_fold(i, &os);
	i->file.stored_epoch = 0;
	clock_gettime(CLOCK_MONOTONIC, &i->file.idle_since);
	if (d)
		note_size(&d->parent->dir, os.size, i->file.fresh);
	i->file.fresh = false;
	fs->last_size = os.size;
	if (i->file.evict_to && i->a.nlink)
		writeback_evict_later(fs, i);
}

void open_end(struct fs *fs, struct handle *h)
{
	struct inode *i;

	if (!h)
		return;
	i = h->inode;
	if (h->copier)
		copier_closed(fs, h->copier, i->ino);
	if (h->o) {
		pthread_mutex_lock(open_lock(fs, i->ino));
		backing_end(fs, i, h->mode);
		pthread_mutex_unlock(open_lock(fs, i->ino));
		object_handle_end(h->o, h->write, h->hidden);
		if (h->granted)
			store_grant_end(fs->store, h->granted);
	}
	if (i) {
		ns_lock(fs);
		i->nopen--;
		if (h->o && !i->nopen)
			last_close(fs, i, h->o);
		inode_rest(fs, i);
		ns_unlock(fs);
	}
	handle_free(h);
}

/* ---- requests ---- */

static void let_go(struct fs *fs, struct inode *i, bool unlookup)
{
	ns_lock(fs);
	if (unlookup)
		namei_unlookup(fs, i, 1);
	inode_put(fs, i);
	ns_unlock(fs);
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct inode *i;
	int r;

	count(fs, REQ_OPEN);
	if (ino_is_virtual(ino)) {
		virtual_open(req, ino, fi);
		return;
	}
	ns_lock(fs);
	r = inode_hold(fs, ino, &i);
	ns_unlock(fs);
	if (r) {
		fuse_reply_err(req, -r);
		return;
	}
	if (!inode_is_file(i))
		r = -EINVAL;
	else if (fs->opt.read_only && (fi->flags & (O_ACCMODE | O_TRUNC)) != O_RDONLY)
		r = -EROFS;
	else
		r = open_file(req, i, fi, false);
	if (r)
		fuse_reply_err(req, -r);
	else if (fuse_reply_open(req, fi) != 0)
		open_end(fs, handle_take(&fs->handles, fi->fh));
	let_go(fs, i, false);
}

/* The kernel goes on believing that the name is vacant, so it must become that again. Unless the file
 * was looked up otherwise meanwhile: then it knows better. Without memory or room in the journal the
 * name stays. */
static void unmake(struct fs *fs, uint64_t parent, const char *name, struct inode *i)
{
	struct inode *p;
	struct dentry *d;
	struct nsop op;

	ns_lock(fs);
	if (namei_load(fs, parent, name, &p, &d) == 0) {
		if (d->inode == i && i->a.nlink == 1 && i->nlookup == 1) {
			nsop_begin(&op, fs);
			nsop_touch(&op, i, false)->nlink = 0;
			nsop_touch(&op, p, true);
			nsop_name(&op, d, NULL);
			nsop_run(&op);
		}
		dentry_put(fs, d);
		inode_put(fs, p);
	}
	ns_unlock(fs);
}

/* i was just made, is held and was looked up once for this reply; name is NULL if it has none. */
static void reply_create(fuse_req_t req, uint64_t parent, const char *name, struct inode *i,
			 struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct fuse_entry_param e;
	int r = open_file(req, i, fi, true);
	bool taken = false;

	if (r == 0) {
		r = attr_entry(fs, i, ATTR_MADE, &e);
		if (r)
			open_end(fs, handle_take(&fs->handles, fi->fh));
	}
	/* Before the answer: the next request for this name may come right behind it. */
	if (r && name)
		unmake(fs, parent, name, i);
	if (r)
		fuse_reply_err(req, -r);
	else
		taken = fuse_reply_create(req, &e, fi) == 0;
	if (r == 0 && !taken) {
		open_end(fs, handle_take(&fs->handles, fi->fh));
		if (name)
			unmake(fs, parent, name, i);
	}
	let_go(fs, i, !taken);
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct make mk = { .ctx = fuse_req_ctx(req), .mode = S_IFREG | (mode & 07777) };
	struct inode *i;
	int r;

	count(fs, REQ_CREATE);
	r = namei_make(fs, &mk, parent, name, &i);
	/* The kernel did not know that the name is there: it is to look again, and then opens it. */
	if (r == -EEXIST && !(fi->flags & O_EXCL) && !namei_is_kvfs(parent, name))
		r = -ESTALE;
	if (r)
		fuse_reply_err(req, -r);
	else
		reply_create(req, parent, name, i, fi);
}

void op_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi)
{
	struct make mk = { .ctx = fuse_req_ctx(req), .mode = S_IFREG | (mode & 07777) };
	struct inode *i;
	int r;

	count(req_fs(req), REQ_TMPFILE);
	r = namei_make(req_fs(req), &mk, parent, NULL, &i);
	if (r)
		fuse_reply_err(req, -r);
	else
		reply_create(req, 0, NULL, i, fi);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);

	(void)ino;
	count(fs, REQ_RELEASE);
	open_end(fs, handle_take(&fs->handles, fi->fh));
	fuse_reply_err(req, 0);
}
