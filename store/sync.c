/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync: making appended bytes durable, and what happens when the device refuses.
 *
 * After a failed write or sync nobody can say what of the bytes since the last good one is there, and
 * trying again proves nothing. So the store stops: from then on nothing is settled or committed and
 * writes fail, while everything can still be read. What was not committed stays in the run directory.
 * The next mount settles it anew, comparing what it shares with what the device really has.
 */
#include "store/store_impl.h"

#include <errno.h>
#include <syslog.h>

void segments_failed(struct store *s, int err)
{
	if (atomic_exchange(&s->failed, true))
		return;
	store_log(
		s, LOG_CRIT,
		"%s/segments: writing failed: %s: nothing more is written: repair the device, then "
		"unmount and mount again, which writes what was not durable yet",
		s->path, strerror(-err));
}

int store_sync_data(struct store *s)
{
	int r = atomic_load(&s->failed) ? -EIO : segset_sync(s->segs);

	if (r == -EROFS && s->read_only)
		return 0;
	if (r)
		segments_failed(s, r);
	return r;
}
