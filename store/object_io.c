/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon-mode data paths of an object: read, write, truncate, fallocate, seek.
 *
 * What survives a kill rests on the order of three things: the bytes in the image, the journal's
 * record that a block is dirty, and the answer. A block whose old content is valid in the image is
 * recorded before it is changed; one that is overwritten whole without being filled is recorded
 * after, so that a kill between leaves the old content, which lies in the settled extents.
 */
#include "store/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* The settled extents have bytes in this block. */
static bool has_old_content(const struct object *o, uint64_t block)
{
	size_t i = extmap_find(o->under, block * OBJECT_BLOCK);

	return i < o->under->n && o->under->e[i].off < (block + 1) * OBJECT_BLOCK;
}

static bool is_valid(const struct object *o, uint64_t block)
{
	return o->image == IMAGE_COMPLETE || blockmap_get(&o->valid, block);
}

/* An image to change. mu and rw (exclusive) held. */
static int need_image(struct object *o)
{
	enum image_state state = o->under->n ? IMAGE_PARTIAL : IMAGE_COMPLETE;

	return o->image == IMAGE_NONE ? image_create(o, state, o->size) : 0;
}

/* The first change since the last settle: the journal learns that the image counts. */
static int begin_change(struct object *o)
{
	bool first = o->wgen == o->sgen || (!o->dirty.set && !o->all_dirty);
	int r = need_image(o);

	if (r)
		return r;
	object_dirty_begin(o);
	return first ? j_put_image(o) : 0;
}

/* Marks blocks [first, end) dirty that are not yet; with fresh only those that hold nothing old
 * outside of the image, else the rest. */
static int mark_dirty(struct object *o, uint64_t first, uint64_t end, bool fresh)
{
	uint64_t dirty = object_dirty_bytes(o);
	int r = 0;

	for (uint64_t b = first; b < end && !r; b++) {
		uint64_t run = b;

		while (run < end && !blockmap_get(&o->dirty, run) &&
		       (is_valid(o, run) || !has_old_content(o, run)) == fresh)
			run++;
		if (run == b)
			continue;
		r = blockmap_set(&o->dirty, b, run - b);
		if (!r && !o->all_dirty) {
			r = j_put_range(o->store, J_DIRTY, o->ino, b, run - b);
			/* Nobody would note them later. */
			if (r)
				blockmap_clear(&o->dirty, b, run - b);
		}
		b = run - 1;
	}
	/* The settle that is on will call these dirty: only once recovery may take them for valid. */
	for (uint64_t b = first; b < end && !r && o->settling; b++)
		if (!fresh || is_valid(o, b) || !has_old_content(o, b))
			r = blockmap_set(&o->redirty, b, 1);
	object_account(o, dirty);
	return r;
}

/* The blocks at the ends of a write that it does not cover must be there first. */
static int fill_edge(struct object *o, uint64_t block, uint64_t off, uint64_t end)
{
	uint64_t from = block * OBJECT_BLOCK, to = min64(from + OBJECT_BLOCK, o->size);
	int r;

	if (is_valid(o, block) || !has_old_content(o, block) || (off <= from && end >= to))
		return 0;
	pthread_mutex_unlock(&o->mu);
	r = fill_blocks(o, block, 1);
	pthread_mutex_lock(&o->mu);
	return r;
}

