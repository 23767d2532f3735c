/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync: making appended bytes durable, and what happens when the device refuses.
 *
 * An error is never turned into success by trying again: whatever was settled since the last sync
 * that succeeded may be gone, so it counts as dirty once more and is written anew from its image,
 * to a fresh segment. What has no whole image any more keeps its extents, whose checksums tell.
 */
#include "store/store_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <syslog.h>

static void dirty_again(struct object *o)
{
	uint64_t dirty;

	pthread_mutex_lock(&o->mu);
	if (o->image == IMAGE_COMPLETE && o->snap.map != o->db && !o->discarded && o->size) {
		dirty = object_dirty_bytes(o);
		object_dirty_begin(o);
		j_put_image(o);
		if (!blockmap_set(&o->dirty, 0, object_blocks(o->size)))
			j_put_range(o->store, J_DIRTY, o->ino, 0, object_blocks(o->size));
		object_account(o, dirty);
	}
	pthread_mutex_unlock(&o->mu);
}

void segments_failed(struct store *s)
{
	size_t n;
	struct object **v = object_list(s, &n);

	store_log(s, LOG_ERR, "%s/segments: writing failed: what was not durable is written again",
		  s->path);
	for (size_t i = 0; v && i < n; i++)
		dirty_again(v[i]);
	object_list_free(v, n);
	segset_recover(s->segs);
}

int store_sync_data(struct store *s)
{
	int r = segset_sync(s->segs);

	if (r)
		segments_failed(s);
	return r;
}
