/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover: what store/ writes to the journal, and what it makes of it after a kill.
 *
 * Replay collects what the records say of each object, without looking at chunks: a map in the
 * middle of the journal may name chunks that were freed since. Only the last state of each object
 * is turned into one. Images that no record calls dirty are adopted when their clean mark fits what
 * meta.db says, and removed otherwise.
 */
#include "store/store_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

/* What the records so far say of one object. Maps hold no chunk references. */
struct found {
	UT_hash_handle hh;
	uint64_t ino;
	uint32_t tenant;
	bool committed; /* has a row in meta.db */
	struct extmap *db;
	uint64_t db_size;
	struct extmap *under;
	struct extmap *snap; /* NULL: no settle was recorded */
	uint64_t size;       /* of the last settle */
	struct timespec mtime;
	bool image;
	uint32_t flags;
	struct blockmap dirty;
	bool discarded;
};

/* ---- writing ---- */

int j_put_range(struct store *s, uint32_t type, uint64_t ino, uint64_t first, uint64_t count)
{
	struct j_range r = { ino, first, count };
	struct journal_record rec = { type, sizeof(r), &r };

	return journal_append(s, &rec, 1);
}

struct group {
	struct journal_record *rec;
	struct j_range *range;
	unsigned n, ranges;
};

/* Room for the image record and one range for each dirty run. */
static int group_new(struct group *g, size_t records, const struct blockmap *dirty)
{
	uint64_t b = 0, n;
	size_t runs = 0;

	for (;;) {
		b = blockmap_next(dirty, b, dirty->words * 64, true, &n);
		if (!n)
			break;
		runs++;
		b += n;
	}
	*g = (struct group){ 0 };
	g->rec = calloc(records + runs, sizeof(*g->rec));
	g->range = calloc(runs + 1, sizeof(*g->range));
	return g->rec && g->range ? 0 : -ENOMEM;
}

static void group_done(struct group *g)
{
	free(g->rec);
	free(g->range);
}

static void group_add(struct group *g, uint32_t type, const void *data, size_t len)
{
	g->rec[g->n++] = (struct journal_record){ type, len, data };
}

static void group_add_dirty(struct group *g, uint64_t ino, const struct blockmap *dirty)
{
	uint64_t b = 0, n;

	for (;;) {
		struct j_range *r = &g->range[g->ranges];

		b = blockmap_next(dirty, b, dirty->words * 64, true, &n);
		if (!n)
			return;
		*r = (struct j_range){ ino, b, n };
		g->ranges++;
		group_add(g, J_DIRTY, r, sizeof(*r));
		b += n;
	}
}

static struct j_image image_record(const struct object *o, bool all_dirty)
{
	return (struct j_image){
		.ino = o->ino,
		.tenant = o->tenant,
		.flags = (o->image == IMAGE_COMPLETE ? J_IMAGE_COMPLETE : 0) |
			 (all_dirty ? J_IMAGE_ALL_DIRTY : 0),
	};
}

static int put_image(struct object *o, bool checkpoint)
{
	struct j_image image = image_record(o, o->all_dirty);
	struct group g;
	int r;

	if (!o->store->journal)
		return -EROFS;
	r = group_new(&g, 1, &o->dirty);
	if (!r) {
		group_add(&g, J_IMAGE, &image, sizeof(image));
		group_add_dirty(&g, o->ino, &o->dirty);
		r = checkpoint ? journal_checkpoint_put(o->store->journal, g.rec, g.n) :
				 journal_append(o->store, g.rec, g.n);
	}
	group_done(&g);
	return r;
}

int j_put_image(struct object *o)
{
	return put_image(o, false);
}

static struct j_chunk chunk_record(const struct chunk *c)
{
	struct segment_loc loc = chunk_loc(c);
	struct j_chunk j = {
		.id = c->info.chunk_id,
		.hash_lo = c->info.hash.lo,
		.hash_hi = c->info.hash.hi,
		.tenant = c->info.tenant,
		.raw_len = c->info.raw_len,
		.stored_len = c->info.stored_len,
		.segment = loc.segment,
		.offset = loc.offset,
		.codec = c->info.codec,
	};

	memcpy(j.params, c->info.params, sizeof(j.params));
	return j;
}

struct settled_record {
	struct j_settled head;
	uint8_t packed[];
};

