/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck_segments: segments as files: their headers and rows, and a look through all of them for records that
 * no row leads to any more.
 */
#include "store/fsck_impl.h"
#include "store/segment_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB      ((uint64_t)1 << 20)
#define USED_MAX ((int64_t)1 << 30)

static int open_set(struct fsck *f)
{
	struct segset_options o = {
		.io = &io_system,
		.dirfd = f->seg_fd,
		.uuid = f->uuid,
		.segment_size = MIB,
		.next = 1,
		.read_only = true,
	};
	int r;

	segset_close(f->segs);
	f->segs = NULL;
	r = segset_open(&o, &f->segs);
	return r ? fsck_fail(f, r, "%s/segments: cannot be opened: %s", f->path, strerror(-r)) : 0;
}

static int by_number(const void *a, const void *b)
{
	const struct fsck_segment *x = a, *y = b;

	return (x->n > y->n) - (x->n < y->n);
}

static struct fsck_segment *segment_find(const struct fsck *f, uint32_t n)
{
	struct fsck_segment key = { .n = n };

	if (!f->segments)
		return NULL;
	return f->segments ? bsearch(&key, f->segment, f->segments, sizeof(key), by_number) : NULL;
}

static int list_segments(struct fsck *f)
{
	int fd = openat(f->seg_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!d) {
		r = -errno;
		if (fd >= 0)
			close(fd);
		return r;
	}
	while (!r && (e = readdir(d))) {
		unsigned n;
		char end;

		if (sscanf(e->d_name, "%8x.se%c", &n, &end) != 2 || end != 'g')
			continue;
		r = fsck_room((void **)&f->segment, f->segments, &f->segments_cap,
			      sizeof(*f->segment));
		if (!r)
			f->segment[f->segments++] = (struct fsck_segment){ .n = n };
	}
	closedir(d);
	if (f->segments)
		qsort(f->segment, f->segments, sizeof(*f->segment), by_number);
	f->ret->segments = f->segments;
	return r;
}

/* ---- whose they are ---- */

/* Of how many segments the header is whole; *ret_ours of them with the store's uuid; and another's, if all of
 * the others have the same. */
static int ask_headers(struct fsck *f, size_t *ret_ours, char ret_other[static 37])
{
	size_t ours = 0;
	bool one = true;

	ret_other[0] = 0;
	for (size_t k = 0; k < f->segments; k++) {
		struct segset_peek *p;
		char uuid[37];
		int r = segset_peek_open(f->segs, f->segment[k].n, &p);

		if (r)
			return r;
		r = segset_peek_segment(p, uuid);
		segset_peek_close(p);
		if (r && r != -EBADMSG && r != -EIO && r != 1)
			return r;
		f->segment[k].bad = r != 0;
		ours += r == 0;
		if (r == 0 || !uuid[0])
			continue;
		if (ret_other[0] && strcmp(ret_other, uuid))
			one = false;
		strcpy(ret_other, uuid);
	}
	if (!one)
		ret_other[0] = 0;
	*ret_ours = ours;
	return 0;
}

int fsck_segments_open(struct fsck *f)
{
	bool known = strlen(f->uuid) == 36;
	char other[37];
	size_t ours;
	int r;

	if (!known)
		memset(f->uuid, '?', 36);
	r = open_set(f);
	if (!r)
		r = list_segments(f);
	if (!r)
		r = ask_headers(f, &ours, other);
	if (r || (known && (ours || !other[0])))
		return r;
	if (!other[0])
		return fsck_fail(f, -EUCLEAN,
				 "%s: the store has no uuid, neither in meta.db nor in a segment:"
				 " restore meta.db from a copy",
				 f->path);
	fsck_found(f, &(struct fsck_about){ "uuid", .repair = "it is set to that of the segments" },
		   "uuid %s, but %s in all segments", f->uuid, other);
	memcpy(f->uuid, other, sizeof(f->uuid));
	r = fsck_mend(f, "INSERT OR REPLACE INTO meta(key, value) VALUES('uuid', CAST(?4 AS TEXT))",
		      0, 0, 0, other, 36);
	if (!r)
		r = open_set(f);
	return r ? r : ask_headers(f, &ours, other);
}

/* ---- headers and rows ---- */

static void tell_headers(struct fsck *f)
{
	for (size_t k = 0; k < f->segments; k++) {
		const struct fsck_segment *s = &f->segment[k];

		/* Without records the header is not written yet, or of no use to anybody. */
		if (!s->bad || !s->chunks)
			continue;
		f->bad_headers++;
		if (f->quiet) /* put right last, outside of meta.db */
			continue;
		fsck_found(f, &(struct fsck_about){ "segment", .repair = "it is written anew" },
			   "segment %08x: its header is damaged; its records are not", s->n);
	}
}