/* Puts the bytes into the image. mu held, dropped around the copy. */
static ssize_t put_bytes(struct object *o, const void *buf, size_t len, uint64_t off)
{
	struct stat st;
	uint64_t blocks;
	size_t done = 0;
	ssize_t n = 0;
	int fd = image_wfd_get(o);

	if (fd < 0)
		return fd;
	pthread_mutex_unlock(&o->mu);
	while (done < len) {
		n = pwrite(fd, (const char *)buf + done, len - done, off + done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		done += n;
	}
	n = n < 0 ? -errno : n;
	pthread_mutex_lock(&o->mu);
	if (fstat(fd, &st) == 0) {
		uint64_t dirty = object_dirty_bytes(o);

		o->size = st.st_size;
		object_account(o, dirty);
		o->mtime = o->image_mtime = st.st_mtim;
		blocks = (uint64_t)st.st_blocks * 512;
		image_update_blocks(o, &blocks);
	}
	image_wfd_put(o);
	return done ? (ssize_t)done : n;
}

/* The settled content has a hole in [from, to) from now on. mu held. */
static int cut_under(struct object *o, uint64_t from, uint64_t to)
{
	struct extmap *m = extmap_replace(o->under, from, to, NULL, 0, UINT64_MAX);
	int r;

	if (!m)
		return -ENOMEM;
	o->cut_while_settling |= o->settling;
	/* In memory in any case: the image is cut already. */
	r = object_set_under(o, m);
	if (!r)
		r = j_put_range(o->store, J_CUT, o->ino, from, to - from);
	o->cut_unknown = r != 0;
	return r;
}

/* What a cut left behind the end, in the extents or in what the journal says of them, must not come
 * back when the file grows to size. */
static int before_growth(struct object *o, uint64_t size)
{
	if (size <= o->size || (extmap_end(o->under) <= o->size && !o->cut_unknown))
		return 0;
	return cut_under(o, o->size, UINT64_MAX);
}

/* What was stored through a mapping behind the end, in its page, is no content: the gap a growth leaves
 * reads as zeros. mu and rw (exclusive) held. */
static int zero_gap(struct object *o, uint64_t to)
{
	static const char zeros[65536];
	uint64_t page = o->place == IMAGE_HUGE ? 2u << 20 : 4096;
	uint64_t at = o->size, end = min64((at + page - 1) & ~(page - 1), to);
	int fd, r = 0;

	if (!o->all_dirty || o->image == IMAGE_NONE || !at || at >= end)
		return 0;
	fd = image_wfd_get(o);
	if (fd < 0)
		return fd;
	/* Its page may not be there. */
	if (lseek(fd, at - 1, SEEK_DATA) != (off_t)at - 1)
		end = at;
	while (at < end && !r) {
		ssize_t n = pwrite(fd, zeros, min64(sizeof(zeros), end - at), at);

		r = n < 0 ? -errno : 0;
		at += n > 0 ? n : 0;
	}
	image_wfd_put(o);
	return r;
}

/* Takes back what a write that failed in part has added to the size: an append tried again must not
 * come behind it. Where others write unseen the end may be theirs. mu held. */
static void cut_back(struct object *o, uint64_t size)
{
	uint64_t dirty = object_dirty_bytes(o);
	int fd;

	if (o->all_dirty || o->size <= size)
		return;
	fd = image_wfd_get(o);
	if (fd >= 0 && !ftruncate(fd, size)) {
		o->size = size;
		blockmap_clear(&o->dirty, object_blocks(size), UINT64_MAX / 2);
		blockmap_clear(&o->redirty, object_blocks(size), UINT64_MAX / 2);
		object_account(o, dirty);
	}
	if (fd >= 0)
		image_wfd_put(o);
}

/* mu and rw (exclusive) held. */
static ssize_t write_locked(struct object *o, const void *buf, size_t len, uint64_t off)
{
	uint64_t first = off / OBJECT_BLOCK, end = object_blocks(off + len), old = o->size;
	ssize_t n;
	int r;

	r = begin_change(o);
	if (!r)
		r = before_growth(o, off + len);
	if (!r)
		r = fill_edge(o, first, off, off + len);
	if (!r)
		r = fill_edge(o, end - 1, off, off + len);
	if (!r)
		r = mark_dirty(o, first, end, true);
	if (r)
		return r;
	r = zero_gap(o, off);
	if (r)
		return r;
	n = put_bytes(o, buf, len, off);
	if (n <= 0) {
		cut_back(o, old);
		return n;
	}
	/* A short write must not claim blocks it did not reach, nor one it only began whose rest is
	 * not there. */
	end = object_blocks(off + n);
	if ((size_t)n < len && (off + n) % OBJECT_BLOCK && !is_valid(o, end - 1) &&
	    has_old_content(o, end - 1)) {
		end--;
		n = end * OBJECT_BLOCK > off ? (ssize_t)(end * OBJECT_BLOCK - off) : -ENOSPC;
	}
	if (n > 0) {
		r = mark_dirty(o, first, end, false);
		if (!r && o->image == IMAGE_PARTIAL)
			r = blockmap_set(&o->valid, first, end - first);
	}
	if (r)
		n = r;
	cut_back(o, n > 0 && off + n > old ? off + n : old);
	return n;
}

static ssize_t write_at(struct object *o, const void *buf, size_t len, uint64_t *off, bool append)
{
	struct store *s = o->store;
	ssize_t n;
	int r;

	if (!len)
		return 0;
	if (!append && (*off > OBJECT_MAX || len > OBJECT_MAX - *off))
		return -EFBIG;
	r = space_reserve(s, len);
	/* A block or a huge page at each end may come with the bytes. */
	for (int tries = 0;; tries++) {
		if (!r)
			r = pool_make_room(s, len + (2u << 20), o);
		if (r)
			return r;
		pthread_rwlock_wrlock(&o->rw);
		pthread_mutex_lock(&o->mu);
		if (o->all_dirty)
			image_refresh(o);
		if (append)
			*off = o->size;
		n = write_locked(o, buf, len, *off);
		pthread_mutex_unlock(&o->mu);
		pthread_rwlock_unlock(&o->rw);
		/* The budget is a little below what the tmpfs holds; a full one means that others
		 * took the room since. A full journal is being rewritten. */
		if (n != -ENOSPC || tries == 8)
			return n;
		nanosleep(&(struct timespec){ .tv_nsec = tries * 10 * 1000000L }, NULL);
	}
}

ssize_t object_write(struct object *o, const void *buf, size_t len, uint64_t off)
{
	return write_at(o, buf, len, &off, false);
}

ssize_t object_append(struct object *o, const void *buf, size_t len, uint64_t *ret_off)
{
	return write_at(o, buf, len, ret_off, true);
}

/* ---- read ---- */

static int pread_image(struct object *o, void *buf, size_t len, uint64_t off)
{
	int fd;
	size_t done = 0;

	pthread_mutex_lock(&o->mu);
	fd = image_fd(o);
	pthread_mutex_unlock(&o->mu);
	if (fd < 0)
		return fd;
	while (done < len) {
		ssize_t n = pread(fd, (char *)buf + done, len - done, off + done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0) { /* cut by a passthrough writer meanwhile: reads as zeros */
			memset((char *)buf + done, 0, len - done);
			break;
		}
		done += n;
	}
	return 0;
}

/* Block by block: what is valid from the image, the rest from the extents. Runs of one kind go
 * together. */
int object_peek(struct object *o, void *buf, size_t len, uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		uint64_t b = (off + done) / OBJECT_BLOCK, end = object_blocks(off + len), n;
		uint64_t stop;
		bool valid;
		int r;

		pthread_mutex_lock(&o->mu);
		valid = is_valid(o, b);
		if (o->image == IMAGE_COMPLETE)
			n = end - b;
		else
			blockmap_next(&o->valid, b, end, valid, &n);
		pthread_mutex_unlock(&o->mu);
		stop = min64((b + n) * OBJECT_BLOCK, off + len);
		if (valid)
			r = pread_image(o, (char *)buf + done, stop - off - done, off + done);
		else
			r = fetch_extents(o, (char *)buf + done, stop - off - done, off + done);
		if (r)
			return r;
		done = stop - off;
	}
	return 0;
}

