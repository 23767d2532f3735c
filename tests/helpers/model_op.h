/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of the model checker: what one is, how it is drawn and how it is told. An operation is a
 * function of the seed and of its number alone, never of what came before, so that any part of a sequence
 * can be played again without the rest: that is what makes a failing one shrinkable. One that finds
 * nothing to work on (a slot that is empty) does nothing, on both sides. A change here gives every seed
 * another meaning.
 */
#ifndef MODEL_OP_H
#define MODEL_OP_H

#include <fcntl.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "pattern.h"

#define SLOTS          6 /* open files */
#define MAPS           2 /* mappings that are kept */
#define KIB            (UINT64_C(1) << 10)
#define MIB            (UINT64_C(1) << 20)
#define IO_MAX         (3 * MIB)
#define SIZE_MAX_DRAWN (8 * MIB) /* beyond it nothing appends; all else ends below it */

enum op_kind {
	OP_OPEN,
	OP_TMPFILE,
	OP_DUP,
	OP_CLOSE,
	OP_PREAD,
	OP_PWRITE,
	OP_READ,
	OP_WRITE,
	OP_FTRUNCATE,
	OP_TRUNCATE,
	OP_FALLOCATE,
	OP_COPY_RANGE,
	OP_SEEK_DATA,
	OP_FSYNC,
	OP_MAP_LOAD,
	OP_MAP_STORE,
	OP_MAP_KEEP,
	OP_KEPT_LOAD,
	OP_KEPT_STORE,
	OP_KEPT_DROP,
	OP_READ_ALL,
	OP_SAVE,
	OP_COPY,
	OP_STAT,
	OP_LIST,
	OP_UNLINK,
	OP_RENAME,
	OP_LINK,
	OP_LINK_FD,
	OP_SYMLINK,
	OP_READLINK,
	OP_MKDIR,
	OP_RMDIR,
	OP_CHMOD,
	OP_CHOWN,
	OP_UTIMENS,
	OP_FUTIMENS,
	OP_SETXATTR,
	OP_GETXATTR,
	OP_LISTXATTR,
	OP_REMOVEXATTR,
	OP_CHECK,
	OP_EVICT,
	OP_EVICT_ALL,
	OP_PREFETCH,
	OP_PAUSE,
	OP_REMOUNT,
	OP_KILL,
	OP_KINDS
};

/* What of an operation means something for its kind. */
enum field {
	F_SLOT = 1,
	F_OTHER = 2,
	F_PATH = 4,
	F_TO = 8,
	F_OFF = 16,
	F_OFF2 = 32,
	F_LEN = 64,
	F_DATA = 128,
	F_FLAGS = 256,
	F_MAP = 512,
	F_DIR = 1024, /* its path is mostly a directory's */
};

struct op {
	enum op_kind kind;
	unsigned number;
	unsigned slot, other, map; /* open files; a kept mapping */
	unsigned path, to;         /* in op_paths */
	uint64_t off, off2, len;
	unsigned flags; /* of open, rename, fallocate, setxattr, or a mode */
	uint64_t data;  /* what is written, which value, which time */
};

