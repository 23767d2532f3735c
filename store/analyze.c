/* SPDX-License-Identifier: Apache-2.0 */
/*
 * analyze: what a store would make of files that lie anywhere: cut, hashed and encoded by the code that
 * settles, with every choice of codecs in turn, and timed on the way. Sharing is by hash alone, as nothing
 * depends on it here.
 */
#include "store/clock.h"
#include "store/codec.h"
#include "store/cutter.h"
#include "store/element.h"
#include "store/hash.h"
#include "store/io.h"
#include "store/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <uthash.h>

#define WINDOW ((size_t)2 << 20)

const enum codec_choice analyze_choices[ANALYZE_CHOICES] = { CODEC_CHOICE_LZ4, CODEC_CHOICE_FAST,
							     CODEC_CHOICE_DENSE };

struct seen {
	struct hash128 hash;
	UT_hash_handle hh;
};

struct analyzer {
	struct seen *seen;
	char *window, *encoded, *back;
	enum analyze_element element; /* of what is being cut */
};

const char *analyze_element_name(enum analyze_element e)
{
	static const char *const names[ELEMENTS] = { "noise", "other", "bf16", "fp16",
						     "e4m3",  "e5m2",  "f32" };

	return names[e];
}

int analyzer_new(struct analyzer **ret)
{
	struct analyzer *a = calloc(1, sizeof(*a));

	if (!a)
		return -ENOMEM;
	a->window = io_buffer_alloc(WINDOW);
	a->encoded = io_buffer_alloc(CHUNK_MAX);
	a->back = io_buffer_alloc(CHUNK_MAX);
	if (!a->window || !a->encoded || !a->back) {
		analyzer_free(a);
		return -ENOMEM;
	}
	*ret = a;
	return 0;
}

void analyzer_free(struct analyzer *a)
{
	struct seen *s, *next;

	if (!a)
		return;
	HASH_ITER(hh, a->seen, s, next) {
		HASH_DEL(a->seen, s);
		free(s);
	}
	io_buffer_free(a->back, CHUNK_MAX);
	io_buffer_free(a->encoded, CHUNK_MAX);
	io_buffer_free(a->window, WINDOW);
	free(a);
}

/* 1: it is new. */
static int see(struct analyzer *a, struct hash128 hash)
{
	struct seen *s;

	HASH_FIND(hh, a->seen, &hash, sizeof(hash), s);
	if (s)
		return 0;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->hash = hash;
	HASH_ADD(hh, a->seen, hash, sizeof(s->hash), s);
	return 1;
}

/* One chunk by one choice. */
static int try_choice(struct analyzer *a, const char *chunk, size_t len, unsigned k,
		      struct analysis *ret)
{
	struct codec_set set = codec_set(analyze_choices[k], 0, 1);
	uint8_t params[CODEC_PARAMS];
	int64_t begin = now_ns();
	const struct codec *c;
	size_t stored;
	int r;

	c = codec_encode(&set, chunk, len, a->encoded, &stored, params);
	ret->by[k].encode_ns += (uint64_t)(now_ns() - begin);
	ret->by[k].stored += stored;
	begin = now_ns();
	r = c->decode(c->id == CODEC_RAW ? chunk : a->encoded, stored, a->back, len, params);
	ret->by[k].decode_ns += (uint64_t)(now_ns() - begin);
	return !r && memcmp(a->back, chunk, len) ? -EBADMSG : r;
}

static int add_chunk(struct analyzer *a, const char *chunk, size_t len, struct analysis *ret)
{
	int r = see(a, hash128(chunk, len));

	if (r <= 0) {
		ret->shared += r ? 0 : len;
		return r;
	}
	ret->chunks++;
	ret->element[a->element] += len;
	r = 0;
	for (unsigned k = 0; !r && k < ANALYZE_CHOICES; k++)
		r = try_choice(a, chunk, len, k, ret);
	return r;
}

/* The chunks of a window. */
static int add_window(struct analyzer *a, struct cutter *c, struct analysis *ret)
{
	size_t at, n, known = 0;
	int r = 0;

	while (!r && (n = cutter_next(c, &at))) {
		if (at >= known) {
			size_t len = c->len - at < CHUNK_MAX ? c->len - at : CHUNK_MAX;

			a->element = element_of(c->window + at, len, a->encoded);
			known = at + len;
		}
		r = add_chunk(a, c->window + at, n, ret);
		ret->holes -= n;
	}
	ret->size += c->at;
	ret->holes += c->at;
	return r;
}

static ssize_t read_some(int fd, char *buf, size_t len)
{
	ssize_t n;

	do
		n = read(fd, buf, len);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

/* Fills the window behind have; 1 at the end of the file. */
static int fill_window(struct analyzer *a, int fd, size_t have, size_t *ret_have)
{
	ssize_t n = 1;

	while (have < WINDOW && (n = read_some(fd, a->window + have, WINDOW - have)) > 0)
		have += (size_t)n;
	*ret_have = have;
	return n < 0 ? (int)n : n == 0;
}

static int read_at(void *arg, void *buf, size_t len, uint64_t off)
{
	ssize_t n = 0;

	for (size_t done = 0; done < len; done += n) {
		do
			n = pread(*(int *)arg, (char *)buf + done, len - done, off + done);
		while (n < 0 && errno == EINTR);
		if (n <= 0)
			return n ? -errno : -ENODATA;
	}
	return 0;
}

/* As an attribute of the file says, on a mount or wherever there are some, else as its head does. */
static void find_layout(int fd, uint64_t size, struct slabs *ret)
{
	struct layout_source src = { read_at, &fd, size };
	char text[RAW_LAYOUT_TEXT];
	ssize_t len = fgetxattr(fd, META_LAYOUT_XATTR, text, sizeof(text));
	struct raw_layout raw;

	if (len > 0 && !raw_layout_parse(text, (size_t)len, &raw))
		layout_raw(&raw, size, ret);
	else
		layout_find(&src, ret);
}

int analyzer_file(struct analyzer *a, int fd, void (*done)(void *arg, uint64_t bytes), void *arg,
		  struct analysis *ret)
{
	struct slabs slabs = { 0 };
	struct cutter c = { .window = a->window, .slabs = &slabs };
	size_t have = 0;
	struct stat st;
	int r = 0;

	memset(ret, 0, sizeof(*ret));
	if (fstat(fd, &st))
		return -errno;
	c.chunker = chunker_for((uint64_t)st.st_size);
	find_layout(fd, (uint64_t)st.st_size, &slabs);
	while (!r && !c.last) {
		r = fill_window(a, fd, have, &have);
		if (r < 0)
			break;
		c.last = r;
		c.len = have;
		c.at = c.zero_page = c.slab_end = 0;
		r = add_window(a, &c, ret);
		done(arg, c.at);
		c.off += c.at;
		have -= c.at;
		memmove(a->window, a->window + c.at, have);
	}
	slabs_done(&slabs);
	return r;
}
