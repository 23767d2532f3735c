/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_scan: what is in a segment, from the segment alone. Records are followed one after the
 * other; where the chain is broken, it goes on at the next valid header.
 */
#include "store/segment_impl.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define WINDOW (2 * (size_t)RECORD_MAX)

/* A stretch of the segment in memory. */
struct window {
	struct segset *s;
	struct read_file *file;
	uint8_t *buf; /* WINDOW bytes */
	uint64_t off; /* a multiple of IO_ALIGN */
	size_t len;
};

/* Fills the window from off on with up to len bytes, fewer at the end of the file. */
static int load(struct window *w, uint64_t off, size_t len)
{
	const struct io_ops *io = w->s->io;

	w->off = off;
	w->len = 0;
	while (w->len < len) {
		ssize_t n = io->pread(io->arg, w->file->fd, w->buf + w->len, len - w->len,
				      off + w->len);

		if (n == 0 || (n == -EINVAL && w->len % IO_ALIGN))
			return 0;
		if (n == -EINTR)
			continue;
		if (n < 0)
			return (int)n;
		w->len += (size_t)n;
	}
	return 0;
}

/* Points at off and says how many bytes are there, at least want if the segment has them. Where the
 * device fails on a whole window, only what is wanted is asked for. */
static int look(struct window *w, uint64_t off, size_t want, const uint8_t **ret, size_t *ret_len)
{
	uint64_t start = align_down(off);
	int rc = 0;

	if (off < w->off || off + want > w->off + w->len) {
		rc = load(w, start, WINDOW);
		if (rc)
			rc = load(w, start, align_up(off + want) - start);
		if (rc)
			w->len = 0;
	}
	if (rc)
		return rc;
	*ret = w->buf + (off - w->off);
	*ret_len = w->off + w->len > off ? w->off + w->len - off : 0;
	return 0;
}

/* Bytes before the next magic number, in steps of RECORD_ALIGN; those not zero are damage. */
static size_t skip_to_magic(const uint8_t *p, size_t len, uint64_t *damaged)
{
	size_t i;

	for (i = 0; i + RECORD_ALIGN <= len; i += RECORD_ALIGN) {
		uint64_t word;

		memcpy(&word, p + i, sizeof(word));
		word = le64toh(word);
		if (i && (uint32_t)word == RECORD_MAGIC)
			break;
		if (word)
			*damaged += RECORD_ALIGN;
	}
	return i;
}

static bool all_zero(const uint8_t *p, size_t len)
{
	return !len || (!p[0] && !memcmp(p, p + 1, len - 1));
}

/* True for a dead record whose blocks were given back (segset_punch). */
static bool is_punched(const uint8_t *payload, uint32_t len, uint64_t off)
{
	uint64_t from = align_up(off), to = align_down(off + len);

	return from < to && all_zero(payload + (from - off), to - from);
}

struct scan {
	struct window w;
	uint32_t n;
	uint64_t pos;
	uint64_t damaged;
	int (*fn)(void *arg, struct segment_loc loc, const struct record_info *info);
	void *arg;
};

/* The payload of the record at pos, whose header is good; hands the record out and goes past it. */
static int take_record(struct scan *c, struct segment_loc loc, const struct record_info *info,
		       uint64_t sum)
{
	uint64_t size = record_size(info->stored_len);
	const uint8_t *p;
	size_t have;
	int rc = look(&c->w, c->pos, size, &p, &have);

	if (rc || have < size) {
		/* Unreadable, or cut off. */
		c->damaged += size;
		c->pos += size;
		return 0;
	}
	p += sizeof(struct record_header);
	if (sum64(p, info->stored_len) == sum)
		rc = c->fn(c->arg, loc, info);
	else if (!is_punched(p, info->stored_len, c->pos + sizeof(struct record_header)))
		c->damaged += size;
	c->pos += size;
	return rc;
}

/* One record, or a stretch without. *ret_end: the segment ends here. */
static int step(struct scan *c, bool *ret_end)
{
	struct segment_loc loc = { c->n, (uint32_t)(c->pos / RECORD_ALIGN) };
	struct record_info info;
	const uint8_t *p;
	uint64_t sum;
	size_t have;
	int rc = look(&c->w, c->pos, sizeof(struct record_header), &p, &have);

	if (rc) {
		uint64_t border = align_down(c->pos) + IO_ALIGN;

		c->damaged += border - c->pos;
		c->pos = border;
		return 0;
	}
	*ret_end = have < sizeof(struct record_header);
	if (*ret_end)
		return 0;
	if (!record_parse(p, loc, &info, &sum))
		return take_record(c, loc, &info, sum);
	c->pos += skip_to_magic(p, have, &c->damaged);
	return 0;
}

/* 0: records may follow; 1: nothing was ever written; else -EBADMSG. */
static int check_header(struct scan *c)
{
	const uint8_t *p;
	size_t have;
	int rc = look(&c->w, 0, SEGMENT_HEADER, &p, &have);

	if (rc)
		return rc;
	if (have < SEGMENT_HEADER)
		return have ? -EBADMSG : 1;
	if (segment_header_ok(p, c->n, c->w.s->uuid))
		return 0;
	return all_zero(p, SEGMENT_HEADER) ? 1 : -EBADMSG;
}

static int scan_file(struct scan *c)
{
	uint64_t limit = (uint64_t)UINT32_MAX * RECORD_ALIGN;
	bool end = false;
	int rc = check_header(c);

	if (rc)
		return rc < 0 ? rc : 0;
	c->pos = SEGMENT_HEADER;
	while (!rc && !end && c->pos < limit)
		rc = step(c, &end);
	return rc;
}

int segset_scan(struct segset *s, uint32_t n,
		int (*fn)(void *arg, struct segment_loc loc, const struct record_info *info),
		void *arg, uint64_t *ret_damaged)
{
	struct scan c = { .w.s = s, .n = n, .fn = fn, .arg = arg };
	int rc = segment_is_busy(s, n) ? segset_flush(s) : 0;

	if (rc)
		return rc;
	rc = read_file_get(s, n, &c.w.file);
	if (rc)
		return rc;
	c.w.buf = io_buffer_alloc(WINDOW);
	rc = c.w.buf ? scan_file(&c) : -ENOMEM;
	io_buffer_free(c.w.buf, WINDOW);
	read_file_put(s, c.w.file);
	if (rc >= 0)
		*ret_damaged = c.damaged;
	return rc;
}