/* Reads that bring their blocks into the image are worth it when the image will be whole some day. */
static bool fills_on_read(const struct object *o)
{
	return o->image == IMAGE_PARTIAL && o->size <= o->store->opt.hot_bytes / 2;
}

static bool blocks_missing(const struct object *o, uint64_t off, size_t len)
{
	uint64_t n, end = object_blocks(min64(off + len, o->size));

	if (off >= o->size)
		return false;
	blockmap_next(&o->valid, off / OBJECT_BLOCK, end, false, &n);
	return n;
}

ssize_t object_read(struct object *o, void *buf, size_t len, uint64_t off)
{
	bool fills;
	int r;

	pthread_mutex_lock(&o->mu);
	fills = fills_on_read(o) && blocks_missing(o, off, len);
	pthread_mutex_unlock(&o->mu);
	/* What it brings into the image must have room there. */
	if (fills && pool_make_room(o->store, len + (2u << 20), NULL))
		fills = false;
	pthread_rwlock_rdlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	if (o->all_dirty)
		image_refresh(o);
	len = off >= o->size ? 0 : min64(len, o->size - off);
	fills &= fills_on_read(o);
	pthread_mutex_unlock(&o->mu);
	/* Not being able to fill (no room, a damaged chunk beside the range) is no reason not to
	 * answer: the pieces tell. */
	if (fills && len)
		fill_blocks(o, off / OBJECT_BLOCK, object_blocks(off + len) - off / OBJECT_BLOCK);
	r = len ? object_peek(o, buf, len, off) : 0;
	pthread_rwlock_unlock(&o->rw);
	return r ? r : (ssize_t)len;
}