static const struct op_type {
	const char *name;
	unsigned weight;
	unsigned fields;
} op_types[OP_KINDS] = {
	[OP_OPEN] = { "open", 150, F_SLOT | F_PATH | F_FLAGS },
	[OP_TMPFILE] = { "tmpfile", 10, F_SLOT | F_PATH | F_DIR },
	[OP_DUP] = { "dup", 15, F_SLOT | F_OTHER },
	[OP_CLOSE] = { "close", 80, F_SLOT },
	[OP_PREAD] = { "pread", 90, F_SLOT | F_OFF | F_LEN },
	[OP_PWRITE] = { "pwrite", 160, F_SLOT | F_OFF | F_LEN | F_DATA },
	[OP_READ] = { "read", 20, F_SLOT | F_LEN },
	[OP_WRITE] = { "write", 50, F_SLOT | F_LEN | F_DATA },
	[OP_FTRUNCATE] = { "ftruncate", 40, F_SLOT | F_OFF },
	[OP_TRUNCATE] = { "truncate", 40, F_PATH | F_OFF },
	[OP_FALLOCATE] = { "fallocate", 50, F_SLOT | F_OFF | F_LEN | F_FLAGS },
	[OP_COPY_RANGE] = { "copy_file_range", 30, F_SLOT | F_OTHER | F_OFF | F_OFF2 | F_LEN },
	[OP_SEEK_DATA] = { "seek_data", 20, F_SLOT },
	[OP_FSYNC] = { "fsync", 15, F_SLOT },
	[OP_MAP_LOAD] = { "map_load", 30, F_SLOT | F_OFF | F_LEN },
	[OP_MAP_STORE] = { "map_store", 40, F_SLOT | F_OFF | F_LEN | F_DATA },
	[OP_MAP_KEEP] = { "map_keep", 15, F_SLOT | F_MAP },
	[OP_KEPT_LOAD] = { "kept_load", 30, F_MAP | F_OFF | F_LEN },
	[OP_KEPT_STORE] = { "kept_store", 30, F_MAP | F_OFF | F_LEN | F_DATA },
	[OP_KEPT_DROP] = { "kept_drop", 10, F_MAP },
	[OP_READ_ALL] = { "read_all", 60, F_PATH },
	[OP_SAVE] = { "save", 60, F_PATH | F_LEN | F_DATA },
	[OP_COPY] = { "copy", 50, F_PATH | F_TO | F_OFF | F_DATA },
	[OP_STAT] = { "stat", 40, F_PATH },
	[OP_LIST] = { "list", 15, F_PATH | F_DIR },
	[OP_UNLINK] = { "unlink", 40, F_PATH },
	[OP_RENAME] = { "rename", 70, F_PATH | F_TO | F_FLAGS },
	[OP_LINK] = { "link", 25, F_PATH | F_TO },
	[OP_LINK_FD] = { "link_fd", 10, F_SLOT | F_TO },
	[OP_SYMLINK] = { "symlink", 15, F_PATH | F_DATA },
	[OP_READLINK] = { "readlink", 10, F_PATH },
	[OP_MKDIR] = { "mkdir", 40, F_PATH | F_FLAGS | F_DIR },
	[OP_RMDIR] = { "rmdir", 15, F_PATH | F_DIR },
	[OP_CHMOD] = { "chmod", 20, F_PATH | F_FLAGS },
	[OP_CHOWN] = { "chown", 10, F_PATH | F_DATA },
	[OP_UTIMENS] = { "utimens", 25, F_PATH | F_DATA },
	[OP_FUTIMENS] = { "futimens", 15, F_SLOT | F_DATA },
	[OP_SETXATTR] = { "setxattr", 35, F_PATH | F_FLAGS | F_DATA },
	[OP_GETXATTR] = { "getxattr", 15, F_PATH | F_DATA },
	[OP_LISTXATTR] = { "listxattr", 10, F_PATH },
	[OP_REMOVEXATTR] = { "removexattr", 10, F_PATH | F_DATA },
	[OP_CHECK] = { "check", 12, 0 },
	[OP_EVICT] = { "evict", 40, F_PATH | F_DATA },
	[OP_EVICT_ALL] = { "evict_all", 8, F_DATA },
	[OP_PREFETCH] = { "prefetch", 15, F_PATH },
	[OP_PAUSE] = { "pause", 2, F_DATA },
	[OP_REMOUNT] = { "remount", 3, 0 },
	[OP_KILL] = { "kill", 5, 0 },
};

/* Few names, so that operations meet. The directories stand last. */
static const char *const op_paths[] = {
	"a",   "b",   "c",   "l",     "D/a",   "D/b", "D/c", "D/l", "E/a",
	"E/b", "E/c", "E/l", "D/F/a", "D/F/b", "D",   "E",   "D/F", "E/G",
};
#define PATHS      (sizeof op_paths / sizeof op_paths[0])
#define FILE_PATHS (PATHS - 4)

