/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index: which chunks may have a content, by a key of 64 bits made of tenant, hash and length.
 *
 * It is advice and nothing else: what it names has to be looked up and compared, and what it does not
 * name is stored again. So it may forget: it never takes more memory than its budget, and beyond that
 * a new entry replaces another. Of one key it keeps INDEX_SAME entries, so that a walk over the
 * candidates ends, whatever somebody has made collide.
 *
 * Locking: none; the caller's lock guards all but index_key().
 */
#ifndef STORE_INDEX_H
#define STORE_INDEX_H

#include "store/hash.h"

#include <stdint.h>

struct index;

#define INDEX_SAME 8u /* entries of one key at most */

struct index_totals {
	uint64_t bytes, budget; /* of memory */
	uint64_t entries;
	uint64_t replaced; /* since index_new() */
};

/* budget in bytes; at least a page is taken. -ENOMEM. */
int index_new(uint64_t budget, struct index **ret);
void index_free(struct index *x); /* NULL is fine */
void index_totals(const struct index *x, struct index_totals *ret);

/* Another one at each index_new(), so that nobody outside can tell which contents share a place. */
uint64_t index_key(const struct index *x, uint32_t tenant, struct hash128 hash, uint32_t raw_len);

/* The entry is there afterwards, unless id is 0; another one may not be. */
void index_add(struct index *x, uint64_t key, uint64_t id);
void index_remove(struct index *x, uint64_t key, uint64_t id); /* fine when it is not there */
/* The lowest id above after that has the key; 0: none. So a walk meets none twice, whatever comes and
 * goes meanwhile. */
uint64_t index_next(const struct index *x, uint64_t key, uint64_t after);

#endif