/* The pages are in the mapping afterwards: the reply's system call cannot fail on them. */
static bool populate(struct object *o, uint64_t off, size_t len)
{
	uint64_t start = off & ~4095ull;

	return !madvise(o->map + start, off + len - start, MADV_POPULATE_READ);
}

int object_read_mapped(struct object *o, size_t len, uint64_t off,
		       int (*fn)(void *arg, const void *bytes, size_t len), void *arg)
{
	bool can;
	int r = -EAGAIN;

	pthread_rwlock_rdlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	if (o->all_dirty)
		image_refresh(o);
	len = off >= o->size ? 0 : min64(len, o->size - off);
	/* Touching a hole through a mapping would take a page of the pool. */
	can = len && o->image == IMAGE_COMPLETE && o->blocks >= o->size && o->handles &&
	      image_map(o) && off + len <= o->map_len && populate(o, off, len);
	pthread_mutex_unlock(&o->mu);
	if (can)
		r = fn(arg, o->map + off, len);
	pthread_rwlock_unlock(&o->rw);
	return r;
}

/* ---- truncate, fallocate ---- */

/* Sets the image's size and what follows from it. mu and rw (exclusive) held. */
static int resize(struct object *o, uint64_t size)
{
	uint64_t old = o->size, dirty = object_dirty_bytes(o);
	int fd = image_wfd_get(o), r = 0;

	if (fd < 0)
		return fd;
	r = before_growth(o, size);
	if (!r)
		r = zero_gap(o, size);
	if (!r && ftruncate(fd, size))
		r = -errno;
	image_wfd_put(o);
	if (r)
		return r;
	if (size < old) {
		blockmap_clear(&o->dirty, object_blocks(size), UINT64_MAX / 2);
		blockmap_clear(&o->valid, object_blocks(size), UINT64_MAX / 2);
		r = cut_under(o, size, UINT64_MAX);
	}
	if (!size && o->image == IMAGE_PARTIAL) {
		o->image = IMAGE_COMPLETE;
		blockmap_done(&o->valid);
		r = r ? r : j_put_image(o);
	}
	o->size = size;
	object_account(o, dirty);
	image_touch(o);
	return r;
}

int object_truncate(struct object *o, uint64_t size)
{
	int r;

	if (size > OBJECT_MAX)
		return -EFBIG;
	pthread_rwlock_wrlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	if (o->all_dirty)
		image_refresh(o);
	/* To the size it has, too: the times move. */
	r = begin_change(o);
	if (!r)
		r = resize(o, size);
	pthread_mutex_unlock(&o->mu);
	pthread_rwlock_unlock(&o->rw);
	return r;
}

/* Valid blocks that hold settled bytes of [off, end) are recorded as dirty before they change. */
static int mark_valid_dirty(struct object *o, uint64_t off, uint64_t end)
{
	const struct extmap *m = o->under;
	int r = 0;

	for (size_t i = extmap_find(m, off); i < m->n && m->e[i].off < end && !r; i++) {
		uint64_t from = m->e[i].off > off ? m->e[i].off : off;
		uint64_t to = min64(m->e[i].off + m->e[i].len, end);

		for (uint64_t b = from / OBJECT_BLOCK; b < object_blocks(to) && !r; b++)
			if (is_valid(o, b))
				r = mark_dirty(o, b, b + 1, true);
	}
	return r;
}

/* mu and rw (exclusive) held; [off, end) within the file. */
static int punch(struct object *o, uint64_t off, uint64_t end)
{
	uint64_t whole = object_blocks(off), whole_end = end / OBJECT_BLOCK;
	int fd, r = mark_valid_dirty(o, off, end);

	if (r)
		return r;
	fd = image_wfd_get(o);
	if (fd < 0)
		return fd;
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, end - off))
		r = -errno;
	image_wfd_put(o);
	if (r)
		return r;
	r = cut_under(o, off, end);
	/* Blocks that are all hole now are the same in the image and beneath it. */
	if (!r && whole < whole_end && !o->all_dirty) {
		uint64_t dirty = object_dirty_bytes(o);

		r = j_put_range(o->store, J_CLEAN, o->ino, whole, whole_end - whole);
		blockmap_clear(&o->dirty, whole, whole_end - whole);
		object_account(o, dirty);
	}
	image_touch(o);
	return r;
}

