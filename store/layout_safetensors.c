/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_safetensors: u64 length, little-endian, that many bytes of JSON, then the bytes of the tensors:
 *
 *   {"NAME": {"dtype": "BF16", "shape": [2, 400, 8, 128], "data_offsets": [0, 1638400]}, ...,
 *    "__metadata__": {...}}
 *
 * with offsets from the end of the JSON on, and no byte that is in no tensor or in two. A tensor whose first
 * dimension is 2 holds keys and values, which are a slab each.
 */
#include "store/layout_impl.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>

#define DEPTH 8 /* of the JSON; a tensor's shape is at 3 */

struct tensor {
	uint64_t begin, end; /* from the end of the JSON on */
	bool halves;
};

/* Bytes of an element; 0: not known. */
static unsigned width_of(const char *dtype)
{
	static const struct {
		const char *name;
		unsigned width;
	} known[] = {
		{ "BF16", 2 }, { "F16", 2 }, { "F32", 4 },  { "F64", 8 },     { "F8_E4M3", 1 },
		{ "I8", 1 },   { "I16", 2 }, { "I32", 4 },  { "F8_E5M2", 1 }, { "U8", 1 },
		{ "U16", 2 },  { "U32", 4 }, { "BOOL", 1 }, { "I64", 8 },     { "U64", 8 },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(dtype, known[i].name))
			return known[i].width;
	return 0;
}

/* Nests no deeper than DEPTH, so that the parser does not recurse as far as others like. */
static bool is_flat(const char *p, size_t len)
{
	bool string = false;
	int depth = 0;

	for (size_t i = 0; i < len; i++) {
		if (string && p[i] == '\\')
			i++;
		else if (p[i] == '"')
			string = !string;
		else if (!string && (p[i] == '{' || p[i] == '['))
			depth++;
		else if (!string && (p[i] == '}' || p[i] == ']'))
			depth--;
		if (depth > DEPTH)
			return false;
	}
	return true;
}

static bool get_u64(const json_t *v, uint64_t *ret)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return false;
	*ret = (uint64_t)json_integer_value(v);
	return true;
}

/* The number of elements. */
static bool read_shape(const json_t *shape, uint64_t *ret)
{
	uint64_t n = 1, d;

	if (!json_is_array(shape))
		return false;
	for (size_t i = 0; i < json_array_size(shape); i++)
		if (!get_u64(json_array_get(shape, i), &d) || __builtin_mul_overflow(n, d, &n))
			return false;
	*ret = n;
	return true;
}

static bool read_tensor(const json_t *v, uint64_t data, struct tensor *ret)
{
	const json_t *shape = json_object_get(v, "shape"), *dtype = json_object_get(v, "dtype");
	const json_t *at = json_object_get(v, "data_offsets");
	uint64_t elements, bytes, first = 0;
	unsigned width;

	if (!json_is_string(dtype) || !read_shape(shape, &elements) || !json_is_array(at) ||
	    json_array_size(at) != 2 || !get_u64(json_array_get(at, 0), &ret->begin) ||
	    !get_u64(json_array_get(at, 1), &ret->end) || ret->begin > ret->end || ret->end > data)
		return false;
	bytes = ret->end - ret->begin;
	width = width_of(json_string_value(dtype));
	if (width && (__builtin_mul_overflow(elements, width, &elements) || elements != bytes))
		return false;
	get_u64(json_array_get(shape, 0), &first);
	ret->halves = first == 2 && json_array_size(shape) >= 3 && bytes % 2 == 0;
	return true;
}

static int by_place(const void *a, const void *b)
{
	const struct tensor *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->end > y->end) - (x->end < y->end);
}

/* One behind the other, without a gap, up to the end. */
static bool fill_the_file(const struct tensor *t, size_t n, uint64_t data)
{
	uint64_t end = 0;

	for (size_t i = 0; i < n; end = t[i++].end)
		if (t[i].begin != end)
			return false;
	return n && end == data;
}

static int add_tensors(struct tensor *t, size_t n, struct slabs *ret)
{
	int r = 0;

	qsort(t, n, sizeof(*t), by_place);
	if (!fill_the_file(t, n, ret->size - ret->head))
		return 0;
	for (size_t i = 0; i < n && !r; i++) {
		uint64_t begin = ret->head + t[i].begin;

		r = slabs_add(ret, begin);
		if (!r && t[i].halves)
			r = slabs_add(ret, begin + (t[i].end - t[i].begin) / 2);
	}
	return r ? r : ret->n > 0;
}

static int read_header(json_t *header, struct slabs *ret)
{
	struct tensor *t;
	const char *name;
	size_t n = 0;
	json_t *v;
	int r = 1;

	if (!json_is_object(header))
		return 0;
	t = calloc(json_object_size(header) + 1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	json_object_foreach(header, name, v) {
		if (!strcmp(name, "__metadata__"))
			continue;
		if (!read_tensor(v, ret->size - ret->head, &t[n++])) {
			r = 0;
			break;
		}
	}
	if (r)
		r = add_tensors(t, n, ret);
	free(t);
	return r;
}

int layout_safetensors(const struct layout_source *src, const uint8_t *first, struct slabs *ret)
{
	uint64_t len = layout_u64(first);
	json_t *header;
	char *text;
	int r;

	if (first[8] != '{' || len < 2 || len > LAYOUT_HEAD - 8 || len > src->size - 8)
		return 0;
	text = malloc(len);
	if (!text)
		return -ENOMEM;
	r = src->read(src->arg, text, len, 8);
	if (!r && is_flat(text, len)) {
		header = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
		ret->head = 8 + len;
		r = read_header(header, ret);
		json_decref(header);
	}
	free(text);
	return r;
}
