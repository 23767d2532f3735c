/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object: the life of a file's bytes in memory: the table of objects, references, generations,
 * handles, what is dirty, and what stat sees.
 */
#include "store/chunker.h"
#include "store/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <sys/stat.h>
#include <unistd.h>

const char *tier_name(enum object_tier t)
{
	static const char *const name[] = { "hot", "warm", "cold" };

	return name[t];
}

int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static struct object *object_new(struct store *s, uint64_t ino, uint32_t tenant)
{
	struct object *o = calloc(1, sizeof(*o));
	pthread_rwlockattr_t attr;

	if (!o)
		return NULL;
	o->under = extmap_new(NULL, 0);
	if (!o->under) {
		free(o);
		return NULL;
	}
	o->snap.map = extmap_ref(o->under);
	o->db = extmap_ref(o->under);
	o->store = s;
	o->ino = ino;
	o->tenant = tenant;
	o->fd = o->wfd = -1;
	o->mtime.tv_nsec = -1;
	o->refs = 1;
	pthread_mutex_init(&o->settle_lock, NULL);
	pthread_mutex_init(&o->mu, NULL);
	pthread_cond_init(&o->filled, NULL);
	/* Background fills hold it shared again and again; a writer must get its turn. */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&o->rw, &attr);
	pthread_rwlockattr_destroy(&attr);
	o->last_use_ms = now_ms();
	return o;
}

void object_destroy(struct object *o)
{
	chunk_unref_map(o->store->chunks, o->under);
	chunk_unref_map(o->store->chunks, o->snap.map);
	extmap_unref(o->under);
	extmap_unref(o->snap.map);
	extmap_unref(o->db);
	blockmap_done(&o->valid);
	blockmap_done(&o->filling);
	blockmap_done(&o->dirty);
	blockmap_done(&o->redirty);
	slabs_done(&o->slabs);
	image_unmap(o);
	if (o->fd >= 0)
		close(o->fd);
	if (o->wfd >= 0)
		close(o->wfd);
	pthread_mutex_destroy(&o->settle_lock);
	pthread_mutex_destroy(&o->mu);
	pthread_cond_destroy(&o->filled);
	pthread_rwlock_destroy(&o->rw);
	free(o);
}

/* ---- the table ---- */

struct object *object_find(struct store *s, uint64_t ino)
{
	struct object *o;

	pthread_mutex_lock(&s->objects_lock);
	HASH_FIND(hh, s->objects, &ino, sizeof(ino), o);
	if (o)
		o->refs++;
	pthread_mutex_unlock(&s->objects_lock);
	return o;
}

/* Adds o, or takes the one somebody else added meanwhile. */
static struct object *table_add(struct store *s, struct object *o)
{
	struct object *old;
	bool oom;

	pthread_mutex_lock(&s->objects_lock);
	HASH_FIND(hh, s->objects, &o->ino, sizeof(o->ino), old);
	if (old)
		old->refs++;
	else
		HASH_ADD(hh, s->objects, ino, sizeof(o->ino), o);
	oom = !old && !o->hh.tbl;
	pthread_mutex_unlock(&s->objects_lock);
	if (!old && !oom)
		return o;
	object_destroy(o);
	return old;
}

int object_create(struct store *s, uint64_t ino, uint32_t tenant, struct object **ret)
{
	struct object *o = object_new(s, ino, tenant);

	if (!o)
		return -ENOMEM;
	/* Nothing of it is in meta.db, so it is dirty until a settle says what it is. */
	o->wgen = 1;
	o->dirty_since_ms = now_ms();
	o->last_close_ms = o->dirty_since_ms;
	o = table_add(s, o);
	if (!o)
		return -ENOMEM;
	pthread_mutex_lock(&o->mu);
	pending_note(o);
	pthread_mutex_unlock(&o->mu);
	*ret = o;
	return 0;
}