static int fallocate_locked(struct object *o, int mode, uint64_t off, uint64_t end)
{
	bool keep = mode & FALLOC_FL_KEEP_SIZE;
	int r = begin_change(o);

	if (!r && mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) && off < o->size)
		r = punch(o, off, min64(end, o->size));
	if (!r && !keep && end > o->size)
		r = resize(o, end);
	return r;
}

int object_fallocate(struct object *o, int mode, uint64_t off, uint64_t len)
{
	int kind = mode & ~FALLOC_FL_KEEP_SIZE, r;

	if (kind & ~(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) ||
	    kind == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) || mode == FALLOC_FL_PUNCH_HOLE)
		return -EOPNOTSUPP;
	if (!len || off + len < off || off + len > OBJECT_MAX)
		return len ? -EFBIG : -EINVAL;
	if (!kind) {
		r = space_reserve(o->store, len);
		if (r)
			return r;
	}
	pthread_rwlock_wrlock(&o->rw);
	pthread_mutex_lock(&o->mu);
	if (o->all_dirty)
		image_refresh(o);
	r = fallocate_locked(o, mode, off, off + len);
	pthread_mutex_unlock(&o->mu);
	pthread_rwlock_unlock(&o->rw);
	return r;
}

/* ---- seek ---- */

/* If off lies in data, *ret_end is where that piece ends. mu held. */
static bool in_data(const struct object *o, uint64_t off, uint64_t *ret_end)
{
	size_t i = extmap_find(o->under, off);

	if (i < o->under->n && o->under->e[i].off <= off) {
		*ret_end = o->under->e[i].off + o->under->e[i].len;
		return true;
	}
	*ret_end = (off / OBJECT_BLOCK + 1) * OBJECT_BLOCK;
	return blockmap_get(&o->dirty, off / OBJECT_BLOCK);
}

static uint64_t next_data(const struct object *o, uint64_t off)
{
	size_t i = extmap_find(o->under, off);
	uint64_t best = UINT64_MAX, n, b, end;

	if (in_data(o, off, &end))
		return off;
	if (i < o->under->n)
		best = o->under->e[i].off;
	b = blockmap_next(&o->dirty, off / OBJECT_BLOCK, object_blocks(o->size), true, &n);
	return n ? min64(best, b * OBJECT_BLOCK) : best;
}

static uint64_t next_hole(const struct object *o, uint64_t off)
{
	uint64_t end;

	while (off < o->size && in_data(o, off, &end))
		off = end;
	return min64(off, o->size);
}

#define SEEK_PAGE 4096u

static bool page_is_zero(const char *p, size_t n)
{
	return !p[0] && !memcmp(p, p + 1, n - 1);
}

/*
 * In an image that somebody may write unseen only its bytes tell: the tmpfs knows its holes as
 * coarsely as its huge pages are. Pages of zeros count as holes, as they will once settled.
 */
static int64_t seek_image(int fd, uint64_t off, int whence)
{
	char buf[16 * SEEK_PAGE];
	bool want_data = whence == SEEK_DATA;
	ssize_t n;

	for (;;) {
		off_t data = lseek(fd, off, SEEK_DATA);

		if (data < 0)
			return want_data || errno != ENXIO ? -errno : (int64_t)off;
		if (!want_data && (uint64_t)data > off)
			return off;
		off = data;
		n = pread(fd, buf, sizeof(buf) - off % SEEK_PAGE, off);
		if (n < 0)
			return -errno;
		if (n == 0)
			return want_data ? -ENXIO : (int64_t)off;
		for (ssize_t at = 0; at < n;) {
			size_t page = SEEK_PAGE - (off + at) % SEEK_PAGE;

			if (page > (size_t)(n - at))
				page = n - at;
			if (page_is_zero(buf + at, page) != want_data)
				return off + at;
			at += page;
		}
		off += n;
	}
}

int64_t object_seek(struct object *o, uint64_t off, int whence)
{
	int64_t r;
	int fd = -1;

	pthread_mutex_lock(&o->mu);
	if (o->all_dirty)
		image_refresh(o);
	if (off >= o->size) {
		r = -ENXIO;
	} else if (o->all_dirty) {
		r = fd = image_open(o, O_RDONLY);
	} else if (whence == SEEK_DATA) {
		uint64_t d = next_data(o, off);

		r = d < o->size ? (int64_t)d : -ENXIO;
	} else {
		r = next_hole(o, off);
	}
	pthread_mutex_unlock(&o->mu);
	if (fd >= 0) {
		r = seek_image(fd, off, whence);
		close(fd);
	}
	return r;
}
