/* SPDX-License-Identifier: Apache-2.0 */
/* What the two compilations of codec_planes_block.h and codec_planes.c share. */
#ifndef STORE_CODEC_PLANES_H
#define STORE_CODEC_PLANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLANES_BLOCK  256 /* elements */
#define PLANES_BELOW  4   /* how far below the largest exponent the code's first may be */
#define PLANES_WIDEST 6   /* bits of a code with escapes */
#define PLANES_BEYOND 32  /* bytes behind an encoded block that decode_block() may read */

/* How a kind of element is taken apart. */
struct planes_form {
	const char *name;
	uint8_t size;        /* of an element: 1, 2 or 4 bytes, little-endian */
	bool rotate;         /* left by a bit first: the sign goes below the mantissa */
	uint8_t shift, mask; /* of the exponent in the highest byte */
	uint8_t width;       /* bits of mask */
	uint8_t plain[4];    /* the other bits of that byte, which are noise */
	uint8_t n_plain;
};

/*
 * How the exponents of a block are written: base minus exponent, modulo mask + 1, in width bits; with
 * escapes the code of all ones says that the exponent itself follows. Of 4 bytes, as values of a narrower
 * kind are often kept in them: how many bits of the mantissas, from the highest, are not all zero.
 */
struct planes_code {
	uint8_t base, width, escapes, kept;
};

#define PLANES_MANTISSA 23u /* bits of 4-byte elements */

/* Longest encoded block, without its code. */
#define PLANES_BLOCK_MAX (8 * PLANES_BLOCK / 8 + 3 * PLANES_BLOCK + PLANES_BLOCK)

struct planes_ops {
	size_t (*encode_block)(const struct planes_form *f, const uint8_t *src, uint8_t *dst,
			       struct planes_code *ret);
	/* src has all the bytes the code says and PLANES_BEYOND more, of any value. False: they are not
	 * those of a block. */
	bool (*decode_block)(const struct planes_form *f, const struct planes_code *c,
			     const uint8_t *src, uint8_t *dst);
	/* n elements of two bytes, rotated left by a bit or not, to their high and low bytes, and back. */
	void (*split_pairs)(const uint8_t *src, size_t n, bool rotate, uint8_t *high, uint8_t *low);
	void (*join_pairs)(const uint8_t *high, const uint8_t *low, size_t n, bool rotate,
			   uint8_t *dst);
};

extern const struct planes_ops planes_portable, planes_avx2; /* the latter on x86-64 only */
/* The best of them for this processor. */
const struct planes_ops *planes_ops(void);

#endif