/* The committed content becomes what o starts from. */
static int load_committed(struct object *o)
{
	struct extmap *m;
	uint64_t size;
	int r = meta_get_extents(o->store->meta, o->ino, &m, &size);

	if (r)
		return r;
	r = loader_need(o->store, m);
	if (r) {
		extmap_unref(m);
		return r;
	}
	r = object_set_under(o, m);
	if (r)
		return r;
	extmap_unref(o->db);
	o->db = extmap_ref(m);
	o->size = size;
	o->wgen = o->sgen = 1;
	object_set_snap(o, size, 1);
	return 0;
}

int object_get(struct store *s, uint64_t ino, uint32_t tenant, struct object **ret)
{
	struct object *o = object_find(s, ino);
	int r;

	if (!o) {
		o = object_new(s, ino, tenant);
		if (!o)
			return -ENOMEM;
		r = load_committed(o);
		if (r) {
			object_destroy(o);
			return r;
		}
		o = table_add(s, o);
		if (!o)
			return -ENOMEM;
	} else {
		object_set_tenant(o, tenant);
	}
	*ret = o;
	return 0;
}

void object_ref(struct object *o)
{
	pthread_mutex_lock(&o->store->objects_lock);
	o->refs++;
	pthread_mutex_unlock(&o->store->objects_lock);
}

/* Something only memory knows: it must stay. objects_lock held; what it reads can only change under
 * a reference, and there is none. */
static bool must_stay(const struct object *o)
{
	return !o->discarded &&
	       (o->image != IMAGE_NONE || o->wgen != o->sgen || o->under != o->db || o->all_dirty);
}

void object_unref(struct object *o)
{
	struct store *s;
	bool last;

	if (!o)
		return;
	s = o->store;
	pthread_mutex_lock(&s->objects_lock);
	last = --o->refs == 0 && !must_stay(o);
	if (last) {
		pending_forget(o);
		HASH_DEL(s->objects, o);
	}
	pthread_mutex_unlock(&s->objects_lock);
	if (last)
		object_destroy(o);
}

uint64_t object_ino(const struct object *o)
{
	return o->ino;
}

void object_lru_add(struct object *o)
{
	pthread_mutex_lock(&o->store->objects_lock);
	if (!o->in_lru)
		TAILQ_INSERT_TAIL(&o->store->lru, o, lru);
	o->in_lru = true;
	pthread_mutex_unlock(&o->store->objects_lock);
}

void object_lru_remove(struct object *o)
{
	pthread_mutex_lock(&o->store->objects_lock);
	if (o->in_lru)
		TAILQ_REMOVE(&o->store->lru, o, lru);
	o->in_lru = false;
	pthread_mutex_unlock(&o->store->objects_lock);
}

void object_touch(struct object *o)
{
	pthread_mutex_lock(&o->store->objects_lock);
	o->last_use_ms = now_ms();
	if (o->in_lru) {
		TAILQ_REMOVE(&o->store->lru, o, lru);
		TAILQ_INSERT_TAIL(&o->store->lru, o, lru);
	}
	pthread_mutex_unlock(&o->store->objects_lock);
}

void object_requeue(struct object *o)
{
	pthread_mutex_lock(&o->store->objects_lock);
	if (o->in_lru) {
		TAILQ_REMOVE(&o->store->lru, o, lru);
		TAILQ_INSERT_TAIL(&o->store->lru, o, lru);
	}
	pthread_mutex_unlock(&o->store->objects_lock);
}

size_t object_oldest(struct store *s, int64_t before_ms, struct object **v, size_t max)
{
	struct object *o;
	size_t n = 0;

	pthread_mutex_lock(&s->objects_lock);
	TAILQ_FOREACH(o, &s->lru, lru) {
		if (n == max || o->last_use_ms > before_ms)
			break;
		o->refs++;
		v[n++] = o;
	}
	pthread_mutex_unlock(&s->objects_lock);
	return n;
}

struct object **object_list(struct store *s, size_t *ret_n)
{
	struct object **v, *o;
	size_t n = 0;

	pthread_mutex_lock(&s->objects_lock);
	TAILQ_FOREACH(o, &s->lru, lru)
		n++;
	v = calloc(n + 1, sizeof(*v));
	n = 0;
	if (v)
		TAILQ_FOREACH(o, &s->lru, lru) {
			o->refs++;
			v[n++] = o;
		}
	pthread_mutex_unlock(&s->objects_lock);
	*ret_n = n;
	return v;
}