/* ---- Drawing ---------------------------------------------------------------------------------- */

static inline unsigned draw(uint64_t *state, unsigned below)
{
	*state += 0x9e3779b97f4a7c15u;
	return (unsigned)((pattern_mix(*state) >> 16) % below);
}

static inline bool draw_percent(uint64_t *state, unsigned percent)
{
	return draw(state, 100) < percent;
}

/* Near the borders that mean something: pages, blocks, small images, huge pages. */
static uint64_t draw_offset(uint64_t *state)
{
	static const uint64_t borders[] = { 0, 0, 0, 4 * KIB, 64 * KIB, MIB, 2 * MIB, 4 * MIB };
	uint64_t off = borders[draw(state, 8)];

	switch (draw(state, 4)) {
	case 0:
		return off;
	case 1:
		off += draw(state, 3);
		return off ? off - 1 : 0;
	case 2:
		return off + draw(state, 20000);
	default:
		return draw(state, draw_percent(state, 50) ? 300000 : 5 * MIB);
	}
}

static uint64_t draw_length(uint64_t *state)
{
	static const unsigned limits[] = { 2, 100, 5000, 5000, 70000, 70000, 300000, IO_MAX };
	static const unsigned exact[] = { 0, 1, 512, 4096, 8192, 65536, 65537, MIB, 2 * MIB };

	if (draw_percent(state, 25))
		return exact[draw(state, sizeof exact / sizeof exact[0])];
	return draw(state, limits[draw(state, 8)]);
}

static unsigned draw_path(uint64_t *state, bool directory)
{
	if (draw_percent(state, 93) != directory)
		return draw(state, FILE_PATHS);
	return FILE_PATHS + draw(state, PATHS - FILE_PATHS);
}

static unsigned draw_open_flags(uint64_t *state)
{
	static const unsigned access[] = { O_RDONLY, O_WRONLY, O_RDWR };
	unsigned flags = access[draw(state, 3)];

	if (draw_percent(state, 60))
		flags |= O_CREAT | (draw_percent(state, 10) ? O_EXCL : 0);
	if (flags & (O_WRONLY | O_RDWR))
		flags |= draw_percent(state, 20) ? O_TRUNC : 0;
	if (draw_percent(state, 15))
		flags |= O_APPEND;
	else if (draw_percent(state, 12))
		flags |= O_DIRECT;
	if (draw_percent(state, 5))
		flags |= draw_percent(state, 50) ? O_SYNC : O_DSYNC;
	return flags | (draw_percent(state, 3) ? O_NOFOLLOW : 0);
}

static unsigned draw_flags(uint64_t *state, enum op_kind kind)
{
	static const unsigned falloc[] = { 0,
					   FALLOC_FL_KEEP_SIZE,
					   FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					   FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					   FALLOC_FL_ZERO_RANGE,
					   FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE };
	static const unsigned renames[] = { 0, 0, 0, 0, 1 /* NOREPLACE */, 2 /* EXCHANGE */,
					    3 /* EINVAL */ };
	/* No set-id bits that a write could clear: FUSE does not say on O_TRUNC whether it should. */
	static const unsigned modes[] = { 0755, 0700, 0644, 02744, 01755, 01777, 0, 0111 };

	switch (kind) {
	case OP_OPEN:
		return draw_open_flags(state);
	case OP_FALLOCATE:
		return falloc[draw(state, 6)];
	case OP_RENAME:
		return renames[draw(state, 7)];
	case OP_SETXATTR:
		return draw_percent(state, 70) ? 0 :
		       draw_percent(state, 50) ? XATTR_CREATE :
						 XATTR_REPLACE;
	default:
		return modes[draw(state, 8)];
	}
}

static enum op_kind draw_kind(uint64_t *state)
{
	unsigned total = 0, at, k;

