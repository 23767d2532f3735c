/* SPDX-License-Identifier: Apache-2.0 */
/* layout: the slabs of real slot files and of safetensors, none of what is odd, and no read outside. */
#include "store/layout.h"
#include "store/store.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct file {
	uint8_t *data;
	size_t len;
	size_t fail_at; /* reads from here on fail */
};

static int read_file(void *arg, void *buf, size_t len, uint64_t off)
{
	const struct file *f = arg;

	cr_assert(off <= f->len && len <= f->len - off, "%zu bytes at %zu of %zu", len, (size_t)off,
		  f->len);
	if (off + len > f->fail_at)
		return -EIO;
	memcpy(buf, f->data + off, len);
	return 0;
}

/* Number of slabs; what must be so of any is looked at. */
static size_t find_in(struct file *f, struct slabs *ret)
{
	struct layout_source src = { read_file, f, f->len };

	*ret = (struct slabs){ 0 };
	cr_assert_eq(layout_find(&src, ret), 0);
	cr_assert_eq(ret->size, f->len);
	cr_assert_gt(ret->head, 0);
	cr_assert_leq(ret->n, LAYOUT_SLABS);
	for (size_t i = 0; i < ret->n; i++) {
		cr_assert_lt(ret->start[i], f->len);
		cr_assert(!i || ret->start[i] >= ret->start[i - 1] + LAYOUT_SLAB_MIN);
	}
	return ret->n;
}

static size_t count_in(const void *data, size_t len)
{
	struct file f = { malloc(len + 1), len, SIZE_MAX };
	struct slabs s;
	size_t n;

	memcpy(f.data, data, len);
	n = find_in(&f, &s);
	slabs_done(&s);
	free(f.data);
	return n;
}

static struct file load(const char *name)
{
	const char *tests = getenv("TESTS");
	struct file f = { malloc(1 << 20), 0, SIZE_MAX };
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/data/%s", tests ? tests : "tests", name);
	fd = open(path, O_RDONLY);
	cr_assert_geq(fd, 0, "no %s", path);
	f.len = (size_t)read(fd, f.data, 1 << 20);
	close(fd);
	return f;
}

static uint32_t get32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static void put32(uint8_t *p, uint32_t v)
{
	memcpy(p, &v, sizeof(v));
}

static void put64(uint8_t *p, uint64_t v)
{
	memcpy(p, &v, sizeof(v));
}

/* ---- slot files ---- */

#define LAYERS 5u

/* Where the cells are and each slab is, by the page in tests/data. */
static void expect_slot(const char *name, uint32_t cell, bool transposed)
{
	struct file f = load(name);
	size_t pos = 12 + 4 * get32(f.data + 8) + (cell == 12 ? 4 : 0), n = 0;
	uint32_t cells = get32(f.data + pos);
	struct slabs s;

	cr_assert_eq(find_in(&f, &s), 1 + 2 * LAYERS, "%s", name);
	pos += 4;
	cr_assert_eq(s.start[n++], pos);
	pos += cell * cells + 8;
	cr_assert_eq(s.head, pos + 12);
	for (unsigned i = 0; i < 2 * LAYERS; i++) {
		size_t row = i >= LAYERS && transposed ?
				     get32(f.data + pos + 4) * get32(f.data + pos + 8) :
				     get32(f.data + pos + 4);

		pos += 12;
		cr_assert_eq(s.start[n++], pos, "%s: slab %u", name, i);
		pos += row * cells;
	}
	cr_assert_eq(pos, f.len);
	slabs_done(&s);
	free(f.data);
}

Test(layout, slabs_of_real_slot_files)
{
	expect_slot("story_000.ggsq2", 8, false);
	expect_slot("story_000_vtrans.ggsq2", 8, true);
	expect_slot("story_v3.ggsq3", 12, false);
	expect_slot("prefix300_c_350tok.ggsq2", 8, false);
}

