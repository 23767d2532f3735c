/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuts: see cuts.h. Legal is what no sync forbids: of a file everything before its last sync is there,
 * of later changes any; a name is there for certain once its folder was synced. What a file has before
 * any of its bytes came is zeros.
 */
#include "tests/fault/cuts.h"
#include "tests/fault/trace.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE_MAX_FILE (24u << 20)

/* What becomes of a change that no sync covers. */
enum how {
	ALL,     /* the cache was just written out */
	NOTHING, /* or never */
	SOME,    /* each or not */
	TORN,    /* each sector of each or not */
	PAGES,   /* each 4 KiB */
	FEW,     /* few are missing */
	MANY,    /* few are there */
	HOWS,
};
static const char *const how_name[] = {
	"all", "nothing", "some", "sectors", "pages", "most", "few"
};

static struct {
	uint8_t *byte[TRACE_FILES];
	uint64_t size[TRACE_FILES], used[TRACE_FILES]; /* used: the most it ever was */
	bool folder[TRACE_FILES];
	size_t synced[TRACE_FILES]; /* steps before that are there */
	struct {
		int dir, file;
		char name[24];
	} name[TRACE_FILES];
	int names;
	enum how how;
	uint64_t random;
} c;

static uint64_t draw(uint64_t below)
{
	c.random ^= c.random << 13;
	c.random ^= c.random >> 7;
	c.random ^= c.random << 17;
	return (c.random >> 11) % below;
}

static bool is_there(void)
{
	switch (c.how) {
	case ALL:
		return true;
	case NOTHING:
		return false;
	case FEW:
		return draw(8) != 0;
	case MANY:
		return draw(8) == 0;
	default:
		return draw(2);
	}
}

static void grow(int f, uint64_t size)
{
	if (size > SIZE_MAX_FILE)
		abort();
	if (!c.byte[f])
		c.byte[f] = calloc(1, SIZE_MAX_FILE);
	if (!c.byte[f])
		abort();
	if (size > c.size[f])
		c.size[f] = size;
	if (size > c.used[f])
		c.used[f] = size;
}

static void put(int f, uint64_t off, const uint8_t *data, uint64_t len)
{
	grow(f, off + len);
	if (data)
		memcpy(c.byte[f] + off, data, len);
	else
		memset(c.byte[f] + off, 0, len);
}

/* A write that no sync covers, a part of it at a time; its size may come without its bytes. */
static void put_parts(const struct step *s)
{
	uint64_t unit = c.how == TORN ? 512 : c.how == PAGES ? 4096 : s->len;

	for (uint64_t at = 0; at < s->len;) {
		uint64_t n = unit - (s->off + at) % unit;

		if (unit == s->len || n > s->len - at)
			n = s->len - at;
		if (is_there())
			put(s->file, s->off + at, trace->data + s->data + at, n);
		else if (draw(4) == 0)
			grow(s->file, s->off + at + n);
		at += n;
	}
}

static void change_size(const struct step *s)
{
	int f = s->file;

	grow(f, s->off);
	if (s->type == STEP_TRUNCATE && s->off < c.size[f]) {
		memset(c.byte[f] + s->off, 0, c.size[f] - s->off);
		c.size[f] = s->off;
	}
}

static void change_bytes(const struct step *s, bool synced)
{
	if (s->type == STEP_WRITE && !synced)
		put_parts(s);
	else if (s->type == STEP_WRITE)
		put(s->file, s->off, trace->data + s->data, s->len);
	else if (!synced && !is_there())
		return;
	else if (s->type == STEP_PUNCH && s->off < c.size[s->file])
		put(s->file, s->off, NULL,
		    s->len < c.size[s->file] - s->off ? s->len : c.size[s->file] - s->off);
	else if (s->type != STEP_PUNCH)
		change_size(s);
}

static void change_name(const struct step *s, bool synced)
{
	int i = 0;

	c.folder[s->file] = s->folder;
	if (!synced && !is_there())
		return;
	while (i < c.names && (c.name[i].dir != s->dir || strcmp(c.name[i].name, s->name)))
		i++;
	if (s->type == STEP_REMOVE) {
		if (i < c.names)
			c.name[i] = c.name[--c.names];
		return;
	}
	if (i == c.names)
		c.names++;
	c.name[i].dir = s->dir;
	c.name[i].file = s->file;
	snprintf(c.name[i].name, sizeof(c.name[i].name), "%s", s->name);
}

static void replay(size_t upto)
{
	for (size_t i = 0; i < upto; i++) {
		const struct step *s = &trace->step[i];

		if (s->type == STEP_SYNC || s->type == STEP_MARK)
			continue;
		if (s->type == STEP_MAKE || s->type == STEP_REMOVE)
			change_name(s, i < c.synced[s->dir]);
		else
			change_bytes(s, i < c.synced[s->file]);
	}
}

static void look_at_syncs(size_t upto, struct cut_range *ret)
{
	ret->first = ret->last = 0;
	for (size_t i = 0; i < upto; i++) {
		const struct step *s = &trace->step[i];

		if (s->type == STEP_SYNC)
			c.synced[s->file] = i;
		if (s->type != STEP_MARK)
			continue;
		if (s->off % 2)
			ret->first = (int)(s->off / 2);
		else
			ret->last = (int)(s->off / 2);
	}
}

/* ---- on the disk ---- */

static int write_file(const char *path, int f)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	bool ok = fd >= 0 && !ftruncate(fd, (off_t)c.size[f]);

	/* Not the zeros of what was preallocated. */
	for (uint64_t at = 0; ok && at < c.size[f]; at += 65536) {
		uint64_t n = c.size[f] - at < 65536 ? c.size[f] - at : 65536;
		const uint8_t *p = c.byte[f] + at;

		if (p[0] || memcmp(p, p + 1, n - 1))
			ok = pwrite(fd, p, n, (off_t)at) == (ssize_t)n;
	}
	if (fd >= 0)
		close(fd);
	return ok ? 0 : -1;
}

static int write_folder(const char *path, int dir)
{
	int r = 0;

	for (int i = 0; i < c.names && !r; i++) {
		char name[1024];

		if (c.name[i].dir != dir)
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, c.name[i].name);
		if (!c.folder[c.name[i].file])
			r = write_file(name, c.name[i].file);
		else if (mkdir(name, 0700))
			r = -1;
		else
			r = write_folder(name, c.name[i].file);
	}
	return r;
}

/* The last step there is: anywhere, and as often beside a sync. */
static size_t choose_step(void)
{
	size_t n = draw(trace->n) + 1;

	if (draw(2))
		return n;
	while (n < trace->n && trace->step[n - 1].type != STEP_SYNC)
		n++;
	return n - draw(2);
}

int cut_make(const char *folder, uint64_t seed, struct cut_range *ret)
{
	size_t upto;

	for (int f = 0; f < TRACE_FILES; f++) {
		if (c.byte[f])
			memset(c.byte[f], 0, c.used[f]);
		c.size[f] = c.synced[f] = c.used[f] = 0;
	}
	c.names = 0;
	c.random = (seed + 1) * 0x9e3779b97f4a7c15ull;
	draw(2);
	upto = choose_step();
	c.how = (enum how)draw(HOWS);
	ret->step = upto;
	ret->how = how_name[c.how];
	look_at_syncs(upto, ret);
	replay(upto);
	return write_folder(folder, 0);
}
