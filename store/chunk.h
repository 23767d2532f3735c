/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk: the table of every stored chunk, the dedup index over it, and the warm tier.
 *
 * A chunk lives while something refers to it: extents of committed files (refs_db, kept in meta.db
 * too) or extents in memory and reads in flight (refs_mem). A chunk that nothing refers to is
 * dead: it waits for the reaper, which deletes its row in a durable transaction and only then gives
 * its bytes back. Until the reaper takes it, finding it again by content revives it.
 *
 * The index is advice, and forgets (store/index.h): content is shared only after a compare of the bytes. A
 * tenant sees only chunks of its own.
 *
 * Locking: one mutex inside; every function may be called from any thread with object locks held.
 */
#ifndef STORE_CHUNK_H
#define STORE_CHUNK_H

#include "store/extmap.h"
#include "store/index.h"
#include "store/meta.h"
#include "store/segment.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct chunk_table;
struct warm;

enum chunk_state { CHUNK_LIVE, CHUNK_DEAD, CHUNK_REAPED };

struct chunk {
	struct record_info info; /* constant */
	/* Read with chunk_loc(): chunk_move() changes it. */
	_Alignas(8) struct segment_loc loc;
	/* guarded by the table's lock from here on */
	uint32_t refs_db, refs_mem;
	uint8_t state;
	bool persisted;  /* has a row in meta.db, or is in the transaction being committed */
	bool flight;     /* the latter */
	uint32_t in_txn; /* changes of refs_db in transactions that have not ended: it cannot die */
	union {
		struct warm *_Atomic warm; /* while CHUNK_LIVE; a hint without the lock */
		LIST_ENTRY(chunk) dead;    /* while CHUNK_DEAD */
	};
};

struct chunk_totals {
	uint64_t chunks, unique_bytes, stored_bytes; /* live ones */
	uint64_t warm_bytes;
	struct index_totals index;
};

/* Budgets in bytes, of the warm tier and of the dedup index. */
int chunk_table_new(uint64_t warm_budget, uint64_t index_budget, struct chunk_table **ret);
void chunk_table_free(struct chunk_table *t); /* NULL is fine */
void chunk_table_totals(struct chunk_table *t, struct chunk_totals *ret);

/* Adds a chunk known from meta.db (refs_db > 0 or dead) or the journal. -EEXIST: the id is there
 * already, which is fine for a journal. -EUCLEAN: no chunk has such an id or such lengths. */
int chunk_load(struct chunk_table *t, const struct meta_chunk *c, bool persisted);
/* Ids up to max may be those of chunks that are loaded later. */
void chunk_expect_ids(struct chunk_table *t, uint64_t max);
/* After recovery: chunks without any reference die, and so do those that are loaded from now on. */
void chunk_settle_dead(struct chunk_table *t);

uint64_t chunk_next_id(struct chunk_table *t); /* takes one */

/* The chunk with a reference in memory; NULL when unknown. */
struct chunk *chunk_get(struct chunk_table *t, uint64_t id);
void chunk_put(struct chunk_table *t, struct chunk *c);

/* Where its record is. By the time it is read the chunk may have moved, and the segment may be gone: what
 * cannot be read there is to be looked for again where chunk_loc() says then. */
static inline struct segment_loc chunk_loc(const struct chunk *c)
{
	struct segment_loc loc;

	__atomic_load(&c->loc, &loc, __ATOMIC_ACQUIRE);
	return loc;
}

static inline bool chunk_is_at(const struct chunk *c, struct segment_loc loc)
{
	struct segment_loc now = chunk_loc(c);

	return now.segment == loc.segment && now.offset == loc.offset;
}

/*
 * For compaction. The chunk of a record that was found at loc, with a reference; NULL when the record is
 * dead: the chunk is, or it is elsewhere. -EBUSY: it lives and may not be moved yet, as no committed row
 * says where it is.
 */
int chunk_hold_at(struct chunk_table *t, uint64_t id, struct segment_loc loc, struct chunk **ret);
/* Its record is at loc from now on, as its committed row says. The caller has a reference. */
void chunk_move(struct chunk *c, struct segment_loc loc);
/* A chunk just appended, with one reference in memory. NULL when out of memory. */
struct chunk *chunk_add(struct chunk_table *t, const struct record_info *info,
			struct segment_loc loc);

/* The next chunk of that tenant, hash and length after prev (NULL: the first), with a reference;
 * prev's reference is dropped. INDEX_SAME of them at most, and none twice. */
struct chunk *chunk_find(struct chunk_table *t, uint32_t tenant, struct hash128 hash,
			 uint32_t raw_len, struct chunk *prev);

/* Dedup does not find it any more, until it is loaded again: its record is damaged, and what memory has
 * of it must not hide that. */
void chunk_unshare(struct chunk_table *t, struct chunk *c);

/* Live chunks with ids from `from` to last, in their order and each with a reference: max at most, and no
 * more once they have so many stored bytes. *ret_next: the id to go on with; above last, there are no more. */
size_t chunk_walk(struct chunk_table *t, uint64_t from, uint64_t last, struct chunk **ret,
		  size_t max, uint64_t bytes, uint64_t *ret_next);
uint64_t chunk_last_id(struct chunk_table *t); /* the highest there has been; 0: none */

/* References in memory of every extent of a map. -EUCLEAN: the map names an unknown chunk. */
int chunk_ref_map(struct chunk_table *t, const struct extmap *m);
void chunk_unref_map(struct chunk_table *t, const struct extmap *m); /* NULL is fine */
/* Encoded bytes of the map's chunks, in full for each use. */
uint64_t chunk_map_stored(struct chunk_table *t, const struct extmap *m);
/* Of what lies in [from, to), a chunk that reaches over a border by its share. */
uint64_t chunk_range_stored(struct chunk_table *t, const struct extmap *m, uint64_t from,
			    uint64_t to);

/*
 * Committed references, within a transaction: adds delta and returns what must be written: 0
 * nothing, 1 the whole row, 2 the count only. Each call is ended by chunk_db_undo after an
 * abort or chunk_db_landed after a commit; until then the chunk does not die.
 */
int chunk_db_add(struct chunk_table *t, uint64_t id, int delta);
/* The row of a chunk that such a call has changed and that has not been ended. */
void chunk_db_row(struct chunk_table *t, uint64_t id, struct meta_chunk *ret);
void chunk_db_undo(struct chunk_table *t, uint64_t id, int delta, bool was_new);
void chunk_db_landed(struct chunk_table *t, uint64_t id, bool was_new);

/* No durable row may say where it is: the journal has to. */
bool chunk_needs_journal(struct chunk_table *t, const struct chunk *c);

/* Up to max dead chunks, taken for the reaper. They stay in the table until chunk_reap_done: with
 * done they are freed, else they are dead again. */
size_t chunk_reap(struct chunk_table *t, struct chunk **ret, size_t max);
void chunk_reap_done(struct chunk_table *t, struct chunk **c, size_t n, bool done);
bool chunk_any_dead(struct chunk_table *t);

/*
 * Warm tier: encoded payloads in RAM. warm_put copies info->stored_len bytes and pushes older ones
 * out when over budget; false when the budget has no room for it. warm_get copies into buf and
 * returns true when it was there.
 */
bool warm_put(struct chunk_table *t, struct chunk *c, const void *payload);
bool warm_get(struct chunk_table *t, struct chunk *c, void *buf);
void warm_drop_map(struct chunk_table *t, const struct extmap *m);
bool warm_has_map(struct chunk_table *t, const struct extmap *m);

#endif
