/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settle: dirty ranges of an image become chunks in segments.
 *
 * A window of the image is copied into private memory, and only that copy is cut, hashed, compared
 * and encoded: whatever a writer does meanwhile, a chunk's hash is that of its bytes. What is
 * written during the settle is dirty again afterwards (redirty). The new extents take effect in
 * one step, with one group in the journal, after the bytes have left the process.
 */
#include "store/chunker.h"
#include "store/cutter.h"
#include "store/hash.h"
#include "store/store_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW  (2u << 20) /* encoded content lies together in runs of this at least, for restores */
#define RETRIES 3

_Static_assert(2 * WINDOW + 2 * CHUNK_MAX <= SCRATCH_SIZE, "one buffer holds them all");

struct region {
	uint64_t from, to;
};

struct settle {
	struct object *o;
	struct store *s;
	uint64_t size; /* of the file when it began */
	struct timespec mtime;
	uint64_t gen;
	bool frozen; /* rw is held for the whole settle */
	bool whole;
	bool quiet; /* no hidden writer was left when it began */
	uint32_t epoch;
	struct codec_set codecs;
	uint32_t tenant;
	struct region *region;
	size_t regions, region_cap;
	struct extent *ext;
	size_t exts, ext_cap;
	struct chunk **added; /* chunks not in meta.db, for the journal; with references */
	size_t n_added, added_cap;
	struct chunk **held; /* a reference for each extent until the map has its own */
	size_t n_held, held_cap;
	struct cut *cut; /* of the window */
	size_t cuts, cut_cap;
	char *window, *encoded, *compare; /* scratch */
};

/* Room for n elements and one more; v is a pointer to the array pointer. */
static int grow(void *v, size_t *cap, size_t n, size_t item)
{
	void **array = v;
	void *p;
	size_t c = *cap ? *cap * 2 : 64;

	if (n < *cap)
		return 0;
	while (c <= n)
		c *= 2;
	p = reallocarray(*array, c, item);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = c;
	return 0;
}

/* ---- one chunk ---- */

/* No new segment (a full file system, no descriptors) is no failure of the appender: it goes on when
 * there is one. */
static int appended(struct settle *t, int r)
{
	int broken = r ? segset_error(t->s->segs) : 0;

	if (broken)
		segments_failed(t->s, broken);
	return r;
}

/* What has to be stored, as far as that is known without the others. */
static void encode_cuts(struct settle *t)
{
	for (size_t i = 0; i < t->cuts; i++) {
		struct cut *cut = &t->cut[i];

		if (!cut->same)
			cut->codec = codec_encode(&t->codecs, t->window + cut->at, cut->len,
						  t->encoded + cut->at, &cut->stored, cut->params);
	}
}

static int store_chunk(struct settle *t, const struct cut *cut, struct chunk **ret)
{
	struct record_info info = {
		.chunk_id = chunk_next_id(t->s->chunks),
		.hash = cut->hash,
		.tenant = t->tenant,
		.raw_len = cut->len,
		.stored_len = (uint32_t)cut->stored,
		.codec = cut->codec->id,
	};
	const char *from = info.codec == CODEC_RAW ? t->window : t->encoded;
	struct segment_loc loc;
	int r;

	memcpy(info.params, cut->params, sizeof(info.params));
	r = appended(t, segset_append(t->s->segs, &info, from + cut->at, &loc));
	if (r)
		return r;
	r = seglive_add(t->s, loc.segment, record_size(info.stored_len));
	if (r)
		return r;
	*ret = chunk_add(t->s->chunks, &info, loc);
	return *ret ? 0 : -ENOMEM;
}

/* Room for n more extents. */
static int grow_lists(struct settle *t, size_t n)
{
	int r = grow(&t->ext, &t->ext_cap, t->exts + n, sizeof(*t->ext));

	if (!r)
		r = grow(&t->held, &t->held_cap, t->n_held + n, sizeof(*t->held));
	if (!r)
		r = grow(&t->added, &t->added_cap, t->n_added + n, sizeof(*t->added));
	return r;
}

/* The cuts become extents: of chunks that are there, else of new ones. off: of the window in the
 * file. The run has begun: the reaper must not find a segment retired and without live bytes between
 * an append and its seglive_add. */
static int place_cuts(struct settle *t, uint64_t off)
{
	struct store *s = t->s;
	size_t i;
	int r = 0;

	for (i = 0; i < t->cuts && !r; i++) {
		const struct cut *cut = &t->cut[i];
		struct chunk *c = dedup_next(s, t->tenant, cut, t->window, t->compare);

		if (c)
			atomic_fetch_add(&s->dedup_total, cut->len);
		else
			r = store_chunk(t, cut, &c);
		if (r)
			continue;
		t->held[t->n_held++] = c;
		if (chunk_needs_journal(s->chunks, c))
			t->added[t->n_added++] = c;
		t->ext[t->exts++] = (struct extent){
			.off = off + cut->at,
			.chunk = c->info.chunk_id,
			.len = cut->len,
		};
	}
	for (; i < t->cuts; i++)
		if (t->cut[i].chunk)
			chunk_put(s->chunks, t->cut[i].chunk);
	return r;
}

