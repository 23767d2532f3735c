/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status: the numbers behind .kvfs/status and .kvfs/metrics.
 */
#ifndef FS_STATUS_H
#define FS_STATUS_H

#include "fs/files.h"

struct fs_status {
	struct store_status store;
	uint64_t unsettled_bytes, unsettled_files;
	uint64_t inodes; /* committed */
	uint64_t cached_inodes, cached_names;
	uint64_t open_handles;
	uint64_t uptime_s;
	int commit_error;
	bool passthrough;
	const char *passthrough_why;
	uint64_t requests[REQ_COUNT];
};
void status_take(struct fs *fs, struct fs_status *ret);
/* whole / part; 1 when there is nothing. */
double status_ratio(uint64_t whole, uint64_t part);
/* The part of the scrub's pass that is done; 1: none is under way. */
double status_scrubbed(const struct scrub_status *s);

#endif
