/* SPDX-License-Identifier: Apache-2.0 */
/* memory: allocations that fail at the Nth. */
#ifndef FAULT_MEMORY_H
#define FAULT_MEMORY_H

#include <stdbool.h>

/* Before SQLite is used. */
void memory_init(void);
/* From now on (or no more) the kinds of calls.h that are of memory count and fail allocations. */
void memory_arm(bool on);

#endif
