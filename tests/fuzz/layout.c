/* SPDX-License-Identifier: Apache-2.0 */
/* Headers that say where the slabs of a file are, as found in any file: at their real size, and at another. */
#include "store/layout.h"
#include "tests/fuzz/fuzz.h"

struct file {
	const uint8_t *data;
	size_t len;
	uint64_t size; /* beyond len there are zeros */
};

static int read_file(void *arg, void *buf, size_t len, uint64_t off)
{
	const struct file *f = arg;
	size_t there = off < f->len ? f->len - off : 0;

	must(off <= f->size && len <= f->size - off);
	there = there < len ? there : len;
	if (there)
		memcpy(buf, f->data + off, there);
	memset((char *)buf + there, 0, len - there);
	return 0;
}

static void find(const uint8_t *data, size_t len, uint64_t size)
{
	struct file f = { copy_of(data, len), len, size };
	struct layout_source src = { read_file, &f, size };
	struct slabs s;

	must(!layout_find(&src, &s));
	must(s.size == size && s.n <= LAYOUT_SLABS && s.head);
	for (size_t i = 0; i < s.n; i++) {
		must(s.start[i] < size);
		must(slabs_next(&s, s.start[i]) == (i + 1 < s.n ? s.start[i + 1] : UINT64_MAX));
		must(!i || s.start[i] - s.start[i - 1] >= LAYOUT_SLAB_MIN);
	}
	slabs_done(&s);
	free((void *)f.data);
}

/* Two bytes of size beyond the input, so that headers of a few bytes can have slabs behind them. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	if (len < 2)
		return 0;
	find(data + 2, len - 2, len - 2);
	find(data + 2, len - 2, len - 2 + 16 * (data[0] | data[1] << 8));
	return 0;
}