Test(layout, a_slot_file_that_is_cut_has_no_slabs)
{
	struct file f = load("prefix300_a_400tok.ggsq2");
	size_t keys = 12 + 4 + 8 * 400 + 8 + LAYERS * (12 + 400 * 64);

	for (size_t len = 0; len < f.len; len += len < 8000 ? 1 : 97)
		cr_assert_eq(count_in(f.data, len), 0, "%zu", len);
	/* As of a model that needs no values. */
	cr_assert_eq(count_in(f.data, keys), 1 + LAYERS);
	free(f.data);
}

Test(layout, what_follows_a_cache_is_another_or_one_slab)
{
	struct file f = load("prefix300_a_400tok.ggsq2");
	struct slabs s;
	size_t len = f.len;

	memcpy(f.data + len, f.data + 12, len - 12);
	f.len = 2 * len - 12;
	cr_assert_eq(find_in(&f, &s), 2 * (1 + 2 * LAYERS));
	cr_assert_eq(s.start[12], s.start[1] + len - 12);
	slabs_done(&s);
	f.len -= 5;
	cr_assert_eq(find_in(&f, &s), 1 + 2 * LAYERS + 1);
	cr_assert_eq(s.start[11], len);
	slabs_done(&s);
	free(f.data);
}

/* Cells of models whose positions lie in a plane have 8 bytes more. */
Test(layout, cells_in_a_plane)
{
	size_t cells = 300, len = 12 + 8 + cells * 20 + 8 + 2 * (12 + cells * 64), pos = 0;
	uint8_t *p = calloc(1, len);

	put32(p, 0x67677371);
	put32(p + 4, 3);
	put32(p + 12, 1);
	put32(p + 16, cells);
	for (size_t i = 0; i < cells; i++) {
		pos = 20 + 20 * i;
		put32(p + pos, i);
		put32(p + pos + 4, 1);
		put32(p + pos + 8, 1000000 + i);
		put32(p + pos + 12, 2000000 + i);
	}
	pos += 20;
	put32(p + pos + 4, 1);
	put64(p + pos + 12, 64);
	put64(p + pos + 12 + 8 + cells * 64 + 4, 64);
	cr_assert_eq(count_in(p, len), 3);
	free(p);
}

Test(layout, a_slot_file_that_lies_has_no_slabs)
{
	struct file f = load("prefix300_a_400tok.ggsq2");
	size_t cells = 12, layers = 16 + 8 * 400, row = layers + 12;
	static const uint32_t bad[] = { 0x7fffffff, 0xffffffff, 0x80000000, 399, 401, 1u << 20 };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		size_t place[] = { 8, cells, 20, layers, layers + 4, row + 4 };

		for (size_t k = 0; k < sizeof(place) / sizeof(place[0]); k++) {
			uint32_t was = get32(f.data + place[k]);

			put32(f.data + place[k], bad[i]);
			cr_assert_eq(count_in(f.data, f.len), 0, "%u at %zu", bad[i], place[k]);
			put32(f.data + place[k], was);
		}
	}
	/* 400 rows of 2^64 / 400 bytes. */
	put64(f.data + row, UINT64_MAX / 400 + 1);
	cr_assert_eq(count_in(f.data, f.len), 0);
	put64(f.data + row, 0);
	cr_assert_eq(count_in(f.data, f.len), 0);
	put64(f.data + row, 64);
	cr_assert_eq(count_in(f.data, f.len), 1 + 2 * LAYERS);
	put32(f.data + 4, 4);
	cr_assert_eq(count_in(f.data, f.len), 0);
	free(f.data);
}

/* Nothing in the cache, and something behind it. */
Test(layout, a_slot_file_without_cells_has_no_slabs)
{
	uint8_t p[5000] = { 0 };

	put32(p, 0x67677371);
	put32(p + 4, 3);
	put32(p + 12, 1);
	cr_assert_eq(count_in(p, sizeof(p)), 0);
	put32(p + 4, 2);
	cr_assert_eq(count_in(p, sizeof(p)), 0);
}

