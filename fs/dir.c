/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir: reading directories. A handle keeps the list of names as it was at offset 0; an offset is the
 * id of a name, which only grows, so a listing never skips a name that stayed.
 */
#include "fs/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Cookies of "." and "..". */
#define COOKIE_DOT    1u
#define COOKIE_DOTDOT 2u

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct handle *h = NULL;
	struct inode *i;
	int r = 0;

	count(fs, REQ_OPENDIR);
	if (ino_is_virtual(ino)) {
		fi->fh = 0;
		fuse_reply_open(req, fi);
		return;
	}
	ns_lock(fs);
	i = inode_find(fs, ino);
	if (!i)
		r = -ESTALE;
	else if (!inode_is_dir(i))
		r = -ENOTDIR;
	else
		h = handle_new(HANDLE_DIR, i);
	if (h)
		i->nopen++;
	ns_unlock(fs);
	if (r == 0)
		r = h ? handle_add(&fs->handles, h, &fi->fh) : -ENOMEM;
	if (r) {
		open_end(fs, h);
		fuse_reply_err(req, -r);
		return;
	}
	/* Not cached by the kernel: it puts listings of before and after a change together. */
	if (fuse_reply_open(req, fi) != 0)
		open_end(fs, handle_take(&fs->handles, fi->fh));
}

void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);

	count(fs, REQ_RELEASEDIR);
	if (!ino_is_virtual(ino))
		open_end(fs, handle_take(&fs->handles, fi->fh));
	fuse_reply_err(req, 0);
}

/* ---- filling the buffer ---- */

struct page {
	fuse_req_t req;
	struct fs *fs;
	struct inode *dir;
	bool plus;
	char *buf;
	size_t size, used;
};

/* False when there is no room for it. */
static bool put(struct page *p, const char *name, const struct fuse_entry_param *e, uint64_t cookie)
{
	char *at = p->buf + p->used;
	size_t room = p->size - p->used, need;

	if (p->plus)
		need = fuse_add_direntry_plus(p->req, at, room, name, e, (off_t)cookie);
	else
		need = fuse_add_direntry(p->req, at, room, name, &e->attr, (off_t)cookie);
	if (need > room)
		return false;
	p->used += need;
	return true;
}

static bool put_plain(struct page *p, const char *name, uint64_t ino, uint32_t mode,
		      uint64_t cookie)
{
	struct fuse_entry_param e = { .attr = { .st_ino = ino, .st_mode = mode } };

	return put(p, name, &e, cookie);
}

/* The inode with a reference and a lookup, if the name is still what the list says. */
static struct inode *current(struct page *p, const char *name, uint64_t ino)
{
	struct inode *i = NULL;
	struct dentry *d;

	ns_lock(p->fs);
	if (dentry_load(p->fs, p->dir, name, &d) == 0) {
		if (d->inode && d->inode->ino == ino) {
			i = d->inode;
			i->refs++;
			i->nlookup++; /* from here on the kernel is told of what changes */
		}
		dentry_put(p->fs, d);
	}
	ns_unlock(p->fs);
	return i;
}

/* With attributes, and a lookup that the kernel will forget some day. */
static bool put_plus(struct page *p, const char *name, const struct dirlist_entry *de)
{
	struct inode *i = current(p, name, de->ino);
	struct fuse_entry_param e;
	bool shown, fits;

	if (!i)
		return put_plain(p, name, de->ino, de->mode, de->id);
	shown = attr_entry(p->fs, i, ATTR_ASKED, &e) == 0;
	fits = shown ? put(p, name, &e, de->id) : put_plain(p, name, de->ino, de->mode, de->id);
	ns_lock(p->fs);
	if (!shown || !fits)
		namei_unlookup(p->fs, i, 1);
	inode_put(p->fs, i);
	ns_unlock(p->fs);
	return fits;
}

static uint64_t parent_of(struct fs *fs, struct inode *dir)
{
	struct dentry *d;
	uint64_t ino;

	ns_lock(fs);
	d = inode_a_name(dir);
	ino = d ? d->parent_ino : dir->ino;
	ns_unlock(fs);
	return ino;
}

static void fill_page(struct page *p, const struct dirlist *l, uint64_t off)
{
	if (off < COOKIE_DOT && !put_plain(p, ".", p->dir->ino, S_IFDIR, COOKIE_DOT))
		return;
	if (off < COOKIE_DOTDOT &&
	    !put_plain(p, "..", parent_of(p->fs, p->dir), S_IFDIR, COOKIE_DOTDOT))
		return;
	for (size_t k = dirlist_after(l, off); k < l->n; k++) {
		const struct dirlist_entry *de = &l->v[k];
		const char *name = dirlist_name(l, k);

		if (p->plus ? !put_plus(p, name, de) :
			      !put_plain(p, name, de->ino, de->mode, de->id))
			return;
	}
}

/* list_lock is held. */
static int refresh(struct fs *fs, struct handle *h)
{
	struct dirlist *l;
	int r = dirlist_get(fs, h->inode->ino, &l);

	if (r)
		return r;
	dirlist_put(h->list);
	h->list = l;
	return 0;
}

static int read_page(struct page *p, struct handle *h, uint64_t off)
{
	int r = 0;

	pthread_mutex_lock(&h->list_lock);
	if (off == 0 || !h->list)
		r = refresh(p->fs, h);
	if (r == 0)
		fill_page(p, h->list, off);
	pthread_mutex_unlock(&h->list_lock);
	return r;
}

static void reply_page(fuse_req_t req, size_t size, off_t off, struct fuse_file_info *fi, bool plus)
{
	struct fs *fs = req_fs(req);
	struct handle *h = handle_get(&fs->handles, fi->fh);
	struct page p = { .req = req, .fs = fs, .plus = plus, .size = size };
	int r;

	if (!h || h->mode != HANDLE_DIR) {
		fuse_reply_err(req, EBADF);
		return;
	}
	p.dir = h->inode;
	p.buf = malloc(size);
	r = p.buf ? read_page(&p, h, (uint64_t)off) : -ENOMEM;
	if (r)
		fuse_reply_err(req, -r);
	else
		fuse_reply_buf(req, p.buf, p.used);
	free(p.buf);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	count(req_fs(req), REQ_READDIR);
	if (ino_is_virtual(ino))
		virtual_readdir(req, ino, size, off, false);
	else
		reply_page(req, size, off, fi, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	count(req_fs(req), REQ_READDIRPLUS);
	if (ino_is_virtual(ino))
		virtual_readdir(req, ino, size, off, true);
	else
		reply_page(req, size, off, fi, true);
}
