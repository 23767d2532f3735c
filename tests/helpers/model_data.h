/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of the model checker on open files and mappings of one side. One that finds its slot
 * empty answers NOTHING.
 */
#ifndef MODEL_DATA_H
#define MODEL_DATA_H

#include "model_side.h"

/* ---- Open files ------------------------------------------------------------------------------- */

static int64_t side_close(struct side *s, const struct op *op)
{
	struct open_file *f = &s->slots[op->slot];

	if (!f->used)
		return NOTHING;
	f->used = false;
	return result(close(f->fd));
}

static int64_t slot_take(struct side *s, unsigned slot, int fd, unsigned flags)
{
	if (fd < 0)
		return -errno;
	s->slots[slot] = (struct open_file){ true, fd, flags };
	return 0;
}

/* The reference needs no O_DIRECT, once it is open, nor O_SYNC: on a disk they only cost time. */
static int64_t side_open(struct side *s, const struct op *op)
{
	int64_t r = side_close(s, op);
	int flags = (int)op->flags, fd;

	if (r < 0 && r != NOTHING)
		return r;
	if (!s->is_kvfs)
		flags &= ~(O_SYNC | O_DSYNC);
	fd = open(side_path(s, op->path), flags, 0640);
	if (!s->is_kvfs && fd >= 0 && flags & O_DIRECT)
		fcntl(fd, F_SETFL, flags & ~O_DIRECT);
	return slot_take(s, op->slot, fd, op->flags);
}

static int64_t side_tmpfile(struct side *s, const struct op *op)
{
	int64_t r = side_close(s, op);

	if (r < 0 && r != NOTHING)
		return r;
	return slot_take(s, op->slot, open(side_path(s, op->path), O_TMPFILE | O_RDWR, 0600),
			 O_RDWR);
}

static int64_t side_dup(struct side *s, const struct op *op)
{
	struct op close_op = *op;
	int64_t r;

	if (!s->slots[op->slot].used || op->slot == op->other)
		return NOTHING;
	close_op.slot = op->other;
	r = side_close(s, &close_op);
	if (r < 0 && r != NOTHING)
		return r;
	return slot_take(s, op->other, dup(s->slots[op->slot].fd), s->slots[op->slot].flags);
}

/* Where and how much, of what was drawn, a file opened with O_DIRECT takes. */
static uint64_t fitting(const struct open_file *f, uint64_t n)
{
	return f->flags & O_DIRECT ? n & ~(uint64_t)(IO_ALIGN - 1) : n;
}

static int64_t side_pread(struct side *s, const struct op *op)
{
	struct open_file *f = &s->slots[op->slot];
	ssize_t n;

	if (!f->used)
		return NOTHING;
	n = pread(f->fd, s->out, fitting(f, op->len), (off_t)fitting(f, op->off));
	s->out_len = n > 0 ? (size_t)n : 0;
	return result(n);
}

static int64_t side_pwrite(struct side *s, const struct op *op)
{
	struct open_file *f = &s->slots[op->slot];
	uint64_t len = fitting(f, op->len), off = fitting(f, op->off);
	struct stat st;

	if (!f->used)
		return NOTHING;
	if (f->flags & O_APPEND && (fstat(f->fd, &st) < 0 || st.st_size > (off_t)SIZE_MAX_DRAWN))
		return NOTHING;
	op_content(op, s->in, len, off);
	return result(pwrite(f->fd, s->in, len, (off_t)off));
}

static int64_t side_read(struct side *s, const struct op *op)
{
	struct open_file *f = &s->slots[op->slot];
	ssize_t n;

	if (!f->used || f->flags & O_DIRECT)
		return NOTHING;
	n = read(f->fd, s->out, op->len);
	s->out_len = n > 0 ? (size_t)n : 0;
	return result(n);
}

static int64_t side_write(struct side *s, const struct op *op)
{
	struct open_file *f = &s->slots[op->slot];
	struct stat st;
	off_t at;

	if (!f->used || f->flags & O_DIRECT || fstat(f->fd, &st) < 0)
		return NOTHING;
	at = lseek(f->fd, 0, SEEK_CUR);
	if (at > (off_t)SIZE_MAX_DRAWN || st.st_size > (off_t)SIZE_MAX_DRAWN)
		return NOTHING;
	op_content(op, s->in, op->len, (uint64_t)at);
	return result(write(f->fd, s->in, op->len));
}

static int64_t side_ftruncate(struct side *s, const struct op *op)
{
	struct open_file *f = &s->slots[op->slot];

	return f->used ? result(ftruncate(f->fd, (off_t)op->off)) : NOTHING;
}

static int64_t side_fallocate(struct side *s, const struct op *op)
{
	struct open_file *f = &s->slots[op->slot];

	if (!f->used)
		return NOTHING;
	return result(fallocate(f->fd, (int)op->flags, (off_t)op->off, (off_t)op->len));
}