/* ---- safetensors ---- */

#define DATA 400000u

static struct file tensors(const char *json)
{
	size_t len = strlen(json);
	struct file f = { calloc(1, 8 + len + DATA), 8 + len + DATA, SIZE_MAX };

	put64(f.data, len);
	memcpy(f.data + 8, json, len);
	return f;
}

static size_t count_of(const char *json)
{
	struct file f = tensors(json);
	size_t n = count_in(f.data, f.len);

	free(f.data);
	return n;
}

static const char good[] =
	"{\"__metadata__\":{\"data_offsets\":\"[\\\"{\"},"
	"\"v\":{\"dtype\":\"BF16\",\"shape\":[2,500,50],\"data_offsets\":[200000,300000]},"
	"\"k\":{\"dtype\":\"BF16\",\"shape\":[2,500,100],\"data_offsets\":[0,200000]},"
	"\"x\":{\"dtype\":\"F9_NEW\",\"shape\":[1000],\"data_offsets\":[300000,400000]}}   ";

Test(layout, slabs_of_safetensors)
{
	static const size_t want[] = { 0, 100000, 200000, 250000, 300000 };
	struct file f = tensors(good);
	struct slabs s;

	cr_assert_eq(find_in(&f, &s), 5);
	cr_assert_eq(s.head, 8 + strlen(good));
	for (size_t i = 0; i < 5; i++)
		cr_assert_eq(s.start[i], s.head + want[i]);
	cr_assert_eq(slabs_next(&s, 0), s.head);
	cr_assert_eq(slabs_next(&s, s.head), s.head + 100000);
	cr_assert_eq(slabs_next(&s, s.head + 300000), UINT64_MAX);
	slabs_done(&s);
	free(f.data);
}

Test(layout, a_safetensors_file_that_is_cut_or_longer_has_no_slabs)
{
	struct file f = tensors(good);

	for (size_t len = 0; len < f.len; len += len < 1000 ? 1 : 101)
		cr_assert_eq(count_in(f.data, len), 0, "%zu", len);
	cr_assert_eq(count_in(f.data, f.len - 1), 0);
	f.data = realloc(f.data, f.len + 1);
	cr_assert_eq(count_in(f.data, f.len + 1), 0);
	put64(f.data, UINT64_MAX);
	cr_assert_eq(count_in(f.data, f.len), 0);
	put64(f.data, UINT64_MAX - 7);
	cr_assert_eq(count_in(f.data, f.len), 0);
	free(f.data);
}

#define K(shape, at) "\"k\":{\"dtype\":\"BF16\",\"shape\":" shape ",\"data_offsets\":" at "}"
#define V(shape, at) "\"v\":{\"dtype\":\"BF16\",\"shape\":" shape ",\"data_offsets\":" at "}"

