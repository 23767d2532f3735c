/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share: bytes of one file become bytes of another without being moved: extents that name the same
 * chunks. That is a cheap fork. Where the content of either is not known from its extents alone
 * nothing is done, and the caller copies.
 */
#include "store/store_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct share {
	struct store *s;
	struct object *from, *to;
	uint64_t off, to_off, len;
	struct extmap *source; /* with a reference to each of its chunks */
	struct extent *ext;    /* as they will be in the target */
	size_t exts;
};

/* What is dirty has no chunks yet. mu held. */
static bool range_is_settled(const struct object *o, uint64_t off, uint64_t len)
{
	uint64_t n;

	blockmap_next(&o->dirty, off / OBJECT_BLOCK, object_blocks(off + len), true, &n);
	return !o->all_dirty && !n;
}

/* The source as it is now: what happens to it later does not matter any more. */
static int look_at_source(struct share *sh)
{
	struct object *o = sh->from;
	int r = 0;

	pthread_mutex_lock(&o->mu);
	if (o->all_dirty || atomic_load(&sh->s->failed))
		r = -EOPNOTSUPP;
	else if (sh->off >= o->size)
		sh->len = 0;
	else if (sh->len > o->size - sh->off)
		sh->len = o->size - sh->off;
	if (!r && sh->len && !range_is_settled(o, sh->off, sh->len))
		r = -EOPNOTSUPP;
	if (!r && sh->len)
		r = chunk_ref_map(sh->s->chunks, o->under);
	if (!r && sh->len)
		sh->source = extmap_ref(o->under);
	pthread_mutex_unlock(&o->mu);
	return r;
}

/* What no durable row names may be lost with the device, and only the source has an image to settle it from
 * again. */
static int check_chunk(struct share *sh, uint64_t id)
{
	struct chunk *c = chunk_get(sh->s->chunks, id);
	int r;

	if (!c)
		return -EUCLEAN;
	r = chunk_needs_journal(sh->s->chunks, c) ? -EOPNOTSUPP : 0;
	chunk_put(sh->s->chunks, c);
	return r;
}

static int make_extents(struct share *sh)
{
	const struct extmap *m = sh->source;
	uint64_t end = sh->off + sh->len;
	size_t first = extmap_find(m, sh->off), last = extmap_find(m, end - 1);
	int r = 0;

	sh->ext = calloc(last - first + 1, sizeof(*sh->ext));
	if (!sh->ext)
		return -ENOMEM;
	for (size_t i = first; i < m->n && m->e[i].off < end && !r; i++) {
		struct extent e = m->e[i];
		uint64_t from = e.off > sh->off ? e.off : sh->off;
		uint64_t to = e.off + e.len < end ? e.off + e.len : end;

		sh->ext[sh->exts++] = (struct extent){
			.off = sh->to_off + (from - sh->off),
			.chunk = e.chunk,
			.len = (uint32_t)(to - from),
			.skip = e.skip + (uint32_t)(from - e.off),
		};
		r = check_chunk(sh, e.chunk);
	}
	return r;
}

/* The target's content is that of its extents: it has no image, or the empty one of a new file that
 * nobody else can reach. rw (exclusive) and mu held. */
static int check_target(struct share *sh)
{
	struct object *o = sh->to;
	enum dedup_scope scope = o->store->opt.dedup;

	if (o->discarded || o->all_dirty || scope == DEDUP_NONE ||
	    (scope == DEDUP_OWNER && o->tenant != sh->from->tenant))
		return -EOPNOTSUPP;
	if (sh->to_off > OBJECT_MAX || sh->len > OBJECT_MAX - sh->to_off)
		return -EFBIG;
	if (o->image == IMAGE_NONE)
		return 0;
	if (o->image != IMAGE_COMPLETE || o->size || o->backed || o->wfd_users)
		return -EOPNOTSUPP;
	image_close_idle(o);
	return o->fd < 0 && o->wfd < 0 && !o->map && image_unused(o, false) ? 0 : -EOPNOTSUPP;
}

/* What a cut left behind the end must not come back with the growth. */
static struct extmap *target_map(const struct share *sh)
{
	const struct object *o = sh->to;
	struct extmap *m = extmap_replace(o->under, o->size, UINT64_MAX, NULL, 0, UINT64_MAX);
	struct extmap *next = NULL;

	if (m)
		next = extmap_replace(m, sh->to_off, sh->to_off + sh->len, sh->ext, sh->exts,
				      UINT64_MAX);
	extmap_unref(m);
	return next;
}

/* One group in the journal, as after a settle: the file is settled then. rw (exclusive) and mu held. */
static int install(struct share *sh)
{
	struct object *o = sh->to;
	uint64_t end = sh->to_off + sh->len, size = end > o->size ? end : o->size;
	struct extmap *m = target_map(sh);
	struct timespec now;
	int r;

	if (!m)
		return -ENOMEM;
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	r = j_put_settled(o, NULL, 0, m, size, &now, &o->dirty, false, false);
	if (r) {
		extmap_unref(m);
		/* A full journal is being rewritten; a copy does not need so much of it. */
		return r == -ENOSPC ? -EOPNOTSUPP : r;
	}
	r = object_set_under(o, m);
	if (r)
		return r;
	/* Empty, and the journal does not call for it any more. */
	image_drop(o);
	object_dirty_begin(o);
	o->sgen = o->wgen;
	o->cut_unknown = false;
	o->size = size;
	o->mtime = now;
	object_set_snap(o, size, o->sgen);
	return 0;
}

static int put_into_target(struct share *sh)
{
	struct object *o = sh->to;
	int r;

	pthread_mutex_lock(&o->settle_lock);
	pthread_rwlock_wrlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	r = check_target(sh);
	if (!r)
		r = install(sh);
	pthread_mutex_unlock(&o->mu);
	pthread_rwlock_unlock(&o->rw);
	pthread_mutex_unlock(&o->settle_lock);
	return r;
}

static void done(struct share *sh)
{
	chunk_unref_map(sh->s->chunks, sh->source);
	extmap_unref(sh->source);
	free(sh->ext);
}

ssize_t object_share(struct object *from, uint64_t off, struct object *to, uint64_t to_off,
		     uint64_t len)
{
	struct share sh = {
		.s = from->store, .from = from, .to = to, .off = off, .to_off = to_off, .len = len
	};
	int r = look_at_source(&sh);

	if (r || !sh.len)
		return r;
	r = make_extents(&sh);
	if (!r)
		r = put_into_target(&sh);
	done(&sh);
	if (r)
		return r;
	if (to->store->opt.hooks.changed)
		to->store->opt.hooks.changed(to->store->opt.hooks.arg, to->ino);
	return (ssize_t)sh.len;
}
