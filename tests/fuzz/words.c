/* SPDX-License-Identifier: Apache-2.0 */
/* What people and other programs write: mount options, sizes, numbers, names of codecs, lines of mountinfo,
 * layouts. */
#include "mount/mount.h"
#include "store/layout.h"
#include "tests/fuzz/fuzz.h"

static void options(const char *text)
{
	struct mount_options o;
	char err[OPTIONS_ERROR];

	options_init(&o, UINT64_C(1) << 34);
	memset(err, 'x', sizeof(err));
	if (options_parse(&o, text, err))
		must(memchr(err, '\0', sizeof(err)) && err[0] && !strchr(err, '\n'));
	else
		options_check(&o, err);
	options_done(&o);
}

/* What is printed of a size is one again, and not much else. */
static void sizes(const char *text)
{
	char again[SIZE_TEXT];
	uint64_t n, m;

	if (size_parse(text, UINT64_C(1) << 34, &n))
		return;
	must(strlen(size_format(n, again)) < SIZE_TEXT);
	if (n >> 50) /* units go to T */
		return;
	must(!size_parse(again, 0, &m));
	must(m >= n - n / 16 && m <= n + n / 16 + 1);
}

/* There is one way to print a layout, and it means the same. */
static void layouts(const char *text, size_t len, uint64_t size)
{
	char again[RAW_LAYOUT_TEXT];
	struct raw_layout a, b;
	struct slabs s;

	if (raw_layout_parse(text, len, &a))
		return;
	must(!a.slabs != !a.stride);
	must((size_t)raw_layout_format(&a, again) == strlen(again));
	must(!raw_layout_parse(again, strlen(again), &b));
	must(a.slabs == b.slabs && a.stride == b.stride && a.offset == b.offset);
	must(!layout_raw(&a, size, &s) && s.n <= LAYOUT_SLABS);
	must(!s.n || (s.start[0] == a.offset && s.start[s.n - 1] < size));
	slabs_done(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static struct mount_entry entry;
	enum codec_choice choice;
	uint64_t n = len;
	char *text;

	if (!len)
		return 0;
	text = text_of(data + 1, len - 1);
	switch (data[0] % 4) {
	case 0:
		if (!strchr(text, '\n'))
			options(text);
		break;
	case 1:
		sizes(text);
		break;
	case 2:
		mounts_parse(text, &entry);
		break;
	default:
		if (!number_parse(text, 5, 1000, &n))
			must(n >= 5 && n <= 1000);
		codec_choice_parse(text, &choice);
		layouts(text, len - 1, n << (len % 40));
	}
	free(text);
	return 0;
}