struct object **object_all(struct store *s, size_t *ret_n)
{
	struct object **v, *o, *tmp;
	size_t n = 0;

	pthread_mutex_lock(&s->objects_lock);
	v = calloc(HASH_COUNT(s->objects) + 1, sizeof(*v));
	if (v)
		HASH_ITER(hh, s->objects, o, tmp) {
			o->refs++;
			v[n++] = o;
		}
	pthread_mutex_unlock(&s->objects_lock);
	*ret_n = n;
	return v;
}

void object_list_free(struct object **v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		object_unref(v[i]);
	free(v);
}

/* ---- content: maps and generations ---- */

int object_set_under(struct object *o, struct extmap *m)
{
	int r = chunk_ref_map(o->store->chunks, m);

	if (r) {
		extmap_unref(m);
		return r;
	}
	chunk_unref_map(o->store->chunks, o->under);
	extmap_unref(o->under);
	o->under = m;
	o->under_stored = chunk_map_stored(o->store->chunks, m);
	return 0;
}

void object_set_snap(struct object *o, uint64_t size, uint64_t gen)
{
	/* Its chunks are those of under, which are there: this cannot fail. */
	chunk_ref_map(o->store->chunks, o->under);
	chunk_unref_map(o->store->chunks, o->snap.map);
	extmap_unref(o->snap.map);
	o->snap.map = extmap_ref(o->under);
	o->snap.size = size;
	o->snap.mtime = o->mtime;
	o->snap.gen = gen;
	/* Not of one just loaded, which nobody may find yet. */
	if (object_uncommitted_locked(o))
		pending_note(o);
}

uint64_t object_dirty_bytes(const struct object *o)
{
	uint64_t bytes = o->dirty.set * OBJECT_BLOCK;

	/* Written unseen: all there is of it, which in a sparse file is less than its size. */
	if (o->all_dirty)
		return o->size < o->blocks ? o->size : o->blocks;
	return bytes < o->size ? bytes : o->size;
}

void object_account(struct object *o, uint64_t dirty_before)
{
	uint64_t moved = object_dirty_bytes(o) - dirty_before;

	atomic_fetch_add(&o->store->dirty_bytes, moved);
	if (!o->unlinked)
		atomic_fetch_add(&o->store->named_bytes, moved);
}

void object_set_unlinked(struct object *o, bool unlinked)
{
	uint64_t bytes;

	pthread_mutex_lock(&o->mu);
	bytes = object_dirty_bytes(o);
	if (unlinked && !o->unlinked)
		atomic_fetch_sub(&o->store->named_bytes, bytes);
	else if (!unlinked && o->unlinked)
		atomic_fetch_add(&o->store->named_bytes, bytes);
	o->unlinked = unlinked;
	pthread_mutex_unlock(&o->mu);
}

void object_dirty_begin(struct object *o)
{
	if (o->wgen == o->sgen)
		o->dirty_since_ms = now_ms();
	o->wgen++;
	pending_note(o);
	image_unmark(o);
}

bool object_dirty_locked(const struct object *o)
{
	return !o->discarded && (o->wgen != o->sgen || o->dirty.set || o->all_dirty);
}

bool object_uncommitted_locked(const struct object *o)
{
	return !o->discarded && o->snap.map != o->db;
}

bool object_is_dirty(struct object *o)
{
	bool d;

	pthread_mutex_lock(&o->mu);
	d = object_dirty_locked(o);
	pthread_mutex_unlock(&o->mu);
	return d;
}

bool object_is_uncommitted(struct object *o)
{
	bool u;

	pthread_mutex_lock(&o->mu);
	u = object_uncommitted_locked(o);
	pthread_mutex_unlock(&o->mu);
	return u;
}

static enum object_tier tier_of(struct object *o)
{
	if (o->image == IMAGE_COMPLETE)
		return TIER_HOT;
	return warm_has_map(o->store->chunks, o->under) ? TIER_WARM : TIER_COLD;
}

