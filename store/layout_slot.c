/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_slot: slot files of llama.cpp's server, versions 2 and 3, little-endian:
 *
 *   u32 magic, u32 version, u32 n_tokens, n_tokens x i32
 *   then a cache; models with two kinds of attention have two, others something else behind the first:
 *     version 3: u32 n_stream, and as many of what follows
 *       u32 n_cells; nothing more if that is 0
 *       n_cells x { i32 pos, u32 n_seq, models with positions in a plane: 2 x i32, n_seq x i32 }
 *       u32 v_trans, u32 n_layer
 *       K, a layer at a time: i32 type, u64 row_bytes, n_cells x row_bytes
 *       V likewise; with v_trans: i32 type, u32 element_bytes, u32 n_embd, that many elements for each cell;
 *       models that need no V have none
 *
 * The cells begin a slab too, so that those of a shared prefix are shared.
 */
#include "store/layout_impl.h"

#include <stdbool.h>

#define MAGIC      0x67677371u
#define PLANE      8u /* bytes of a position in a plane */
#define CACHES     4u
#define STREAMS    256u
#define LAYERS     4096u
#define CELLS      (1u << 20)
#define SEQUENCES  256u        /* of a cell */
#define CELL_BYTES (32u << 20) /* of all cells, as they are read one by one */
#define AHEAD      16384u

struct reader {
	const struct layout_source *src;
	struct slabs *slabs;
	uint32_t version;
	unsigned plane;      /* bytes of each cell that go to its place in a plane */
	uint64_t at;         /* next byte; not behind the end */
	uint64_t cell_bytes; /* read so far */
	uint32_t headers;    /* of slabs, likewise */
	int error;           /* in reading or of memory: not a matter of the format */
	uint64_t from;       /* buf has the have bytes from here */
	size_t have;
	uint8_t buf[AHEAD];
};

/* The next n bytes; ahead: how many are worth reading at once. NULL: they are not there. */
static const uint8_t *take(struct reader *r, size_t n, size_t ahead)
{
	uint64_t left = r->src->size - r->at;

	if (n > left || r->error)
		return NULL;
	if (r->at < r->from || r->at + n > r->from + r->have) {
		r->have = left < ahead ? left : ahead;
		r->from = r->at;
		r->error = r->src->read(r->src->arg, r->buf, r->have, r->at);
		if (r->error)
			return NULL;
	}
	r->at += n;
	return r->buf + (r->at - n - r->from);
}

static bool take_u32(struct reader *r, uint32_t *ret)
{
	const uint8_t *p = take(r, 4, 16);

	if (p)
		*ret = layout_u32(p);
	return p != NULL;
}

static bool skip(struct reader *r, uint64_t n)
{
	if (n > r->src->size - r->at)
		return false;
	r->at += n;
	return true;
}

static bool add(struct reader *r, uint64_t start)
{
	if (!r->error)
		r->error = slabs_add(r->slabs, start);
	return !r->error;
}

static bool cells(struct reader *r, uint32_t n)
{
	uint64_t start = r->at;

	for (uint32_t i = 0; i < n; i++) {
		const uint8_t *p = take(r, 8, AHEAD);
		uint32_t n_seq = p ? layout_u32(p + 4) : 0;

		if (!p || n_seq > SEQUENCES || !skip(r, r->plane + 4 * (uint64_t)n_seq) ||
		    r->cell_bytes + (r->at - start) > CELL_BYTES)
			return false;
	}
	r->cell_bytes += r->at - start;
	return true;
}

static bool slab(struct reader *r, uint32_t n_cells, bool transposed)
{
	const uint8_t *p = take(r, 12, 12);
	uint64_t row, len, start = r->at;

	if (!p || r->headers++ == LAYOUT_SLABS)
		return false;
	row = transposed ? (uint64_t)layout_u32(p + 4) * layout_u32(p + 8) : layout_u64(p + 4);
	if (!row || __builtin_mul_overflow(row, n_cells, &len) || !skip(r, len))
		return false;
	if (!r->slabs->head)
		r->slabs->head = start;
	return add(r, start);
}

static bool stream(struct reader *r)
{
	uint32_t n_cells, v_trans, n_layer;

	if (!take_u32(r, &n_cells) || n_cells > CELLS)
		return false;
	if (!n_cells)
		return true;
	if (!add(r, r->at) || !cells(r, n_cells) || !take_u32(r, &v_trans) || v_trans > 1 ||
	    !take_u32(r, &n_layer) || !n_layer || n_layer > LAYERS)
		return false;
	for (uint32_t i = 0; i < n_layer; i++)
		if (!slab(r, n_cells, false))
			return false;
	if (r->at == r->src->size)
		return true;
	for (uint32_t i = 0; i < n_layer; i++)
		if (!slab(r, n_cells, v_trans))
			return false;
	return true;
}

static bool cache(struct reader *r)
{
	uint32_t n_stream = 1;

	if (r->version == 3 && (!take_u32(r, &n_stream) || !n_stream || n_stream > STREAMS))
		return false;
	for (uint32_t i = 0; i < n_stream; i++)
		if (!stream(r))
			return false;
	return true;
}

static bool caches(struct reader *r, uint32_t n_tokens)
{
	r->at = LAYOUT_FIRST;
	r->slabs->n = 0;
	r->slabs->head = 0;
	if (!skip(r, 4 * (uint64_t)n_tokens) || !cache(r))
		return false;
	for (unsigned i = 1; i < CACHES && r->at < r->src->size; i++) {
		uint64_t at = r->at;
		size_t n = r->slabs->n;

		if (cache(r))
			continue;
		r->slabs->n = n;
		add(r, at);
		break;
	}
	return true;
}

int layout_slot(const struct layout_source *src, const uint8_t *first, struct slabs *ret)
{
	struct reader r = { .src = src, .slabs = ret, .version = layout_u32(first + 4) };
	bool found;

	if (layout_u32(first) != MAGIC || (r.version != 2 && r.version != 3))
		return 0;
	found = caches(&r, layout_u32(first + 8));
	if (!found) {
		r.plane = PLANE;
		found = caches(&r, layout_u32(first + 8));
	}
	/* Caches without a cell have no slab. */
	return r.error ? r.error : found && ret->head;
}
