/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nsop: one change of the namespace. Staged as after-images, journaled as one group, then applied
 * to the cache. Nothing that can fail comes after the journal has it.
 */
#include "fs/commit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS (NSOP_INODES + NSOP_NAMES + NSOP_XATTRS)

void nsop_begin(struct nsop *op, struct fs *fs)
{
	op->fs = fs;
	op->now = clock_wall();
	op->n_inodes = op->n_names = op->n_xattrs = 0;
}

static unsigned slot_of(struct nsop *op, struct inode *i)
{
	unsigned k;

	for (k = 0; k < op->n_inodes; k++)
		if (op->inodes[k].inode == i)
			return k;
	op->n_inodes++;
	op->inodes[k].inode = i;
	op->inodes[k].a = i->a;
	op->inodes[k].dirty = INODE_ATTR;
	return k;
}

struct meta_inode *nsop_inode(struct nsop *op, struct inode *i)
{
	return &op->inodes[slot_of(op, i)].a;
}

struct meta_inode *nsop_touch(struct nsop *op, struct inode *i, bool content)
{
	struct meta_inode *a = nsop_inode(op, i);

	/* The coarse clock stands still for milliseconds, and the kernel's stamps may be ahead of
	 * it: a change must show. */
	if (!time_after(&op->now, &i->a.ctime))
		clock_gettime(CLOCK_REALTIME, &op->now);
	a->ctime = op->now;
	if (content)
		a->mtime = op->now;
	return a;
}

void nsop_data(struct nsop *op, struct inode *i)
{
	op->inodes[slot_of(op, i)].dirty |= INODE_DATA;
}

void nsop_name(struct nsop *op, struct dentry *d, struct inode *inode)
{
	unsigned k = op->n_names++;

	op->names[k].d = d;
	op->names[k].inode = inode;
	op->names[k].id = inode ? op->fs->next_id++ : d->id;
}

void nsop_xattr(struct nsop *op, struct inode *i, struct xattr *x, void *value, uint32_t len,
		bool present)
{
	unsigned k = op->n_xattrs++;

	op->inodes[slot_of(op, i)].dirty |= INODE_XATTR;
	op->xattrs[k].inode = i;
	op->xattrs[k].x = x;
	op->xattrs[k].value = value;
	op->xattrs[k].len = len;
	op->xattrs[k].present = present;
}

/* ---- journal ---- */

static size_t records_size(const struct nsop *op)
{
	size_t size = 0;

	for (unsigned k = 0; k < op->n_inodes; k++)
		size += jrec_inode_size(&op->inodes[k].a);
	for (unsigned k = 0; k < op->n_names; k++)
		size += jrec_dentry_size(op->names[k].d->len);
	for (unsigned k = 0; k < op->n_xattrs; k++)
		size += jrec_xattr_size(strlen(op->xattrs[k].x->name), op->xattrs[k].len);
	return size;
}

static uint8_t *add_record(struct journal_record *rec, uint32_t type, size_t len, uint8_t *p)
{
	*rec = (struct journal_record){ .type = type, .len = (uint32_t)len, .data = p };
	return p + len;
}

static void write_name(const struct nsop *op, unsigned k, void *p)
{
	const struct dentry *d = op->names[k].d;
	const struct inode *to = op->names[k].inode;
	struct jrec_dentry rec = {
		.parent = d->parent_ino,
		.ino = to ? to->ino : 0,
		.id = op->names[k].id,
		.mode = to ? to->a.mode & S_IFMT : 0,
		.gap = !to || d->gap,
	};

	memcpy(rec.name, d->name, d->len + 1u);
	jrec_dentry_write(p, &rec);
}

static unsigned write_records(const struct nsop *op, struct journal_record *rec, uint8_t *p)
{
	unsigned n = 0;

	for (unsigned k = 0; k < op->n_inodes; k++) {
		jrec_inode_write(p, &op->inodes[k].a);
		p = add_record(&rec[n++], J_INODE, jrec_inode_size(&op->inodes[k].a), p);
	}
	for (unsigned k = 0; k < op->n_names; k++) {
		write_name(op, k, p);
		p = add_record(&rec[n++], J_DENTRY, jrec_dentry_size(op->names[k].d->len), p);
	}
	for (unsigned k = 0; k < op->n_xattrs; k++) {
		const char *name = op->xattrs[k].x->name;
		uint32_t len = op->xattrs[k].len;

		jrec_xattr_write(p, op->xattrs[k].inode->ino, name, op->xattrs[k].value, len,
				 op->xattrs[k].present);
		p = add_record(&rec[n++], J_XATTR, jrec_xattr_size(strlen(name), len), p);
	}
	return n;
}

/* A journal that is full is rewritten to what is still needed, once. */
static int append(struct fs *fs, const struct journal_record *rec, unsigned n)
{
	int r = journal_append(fs->store, rec, n);

	if (r != -ENOSPC)
		return r;
	r = checkpoint_write(fs);
	return r ? r : journal_append(fs->store, rec, n);
}

/* ---- the cache ---- */

/* A name waits for the content its file has now; for a file that is all settled it does not. */
static uint32_t settle_needed(const struct inode *i)
{
	if (!i || !inode_is_file(i))
		return 0;
	if (i->file.o && !object_is_dirty(i->file.o))
		return 0;
	return i->file.settle_started + 1;
}

static void apply_inode(struct nsop *op, unsigned k)
{
	struct inode *i = op->inodes[k].inode;
	bool had_name = i->a.nlink;

	i->a = op->inodes[k].a;
	if (inode_is_file(i) && i->file.o && had_name != (i->a.nlink != 0))
		object_set_unlinked(i->file.o, had_name);
	i->dirty |= op->inodes[k].dirty;
	i->version++;
	inode_update_dirty(op->fs, i);
}

static void apply_xattr(struct nsop *op, unsigned k)
{
	struct xattr *x = op->xattrs[k].x;

	free(x->value);
	x->value = op->xattrs[k].value;
	x->len = op->xattrs[k].len;
	x->present = op->xattrs[k].present;
	x->dirty = true;
	x->version++;
}

int nsop_run(struct nsop *op)
{
	struct journal_record rec[RECORDS];
	uint8_t *buf = malloc(records_size(op));
	int r;

	if (!buf)
		return -ENOMEM;
	r = append(op->fs, rec, write_records(op, rec, buf));
	free(buf);
	if (r)
		return r;
	for (unsigned k = 0; k < op->n_inodes; k++)
		apply_inode(op, k);
	for (unsigned k = 0; k < op->n_names; k++) {
		op->names[k].d->need = settle_needed(op->names[k].inode);
		dentry_change(op->fs, op->names[k].d, op->names[k].inode, op->names[k].id);
	}
	for (unsigned k = 0; k < op->n_xattrs; k++)
		apply_xattr(op, k);
	if (journal_wants_checkpoint(op->fs->store))
		commit_kick(op->fs);
	return 0;
}