static struct settled_record *settled_record(const struct object *o, const struct extmap *m,
					     uint64_t size, const struct timespec *mtime,
					     size_t *ret_len)
{
	struct settled_record *r = NULL;
	uint8_t *packed;
	ssize_t n = extmap_encode(m, &packed);

	if (n < 0)
		return NULL;
	r = malloc(sizeof(*r) + n);
	if (r) {
		r->head = (struct j_settled){ .ino = o->ino,
					      .size = size,
					      .tenant = o->tenant,
					      .mtime_s = mtime->tv_sec,
					      .mtime_ns = mtime->tv_nsec };
		memcpy(r->packed, packed, n);
		*ret_len = sizeof(*r) + n;
	}
	free(packed);
	return r;
}

int j_put_settled(struct object *o, struct chunk *const *chunks, size_t n, const struct extmap *m,
		  uint64_t size, const struct timespec *mtime, const struct blockmap *dirty,
		  bool all_dirty, bool changed)
{
	struct j_range clean = { .ino = o->ino };
	struct j_image image = image_record(o, all_dirty);
	struct j_chunk *jc = calloc(n + 1, sizeof(*jc));
	struct settled_record *settled;
	struct group g = { 0 };
	size_t len = 0;
	int r = -ENOMEM;

	settled = settled_record(o, m, size, mtime, &len);
	if (!jc || !settled || group_new(&g, n + 2, dirty))
		goto out;
	for (size_t i = 0; i < n; i++) {
		jc[i] = chunk_record(chunks[i]);
		group_add(&g, J_CHUNK, &jc[i], sizeof(jc[i]));
	}
	group_add(&g, J_SETTLED, settled, len);
	if (changed || all_dirty || dirty->set) {
		group_add(&g, J_IMAGE, &image, sizeof(image));
		group_add_dirty(&g, o->ino, dirty);
	} else {
		group_add(&g, J_CLEAN, &clean, sizeof(clean));
	}
	r = journal_append(o->store, g.rec, g.n);
out:
	group_done(&g);
	free(settled);
	free(jc);
	return r;
}

/* The chunks of a map that meta.db does not know. */
static int checkpoint_chunks(struct store *s, const struct extmap *m)
{
	int r = 0;

	for (size_t i = 0; i < m->n && !r; i++) {
		struct chunk *c = chunk_get(s->chunks, m->e[i].chunk);
		struct j_chunk jc;
		struct journal_record rec = { J_CHUNK, sizeof(jc), &jc };

		if (!c)
			return -EUCLEAN;
		if (chunk_needs_journal(s->chunks, c)) {
			jc = chunk_record(c);
			r = journal_checkpoint_put(s->journal, &rec, 1);
		}
		chunk_put(s->chunks, c);
	}
	return r;
}

static int checkpoint_map(struct object *o, const struct extmap *m, uint64_t size,
			  const struct timespec *mtime)
{
	size_t len = 0;
	struct settled_record *settled = settled_record(o, m, size, mtime, &len);
	struct journal_record rec = { J_SETTLED, len, settled };
	int r = settled ? checkpoint_chunks(o->store, m) : -ENOMEM;

	if (!r)
		r = journal_checkpoint_put(o->store->journal, &rec, 1);
	free(settled);
	return r;
}

/* The difference between the last settle and what lies beneath the image now: holes cut since. */
static int checkpoint_cuts(struct object *o)
{
	uint64_t at = 0, end = extmap_end(o->snap.map);
	int r = 0;

	for (size_t i = 0; i <= o->under->n && !r; i++) {
		uint64_t off = i < o->under->n ? o->under->e[i].off : end;

		if (off > at) {
			struct j_range c = { o->ino, at, off - at };
			struct journal_record rec = { J_CUT, sizeof(c), &c };

			r = journal_checkpoint_put(o->store->journal, &rec, 1);
		}
		at = i < o->under->n ? off + o->under->e[i].len : end;
	}
	return r;
}

int j_checkpoint_object(struct object *o)
{
	int r = 0;

	if (o->discarded)
		return 0;
	if (o->snap.map != o->db || o->db_flights)
		r = checkpoint_map(o, o->snap.map, o->snap.size, &o->snap.mtime);
	if (!r && o->under != o->snap.map)
		r = checkpoint_cuts(o);
	if (!r && o->image != IMAGE_NONE && (o->wgen != o->sgen || o->all_dirty || o->dirty.set))
		r = put_image(o, true);
	return r;
}

/* ---- reading ---- */

