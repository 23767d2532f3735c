/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_raw: slabs of files without a header, as somebody says where they are: a list of
 * slabs=N, stride=BYTES and offset=BYTES, with commas, each once and one of the first two.
 */
#include "store/layout_impl.h"
#include "store/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

struct text {
	const char *p;
	size_t left;
};

static bool take_word(struct text *t, const char *word)
{
	size_t len = strlen(word);

	if (t->left < len || memcmp(t->p, word, len))
		return false;
	t->p += len;
	t->left -= len;
	return true;
}

static int take_number(struct text *t, uint64_t min, uint64_t max, uint64_t *ret)
{
	uint64_t n = 0;
	size_t digits = 0;

	for (; t->left && *t->p >= '0' && *t->p <= '9'; t->p++, t->left--, digits++) {
		n = n * 10 + (uint64_t)(*t->p - '0');
		if (n > max)
			return -EINVAL;
	}
	if (!digits || n < min)
		return -EINVAL;
	*ret = n;
	return 0;
}

static int take_item(struct text *t, struct raw_layout *l, bool *ret_offset)
{
	uint64_t n;

	if (take_word(t, "offset=") && !*ret_offset) {
		*ret_offset = true;
		return take_number(t, 0, OBJECT_MAX, &l->offset);
	}
	if (l->slabs || l->stride)
		return -EINVAL;
	if (take_word(t, "stride="))
		return take_number(t, LAYOUT_SLAB_MIN, OBJECT_MAX, &l->stride);
	if (!take_word(t, "slabs=") || take_number(t, 1, LAYOUT_SLABS, &n))
		return -EINVAL;
	l->slabs = (uint32_t)n;
	return 0;
}

int raw_layout_parse(const char *text, size_t len, struct raw_layout *ret)
{
	struct text t = { text, len };
	struct raw_layout l = { 0 };
	bool offset = false;
	int r;

	do
		r = take_item(&t, &l, &offset);
	while (!r && take_word(&t, ","));
	if (r || t.left || (!l.slabs && !l.stride))
		return -EINVAL;
	*ret = l;
	return 0;
}

int raw_layout_format(const struct raw_layout *l, char ret[static RAW_LAYOUT_TEXT])
{
	int n = 0;

	if (l->offset)
		n = snprintf(ret, RAW_LAYOUT_TEXT, "offset=%" PRIu64 ",", l->offset);
	if (l->slabs)
		return n +
		       snprintf(ret + n, RAW_LAYOUT_TEXT - (size_t)n, "slabs=%" PRIu32, l->slabs);
	return n + snprintf(ret + n, RAW_LAYOUT_TEXT - (size_t)n, "stride=%" PRIu64, l->stride);
}

int layout_raw(const struct raw_layout *l, uint64_t size, struct slabs *ret)
{
	uint64_t rest = size > l->offset ? size - l->offset : 0, stride = l->stride;
	struct slabs s = { .size = size };
	int r = 0;

	/* What cannot be parted equally is not what was meant. */
	if (l->slabs)
		stride = rest % l->slabs ? 0 : rest / l->slabs;
	for (uint64_t at = 0; stride && at < rest && s.n < LAYOUT_SLABS && !r; at += stride)
		r = slabs_add(&s, l->offset + at);
	if (r)
		slabs_done(&s);
	else
		*ret = s;
	return r;
}
