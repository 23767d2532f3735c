/* SPDX-License-Identifier: Apache-2.0 */
/* What the formats that layout.c tries have in common. */
#ifndef STORE_LAYOUT_IMPL_H
#define STORE_LAYOUT_IMPL_H

#include "store/layout.h"

#include <endian.h>
#include <string.h>

#define LAYOUT_FIRST 12u /* bytes that tell the formats apart */

/* A slab begins at start, not before the one added last. -ENOMEM. */
int slabs_add(struct slabs *s, uint64_t start);

/* 1: it is such a file, *ret has its slabs and head. 0: it is none. Else an error. What *ret holds after
 * another answer than 1 is of no use. first: its first LAYOUT_FIRST bytes. */
int layout_safetensors(const struct layout_source *src, const uint8_t *first, struct slabs *ret);
int layout_slot(const struct layout_source *src, const uint8_t *first, struct slabs *ret);

static inline uint32_t layout_u32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static inline uint64_t layout_u64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

#endif
