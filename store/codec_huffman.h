/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_huffman: bytes coded by their frequencies alone, for the codecs that first put together those that
 * are alike: a zstd frame whose blocks are Huffman-coded literals without a sequence, as looking for repeats
 * in noise costs time and makes it longer.
 */
#ifndef STORE_CODEC_HUFFMAN_H
#define STORE_CODEC_HUFFMAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HUFFMAN_MOST   65536u /* bytes at a time: one block of zstd */
#define HUFFMAN_SAMPLE 4096u  /* bytes looked at */
#define HUFFMAN_PLANES 4u

/* What a thread keeps from chunk to chunk. */
struct huffman {
	struct ZSTD_CCtx_s *c; /* NULL: a library that encodes no more in this way */
	struct ZSTD_DCtx_s *d;
	uint8_t plane[HUFFMAN_PLANES][HUFFMAN_MOST]; /* the caller's */
	uint8_t frame[HUFFMAN_MOST + 512];
	double n_log_n[HUFFMAN_SAMPLE + 1]; /* of the index, in bits */
};

/* Of the calling thread, until it ends. NULL: out of memory. */
struct huffman *huffman_of_thread(void);

/* Bytes that so many would take, by the frequencies of n of them, at most HUFFMAN_SAMPLE. */
double huffman_estimate(const struct huffman *h, const uint8_t *p, size_t n, double all);

/* Where an encoded chunk is written to or read from, and how much is left there. */
struct out {
	uint8_t *p;
	size_t left;
};

struct in {
	const uint8_t *p;
	size_t left;
};

/* False: there is no room. */
static inline bool put(struct out *o, const void *p, size_t n)
{
	if (n > o->left)
		return false;
	memcpy(o->p, p, n);
	o->p += n;
	o->left -= n;
	return true;
}

/* NULL: there is not so much. */
static inline const uint8_t *get(struct in *i, size_t n)
{
	const uint8_t *p = i->p;

	if (n > i->left)
		return NULL;
	i->p += n;
	i->left -= n;
	return p;
}

/* The length as u32 and the frame of n bytes, at most HUFFMAN_MOST. False: there is no room, or memory. */
bool huffman_put(struct out *o, struct huffman *h, const uint8_t *p, size_t n);
/* Of exactly n bytes, to dst, which is returned. NULL: it is something else. */
const uint8_t *huffman_get(struct in *i, struct huffman *h, uint8_t *dst, size_t n);

#endif
