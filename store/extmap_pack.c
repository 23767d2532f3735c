/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extmap_pack: the packed form of an extent map. A file's chunks mostly touch and were mostly made
 * one after the other, so nearly every extent takes five bytes.
 */
#include "store/extmap.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#define PACK_VERSION 1u
#define NUMBER_MAX   10u /* bytes of the longest LEB128 number of 64 bits */
#define EXTENT_MAX   (4u * NUMBER_MAX)
#define EXTENT_LEAST 4u /* bytes: four numbers */

static uint8_t *put_number(uint8_t *p, uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		*p++ = (uint8_t)(v | 0x80);
	*p++ = (uint8_t)v;
	return p;
}

/* False at the end of the buffer and for what put_number does not write. */
static bool get_number(const uint8_t **p, const uint8_t *end, uint64_t *ret)
{
	uint64_t v = 0;

	for (unsigned shift = 0; shift < 64 && *p < end; shift += 7) {
		uint8_t b = *(*p)++;

		/* The tenth byte has one bit to give; a zero on top makes a number needlessly long. */
		if ((shift == 63 && b > 1) || (shift && !b))
			return false;
		v |= (uint64_t)(b & 0x7f) << shift;
		if (!(b & 0x80)) {
			*ret = v;
			return true;
		}
	}
	return false;
}

/* Small numbers for small differences of either sign; differences wrap. */
static uint64_t zigzag(uint64_t d)
{
	return (d << 1) ^ (0 - (d >> 63));
}

static uint64_t unzigzag(uint64_t z)
{
	return (z >> 1) ^ (0 - (z & 1));
}

ssize_t extmap_encode(const struct extmap *m, uint8_t **ret)
{
	uint64_t end = 0, expected = 1;
	uint8_t *buf, *p;

	if (m->n > (SIZE_MAX / 2 - 1) / EXTENT_MAX)
		return -EFBIG;
	buf = malloc(1 + m->n * EXTENT_MAX);
	if (!buf)
		return -ENOMEM;
	p = buf;
	*p++ = PACK_VERSION;
	for (size_t i = 0; i < m->n; i++) {
		const struct extent *e = &m->e[i];

		p = put_number(p, e->off - end);
		p = put_number(p, e->len);
		p = put_number(p, e->skip);
		p = put_number(p, zigzag(e->chunk - expected));
		end = e->off + e->len;
		expected = e->chunk + 1;
	}
	*ret = buf;
	return p - buf;
}

/* An extent that can be: of some length, of a chunk of at most 4 GiB, in a file off_t can address. */
static bool get_extent(const uint8_t **p, const uint8_t *end, uint64_t off, uint64_t expected,
		       struct extent *ret)
{
	uint64_t gap, len, skip, id;

	if (!get_number(p, end, &gap) || !get_number(p, end, &len) || !get_number(p, end, &skip) ||
	    !get_number(p, end, &id))
		return false;
	if (!len || len > UINT32_MAX || skip > UINT32_MAX - len)
		return false;
	if (gap > INT64_MAX - off || len > INT64_MAX - off - gap)
		return false;
	*ret = (struct extent){
		.off = off + gap,
		.chunk = expected + unzigzag(id),
		.len = (uint32_t)len,
		.skip = (uint32_t)skip,
	};
	return true;
}

int extmap_decode(const uint8_t *buf, size_t len, struct extmap **ret)
{
	const uint8_t *p = buf, *end = buf + len;
	struct extent *e;
	uint64_t off = 0, expected = 1;
	size_t n = 0;

	if (!len || *p++ != PACK_VERSION)
		return -EUCLEAN;
	e = malloc((len / EXTENT_LEAST + 1) * sizeof(*e));
	if (!e)
		return -ENOMEM;
	for (; p < end; n++) {
		if (!get_extent(&p, end, off, expected, &e[n])) {
			free(e);
			return -EUCLEAN;
		}
		off = e[n].off + e[n].len;
		expected = e[n].chunk + 1;
	}
	*ret = extmap_new(e, n);
	free(e);
	return *ret ? 0 : -ENOMEM;
}
