/* SPDX-License-Identifier: Apache-2.0 */
/* seglive: how many bytes of each segment belong to chunks that live, and which segments have news
 * for meta.db. */
#include "store/store_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct seg_live {
	uint64_t live;
	uint64_t end; /* of the last record that was loaded */
	bool known;   /* the segment exists */
	bool touched; /* appended to since its row was written */
	bool fresh;   /* has chunks that meta.db did not know when the store was opened */
};

/* seg_lock held. */
static int make_room(struct store *s, uint32_t segment)
{
	size_t n = (size_t)segment + 64;
	struct seg_live *v;

	if (segment < s->seg_live_n)
		return 0;
	v = reallocarray(s->seg_live, n, sizeof(*v));
	if (!v)
		return -ENOMEM;
	memset(v + s->seg_live_n, 0, (n - s->seg_live_n) * sizeof(*v));
	s->seg_live = v;
	s->seg_live_n = n;
	return 0;
}

int seglive_load(struct store *s, struct segment_loc loc, uint32_t stored_len, bool fresh)
{
	uint64_t end = (uint64_t)loc.offset * RECORD_ALIGN + record_size(stored_len);
	int r = seglive_add(s, loc.segment, (int64_t)record_size(stored_len));

	pthread_mutex_lock(&s->seg_lock);
	if (!r && s->seg_live[loc.segment].end < end)
		s->seg_live[loc.segment].end = end;
	if (!r)
		s->seg_live[loc.segment].fresh |= fresh;
	pthread_mutex_unlock(&s->seg_lock);
	return r;
}

uint64_t seglive_end(struct store *s, uint32_t segment, bool *ret_fresh)
{
	uint64_t end = 0;

	*ret_fresh = false;
	pthread_mutex_lock(&s->seg_lock);
	if (segment < s->seg_live_n) {
		end = s->seg_live[segment].end;
		*ret_fresh = s->seg_live[segment].fresh;
	}
	pthread_mutex_unlock(&s->seg_lock);
	return end;
}

int seglive_add(struct store *s, uint32_t segment, int64_t bytes)
{
	int r;

	pthread_mutex_lock(&s->seg_lock);
	r = make_room(s, segment);
	if (!r) {
		s->seg_live[segment].live += bytes;
		s->seg_live[segment].known = true;
		s->seg_live[segment].touched |= bytes > 0;
	}
	pthread_mutex_unlock(&s->seg_lock);
	return r;
}

uint64_t seglive_get(struct store *s, uint32_t segment)
{
	uint64_t live = 0;

	pthread_mutex_lock(&s->seg_lock);
	if (segment < s->seg_live_n)
		live = s->seg_live[segment].live;
	pthread_mutex_unlock(&s->seg_lock);
	return live;
}

bool seglive_gone(struct store *s, uint32_t segment)
{
	bool gone;

	pthread_mutex_lock(&s->seg_lock);
	gone = segment >= s->seg_live_n || !s->seg_live[segment].known;
	pthread_mutex_unlock(&s->seg_lock);
	return gone;
}

size_t seglive_segments(struct store *s, uint32_t *ret, size_t max)
{
	size_t n = 0;

	pthread_mutex_lock(&s->seg_lock);
	for (size_t i = 0; i < s->seg_live_n && n < max; i++)
		if (s->seg_live[i].touched) {
			s->seg_live[i].touched = false;
			ret[n++] = i;
		}
	pthread_mutex_unlock(&s->seg_lock);
	return n;
}

uint32_t seglive_highest(struct store *s)
{
	uint32_t highest = 0;

	pthread_mutex_lock(&s->seg_lock);
	for (size_t i = 0; i < s->seg_live_n; i++)
		if (s->seg_live[i].known)
			highest = i;
	pthread_mutex_unlock(&s->seg_lock);
	return highest;
}

size_t seglive_count(struct store *s)
{
	size_t n = 0;

	pthread_mutex_lock(&s->seg_lock);
	for (size_t i = 0; i < s->seg_live_n; i++)
		n += s->seg_live[i].known;
	pthread_mutex_unlock(&s->seg_lock);
	return n;
}

void seglive_forget(struct store *s, uint32_t segment)
{
	pthread_mutex_lock(&s->seg_lock);
	if (segment < s->seg_live_n)
		s->seg_live[segment] = (struct seg_live){ 0 };
	pthread_mutex_unlock(&s->seg_lock);
}

void seglive_free(struct store *s)
{
	free(s->seg_live);
	s->seg_live = NULL;
	s->seg_live_n = 0;
}