/* Where the last record of a segment ends, of those in f->place from *at on, which moves behind them. */
static uint64_t end_of(struct fsck *f, size_t *at, uint32_t n)
{
	struct fsck_segment *s = segment_find(f, n);
	uint64_t end = 0;

	for (; *at < f->chunks; (*at)++) {
		const struct fsck_chunk *c = &f->chunk[f->place[*at]];
		uint64_t to =
			(uint64_t)c->loc.offset * RECORD_ALIGN + record_size(c->info.stored_len);

		if (c->loc.segment != n)
			break;
		if (c->fault && c->fault != FAULT_PAYLOAD && c->fault != FAULT_DECODE)
			continue;
		if (s)
			s->chunks = true;
		if (to > end)
			end = to;
	}
	return end;
}

static int check_used(struct fsck *f, uint32_t n, uint64_t end)
{
	char sql[96];
	int64_t used;
	int r;

	snprintf(sql, sizeof(sql), "SELECT used FROM segments WHERE n = %" PRIu32, n);
	r = fsck_number(f, sql, &used);
	if (r && r != -ENOENT)
		return r;
	if (!r && used >= (int64_t)end && used <= USED_MAX)
		return 0;
	if (r)
		fsck_found(f, &(struct fsck_about){ "segment", .repair = "it gets one" },
			   "segment %08x: it has chunks, but no row", n);
	else
		fsck_found(f, &(struct fsck_about){ "segment", .repair = "it is set" },
			   "segment %08x: %" PRId64 " bytes used, but %" PRIu64 " by its chunks", n,
			   used, end);
	return fsck_mend(f, "INSERT OR REPLACE INTO segments(n, used) VALUES(?1, ?2)", n,
			 (int64_t)end, 0, NULL, 0);
}

static int check_numbers(struct fsck *f)
{
	int64_t n;
	int r = fsck_number(f, "SELECT count(*) FROM segments WHERE n < 1 OR n > 4294967295", &n);

	if (r || !n)
		return r;
	fsck_found(f, &(struct fsck_about){ "segment", .repair = "they are removed" },
		   "%" PRId64 " rows of segments with numbers that cannot be", n);
	return fsck_mend(f, "DELETE FROM segments WHERE n < 1 OR n > 4294967295", 0, 0, 0, NULL, 0);
}

int fsck_segments_check(struct fsck *f)
{
	int r = check_numbers(f);
	size_t at = 0;

	while (at < f->chunks && !r) {
		uint32_t n = f->chunk[f->place[at]].loc.segment;
		uint64_t end = end_of(f, &at, n);

		if (end)
			r = check_used(f, n, end);
	}
	if (!r)
		tell_headers(f);
	return r;
}

/* A header is one write of a block in which nothing else is. */
static int write_header(struct fsck *f, uint32_t n)
{
	uint8_t *block = io_buffer_alloc(SEGMENT_HEADER);
	char name[SEGMENT_NAME_MAX];
	int fd = -1, r = -ENOMEM;

	segment_name(n, name);
	if (block)
		fd = openat(f->seg_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (block && fd < 0)
		r = -errno;
	if (fd >= 0) {
		segment_header_pack(block, n, f->uuid);
		r = io_write_full(&io_system, fd, block, SEGMENT_HEADER, 0);
		if (!r && fdatasync(fd))
			r = -errno;
		close(fd);
	}
	io_buffer_free(block, SEGMENT_HEADER);
	return r ? fsck_fail(f, r, "%s/segments/%s: %s", f->path, name, strerror(-r)) : 0;
}

int fsck_segments_mend(struct fsck *f)
{
	int r = 0;

	for (size_t k = 0; k < f->segments && !r; k++)
		if (f->segment[k].bad && f->segment[k].chunks)
			r = write_header(f, f->segment[k].n);
	f->ret->repaired |= !r;
	return r;
}

/* ---- records without a row ---- */

static struct fsck_wanted *wanted(const struct fsck *f, uint64_t id)
{
	size_t lo = 0, hi = f->wanteds;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (f->wanted[mid].id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < f->wanteds && f->wanted[lo].id == id ? &f->wanted[lo] : NULL;
}

/* Where a row says what the content is, only such a record counts. */
static int on_record(void *arg, struct segment_loc loc, const struct record_info *info)
{
	struct fsck *f = arg;
	struct fsck_wanted *w = wanted(f, info->chunk_id);

	if (fsck_cancelled(f))
		return -ECANCELED;
	if (!w)
		return 0;
	if (w->row && w->row->fault != FAULT_LOST && !hash128_equal(w->row->info.hash, info->hash))
		return 0;
	if (w->found && (!hash128_equal(w->info.hash, info->hash) ||
			 w->info.raw_len != info->raw_len || w->info.tenant != info->tenant))
		w->differ = true;
	w->info = *info;
	w->loc = loc;
	w->found = true;
	return 0;
}

int fsck_segments_scan(struct fsck *f)
{
	for (size_t k = 0; k < f->segments; k++) {
		uint64_t damaged = 0;
		int r = segset_scan(f->segs, f->segment[k].n, on_record, f, &damaged);

		if (r == -EBADMSG || r == -EIO)
			f->unread++;
		else if (r)
			return r;
		f->unread += damaged;
	}
	return 0;
}