Test(layout, safetensors_that_lie_have_no_slabs)
{
	static const char *const bad[] = {
		"{}",
		"{\"__metadata__\":{}}",
		"{\"k\":1}",
		"{\"k\":null}",
		"{" K("[100000]", "[0,200000]") "}",
		"{" K("[100000]", "[0,200000]") "," V("[100000]", "[100000,300000]") "}",
		"{" K("[100000]", "[0,200000]") "," V("[100001]", "[200000,400002]") "}",
		"{" K("[99999]", "[0,199998]") "," V("[100000]", "[200000,400000]") "}",
		"{" K("[100000]", "[0,200000]") "," V("[100000]", "[400000,200000]") "}",
		"{" K("[100000]", "[0,200000]") "," V("[0]", "[400000,400000]") "}",
		"{" K("[100000]", "[0,200000]") "," V("[-1]", "[-1,400000]") "}",
		"{" K("[200000]", "[0,9223372036854775807]") "}",
		"{" K("[200000]", "[0,18446744073709551616]") "}",
		"{" K("[200000]", "[0,400000.0]") "}",
		"{" K("[200000]", "[0]") "}",
		"{" K("[200000]", "[0,400000,400000]") "}",
		"{" K("[200001]", "[0,400000]") "}",
		"{" K("[4294967296,4294967296,2]", "[0,400000]") "}",
		"{" K("[4611686018427387904,4]", "[0,400000]") "}",
		"{" K("[9223372036854775807,2,200000]", "[0,400000]") "}",
		"{" K("[\"200000\"]", "[0,400000]") "}",
		"{" K("{}", "[0,400000]") "}",
		"{" K("[100000]", "[0,200000]") "," K("[100000]", "[200000,400000]") "}",
		"{" K("[200000]", "[0,400000]") "",
		"{" K("[200000]", "[0,400000]") "}}",
		"[" K("[200000]", "[0,400000]") "]",
		"{\"k\":{\"shape\":[200000],\"data_offsets\":[0,400000]}}",
		"{\"k\":{\"dtype\":\"BF16\",\"data_offsets\":[0,400000]}}",
		"{\"k\":{\"dtype\":\"BF16\",\"shape\":[200000]}}",
	};

	cr_assert_eq(count_of("{" K("[200000]", "[0,400000]") "}"), 1);
	cr_assert_eq(count_of("{" K("[2,1,100000]", "[0,400000]") "," V("[0]", "[0,0]") "}"), 2);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_eq(count_of(bad[i]), 0, "%s", bad[i]);
}

Test(layout, json_that_nests_deep_or_is_long_has_no_slabs)
{
	size_t len = LAYOUT_HEAD;
	char *text = malloc(len + 1);

	for (int k = 0; k < 2; k++) {
		static const char tail[] = ",\"k\":{\"dtype\":\"BF16\",\"shape\":[200000],"
					   "\"data_offsets\":[0,400000]}}";
		size_t deep = k ? 500000 : 9, at = 0;

		at += (size_t)snprintf(text, len, "{\"__metadata__\":");
		memset(text + at, '[', deep);
		memset(text + at + deep, ']', deep);
		memcpy(text + at + 2 * deep, tail, sizeof(tail));
		cr_assert_eq(count_of(text), 0);
	}
	/* One that may be as long, and one byte more. */
	memset(text, ' ', len);
	memcpy(text, "{" K("[200000]", "[0,400000]") "}",
	       strlen("{" K("[200000]", "[0,400000]") "}"));
	text[len - 8] = '\0';
	cr_assert_eq(count_of(text), 1);
	text[len - 8] = ' ';
	text[len - 7] = '\0';
	cr_assert_eq(count_of(text), 0);
	free(text);
}

/* ---- both ---- */

Test(layout, slabs_are_bounded_and_no_shorter_than_a_small_chunk)
{
	/* Tensors of 512 bytes, of which every second begins a slab. */
	size_t n = 8000, at = 1, room = n * 100;
	char *text = malloc(room);
	struct file f;
	struct slabs s;

	text[0] = '{';
	for (size_t i = 0; i < n; i++)
		at += (size_t)snprintf(text + at, room - at,
				       "%s\"%zu\":{\"dtype\":\"U8\",\"shape\":[512],"
				       "\"data_offsets\":[%zu,%zu]}",
				       i ? "," : "", i, i * 512, (i + 1) * 512);
	text[at++] = '}';
	f = (struct file){ calloc(1, 8 + at + n * 512), 8 + at + n * 512, SIZE_MAX };
	put64(f.data, at);
	memcpy(f.data + 8, text, at);
	cr_assert_eq(find_in(&f, &s), n / 2);
	slabs_done(&s);
	free(f.data);
	free(text);
}

