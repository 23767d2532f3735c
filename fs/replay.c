/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay: what a killed daemon had answered and not committed. Each record is an after-image and
 * becomes dirty state over what meta.db has; applied in order, the last one of each thing wins.
 */
#include "fs/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * What a record speaks of may be gone: it was deleted later, that was committed, and nothing else of
 * it is left in the journal. Such a record is passed over.
 */
static int passed_over(int r)
{
	return r == -ENOENT ? 0 : r;
}

struct replay {
	struct fs *fs;
	uint64_t max_ino, max_id;
};

/* Inodes that came into the cache by a record are held until all is replayed: without a name, one
 * may get another by a later record. */
#define HELD_MARK UINT64_MAX

static void hold(struct inode *i)
{
	if (i->mark == HELD_MARK)
		return;
	i->mark = HELD_MARK;
	i->refs++;
}

static void overwrite(struct inode *i, struct meta_inode *a)
{
	free(i->a.target);
	i->a = *a;
	a->target = NULL;
}

static int replay_inode(struct replay *rp, const struct journal_record *rec)
{
	struct meta_inode a;
	struct inode *i;
	int r = jrec_inode_read(rec->data, rec->len, &a);

	if (r)
		return r;
	if (a.ino > rp->max_ino)
		rp->max_ino = a.ino;
	r = inode_load(rp->fs, a.ino, &i);
	if (r == -ENOENT) {
		r = inode_enter(rp->fs, &a, false, &i);
		if (r == 0)
			i->refs++;
	} else if (r == 0) {
		overwrite(i, &a);
	}
	meta_inode_done(&a);
	if (r)
		return r;
	hold(i);
	i->refs--;
	i->version++;
	i->dirty |= INODE_ATTR | (inode_is_file(i) ? INODE_DATA : 0);
	inode_update_dirty(rp->fs, i);
	return 0;
}

static int rename_to(struct replay *rp, struct dentry *d, const struct jrec_dentry *rec)
{
	struct inode *to = NULL;
	int r = rec->ino ? inode_load(rp->fs, rec->ino, &to) : 0;

	if (r)
		return passed_over(r);
	if (to) {
		hold(to);
		to->refs--;
	}
	dentry_change(rp->fs, d, to, rec->id);
	d->gap = d->dirty && rec->gap;
	/* Whatever was settled of it before the kill. */
	d->need = to && inode_is_file(to) ? to->file.settle_started + 1 : 0;
	return 0;
}

static int replay_dentry(struct replay *rp, const struct journal_record *rec)
{
	struct jrec_dentry jd;
	struct inode *p;
	struct dentry *d;
	int r = jrec_dentry_read(rec->data, rec->len, &jd);

	if (r)
		return r;
	if (jd.id > rp->max_id)
		rp->max_id = jd.id;
	r = inode_load(rp->fs, jd.parent, &p);
	if (r)
		return passed_over(r);
	hold(p);
	p->refs--;
	if (!inode_is_dir(p))
		return -EBADMSG;
	r = dentry_load(rp->fs, p, jd.name, &d);
	if (r)
		return r;
	r = rename_to(rp, d, &jd);
	dentry_put(rp->fs, d);
	return r;
}

static int set_xattr(struct xattr *x, const struct jrec_xattr *jx)
{
	void *value = malloc(jx->len ? jx->len : 1);

	if (!value)
		return -ENOMEM;
	memcpy(value, jx->value, jx->len);
	free(x->value);
	x->value = value;
	x->len = jx->len;
	x->present = jx->present;
	x->dirty = true;
	x->version++;
	return 0;
}

static int replay_xattr(struct replay *rp, const struct journal_record *rec)
{
	struct jrec_xattr jx;
	struct inode *i;
	struct xattr *x;
	int r = jrec_xattr_read(rec->data, rec->len, &jx);

	if (r)
		return r;
	r = inode_load(rp->fs, jx.ino, &i);
	if (r)
		return passed_over(r);
	hold(i);
	i->refs--;
	r = xattrs_load(rp->fs, i);
	if (r)
		return r;
	x = xattrs_slot(i, jx.name);
	r = x ? set_xattr(x, &jx) : -ENOMEM;
	if (r)
		return r;
	i->version++;
	i->dirty |= INODE_XATTR;
	inode_update_dirty(rp->fs, i);
	return 0;
}

static int replay_record(void *arg, const struct journal_record *rec)
{
	struct replay *rp = arg;

	if (!rec)
		return 0; /* groups are whole or absent */
	switch (rec->type) {
	case J_INODE:
		return replay_inode(rp, rec);
	case J_DENTRY:
		return replay_dentry(rp, rec);
	case J_XATTR:
		return replay_xattr(rp, rec);
	default:
		return -EBADMSG;
	}
}

/* What was settled of a dirty file shows in its object; one that the store does not know was killed
 * between the journal and its first byte. */
static int load_object(struct fs *fs, struct inode *i)
{
	struct object *o;
	int r = inode_object_load(fs, i, &o);

	if (r == -ENOENT && !i->in_db) {
		r = object_create(fs->store, i->ino, i->a.uid, &i->file.o);
		if (r == 0) {
			choices_apply(i, i->file.o);
			object_ref(i->file.o);
			o = i->file.o;
		}
	}
	if (r)
		return r;
	object_unref(o);
	return 0;
}

static struct inode **collect_held(struct fs *fs, size_t *ret_n)
{
	struct inode **v = calloc(HASH_COUNT(fs->inodes) + 1u, sizeof(*v));
	size_t n = 0;

	for (struct inode *i = fs->inodes; v && i; i = i->hh.next)
		if (i->mark == HELD_MARK)
			v[n++] = i;
	*ret_n = n;
	return v;
}

/* Only now may go what has no name. */
static int release(struct fs *fs)
{
	size_t n;
	struct inode **v = collect_held(fs, &n);
	int r = v ? 0 : -ENOMEM;

	for (size_t k = 0; k < n && r == 0; k++)
		if (inode_is_file(v[k]) && v[k]->a.nlink)
			r = load_object(fs, v[k]);
	for (size_t k = 0; k < n; k++) {
		v[k]->mark = 0;
		inode_put(fs, v[k]);
	}
	free(v);
	return r;
}

/* Objects the store has and nothing names go: of files that were just being made, or just gone. The others'
 * images learn the time of their content: the dead daemon may have filled them without. */
static int check_found(void *arg, struct object *o)
{
	struct fs *fs = arg;
	struct inode *i;
	int r;

	ns_lock(fs);
	r = inode_load(fs, object_ino(o), &i);
	if (r == 0) {
		object_know_mtime(o, &i->a.mtime);
		inode_put(fs, i);
	}
	ns_unlock(fs);
	if (r == -ENOENT)
		object_discard(o);
	return r == -ENOENT ? 0 : r;
}

int replay_run(struct fs *fs)
{
	struct replay rp = { .fs = fs };
	int r, s;

	rp.max_ino = meta_max_ino(fs->store);
	rp.max_id = meta_max_dentry_id(fs->store);
	ns_lock(fs);
	r = journal_replay(fs->store, replay_record, &rp);
	s = release(fs);
	fs->next_ino = (rp.max_ino < INO_FIRST ? INO_FIRST - 1 : rp.max_ino) + 1;
	fs->next_id = (rp.max_id < DENTRY_FIRST ? DENTRY_FIRST - 1 : rp.max_id) + 1;
	ns_unlock(fs);
	if (r || s)
		return r ? r : s;
	return store_for_dirty(fs->store, 0, DIRTY_OPEN | DIRTY_PUT_OFF, check_found, fs);
}