/* What the file takes once it is settled, as far as that is known: its chunks but those under dirty blocks,
 * and these as they are. Written unseen, all of the image is dirty: what is settled beneath it says
 * nothing about it any more, and where its holes are only the tmpfs knows, in huge pages. mu held. */
static uint64_t stored_bytes(const struct object *o)
{
	uint64_t under = o->under_stored, b = 0, n;

	if (o->all_dirty)
		return o->size < o->blocks ? o->size : o->blocks;
	for (;; b += n) {
		uint64_t covered;

		b = blockmap_next(&o->dirty, b, object_blocks(o->size), true, &n);
		if (!n)
			break;
		covered = chunk_range_stored(o->store->chunks, o->under, b * OBJECT_BLOCK,
					     (b + n) * OBJECT_BLOCK);
		under -= covered < under ? covered : under;
	}
	return under + object_dirty_bytes(o);
}

int object_stat(struct object *o, struct object_stat *ret)
{
	pthread_mutex_lock(&o->mu);
	if (o->all_dirty)
		image_refresh(o);
	*ret = (struct object_stat){
		.size = o->size,
		.dirty = object_dirty_bytes(o),
		.tier = tier_of(o),
		.partial = o->image == IMAGE_PARTIAL,
		.writer = o->all_dirty,
		.orphan = o->orphan,
		.wgen = o->wgen,
		.sgen = o->sgen,
		.load_us = o->image == IMAGE_COMPLETE ? 0 : fill_estimate_us(o),
	};
	ret->stored = stored_bytes(o);
	if (o->mtime.tv_nsec >= 0)
		ret->mtime = ret->ctime = o->mtime;
	pthread_mutex_unlock(&o->mu);
	return 0;
}

int object_set_mtime(struct object *o, const struct timespec *mtime)
{
	int r;

	pthread_mutex_lock(&o->mu);
	o->mtime.tv_nsec = o->snap.mtime.tv_nsec = -1;
	r = o->store->journal ? j_put_range(o->store, J_TIMES, o->ino, 0, 0) : 0;
	if (o->image != IMAGE_NONE) {
		o->image_mtime = *mtime;
		image_restore_mtime(o);
	}
	pthread_mutex_unlock(&o->mu);
	return r;
}

void object_expect_size(struct object *o, uint64_t size)
{
	pthread_mutex_lock(&o->mu);
	o->expected = size;
	pthread_mutex_unlock(&o->mu);
}

void object_know_mtime(struct object *o, const struct timespec *mtime)
{
	pthread_mutex_lock(&o->mu);
	if (o->mtime.tv_nsec < 0 && !o->all_dirty && o->image != IMAGE_NONE &&
	    (o->image_mtime.tv_sec != mtime->tv_sec || o->image_mtime.tv_nsec != mtime->tv_nsec)) {
		o->image_mtime = *mtime;
		/* Not over the time of a write that is on its way; a fill puts it there when it ends. */
		if (!o->wfd_users)
			image_restore_mtime(o);
	}
	pthread_mutex_unlock(&o->mu);
}

void object_set_codec(struct object *o, enum codec_choice choice)
{
	pthread_mutex_lock(&o->mu);
	o->codec = choice;
	pthread_mutex_unlock(&o->mu);
}

void object_set_layout(struct object *o, const struct raw_layout *layout)
{
	pthread_mutex_lock(&o->mu);
	o->layout = *layout;
	pthread_mutex_unlock(&o->mu);
}

void object_set_tenant(struct object *o, uint32_t tenant)
{
	pthread_mutex_lock(&o->mu);
	o->tenant = tenant;
	pthread_mutex_unlock(&o->mu);
}

/* ---- handles ---- */

/* A writer comes that the daemon will not see: from now on the whole image may change. */
static int begin_hidden(struct object *o)
{
	uint64_t dirty = object_dirty_bytes(o);
	int r = 0;

	object_dirty_begin(o);
	if (!o->all_dirty) {
		o->all_dirty = true;
		r = j_put_image(o);
		if (r)
			o->all_dirty = false;
	}
	if (r)
		return r;
	o->hidden++;
	o->hidden_epoch++;
	atomic_fetch_add(&o->store->hidden_writers, 1);
	object_account(o, dirty);
	image_refresh(o);
	return 0;
}