Test(layout, an_error_in_reading_is_told_and_finds_nothing)
{
	struct file f = load("prefix300_a_400tok.ggsq2"), g = tensors(good);
	struct layout_source src = { read_file, &f, f.len };
	struct slabs s = { .head = 7 };

	f.fail_at = 5000;
	cr_assert_eq(layout_find(&src, &s), -EIO);
	cr_assert_eq(s.head, 7);
	g.fail_at = 100;
	src = (struct layout_source){ read_file, &g, g.len };
	cr_assert_eq(layout_find(&src, &s), -EIO);
	cr_assert_eq(s.head, 7);
	free(f.data);
	free(g.data);
}

Test(layout, damaged_headers_are_never_read_outside)
{
	static const char *const names[] = { "prefix300_a_400tok.ggsq2", "story_v3.ggsq3",
					     "story_000_vtrans.ggsq2" };

	for (int k = 0; k < 4; k++) {
		struct file f = k < 3 ? load(names[k]) : tensors(good);
		struct slabs s;

		for (uint64_t run = 0; run < 3000; run++) {
			uint64_t x = run * 0x9e3779b97f4a7c15u + k;
			size_t at = (x >> 20) % (k < 3 ? 8000 : strlen(good) + 8);
			uint8_t was = f.data[at];

			f.data[at] ^= 1 << (x >> 60) % 8;
			find_in(&f, &s);
			slabs_done(&s);
			f.data[at] = was;
		}
		free(f.data);
	}
}

/* ---- as somebody says ---- */

static size_t raw(const char *text, uint64_t size, struct slabs *ret)
{
	struct raw_layout l;

	cr_assert_eq(raw_layout_parse(text, strlen(text), &l), 0, "%s", text);
	cr_assert_eq(layout_raw(&l, size, ret), 0);
	cr_assert_eq(ret->size, size);
	return ret->n;
}

Test(layout, slabs_of_a_raw_layout)
{
	struct slabs s;

	cr_assert_eq(raw("slabs=4", 40000, &s), 4);
	for (size_t i = 0; i < 4; i++)
		cr_assert_eq(s.start[i], i * 10000);
	slabs_done(&s);
	cr_assert_eq(raw("slabs=3,offset=100", 30100, &s), 3);
	for (size_t i = 0; i < 3; i++)
		cr_assert_eq(s.start[i], 100 + i * 10000);
	slabs_done(&s);
	cr_assert_eq(raw("offset=7,stride=1024", 7 + 1024 * 3 + 1, &s), 4);
	cr_assert_eq(s.start[3], 7 + 1024 * 3);
	slabs_done(&s);
	/* What cannot be parted, has no room, or would be too many. */
	cr_assert_eq(raw("slabs=3", 40000, &s), 0);
	cr_assert_eq(raw("slabs=4", 3, &s), 0);
	cr_assert_eq(raw("offset=40000,stride=5000", 40000, &s), 0);
	cr_assert_eq(raw("slabs=65536", 65536 * 512, &s), 32768);
	slabs_done(&s);
	cr_assert_eq(raw("stride=1024", OBJECT_MAX, &s), LAYOUT_SLABS);
	slabs_done(&s);
}

Test(layout, text_of_a_raw_layout)
{
	static const char *const same[] = { "slabs=1", "slabs=65536", "stride=1024",
					    "offset=17592186044416,stride=17592186044416",
					    "offset=17592186044416,slabs=65536" };
	char text[RAW_LAYOUT_TEXT];
	struct raw_layout l;

	for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
		cr_assert_eq(raw_layout_parse(same[i], strlen(same[i]), &l), 0);
		cr_assert_eq(raw_layout_format(&l, text), (int)strlen(same[i]));
		cr_assert_str_eq(text, same[i]);
	}
	/* No byte behind the length counts; the case tests/cases/layout has what is refused. */
	cr_assert_eq(raw_layout_parse("slabs=89", 7, &l), 0);
	cr_assert_eq(l.slabs, 8);
	cr_assert_eq(raw_layout_parse("slabs=8\0", 8, &l), -EINVAL);
	cr_assert_eq(raw_layout_parse("", 0, &l), -EINVAL);
}
