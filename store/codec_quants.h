/* SPDX-License-Identifier: Apache-2.0 */
/* What the two compilations of codec_quants_block.h and codec_quants.c share. */
#ifndef STORE_CODEC_QUANTS_H
#define STORE_CODEC_QUANTS_H

#include <stddef.h>
#include <stdint.h>

#define QUANTS_SCALE   2u  /* bytes */
#define QUANTS_COLUMNS 32u /* bytes of quants in the largest block */
#define QUANTS_CLASSES 4u

/* How blocks are taken apart: those of one class, or the columns of class k, per of them, are
 * order[k * per] and on, in ascending order. */
struct quants_shape {
	uint8_t columns; /* bytes of quants in a block: 32 or 16 */
	uint8_t size;    /* of a block */
	uint8_t phase;   /* bytes before the first */
	uint8_t classes, per;
	uint8_t order[QUANTS_COLUMNS];
};

struct quants_ops {
	/* n blocks to the low and high bytes of their scales and their quants, class by class. */
	void (*split)(const struct quants_shape *s, const uint8_t *src, size_t n, uint8_t *low,
		      uint8_t *high, uint8_t *quants);
	void (*join)(const struct quants_shape *s, const uint8_t *low, const uint8_t *high,
		     const uint8_t *quants, size_t n, uint8_t *dst);
};

extern const struct quants_ops quants_portable, quants_avx2; /* the latter on x86-64 only */

#endif
