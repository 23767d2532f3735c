/* SPDX-License-Identifier: Apache-2.0 */
/* workload: what is done to a store while its calls fail, and the store as it is opened for that. */
#ifndef FAULT_WORKLOAD_H
#define FAULT_WORKLOAD_H

#include "store/store.h"

/* The slot files in that folder are what the workload writes. False: they cannot be read. */
bool workload_init(const char *data_folder);
/* The script, from making the store on. It ends in the middle of things: as a kill would leave it. */
void workload_run(const char *store, const char *rundir);

/* Opens a store as the workload does. An error goes to err. */
int workload_open(const char *store, const char *rundir, struct store **ret,
		  struct store_error *err);
/* Replays the journal: every record that was acknowledged must be there. */
void workload_replay(struct store *s);

/* Attribute of the root: the transaction that wrote it last. */
#define MARKER "user.fault"

#endif