static struct found *find(struct store *s, uint64_t ino)
{
	struct found *f;
	int r;

	HASH_FIND(hh, s->found, &ino, sizeof(ino), f);
	if (f)
		return f;
	f = calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	f->ino = ino;
	f->mtime.tv_nsec = -1;
	r = meta_get_extents(s->meta, ino, &f->db, &f->db_size);
	f->committed = r == 0;
	if (r == -ENOENT)
		f->db = extmap_new(NULL, 0);
	if (!f->db) {
		free(f);
		return NULL;
	}
	f->under = extmap_ref(f->db);
	HASH_ADD(hh, s->found, ino, sizeof(f->ino), f);
	return f;
}

static int on_chunk(struct store *s, const struct j_chunk *j)
{
	struct meta_chunk c = {
		.info = { .chunk_id = j->id,
			  .hash = { j->hash_lo, j->hash_hi },
			  .tenant = j->tenant,
			  .raw_len = j->raw_len,
			  .stored_len = j->stored_len,
			  .codec = j->codec },
		.loc = { j->segment, j->offset },
	};
	int r;

	memcpy(c.info.params, j->params, sizeof(c.info.params));
	r = loader_need_id(s, j->id);
	if (!r)
		r = chunk_load(s->chunks, &c, false);
	if (!r)
		r = seglive_load(s, c.loc, j->stored_len, true);
	return r == -EEXIST ? 0 : r;
}

static int on_settled(struct store *s, const struct j_settled *j, size_t len)
{
	struct found *f;
	struct extmap *m;
	int r;

	if (j->size > OBJECT_MAX)
		return -EUCLEAN;
	f = find(s, j->ino);
	if (!f)
		return -ENOMEM;
	r = extmap_decode((const uint8_t *)(j + 1), len - sizeof(*j), &m);
	if (r)
		return r;
	extmap_unref(f->under);
	extmap_unref(f->snap);
	f->under = m;
	f->snap = extmap_ref(m);
	f->size = j->size;
	f->mtime = (struct timespec){ j->mtime_s, j->mtime_ns };
	f->tenant = j->tenant;
	return 0;
}

static int on_image(struct store *s, const struct j_image *j)
{
	struct found *f = find(s, j->ino);

	if (!f)
		return -ENOMEM;
	f->image = true;
	f->flags = j->flags;
	f->tenant = j->tenant;
	blockmap_done(&f->dirty);
	return 0;
}

static int on_range(struct store *s, uint32_t type, const struct j_range *j)
{
	struct found *f = find(s, j->ino);
	struct extmap *m;
	uint64_t to = j->first + j->count;

	if (!f)
		return -ENOMEM;
	switch (type) {
	case J_DIRTY:
		if (to < j->first || to > object_blocks(OBJECT_MAX))
			return 0;
		return blockmap_set(&f->dirty, j->first, j->count);
	case J_CLEAN:
		if (j->count) {
			blockmap_clear(&f->dirty, j->first, j->count);
			return 0;
		}
		blockmap_done(&f->dirty);
		f->image = false;
		return 0;
	case J_DISCARD:
		f->discarded = true;
		return 0;
	case J_TIMES:
		f->mtime.tv_nsec = -1;
		return 0;
	default: /* J_CUT */
		m = extmap_replace(f->under, j->first, to < j->first ? UINT64_MAX : to, NULL, 0,
				   UINT64_MAX);
		if (!m)
			return -ENOMEM;
		extmap_unref(f->under);
		f->under = m;
		return 0;
	}
}

/* Records of the namespace wait for journal_replay(). */
static int save(struct store *s, const struct journal_record *rec)
{
	struct saved_record *v = s->saved;

	if (s->saved_n == s->saved_cap) {
		v = reallocarray(v, s->saved_cap * 2 + 256, sizeof(*v));
		if (!v)
			return -ENOMEM;
		s->saved = v;
		s->saved_cap = s->saved_cap * 2 + 256;
	}
	v[s->saved_n] = (struct saved_record){ 0 };
	if (rec) {
		void *copy = malloc(rec->len + 1);

		if (!copy)
			return -ENOMEM;
		memcpy(copy, rec->data, rec->len);
		v[s->saved_n].rec = (struct journal_record){ rec->type, rec->len, copy };
		v[s->saved_n].copy = copy;
	}
	s->saved_n++;
	return 0;
}