/* Several files may be settled at the same time: each one's windows go to the store in one piece. */
static int add_cuts(struct settle *t, uint64_t off)
{
	int r = grow_lists(t, t->cuts);

	if (r)
		return r;
	dedup_first(t->s, t->tenant, t->cut, t->cuts, t->window, t->compare);
	encode_cuts(t);
	segset_run_begin(t->s->segs);
	r = place_cuts(t, off);
	segset_run_end(t->s->segs);
	return r;
}

/* ---- one region ---- */

static int add_cut(struct settle *t, size_t at, size_t len)
{
	int r = grow(&t->cut, &t->cut_cap, t->cuts, sizeof(*t->cut));

	if (!r)
		t->cut[t->cuts++] = (struct cut){
			.at = at,
			.len = (uint32_t)len,
			.hash = t->s->hash(t->window + at, len),
		};
	return r;
}

/* Cuts what the window holds into chunks. *ret_used: bytes done with. */
static int cut_window(struct settle *t, const struct chunker *ck, uint64_t off, size_t len,
		      bool last, size_t *ret_used)
{
	struct cutter c = { *ck, &t->o->slabs, t->window, off, len, last, 0, 0, 0 };
	size_t at, n;
	int r = 0;

	t->cuts = 0;
	while (!r && (n = cutter_next(&c, &at)))
		r = add_cut(t, at, n);
	*ret_used = c.at;
	return r;
}

static int read_image(struct object *o, char *buf, size_t len, uint64_t off)
{
	size_t done = 0;
	int fd;

	pthread_mutex_lock(&o->mu);
	fd = image_fd(o);
	pthread_mutex_unlock(&o->mu);
	while (fd >= 0 && done < len) {
		ssize_t n = pread(fd, buf + done, len - done, off + done);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0) { /* it shrank; the settle is repeated or the tail cut */
			memset(buf + done, 0, len - done);
			break;
		}
		done += n > 0 ? n : 0;
	}
	return fd < 0 ? fd : 0;
}

/* Whole chunks are replaced, so a region may reach into blocks that are not in the image. */
static int need_valid(struct settle *t, uint64_t off, size_t len)
{
	struct object *o = t->o;
	int r;

	if (!t->frozen)
		pthread_rwlock_rdlock(&o->rw);
	r = fill_blocks(o, off / OBJECT_BLOCK, object_blocks(off + len) - off / OBJECT_BLOCK);
	if (!t->frozen)
		pthread_rwlock_unlock(&o->rw);
	return r;
}

static int settle_region(struct settle *t, const struct region *g)
{
	struct chunker ck = chunker_for(t->size);
	uint64_t off = g->from;
	size_t have = 0, used;
	int r;

	while (off < g->to) {
		size_t want = WINDOW - have;
		bool last;

		if (want > g->to - off - have)
			want = g->to - off - have;
		last = off + have + want == g->to;
		r = t->whole ? 0 : need_valid(t, off + have, want);
		if (!r)
			r = read_image(t->o, t->window + have, want, off + have);
		if (!r)
			r = cut_window(t, &ck, off, have + want, last, &used);
		if (!r)
			r = add_cuts(t, off);
		if (r)
			return r;
		atomic_fetch_add(&t->s->settled_total, used);
		have = have + want - used;
		memmove(t->window, t->window + used, have);
		off += used;
	}
	return 0;
}

/* ---- the layout ---- */

static int peek(void *arg, void *buf, size_t len, uint64_t off)
{
	return object_peek(arg, buf, len, off);
}

/* What was found last holds while the size and the head stay; what is written unseen may be either. */
static bool layout_holds(const struct settle *t)
{
	const struct slabs *s = &t->o->slabs;

	return !t->whole && s->head && s->size == t->size && t->region[0].from >= s->head;
}

/* Where the slabs begin: as somebody said, else as the head says. Without a layout, be it only that the head
 * cannot be read, the content alone says where chunks end. */
static void find_layout(struct settle *t)
{
	struct object *o = t->o;
	struct layout_source src = { peek, o, t->size };
	struct raw_layout raw;

	pthread_mutex_lock(&o->mu);
	raw = o->layout;
	pthread_mutex_unlock(&o->mu);
	if (!raw.slabs && !raw.stride && layout_holds(t))
		return;
	slabs_done(&o->slabs);
	if (raw.slabs || raw.stride) {
		layout_raw(&raw, t->size, &o->slabs);
		return;
	}
	if (!t->frozen)
		pthread_rwlock_rdlock(&o->rw);
	layout_find(&src, &o->slabs);
	if (!t->frozen)
		pthread_rwlock_unlock(&o->rw);
}

