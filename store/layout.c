/* SPDX-License-Identifier: Apache-2.0 */
/* layout: the list of slabs, and which formats are tried. */
#include "store/layout_impl.h"

#include <errno.h>
#include <stdlib.h>

void slabs_done(struct slabs *s)
{
	free(s->start);
	*s = (struct slabs){ 0 };
}

int slabs_add(struct slabs *s, uint64_t start)
{
	size_t cap = s->cap ? s->cap * 2 : 64;
	uint64_t *p;

	if (s->n == LAYOUT_SLABS || start >= s->size ||
	    (s->n && start - s->start[s->n - 1] < LAYOUT_SLAB_MIN))
		return 0;
	if (s->n == s->cap) {
		p = reallocarray(s->start, cap, sizeof(*p));
		if (!p)
			return -ENOMEM;
		s->start = p;
		s->cap = cap;
	}
	s->start[s->n++] = start;
	return 0;
}

uint64_t slabs_next(const struct slabs *s, uint64_t off)
{
	size_t low = 0, high = s->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (s->start[mid] > off)
			high = mid;
		else
			low = mid + 1;
	}
	return low < s->n ? s->start[low] : UINT64_MAX;
}

int layout_find(const struct layout_source *src, struct slabs *ret)
{
	struct slabs s = { .size = src->size };
	uint8_t first[LAYOUT_FIRST];
	int r = 0;

	if (src->size > sizeof(first)) {
		r = src->read(src->arg, first, sizeof(first), 0);
		if (!r)
			r = layout_slot(src, first, &s);
		if (!r)
			r = layout_safetensors(src, first, &s);
	}
	if (r <= 0) {
		slabs_done(&s);
		/* Whatever the first bytes become, there may be a header then. */
		s = (struct slabs){ .size = src->size, .head = LAYOUT_HEAD };
	}
	if (r >= 0)
		*ret = s;
	return r < 0 ? r : 0;
}