static void found_free(struct store *s, struct found *f)
{
	HASH_DEL(s->found, f);
	extmap_unref(f->db);
	extmap_unref(f->under);
	extmap_unref(f->snap);
	blockmap_done(&f->dirty);
	free(f);
}

static int take_record(struct store *s, const struct journal_record *rec)
{
	if (!rec || rec->type >= JOURNAL_NAMESPACE)
		return save(s, rec);
	switch (rec->type) {
	case J_CHUNK:
		return rec->len == sizeof(struct j_chunk) ? on_chunk(s, rec->data) : -EUCLEAN;
	case J_SETTLED:
		return rec->len >= sizeof(struct j_settled) ? on_settled(s, rec->data, rec->len) :
							      -EUCLEAN;
	case J_IMAGE:
		return rec->len == sizeof(struct j_image) ? on_image(s, rec->data) : -EUCLEAN;
	case J_DIRTY:
	case J_CLEAN:
	case J_CUT:
	case J_DISCARD:
	case J_TIMES:
		return rec->len == sizeof(struct j_range) ? on_range(s, rec->type, rec->data) :
							    -EUCLEAN;
	default:
		return -EUCLEAN;
	}
}

int recover_record(void *store, const struct journal_record *rec)
{
	struct store *s = store;
	struct found *f, *tmp;
	int r = take_record(s, rec);

	/* That ends the replay: nobody makes objects of what was found. */
	if (r)
		HASH_ITER(hh, s->found, f, tmp)
			found_free(s, f);
	return r;
}

/* ---- making objects ---- */

/* The image as it is found. False: it is not there. */
static bool take_image(struct object *o, const struct found *f)
{
	struct stat st;
	char name[32];
	uint64_t bytes;

	image_name(f->ino, name);
	for (o->place = IMAGE_HUGE; o->place < IMAGE_PLACES; o->place++)
		if (!fstatat(image_dir(o), name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) &&
		    (uint64_t)st.st_size <= OBJECT_MAX)
			break;
	if (o->place == IMAGE_PLACES) {
		o->place = IMAGE_HUGE;
		return false;
	}
	o->size = st.st_size;
	o->image_mtime = o->mtime = st.st_mtim;
	o->image = f->flags & J_IMAGE_COMPLETE ? IMAGE_COMPLETE : IMAGE_PARTIAL;
	o->all_dirty = o->orphan = f->flags & J_IMAGE_ALL_DIRTY;
	bytes = (uint64_t)st.st_blocks * 512;
	o->blocks = bytes; /* what is dirty is counted by the caller */
	atomic_fetch_add(&o->store->image_bytes, bytes);
	atomic_fetch_add(&o->store->images, 1);
	object_lru_add(o);
	return true;
}

static int copy_blocks(struct blockmap *to, const struct blockmap *from, uint64_t end)
{
	uint64_t b = 0, n;
	int r = 0;

	while (!r) {
		b = blockmap_next(from, b, end, true, &n);
		if (!n)
			break;
		r = blockmap_set(to, b, n);
		b += n;
	}
	return r;
}

/* Dirty state on top of the settled one. */
static int take_dirty(struct object *o, struct found *f)
{
	uint64_t end;
	struct extmap *m;
	int r;

	if (!f->image)
		return 0;
	if (!take_image(o, f)) {
		store_log(o->store, LOG_ERR,
			  "%s: the image of inode %" PRIu64 " is missing: what was written to it "
			  "since its last settle is lost",
			  o->store->rundir, f->ino);
		return 0;
	}
	end = object_blocks(o->size);
	r = copy_blocks(&o->dirty, &f->dirty, end);
	if (!r && o->image == IMAGE_PARTIAL)
		r = copy_blocks(&o->valid, &f->dirty, end);
	/* The size is the image's; what lay behind it is gone. */
	m = r ? NULL : extmap_replace(o->under, o->size, UINT64_MAX, NULL, 0, UINT64_MAX);
	if (!m)
		return r ? r : -ENOMEM;
	r = object_set_under(o, m);
	if (!r)
		r = j_put_range(o->store, J_CUT, o->ino, o->size, UINT64_MAX - o->size);
	o->wgen = o->sgen + 1;
	o->dirty_since_ms = now_ms();
	o->last_close_ms = o->dirty_since_ms;
	object_account(o, 0);
	return r;
}