/* ---- what to settle ---- */

static int add_region(struct settle *t, uint64_t from, uint64_t to)
{
	struct region *last = t->regions ? &t->region[t->regions - 1] : NULL;
	int r;

	if (to > t->size)
		to = t->size;
	if (from >= to)
		return 0;
	if (last && from <= last->to) {
		if (to > last->to)
			last->to = to;
		return 0;
	}
	r = grow(&t->region, &t->region_cap, t->regions, sizeof(*t->region));
	if (!r)
		t->region[t->regions++] = (struct region){ from, to };
	return r;
}

/* A run of dirty blocks, widened to the extents it touches, so that chunks are replaced whole. */
static int add_dirty_run(struct settle *t, uint64_t from, uint64_t to)
{
	const struct extmap *m = t->o->under;
	size_t i = extmap_find(m, from);

	if (i < m->n && m->e[i].off < from)
		from = m->e[i].off;
	i = extmap_find(m, to - 1);
	if (i < m->n && m->e[i].off < to && m->e[i].off + m->e[i].len > to)
		to = m->e[i].off + m->e[i].len;
	return add_region(t, from, to);
}

/* Of an image that was written unseen, all that is no hole. */
static int add_data_regions(struct settle *t)
{
	off_t data = 0, hole;
	int fd = image_fd(t->o), r = 0;

	if (fd < 0)
		return fd;
	while (!r && (uint64_t)data < t->size) {
		data = lseek(fd, data, SEEK_DATA);
		if (data < 0)
			return errno == ENXIO ? 0 : -errno;
		hole = lseek(fd, data, SEEK_HOLE);
		if (hole < 0)
			return -errno;
		r = add_region(t, data, hole);
		data = hole;
	}
	return r;
}

/* Takes down what is dirty; from here on writers note what they dirty again. mu held. */
static int begin(struct settle *t)
{
	struct object *o = t->o;
	uint64_t n, b = 0;
	int r = 0;

	t->regions = t->exts = 0;
	if (o->all_dirty)
		image_refresh(o);
	t->size = o->size;
	t->mtime = o->mtime;
	t->gen = o->wgen;
	t->whole = o->all_dirty;
	t->epoch = o->hidden_epoch;
	/* No writer is left and none can come unseen: what is copied from now on stays true. */
	t->quiet = t->whole && !o->hidden && o->wfd < 0 && image_unused(o, true);
	if (t->whole)
		r = add_data_regions(t);
	while (!t->whole && !r) {
		b = blockmap_next(&o->dirty, b, object_blocks(t->size), true, &n);
		if (!n)
			break;
		r = add_dirty_run(t, b * OBJECT_BLOCK, (b + n) * OBJECT_BLOCK);
		b += n;
	}
	blockmap_done(&o->redirty);
	o->settling = true;
	o->cut_while_settling = false;
	return r;
}

static struct extmap *new_map(struct settle *t)
{
	struct extmap *m = extmap_ref(t->o->under), *next;
	size_t e = 0;

	if (t->whole) {
		next = extmap_replace(m, 0, UINT64_MAX, t->ext, t->exts, t->size);
		extmap_unref(m);
		return next;
	}
	/* A change of size alone is news too: another map, so that it differs from meta.db's. */
	if (m && !t->regions) {
		next = extmap_new(m->e, m->n);
		extmap_unref(m);
		return next;
	}
	for (size_t i = 0; m && i < t->regions; i++) {
		size_t first = e;

		while (e < t->exts && t->ext[e].off < t->region[i].to)
			e++;
		next = extmap_replace(m, t->region[i].from, t->region[i].to, t->ext + first,
				      e - first, UINT64_MAX);
		extmap_unref(m);
		m = next;
	}
	return m;
}

/* mu held. 1: content was cut meanwhile, do it again. */
static int install(struct settle *t)
{
	struct object *o = t->o;
	uint64_t dirty = object_dirty_bytes(o);
	bool all_dirty = o->all_dirty && !(t->quiet && o->hidden_epoch == t->epoch);
	struct extmap *m;
	int r;

	if (o->cut_while_settling)
		return 1;
	m = new_map(t);
	if (!m)
		return -ENOMEM;
	if (o->mtime.tv_nsec < 0) /* set by somebody since */
		t->mtime.tv_nsec = -1;
	r = j_put_settled(o, t->added, t->n_added, m, t->size, &t->mtime, &o->redirty, all_dirty,
			  o->wgen != t->gen);
	if (r) {
		extmap_unref(m);
		return r;
	}
	r = object_set_under(o, m);
	if (r)
		return r;
	blockmap_done(&o->dirty);
	o->dirty = o->redirty;
	o->redirty = (struct blockmap){ 0 };
	o->all_dirty = all_dirty;
	o->orphan &= all_dirty;
	o->sgen = t->gen;
	object_set_snap(o, t->size, t->gen);
	o->snap.mtime = t->mtime;
	object_account(o, dirty);
	return 0;
}

