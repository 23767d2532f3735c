/* SPDX-License-Identifier: Apache-2.0 */
/* check: a store as it is found, against the model. Reasons go to model_wrong(). */
#ifndef FAULT_CHECK_H
#define FAULT_CHECK_H

/* The daemon was killed: everything acknowledged is there; and it can be settled, committed and found
 * again without the run directory. */
void check_killed(const char *store, const char *rundir);
/* The power went: the store is what one transaction from first to last left, whole. */
void check_power(const char *store, const char *rundir, int first, int last);

#endif