/* All of it: how much one call copies is its own affair. */
static int64_t side_copy_range(struct side *s, const struct op *op)
{
	struct open_file *from = &s->slots[op->slot], *to = &s->slots[op->other];
	off64_t in = (off64_t)op->off, out = (off64_t)op->off2;
	uint64_t left = op->len;
	ssize_t n = 0;

	/* A pipe's pieces are not those that O_DIRECT wants. */
	if (!from->used || !to->used || (from->flags | to->flags) & O_DIRECT)
		return NOTHING;
	while (left) {
		n = copy_file_range(from->fd, &in, to->fd, &out, left, 0);
		if (n <= 0)
			break;
		left -= (uint64_t)n;
	}
	return n < 0 && left == op->len ? -errno : (int64_t)(op->len - left);
}

static int64_t side_fsync(struct side *s, const struct op *op)
{
	struct open_file *f = &s->slots[op->slot];

	if (!f->used)
		return NOTHING;
	return s->is_kvfs ? result(fsync(f->fd)) : 0;
}

/* ---- Mappings --------------------------------------------------------------------------------- */

/* The part of [off, off + len) that lies in the file, mapped from the start of its first page. */
static unsigned char *map_part(struct open_file *f, const struct op *op, int prot, int how,
			       size_t *ret_len)
{
	uint64_t first = op->off & ~(uint64_t)(IO_ALIGN - 1);
	struct stat st;

	if (fstat(f->fd, &st) < 0)
		return MAP_FAILED;
	*ret_len = 0;
	/* What a directory's size is, is its file system's affair. */
	if (!S_ISREG(st.st_mode))
		return NULL;
	if ((uint64_t)st.st_size <= op->off || !op->len)
		return NULL;
	*ret_len = op->off - first + op->len;
	if (first + *ret_len > (uint64_t)st.st_size)
		*ret_len = (uint64_t)st.st_size - first;
	return mmap(NULL, *ret_len, prot, how, f->fd, (off_t)first);
}

static int64_t side_map_load(struct side *s, const struct op *op)
{
	struct open_file *f = &s->slots[op->slot];
	unsigned char *at;
	size_t len;

	if (!f->used)
		return NOTHING;
	at = map_part(f, op, PROT_READ, MAP_PRIVATE, &len);
	if (at == MAP_FAILED)
		return -errno;
	if (!at)
		return 0;
	memcpy(s->out, at, len);
	s->out_len = len;
	return result(munmap(at, len));
}

static int64_t side_map_store(struct side *s, const struct op *op)
{
	struct open_file *f = &s->slots[op->slot];
	size_t len, head = op->off % IO_ALIGN;
	unsigned char *at;

	if (!f->used)
		return NOTHING;
	at = map_part(f, op, PROT_READ | PROT_WRITE, MAP_SHARED, &len);
	if (at == MAP_FAILED)
		return -errno;
	if (!at)
		return 0;
	op_content(op, at + head, len - head, op->off);
	return result(munmap(at, len));
}

static int64_t side_kept_drop(struct side *s, const struct op *op)
{
	struct kept_map *m = &s->maps[op->map];
	int64_t r;

	if (!m->at)
		return NOTHING;
	r = result(munmap(m->at, m->len));
	if (m->fd >= 0)
		close(m->fd);
	m->at = NULL;
	return r;
}

static int64_t side_map_keep(struct side *s, const struct op *op)
{
	struct open_file *f = &s->slots[op->slot];
	struct kept_map m = { .fd = -1 };
	struct stat st;

	side_kept_drop(s, op);
	if (!f->used)
		return NOTHING;
	if (fstat(f->fd, &st) < 0)
		return -errno;
	m.len = S_ISREG(st.st_mode) ? (size_t)st.st_size : 0;
	if (!m.len)
		return 0;
	m.writable = (f->flags & O_ACCMODE) == O_RDWR;
	m.at = mmap(NULL, m.len, PROT_READ | (m.writable ? PROT_WRITE : 0), MAP_SHARED, f->fd, 0);
	if (m.at == MAP_FAILED)
		return -errno;
	if (!s->is_kvfs)
		m.fd = dup(f->fd);
	s->maps[op->map] = m;
	return 0;
}

/* How much of what was drawn can be touched. */
static size_t kept_part(const struct side *s, const struct op *op)
{
	const struct kept_map *m = &s->maps[op->map];
	size_t end = m->len < s->map_limit ? m->len : s->map_limit;

	return !m->at || end <= op->off ? 0 : end - op->off < op->len ? end - op->off : op->len;
}

static int64_t side_kept_load(struct side *s, const struct op *op)
{
	s->out_len = kept_part(s, op);
	if (s->out_len)
		memcpy(s->out, s->maps[op->map].at + op->off, s->out_len);
	return (int64_t)s->out_len;
}

static int64_t side_kept_store(struct side *s, const struct op *op)
{
	size_t len = kept_part(s, op);

	if (!len || !s->maps[op->map].writable)
		return NOTHING;
	op_content(op, s->maps[op->map].at + op->off, len, op->off);
	return (int64_t)len;
}

#endif
