/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuts: what a power cut may leave. From the steps that were taken down, up to any of them, a store is
 * made of what was synced, and of what was not in any choice and in parts: writes, sizes, names.
 */
#ifndef FAULT_CUTS_H
#define FAULT_CUTS_H

#include <stdint.h>

struct cut_range {
	int first, last; /* the transactions that may be the last one there */
	uint64_t step;
	const char *how;
};
/* Makes folder/store of the trace. The same seed makes the same. -1: it cannot be written. */
int cut_make(const char *folder, uint64_t seed, struct cut_range *ret);

#endif