int object_handle_begin(struct object *o, bool write, bool hidden)
{
	int r = 0;

	object_touch(o);
	pthread_mutex_lock(&o->mu);
	if (hidden)
		r = o->image == IMAGE_COMPLETE ? begin_hidden(o) : -ENODATA;
	if (!r) {
		o->handles++;
		o->writers += write;
	}
	pthread_mutex_unlock(&o->mu);
	return r;
}

void object_handle_end(struct object *o, bool write, bool hidden)
{
	object_touch(o);
	pthread_mutex_lock(&o->mu);
	if (hidden) {
		image_refresh(o);
		o->hidden--;
		atomic_fetch_sub(&o->store->hidden_writers, 1);
	}
	o->handles--;
	o->writers -= write;
	if (write && !o->writers) {
		o->last_close_ms = now_ms();
		o->resettle_ms = 0;
		o->resettle_s = 0;
	}
	if (!o->handles && o->image != IMAGE_NONE && !o->discarded)
		image_punch_tail(o);
	image_close_idle(o);
	pthread_mutex_unlock(&o->mu);
}

int object_image_open(struct object *o)
{
	int fd = -ENODATA;
	char name[32];

	pthread_mutex_lock(&o->mu);
	if (o->image == IMAGE_COMPLETE) {
		image_name(o->ino, name);
		fd = openat(image_dir(o), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		if (fd < 0)
			fd = -errno;
	}
	if (fd >= 0 && !o->backed++) {
		o->backed_bytes = o->size;
		atomic_fetch_add(&o->store->backed_bytes, o->backed_bytes);
	}
	pthread_mutex_unlock(&o->mu);
	return fd;
}

bool store_backed_much(struct store *s)
{
	return atomic_load(&s->backed_bytes) > s->opt.hot_bytes / 2;
}

void object_image_close(struct object *o)
{
	pthread_mutex_lock(&o->mu);
	if (!--o->backed)
		atomic_fetch_sub(&o->store->backed_bytes, o->backed_bytes);
	pthread_mutex_unlock(&o->mu);
}

/* ---- leaving the hot tier ---- */

bool object_is_only_copy(const struct object *o)
{
	return atomic_load(&o->store->failed) && (o->snap.map != o->db || o->db_flights);
}

bool object_image_mapped(struct object *o)
{
	bool mapped = false;

	pthread_mutex_lock(&o->mu);
	if (o->image == IMAGE_COMPLETE && !o->backed) {
		/* The daemon's own descriptors would answer the probe; one for reading is in use by a
		 * settle, and then the probe can ask for writers only. */
		if (o->wfd >= 0 || o->map)
			mapped = o->all_dirty;
		else
			mapped = !image_unused(o, o->fd >= 0);
	}
	pthread_mutex_unlock(&o->mu);
	return mapped;
}

/* mu and rw (exclusive) held. */
static int evict_locked(struct object *o, enum object_tier to)
{
	struct store *s = o->store;

	if (o->handles || o->settling || o->wfd_users)
		return -EBUSY;
	if (object_dirty_locked(o) || object_is_only_copy(o))
		return -EAGAIN;
	if (o->image != IMAGE_NONE && !image_unused(o, false))
		return -EBUSY;
	if (o->image != IMAGE_NONE) {
		image_drop(o);
		atomic_fetch_add(&s->evicted_total, 1);
	}
	if (to == TIER_COLD)
		warm_drop_map(s->chunks, o->under);
	return 0;
}

/* No writer came since the image was clean at wgen: what was read of it is what was settled. */
static bool still_clean(struct object *o, uint64_t wgen)
{
	bool clean;

	pthread_mutex_lock(&o->mu);
	clean = !object_dirty_locked(o) && o->wgen == wgen;
	pthread_mutex_unlock(&o->mu);
	return clean;
}

/* The chunk's encoded form, made from the image's bytes. False unless it is what the store has. */
static bool warm_one(struct object *o, struct chunk *c, const struct extent *e, int fd,
		     uint64_t wgen, char *raw, char *enc)
{
	const struct codec *codec = codec_by_id(c->info.codec);

	if (!codec || e->skip || e->len != c->info.raw_len ||
	    pread(fd, raw, e->len, e->off) != (ssize_t)e->len)
		return false;
	/* Somebody may have begun to write to the image since. Warm chunks are shared and carry no sum, and a
	 * writer can make a content whose hash is the same. */
	if (!still_clean(o, wgen) || !hash128_equal(o->store->hash(raw, e->len), c->info.hash))
		return false;
	if (c->info.codec == CODEC_RAW)
		return warm_put(o->store->chunks, c, raw);
	if (codec->encode(raw, e->len, enc, c->info.stored_len, c->info.params) !=
	    (ssize_t)c->info.stored_len)
		return false;
	return warm_put(o->store->chunks, c, enc);
}

/* Puts the encoded chunks of a clean, complete image into the warm tier. rw (shared) held. Best
 * effort: what does not fit or cannot be had stays cold. */
static void warm_from_image(struct object *o)
{
	struct store *s = o->store;
	char *raw = malloc(CHUNK_MAX), *enc = malloc(CHUNK_MAX);
	struct extmap *m;
	uint64_t wgen;
	int fd;

	pthread_mutex_lock(&o->mu);
	m = extmap_ref(o->under);
	wgen = o->wgen;
	fd = o->image == IMAGE_COMPLETE && !object_dirty_locked(o) &&
			     o->under_stored <= s->opt.warm_bytes ?
		     image_open(o, O_RDONLY) :
		     -1;
	pthread_mutex_unlock(&o->mu);
	for (size_t i = 0; fd >= 0 && raw && enc && i < m->n; i++) {
		struct chunk *c = chunk_get(s->chunks, m->e[i].chunk);

		if (!c)
			continue;
		if (!c->warm)
			warm_one(o, c, &m->e[i], fd, wgen, raw, enc);
		chunk_put(s->chunks, c);
	}
	if (fd >= 0)
		close(fd);
	extmap_unref(m);
	free(raw);
	free(enc);
}

int object_evict(struct object *o, enum object_tier to)
{
	int r;

	pthread_mutex_lock(&o->mu);
	r = o->handles ? -EBUSY : object_dirty_locked(o) ? -EAGAIN : 0;
	pthread_mutex_unlock(&o->mu);
	if (r)
		return r;
	if (to == TIER_WARM) {
		pthread_rwlock_rdlock(&o->rw);
		warm_from_image(o);
		pthread_rwlock_unlock(&o->rw);
	}
	pthread_rwlock_wrlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	r = evict_locked(o, to);
	pthread_mutex_unlock(&o->mu);
	pthread_rwlock_unlock(&o->rw);
	if (!r && o->store->opt.hooks.changed)
		o->store->opt.hooks.changed(o->store->opt.hooks.arg, o->ino);
	return r;
}

void object_discard(struct object *o)
{
	struct extmap *none = extmap_new(NULL, 0);
	uint64_t dirty;

	pthread_rwlock_wrlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	dirty = object_dirty_bytes(o);
	o->discarded = true;
	o->all_dirty = false;
	blockmap_done(&o->dirty);
	blockmap_done(&o->redirty);
	o->size = 0;
	object_account(o, dirty);
	image_drop(o);
	if (none && object_set_under(o, none) == 0)
		object_set_snap(o, 0, o->wgen);
	j_put_range(o->store, J_DISCARD, o->ino, 0, 0);
	pthread_mutex_unlock(&o->mu);
	pthread_rwlock_unlock(&o->rw);
}

int recover_checkpoint(struct store *s)
{
	size_t n;
	struct object **v = object_all(s, &n);
	int r = v ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && !r; i++) {
		pthread_mutex_lock(&v[i]->mu);
		r = j_checkpoint_object(v[i]);
		pthread_mutex_unlock(&v[i]->mu);
	}
	object_list_free(v, n);
	return r;
}
