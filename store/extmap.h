/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extmap: which chunks make up the settled content of a file.
 *
 * Immutable once built and shared by reference; a change builds a new one. Extents are sorted, do
 * not overlap and need not touch: a gap is a hole and reads zeros.
 */
#ifndef STORE_EXTMAP_H
#define STORE_EXTMAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct extent {
	uint64_t off;   /* in the file */
	uint64_t chunk; /* chunk id */
	uint32_t len;   /* bytes of the chunk used here, > 0 */
	uint32_t skip;  /* bytes of the chunk before them */
};

struct extmap {
	int refs; /* atomic */
	size_t n;
	struct extent e[];
};

/* A copy of e[0..n). NULL when out of memory. One reference. */
struct extmap *extmap_new(const struct extent *e, size_t n);
struct extmap *extmap_ref(struct extmap *m);
void extmap_unref(struct extmap *m); /* NULL is fine */

/* Index of the first extent that ends after off; m->n if none. */
size_t extmap_find(const struct extmap *m, uint64_t off);

/* A new map: old with [from, to) replaced by e[0..n) (which lie within), and cut at limit.
 * Extents that reach over a border are split. old NULL: empty. */
struct extmap *extmap_replace(const struct extmap *old, uint64_t from, uint64_t to,
			      const struct extent *e, size_t n, uint64_t limit);

/* End of the last extent, 0 when empty. */
uint64_t extmap_end(const struct extmap *m);

/*
 * The packed form kept in meta.db and the journal: version byte, then LEB128 numbers an extent: gap
 * since the end of the one before, len, skip, chunk id as a zigzag difference to the one before
 * plus one (0 before the first). extmap_decode checks everything and returns -EUCLEAN for what it cannot be.
 */
ssize_t extmap_encode(const struct extmap *m, uint8_t **ret); /* length; *ret freed by caller */
int extmap_decode(const uint8_t *buf, size_t len, struct extmap **ret);

#endif
