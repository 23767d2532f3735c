/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch: a snapshot of a closure, taken under the namespace lock, written to meta.db without it.
 * What changed meanwhile has another version than the snapshot, and stays dirty.
 */
#include "fs/commit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum row_kind { ROW_PUT, ROW_DELETE };

struct row {
	struct inode *i;     /* with a reference */
	struct meta_inode a; /* target is the inode's */
	struct object *o;    /* files to be put, with a reference */
	enum row_kind kind;
	uint32_t version;
	bool was_in_db;
	bool untold; /* a file: its mtime was set, and the row has that of older content */
	bool extra;  /* a directory, for its count alone: its names are not in the batch */
};

struct name {
	struct dentry *d;  /* with a reference */
	struct inode *to;  /* NULL: removed */
	struct inode *old; /* in meta.db before */
	uint64_t id;
	uint64_t seq; /* what the name is dirty since, once this has landed */
	uint32_t version;
	bool gap;
};

struct value {
	struct inode *i;
	struct xattr *x; /* lives as long as the inode */
	void *value;     /* a copy */
	uint32_t len;
	uint32_t version;
	bool present;
};

struct batch {
	struct fs *fs;
	struct row *rows;
	struct name *names;
	struct value *values;
	size_t n_rows, n_names, n_values;
	uint64_t seq; /* fs->dirty_seq when it was taken */
	bool files;
};

/* ---- the snapshot; the lock is held ---- */

static bool is_removed(const struct closure *c, const struct dentry *d)
{
	return !d->inode || !closure_has(c, d->inode);
}

static size_t count_names(const struct closure *c)
{
	struct list *l;
	size_t n = 0;

	for (size_t k = 0; k < c->n; k++) {
		n += c->v[k]->n_dirty_names;
		list_for_each(l, &c->v[k]->lost)
			n += is_removed(c, list_entry(l, struct dentry, lost));
	}
	return n;
}

static size_t count_values(const struct closure *c)
{
	size_t n = 0;

	for (size_t k = 0; k < c->n; k++)
		if (c->v[k]->a.nlink && (c->v[k]->dirty & INODE_XATTR))
			for (struct xattr *x = c->v[k]->xattrs; x; x = x->next)
				n += x->dirty;
	return n;
}

static bool is_subdir(const struct inode *i)
{
	return i && inode_is_dir(i);
}

/* A directory's row counts the subdirectories that meta.db has, not those it has now. */
static void take_name(struct batch *b, struct dentry *d, struct inode *to)
{
	struct dir_state *dir = &d->parent->dir;

	d->refs++;
	b->names[b->n_names++] = (struct name){
		.d = d,
		.to = to,
		.old = d->db_inode,
		.id = d->id,
		/* One that is only taken from its old owner is owed to the new one as long as before. */
		.seq = to == d->inode ? b->seq : d->dirty_since,
		.version = d->version,
		.gap = d->gap,
	};
	dir->delta += (int)is_subdir(to) - (int)is_subdir(d->db_inode);
}

static void take_names(struct batch *b, const struct closure *c)
{
	struct list *l;

	for (size_t k = 0; k < c->n; k++) {
		list_for_each(l, &c->v[k]->names)
		{
			struct dentry *d = list_entry(l, struct dentry, names);

			if (d->dirty)
				take_name(b, d, d->inode);
		}
		list_for_each(l, &c->v[k]->lost)
		{
			struct dentry *d = list_entry(l, struct dentry, lost);

			if (is_removed(c, d))
				take_name(b, d, NULL);
		}
	}
}

/* Of content that is not settled, meta.db is told the times of what is. */
static void take_file(struct row *row)
{
	struct object_stat os;
	struct inode *i = row->i;

	i->file.committing = true;
	row->o = i->file.o;
	if (!row->o)
		return;
	object_ref(row->o);
	object_stat(row->o, &os);
	inode_fold(i, &os);
	row->a.size = i->a.size;
	row->a.ctime = i->a.ctime;
	row->a.mtime = i->a.mtime;
	if (!object_is_dirty(row->o))
		return;
	/* One that the object knows is safe with it. */
	row->untold = !os.mtime.tv_sec && !os.mtime.tv_nsec &&
		      (time_after(&i->file.settled_mtime, &i->a.mtime) ||
		       time_after(&i->a.mtime, &i->file.settled_mtime));
	row->a.mtime = i->file.settled_mtime;
}

