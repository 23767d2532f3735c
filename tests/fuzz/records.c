/* SPDX-License-Identifier: Apache-2.0 */
/* What a store and a run directory hold, read by whoever finds them: segments, extent maps, the journal. */
#include "fs/state.h"
#include "store/extmap.h"
#include "store/hash.h"
#include "store/segment_impl.h"
#include "tests/fuzz/fuzz.h"

#define UUID "0123456789abcdef0123456789abcdef"

/* With its sum made right, or nothing behind it is ever reached. */
static void segment(const uint8_t *data, size_t len)
{
	uint8_t header[SEGMENT_HEADER] = { 0 };
	struct record_header h = { 0 };
	struct segment_loc loc = { .segment = 1, .offset = SEGMENT_HEADER / RECORD_ALIGN };
	struct record_info info;
	uint64_t sum;

	memcpy(header, data, len < sizeof(header) ? len : sizeof(header));
	segment_header_ok(header, 1, UUID);
	memcpy(&h, data, len < sizeof(h) ? len : sizeof(h));
	record_parse((uint8_t *)&h, loc, &info, &sum);
}

static void extents(const uint8_t *data, size_t len)
{
	uint8_t *in = copy_of(data, len), *again = NULL;
	struct extmap *m = NULL;
	ssize_t n;

	/* There is one way to write a map. */
	if (!extmap_decode(in, len, &m)) {
		n = extmap_encode(m, &again);
		must(n == (ssize_t)len && !memcmp(again, in, len));
		free(again);
		extmap_unref(m);
	}
	free(in);
}

static void journal(const uint8_t *data, size_t len)
{
	uint8_t *in = copy_of(data, len), *again;
	struct meta_inode a = { 0 };
	struct jrec_dentry d;
	struct jrec_xattr x;

	if (!jrec_inode_read(in, len, &a)) {
		must(jrec_inode_size(&a) <= len + 8);
		meta_inode_done(&a);
	}
	if (!jrec_dentry_read(in, len, &d)) {
		must(strlen(d.name) <= NAME_LIMIT);
		again = calloc(1, jrec_dentry_size(strlen(d.name)));
		must(again);
		jrec_dentry_write(again, &d);
		free(again);
	}
	if (!jrec_xattr_read(in, len, &x)) {
		must(strlen(x.name) <= NAME_LIMIT);
		/* All of the value is there. */
		again = copy_of(x.value, x.len);
		free(again);
	}
	free(in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	if (!len)
		return 0;
	switch (data[0] % 3) {
	case 0:
		segment(data + 1, len - 1);
		break;
	case 1:
		extents(data + 1, len - 1);
		break;
	default:
		journal(data + 1, len - 1);
	}
	return 0;
}
