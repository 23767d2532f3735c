/* SPDX-License-Identifier: Apache-2.0 */
/* A settle of files whose header says where their slabs are: what is shared, and every byte comes back. */
#include "store/layout.h"
#include "tests/unit/random.h"
#include "tests/unit/store_folder.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void setup(void)
{
	folder_make();
	folder_open((struct store_options){ .hot_bytes = 256u << 20, .warm_bytes = 1 });
	seed = 1;
}

TestSuite(settle_layout, .init = setup, .fini = folder_remove, .timeout = 120);

#define SLABS    8u
#define HEAD_MAX 4096u
#define SLAB     300000u /* bytes, of which a chunk is a thirtieth */

struct file {
	char *data;
	size_t len, head;
};

static void random_bytes(char *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		p[i] = (char)draw(256);
}

/* Tensors of random bytes, behind a header of its own length. */
static struct file tensors(unsigned padding)
{
	struct file f = { malloc(HEAD_MAX + SLABS * SLAB), 0, 0 };
	uint64_t json;
	size_t at = 8;

	f.data[at++] = '{';
	for (unsigned i = 0; i < SLABS; i++)
		at += (size_t)snprintf(f.data + at, HEAD_MAX - at,
				       "\"%u\":{\"dtype\":\"U8\",\"shape\":[%u],"
				       "\"data_offsets\":[%u,%u]}%s",
				       i, SLAB, i * SLAB, (i + 1) * SLAB,
				       i + 1 < SLABS ? "," : "}");
	memset(f.data + at, ' ', padding);
	f.head = at + padding;
	json = f.head - 8;
	memcpy(f.data, &json, sizeof(json));
	f.len = f.head + SLABS * SLAB;
	random_bytes(f.data + f.head, SLABS * SLAB);
	return f;
}

static void put(struct object *o, const char *data, size_t from, size_t to)
{
	cr_assert_eq(object_write(o, data + from, to - from, from), (ssize_t)(to - from));
}

/* Bytes that settles had to store anew. */
static uint64_t stored_anew(void)
{
	struct store_status st;

	store_status(s, &st);
	return st.settled_bytes_total - st.dedup_bytes_total;
}

/* How many bytes a settle stores anew. */
static uint64_t settled(struct object *o)
{
	uint64_t before = stored_anew();

	cr_assert_eq(object_settle(o), 0);
	cr_assert_eq(meta_commit(folder_put(o), true), 0);
	return stored_anew() - before;
}

static void expect(struct object *o, const struct file *f)
{
	char *got = malloc(f->len + 1);

	cr_assert_eq(object_read(o, got, f->len + 1, 0), (ssize_t)f->len);
	cr_assert_eq(memcmp(got, f->data, f->len), 0);
	free(got);
}

static struct object *stored(uint64_t ino, const struct file *f)
{
	struct object *o;

	cr_assert_eq(object_create(s, ino, 0, &o), 0);
	put(o, f->data, 0, f->len);
	settled(o);
	return o;
}

/* Out of memory, and back from meta.db. */
static struct object *forgotten(struct object *o)
{
	uint64_t ino = object_ino(o);

	cr_assert_eq(object_evict(o, TIER_COLD), 0);
	object_unref(o);
	cr_assert_eq(object_get(s, ino, 0, &o), 0);
	return o;
}

Test(settle_layout, all_slabs_of_another_file_are_shared_whatever_its_header)
{
	struct file a = tensors(3), b = tensors(1000);
	struct object *o = stored(100, &a), *p;

	memcpy(b.data + b.head, a.data + a.head, SLABS * SLAB);
	cr_assert_eq(object_create(s, 101, 0, &p), 0);
	put(p, b.data, 0, b.len);
	cr_assert_eq(settled(p), b.head);
	p = forgotten(p);
	expect(p, &b);
	expect(o, &a);
	object_unref(o);
	object_unref(p);
	free(a.data);
	free(b.data);
}

/* Slabs from the fifth on become those of a; the header, which is not in the image, says where they are. */
Test(settle_layout, a_slab_far_from_the_header_is_shared)
{
	struct file a = tensors(3), b = tensors(1000);
	struct object *o = stored(100, &a), *p = forgotten(stored(101, &b));
	size_t from = 4 * SLAB;

	memcpy(b.data + b.head + from, a.data + a.head + from, SLABS * SLAB - from);
	put(p, b.data, b.head + from, b.len);
	cr_assert_eq(settled(p), 0);
	p = forgotten(p);
	expect(p, &b);
	object_unref(o);
	object_unref(p);
	free(a.data);
	free(b.data);
}

