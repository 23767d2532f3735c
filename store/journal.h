/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal: the redo log in the run directory; see store/store.h for what it promises.
 *
 * A file RUNDIR/journal, mapped shared, preallocated. Header: magic, version, store uuid, epoch.
 * Groups follow back to back: u32 length (of the whole group; 0 ends the journal), u32 count of
 * records, u64 sum (XXH3_64bits of the records, seeded with count), records of {u32 type, u32 len,
 * data padded to 8}. A group's length word is stored last, with release order, after that of the group to come was
 * cleared, so a kill at any instruction leaves it whole or absent. A checkpoint writes
 * RUNDIR/journal.new and renames it over the old one. Host byte order: a journal never leaves the
 * machine, not even its memory.
 */
#ifndef STORE_JOURNAL_H
#define STORE_JOURNAL_H

#include "store/store.h"

struct journal;

/*
 * Opens RUNDIR/journal if it has this uuid and the epoch epoch or epoch_now, and hands its groups to
 * replay, then goes on appending to it; else starts an empty one. replay NULL: never looks at an old
 * one. epoch_now is what later opens must ask for: written into the header after the replay.
 *
 * epoch is the database's, epoch_now the one it is raised to *after* this returns; a kill between
 * the two leaves a journal of epoch_now beside a database of epoch, and so both are taken.
 *
 * replay gets rec NULL at the end of each group; its data is valid during the call only. A negative
 * return ends the replay and is returned, with the journal left as it was. A torn tail ends the
 * replay quietly. *ret_replayed: groups. size: of a new file, and the least of an old one.
 */
int journal_open(int rundir_fd, const char *uuid, uint64_t epoch, uint64_t epoch_now, size_t size,
		 int (*replay)(void *arg, const struct journal_record *rec), void *arg,
		 struct journal **ret, uint64_t *ret_replayed);
void journal_close(struct journal *j); /* the file stays; NULL is fine */

/* Appends one group of n >= 1 records. -ENOSPC: it does not fit, nothing has changed. */
int journal_put(struct journal *j, const struct journal_record *rec, unsigned n);
uint64_t journal_used(const struct journal *j); /* bytes of groups */
size_t journal_size(const struct journal *j);

/* Checkpoint: begin opens journal.new; put adds groups to it; end(true) makes it the journal,
 * end(false) drops it. Appends by journal_put meanwhile go to both: a caller must
 * change its state and append under one lock, which it also holds to put that state's after-image
 * here. After a failed end(true) the old journal goes on. */
int journal_checkpoint_begin(struct journal *j);
int journal_checkpoint_put(struct journal *j, const struct journal_record *rec, unsigned n);
int journal_checkpoint_end(struct journal *j, bool commit);

#endif