static void take_row(struct batch *b, struct inode *i, bool delete)
{
	struct row *row = &b->rows[b->n_rows++];

	i->refs++;
	*row = (struct row){ .i = i, .a = i->a, .version = i->version };
	row->kind = delete ? ROW_DELETE : ROW_PUT;
	if (delete)
		return;
	if (inode_is_file(i)) {
		take_file(row);
		b->files = true;
	} else if (inode_is_dir(i)) {
		row->a.nlink = i->dir.db_nlink + (uint32_t)i->dir.delta;
	}
}

/* The directories whose rows must be put only for their count. */
static void take_extra(struct batch *b, const struct closure *c)
{
	for (size_t k = 0; k < b->n_names; k++) {
		struct inode *p = b->names[k].d->parent;

		if (p->dir.delta && !closure_has(c, p) && !p->dir.extra) {
			p->dir.extra = true;
			take_row(b, p, false);
			b->rows[b->n_rows - 1].extra = true;
		}
	}
	for (size_t k = 0; k < b->n_names; k++) {
		b->names[k].d->parent->dir.delta = 0;
		b->names[k].d->parent->dir.extra = false;
	}
}

static void take_rows(struct batch *b, const struct closure *c)
{
	for (size_t k = 0; k < c->n; k++) {
		struct inode *i = c->v[k];

		if (i->a.nlink || i->in_db)
			take_row(b, i, !i->a.nlink);
	}
	take_extra(b, c);
}

static int take_values_of(struct batch *b, struct inode *i)
{
	for (struct xattr *x = i->xattrs; x; x = x->next) {
		struct value *v = &b->values[b->n_values];

		if (!x->dirty)
			continue;
		*v = (struct value){ .i = i, .x = x, .len = x->len, .present = x->present };
		v->version = x->version;
		v->value = malloc(x->len ? x->len : 1);
		if (!v->value)
			return -ENOMEM;
		if (x->len)
			memcpy(v->value, x->value, x->len);
		b->n_values++;
	}
	return 0;
}

static int take_values(struct batch *b, const struct closure *c)
{
	int r = 0;

	for (size_t k = 0; k < c->n && r == 0; k++)
		if (c->v[k]->a.nlink && (c->v[k]->dirty & INODE_XATTR))
			r = take_values_of(b, c->v[k]);
	return r;
}

static void batch_free(struct batch *b)
{
	for (size_t k = 0; k < b->n_values; k++)
		free(b->values[k].value);
	free(b->rows);
	free(b->names);
	free(b->values);
	free(b);
}

/* Only now: the lists that the closure was read from change. */
static void take_off(struct batch *b)
{
	for (size_t k = 0; k < b->n_rows; k++) {
		struct row *row = &b->rows[k];

		row->was_in_db = row->i->in_db;
		row->i->in_db = row->kind == ROW_PUT;
		row->i->flight = true;
	}
	for (size_t k = 0; k < b->n_names; k++)
		dentry_take_off(b->fs, b->names[k].d, b->names[k].to);
	for (size_t k = 0; k < b->n_rows; k++)
		inode_update_dirty(b->fs, b->rows[k].i);
}

int batch_take(struct closure *c, struct batch **ret)
{
	size_t names = count_names(c), values = count_values(c);
	struct batch *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	b->fs = c->fs;
	b->seq = ++c->fs->dirty_seq;
	b->names = calloc(names + 1, sizeof(*b->names));
	b->values = calloc(values + 1, sizeof(*b->values));
	/* Each name may bring its directory along. */
	b->rows = calloc(c->n + names + 1, sizeof(*b->rows));
	r = b->names && b->values && b->rows ? take_values(b, c) : -ENOMEM;
	if (r) {
		batch_free(b);
		return r;
	}
	take_names(b, c);
	take_rows(b, c);
	take_off(b);
	*ret = b;
	return 0;
}

/* ---- the transaction; the lock is not held ---- */

static int put_row(struct batch *b, struct meta_txn *t, struct row *row)
{
	uint64_t gen;
	int r;

	if (row->kind == ROW_DELETE)
		return meta_del_inode(t, row->a.ino);
	if (!S_ISREG(row->a.mode))
		return meta_put_inode(t, &row->a);
	if (!row->o) {
		r = object_get(b->fs->store, row->a.ino, row->a.uid, &row->o);
		if (r)
			return r;
	}
	return meta_put_file(t, &row->a, row->o, &gen);
}

static int put_name(struct meta_txn *t, const struct name *n)
{
	struct meta_dentry d = {
		.id = n->id,
		.parent = n->d->parent_ino,
		.name = n->d->name,
	};

	if (!n->to)
		return meta_del_dentry(t, d.parent, d.name);
	d.ino = n->to->ino;
	d.mode = n->to->type;
	return meta_put_dentry(t, &d);
}