/* Another header of the same size, or none: the content stays right, and the layout is that of the new one. */
Test(settle_layout, a_header_that_changes_is_read_again)
{
	struct file a = tensors(3), b = tensors(3), was = tensors(3);
	struct object *o = stored(100, &a), *p;
	size_t from = SLAB;

	memcpy(was.data + was.head, b.data + b.head, SLABS * SLAB);
	memset(was.data, 'x', was.head);
	p = stored(101, &was);
	put(p, b.data, 0, b.head);
	settled(p);
	expect(p, &b);
	for (unsigned i = 1; i < SLABS; i++)
		memcpy(b.data + b.head + i * SLAB, a.data + a.head + (SLABS - i) * SLAB, SLAB);
	put(p, b.data, b.head + from, b.len);
	/* Of the chunk that went over into the first of them; without a layout each has such a one. */
	cr_assert_leq(settled(p), 32768);
	p = forgotten(p);
	expect(p, &b);
	put(p, was.data, 0, was.head);
	settled(p);
	memcpy(b.data, was.data, was.head);
	random_bytes(b.data + b.head + from, 1000);
	put(p, b.data, b.head + from, b.len);
	settled(p);
	p = forgotten(p);
	expect(p, &b);
	object_unref(o);
	object_unref(p);
	free(a.data);
	free(b.data);
	free(was.data);
}

/* Cut, grown, and with holes, in and behind the header. */
Test(settle_layout, every_byte_comes_back_of_what_no_longer_fits_its_header)
{
	struct file f = tensors(3);
	struct object *o = stored(100, &f);

	for (unsigned run = 0; run < 60; run++) {
		size_t at = draw((uint32_t)f.len), n = 1 + draw(100000);

		n = n < f.len - at ? n : f.len - at;
		if (!n)
			continue;
		if (run % 15 == 7) {
			f.len = at + n;
			cr_assert_eq(object_truncate(o, f.len), 0);
		} else if (run % 3) {
			random_bytes(f.data + at, n);
			put(o, f.data, at, at + n);
		} else {
			memset(f.data + at, 0, n);
			cr_assert_eq(object_fallocate(o, 3, at, n), 0);
		}
		if (run % 4 == 3) {
			settled(o);
			if (run % 8 == 3)
				o = forgotten(o);
			expect(o, &f);
		}
	}
	settled(o);
	o = forgotten(o);
	expect(o, &f);
	object_unref(o);
	free(f.data);
}

/* Whatever somebody says of where slabs are, and takes back. */
Test(settle_layout, every_byte_comes_back_whatever_the_layout)
{
	struct file f = tensors(3);
	struct object *o = stored(100, &f);

	for (unsigned run = 0; run < 40; run++) {
		struct raw_layout l = { .offset = draw(3) ? draw(5000) : draw(3000000) };
		size_t at = draw((uint32_t)f.len), n = f.len - at;

		n = 1 + draw(n < 400000 ? (uint32_t)n : 400000);
		if (run % 3 == 0)
			l.slabs = 1 + draw(100);
		else if (run % 3 == 1)
			l.stride = LAYOUT_SLAB_MIN + draw(100000);
		random_bytes(f.data + at, n);
		memset(f.data + at, 0, n / 3);
		object_set_layout(o, &l);
		put(o, f.data, at, at + n);
		settled(o);
		if (run % 4 == 0)
			o = forgotten(o);
		expect(o, &f);
	}
	object_unref(o);
	free(f.data);
}

/* The same slabs at another place, found only as somebody says where they are; then the header counts again. */
Test(settle_layout, a_layout_goes_before_the_header)
{
	struct file a = tensors(3), b = tensors(1000);
	struct raw_layout l = { .offset = b.head, .slabs = SLABS }, none = { 0 };
	struct object *o = stored(100, &a), *p;

	for (unsigned i = 0; i < SLABS; i++)
		memcpy(b.data + b.head + i * SLAB, a.data + a.head + (SLABS - 1 - i) * SLAB, SLAB);
	memset(b.data, 'x', 8);
	p = stored(101, &b);
	put(p, b.data, 0, b.len);
	cr_assert_eq(settled(p), 0);
	object_set_layout(p, &l);
	put(p, b.data, 0, b.len);
	/* The chunk before the first slab. */
	cr_assert_leq(settled(p), b.head);
	expect(p, &b);
	object_set_layout(o, &l);
	put(o, a.data, 0, a.len);
	cr_assert_gt(settled(o), a.head);
	object_set_layout(o, &none);
	put(o, a.data, 0, a.len);
	cr_assert_leq(settled(o), a.head);
	expect(o, &a);
	object_unref(o);
	object_unref(p);
	free(a.data);
	free(b.data);
}