static int fill_object(struct object *o, struct found *f)
{
	int r;

	o->tenant = f->tenant;
	r = loader_need(o->store, f->db);
	if (!r && f->snap)
		r = loader_need(o->store, f->snap);
	if (!r)
		r = loader_need(o->store, f->under);
	if (!r)
		r = object_set_under(o, extmap_ref(f->db));
	if (r)
		return r;
	extmap_unref(o->db);
	o->db = extmap_ref(f->db);
	o->size = f->db_size;
	o->wgen = o->sgen = f->committed;
	object_set_snap(o, o->size, o->sgen);
	if (f->snap) {
		r = object_set_under(o, extmap_ref(f->snap));
		if (r)
			return r;
		o->size = f->size;
		o->mtime = f->mtime;
		o->wgen = o->sgen = o->sgen + 1;
		object_set_snap(o, o->size, o->sgen);
	}
	if (f->under != f->snap && f->under != f->db) {
		r = object_set_under(o, extmap_ref(f->under));
		if (r)
			return r;
	}
	r = take_dirty(o, f);
	if (!r && !f->committed && o->wgen == 0)
		o->wgen = 1; /* created and never settled */
	return r;
}

static int make_object(struct store *s, struct found *f)
{
	struct object *o;
	char name[32];
	int r;

	if (f->discarded) {
		image_name(f->ino, name);
		for (int i = 0; i < IMAGE_PLACES; i++)
			unlinkat(s->img_fd[i], name, 0);
		return 0;
	}
	r = object_create(s, f->ino, f->tenant, &o);
	if (r)
		return r;
	pthread_mutex_lock(&o->mu);
	r = fill_object(o, f);
	pthread_mutex_unlock(&o->mu);
	if (r)
		store_log(s, LOG_ERR, "inode %" PRIu64 ": cannot be recovered from the journal: %s",
			  f->ino, strerror(-r));
	object_unref(o);
	return r;
}

/* ---- images without a record ---- */

static bool adopt(struct store *s, int dir, uint64_t ino, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	struct object *o = object_find(s, ino);
	struct found f = { .ino = ino, .flags = J_IMAGE_COMPLETE };
	struct timespec mtime;
	struct stat st;
	bool ok = false;

	if (!o) /* its tenant is set when the file system asks for it */
		object_get(s, ino, 0, &o);
	if (fd >= 0 && o && !fstat(fd, &st)) {
		pthread_mutex_lock(&o->mu);
		/* What the last settle said, which is newer than what the inode's record may say. */
		mtime = o->mtime;
		ok = o->image == IMAGE_NONE && (uint64_t)st.st_size == o->size &&
		     image_is_marked(fd, o->under, st.st_size) && take_image(o, &f);
		o->clean_mark = ok;
		if (ok)
			o->mtime = mtime;
		/* Settled by the dead daemon and not committed: whether the device has it is only
		 * known by settling it again, which compares. */
		if (ok && o->snap.map != o->db)
			ok = !blockmap_set(&o->dirty, 0, object_blocks(o->size)) && !j_put_image(o);
		if (ok && o->dirty.set) {
			object_dirty_begin(o);
			object_account(o, 0);
		}
		if (!ok && o->image == IMAGE_COMPLETE && o->dirty.set) {
			blockmap_done(&o->dirty);
			image_drop(o);
		}
		pthread_mutex_unlock(&o->mu);
	}
	if (fd >= 0)
		close(fd);
	object_unref(o);
	return ok;
}

static void look_at_image(struct store *s, int dir, const char *name)
{
	uint64_t ino = strtoull(name, NULL, 16);
	struct object *o = object_find(s, ino);
	bool keep = o && o->image != IMAGE_NONE;

	object_unref(o);
	if (!keep && !adopt(s, dir, ino, name))
		unlinkat(dir, name, 0);
}

static int scan_images(struct store *s, int dir)
{
	int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!d) {
		int r = -errno;

		if (fd >= 0)
			close(fd);
		return r;
	}
	while ((e = readdir(d)))
		if (e->d_name[0] != '.')
			look_at_image(s, dir, e->d_name);
	closedir(d);
	return 0;
}

int recover_finish(struct store *s)
{
	struct found *f, *tmp;
	int r = 0;

	HASH_ITER(hh, s->found, f, tmp) {
		int e = make_object(s, f);

		r = r ? r : e;
		found_free(s, f);
	}
	for (int i = 0; i < IMAGE_PLACES && !r; i++)
		r = scan_images(s, s->img_fd[i]);
	chunk_settle_dead(s->chunks);
	return r;
}