/* A mapping without a handle cannot be watched: settled again and again, ever more rarely. */
static void plan_resettle(struct object *o)
{
	if (!o->all_dirty || o->hidden)
		return;
	o->resettle_s = o->resettle_s ? o->resettle_s * 2 : 5;
	if (o->resettle_s > 60)
		o->resettle_s = 60;
	o->resettle_ms = now_ms() + o->resettle_s * 1000;
}

static void finish(struct settle *t, int err)
{
	struct object *o = t->o;

	pthread_mutex_lock(&o->mu);
	o->settling = false;
	if (err)
		blockmap_done(&o->redirty);
	else
		plan_resettle(o);
	if (!err && o->image == IMAGE_COMPLETE && o->wgen == o->sgen && !o->dirty.set &&
	    !o->all_dirty && !o->discarded)
		image_mark_clean(o);
	image_close_idle(o);
	pthread_mutex_unlock(&o->mu);
	for (size_t i = 0; i < t->n_held; i++)
		chunk_put(t->s->chunks, t->held[i]);
	t->n_held = t->n_added = 0;
}

static int settle_once(struct settle *t)
{
	struct object *o = t->o;
	int r;

	/* No writer is between marking a block and putting its bytes: from here on each one sees
	 * that a settle is on and marks what it writes as dirty again. */
	if (!t->frozen)
		pthread_rwlock_rdlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	r = begin(t);
	pthread_mutex_unlock(&o->mu);
	if (!t->frozen)
		pthread_rwlock_unlock(&o->rw);
	if (!r && t->regions)
		find_layout(t);
	for (size_t i = 0; i < t->regions && !r; i++)
		r = settle_region(t, &t->region[i]);
	/* A kill must not take what the journal is about to call settled. */
	if (!r && t->n_added)
		r = appended(t, segset_flush(t->s->segs));
	if (!r) {
		pthread_mutex_lock(&o->mu);
		r = install(t);
		pthread_mutex_unlock(&o->mu);
	}
	finish(t, r);
	return r;
}

static int settle_buffers(struct settle *t)
{
	t->window = scratch_get(t->s);
	if (!t->window)
		return -ENOMEM;
	t->encoded = t->window + WINDOW;
	t->compare = t->encoded + WINDOW;
	return 0;
}

static void settle_done(struct settle *t)
{
	scratch_put(t->s, t->window);
	free(t->cut);
	free(t->region);
	free(t->ext);
	free(t->added);
	free(t->held);
}

static struct codec_set codecs_of(struct object *o)
{
	enum codec_choice choice;

	pthread_mutex_lock(&o->mu);
	choice = o->codec == CODEC_CHOICE_STORE ? o->store->opt.codec : o->codec;
	pthread_mutex_unlock(&o->mu);
	return codec_set(choice, atomic_load(&o->store->read_rate), fill_threads(o->store));
}

int object_settle(struct object *o)
{
	struct settle t = { .o = o, .s = o->store };
	int r = 0;

	pthread_mutex_lock(&o->settle_lock);
	if (atomic_load(&o->store->failed) && object_is_dirty(o)) {
		r = -EIO;
	} else if (object_is_dirty(o)) {
		t.codecs = codecs_of(o);
		t.tenant = dedup_tenant(o);
		r = settle_buffers(&t);
		for (int i = 0; !r; i++) {
			/* Somebody who truncates all the time is made to wait in the end. */
			t.frozen = i == RETRIES;
			if (t.frozen)
				pthread_rwlock_rdlock(&o->rw);
			r = settle_once(&t);
			if (t.frozen)
				pthread_rwlock_unlock(&o->rw);
			if (r <= 0)
				break;
			r = i == RETRIES ? -EAGAIN : 0;
		}
		settle_done(&t);
		/* Only what a head says is worth keeping; what somebody said may be long, and no data behind it. */
		if (!o->slabs.head)
			slabs_done(&o->slabs);
		space_refresh(o->store);
	}
	pthread_mutex_unlock(&o->settle_lock);
	if (o->store->opt.hooks.changed)
		o->store->opt.hooks.changed(o->store->opt.hooks.arg, o->ino);
	return r;
}

uint64_t store_chunks_of(uint64_t file_size)
{
	return file_size / chunker_for(file_size).average + 1;
}