static int put_value(struct meta_txn *t, const struct value *v)
{
	return v->present ? meta_put_xattr(t, v->i->ino, v->x->name, v->value, v->len) :
			    meta_del_xattr(t, v->i->ino, v->x->name);
}

static int put_all(struct batch *b, struct meta_txn *t)
{
	int r = 0;

	/* First what goes: a name moved to another place must not be there twice. */
	for (size_t k = 0; k < b->n_names && r == 0; k++)
		if (!b->names[k].to)
			r = put_name(t, &b->names[k]);
	for (size_t k = 0; k < b->n_rows && r == 0; k++)
		r = put_row(b, t, &b->rows[k]);
	for (size_t k = 0; k < b->n_names && r == 0; k++)
		if (b->names[k].to)
			r = put_name(t, &b->names[k]);
	for (size_t k = 0; k < b->n_values && r == 0; k++)
		r = put_value(t, &b->values[k]);
	return r;
}

int batch_write(struct batch *b)
{
	struct meta_txn *t;
	int r = b->files ? store_sync_data(b->fs->store) : 0;

	if (r == 0)
		r = meta_begin(b->fs->store, &t);
	if (r)
		return r;
	r = put_all(b, t);
	if (r) {
		meta_abort(t);
		return r;
	}
	return meta_commit(t, true);
}

/* ---- afterwards; the lock is held ---- */

static void drop_removed(struct inode *i)
{
	struct xattr **p = &i->xattrs;

	while (*p) {
		struct xattr *x = *p;

		if (x->dirty || x->present) {
			p = &x->next;
			continue;
		}
		*p = x->next;
		free(x->value);
		free(x);
	}
}

static void clean_values(struct batch *b)
{
	for (size_t k = 0; k < b->n_values; k++)
		if (b->values[k].x->version == b->values[k].version)
			b->values[k].x->dirty = false;
}

static void clean_xattr_flag(struct inode *i)
{
	struct xattr *x;

	for (x = i->xattrs; x; x = x->next)
		if (x->dirty)
			return;
	i->dirty &= (uint8_t)~INODE_XATTR;
	drop_removed(i);
}

static void clean_row(struct row *row)
{
	struct inode *i = row->i;

	if (row->kind == ROW_DELETE)
		return;
	if (i->version == row->version)
		i->dirty &= (uint8_t) ~(INODE_ATTR | INODE_TIMES | INODE_DATA);
	/* Settled since, it waits for nothing but the next commit. */
	if (row->untold)
		i->dirty |= object_is_dirty(row->o) ? INODE_TIMES : INODE_ATTR;
	if (inode_is_dir(i))
		i->dir.db_nlink = row->a.nlink;
	if (i->dirty & INODE_XATTR)
		clean_xattr_flag(i);
}

static void land(struct batch *b)
{
	clean_values(b);
	for (size_t k = 0; k < b->n_rows; k++)
		clean_row(&b->rows[k]);
	for (size_t k = 0; k < b->n_names; k++)
		dentry_land(b->fs, b->names[k].d, b->names[k].d->version == b->names[k].version,
			    b->names[k].seq);
	b->fs->commit_seq++;
}

static void turn_back(struct batch *b)
{
	for (size_t k = 0; k < b->n_rows; k++)
		b->rows[k].i->in_db = b->rows[k].was_in_db;
	for (size_t k = 0; k < b->n_names; k++)
		dentry_turn_back(b->fs, b->names[k].d, b->names[k].old, b->names[k].gap);
}

static void let_go(struct batch *b, struct row *row, bool landed)
{
	struct fs *fs = b->fs;
	struct inode *i = row->i;

	if (inode_is_file(i))
		i->file.committing = false;
	object_unref(row->o);
	inode_update_dirty(fs, i);
	/* What is dirty of it still came after the snapshot, be it while that was written. */
	if (landed && !row->extra)
		i->dirty_since = b->seq;
	inode_put(fs, i);
}

void batch_end(struct batch *b, int result)
{
	struct fs *fs = b->fs;

	for (size_t k = 0; k < b->n_rows; k++)
		b->rows[k].i->flight = false;
	if (result == 0)
		land(b);
	else
		turn_back(b);
	for (size_t k = 0; k < b->n_names; k++)
		dentry_put(fs, b->names[k].d);
	for (size_t k = 0; k < b->n_rows; k++)
		let_go(b, &b->rows[k], result == 0);
	batch_free(b);
}