	for (k = 0; k < OP_KINDS; k++)
		total += op_types[k].weight;
	at = draw(state, total);
	for (k = 0; at >= op_types[k].weight; k++)
		at -= op_types[k].weight;
	return k;
}

static struct op op_draw(uint64_t seed, unsigned number)
{
	uint64_t state = pattern_mix(seed * 0xff51afd7ed558ccdu + number + 1);
	struct op op = { .kind = draw_kind(&state), .number = number };
	unsigned fields = op_types[op.kind].fields;

	op.slot = draw(&state, SLOTS);
	op.other = draw(&state, SLOTS);
	op.map = draw(&state, MAPS);
	op.path = draw_path(&state, fields & F_DIR);
	/* Like to like, mostly: a rename of a file over a directory only fails. */
	op.to = draw_path(&state, op.path >= FILE_PATHS);
	op.off = draw_offset(&state);
	op.off2 = draw_offset(&state);
	op.len = draw_length(&state);
	op.flags = draw_flags(&state, op.kind);
	op.data = draw(&state, 1u << 30);
	return op;
}

/* Zeros, one byte, what other files have at the same or at a shifted place, or bytes of its own. */
static void op_content(const struct op *op, unsigned char *buf, size_t len, uint64_t off)
{
	switch (op->data % 8) {
	case 0:
		memset(buf, 0, len);
		break;
	case 1:
		memset(buf, (int)(op->data >> 8) | 1, len);
		break;
	case 2:
	case 3:
	case 4:
		pattern_fill(buf, len, op->data % 8, off + (op->data & 8 ? 0 : 4096));
		break;
	default:
		pattern_fill(buf, len, op->data, off);
	}
}

/* ---- Telling ---------------------------------------------------------------------------------- */

static void op_open_flags(FILE *to, unsigned flags)
{
	static const struct {
		unsigned bit;
		const char *name;
	} names[] = { { O_CREAT, "CREAT" },   { O_EXCL, "EXCL" },     { O_TRUNC, "TRUNC" },
		      { O_APPEND, "APPEND" }, { O_DIRECT, "DIRECT" }, { O_NOFOLLOW, "NOFOLLOW" } };
	static const char *const access[] = { "RDONLY", "WRONLY", "RDWR" };

	fprintf(to, " %s", access[flags & O_ACCMODE]);
	for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
		if (flags & names[k].bit)
			fprintf(to, "|%s", names[k].name);
	if (flags & O_DSYNC)
		fprintf(to, (flags & O_SYNC) == O_SYNC ? "|SYNC" : "|DSYNC");
}

static void op_tell(FILE *to, const struct op *op)
{
	const struct op_type *t = &op_types[op->kind];

	fprintf(to, "#%u %s", op->number, t->name);
	if (t->fields & F_SLOT)
		fprintf(to, " slot %u", op->slot);
	if (t->fields & F_MAP)
		fprintf(to, " mapping %u", op->map);
	if (t->fields & F_OTHER)
		fprintf(to, " to slot %u", op->other);
	if (t->fields & F_PATH)
		fprintf(to, " %s", op_paths[op->path]);
	if (t->fields & F_TO)
		fprintf(to, " to %s", op_paths[op->to]);
	if (t->fields & F_OFF)
		fprintf(to, " at %llu", (unsigned long long)op->off);
	if (t->fields & F_OFF2)
		fprintf(to, " to %llu", (unsigned long long)op->off2);
	if (t->fields & F_LEN)
		fprintf(to, " length %llu", (unsigned long long)op->len);
	if (t->fields & F_FLAGS && op->kind == OP_OPEN)
		op_open_flags(to, op->flags);
	else if (t->fields & F_FLAGS)
		fprintf(to, op->kind == OP_CHMOD || op->kind == OP_MKDIR ? " %#o" : " flags %u",
			op->flags);
	if (t->fields & F_DATA)
		fprintf(to, " data %llu", (unsigned long long)op->data);
}

#endif
