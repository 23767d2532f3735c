/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_planes: floats of 32, 16 and 8 bits. Of such an element the exponent alone has redundancy, 2.6 of
 * bf16's 8 bits on normally distributed values; sign and mantissa are noise and are kept as they are. Blocks
 * of 256 elements write the distance of each exponent from the block's largest in as few bits as pay, a bit
 * plane after the other, with escapes for what does not fit.
 *
 * Of 32-bit elements only those bits of the mantissa are kept that are not zero in all of a block.
 *
 * Encoded: for each block its code (base, width, escapes, of f32 the bits kept); the blocks, for every 32
 * elements the planes, the escapes and the low bytes; then what is no whole block: the bytes before the first element (params: form,
 * phase) and those after the last block.
 */
#include "store/codec.h"
#include "store/codec_planes_block.h"

#include <errno.h>

const struct planes_ops planes_portable = { encode_block, decode_block, split_pairs, join_pairs };

static const struct planes_form forms[] = {
	{ .name = "bf16", .size = 2, .rotate = true, .mask = 255, .width = 8 },
	{ .name = "fp16",
	  .size = 2,
	  .shift = 2,
	  .mask = 31,
	  .width = 5,
	  .plain = { 0, 1, 7 },
	  .n_plain = 3 },
	{ .name = "fp8 e4m3",
	  .size = 1,
	  .shift = 3,
	  .mask = 15,
	  .width = 4,
	  .plain = { 0, 1, 2, 7 },
	  .n_plain = 4 },
	{ .name = "fp8 e5m2",
	  .size = 1,
	  .shift = 2,
	  .mask = 31,
	  .width = 5,
	  .plain = { 0, 1, 7 },
	  .n_plain = 3 },
	{ .name = "f32", .size = 4, .mask = 255, .width = 8 },
};

#define FORMS  (sizeof(forms) / sizeof(forms[0]))
#define CODE   3 /* bytes of a block's, and one for the bits kept of f32 */
#define WORSE  9 /* eighths */
#define PROBES 4 /* blocks looked at to find form and phase, one of small chunks */

const struct planes_ops *planes_ops(void)
{
#ifdef HAVE_PLANES_AVX2 /* by the Makefile, which compiles it */
	if (__builtin_cpu_supports("avx2"))
		return &planes_avx2;
#endif
	return &planes_portable;
}

static size_t planes_bound(size_t len)
{
	return len + len / PLANES_BLOCK * (CODE + PLANES_BLOCK / 2) + PLANES_BLOCK_MAX;
}

static size_t blocks_of(const struct planes_form *f, size_t len, unsigned phase)
{
	return len < phase ? 0 : (len - phase) / (PLANES_BLOCK * f->size);
}

static size_t code_size(const struct planes_form *f)
{
	return f->size == 4 ? CODE + 1 : CODE;
}

/* NULL: there is no such form, or no such phase of it. */
static const struct planes_form *form_of(const uint8_t params[CODEC_PARAMS])
{
	return params[0] < FORMS && params[1] < forms[params[0]].size ? &forms[params[0]] : NULL;
}

/* What a sample of the blocks would take, scaled to all; no more is looked at when that is much more than
 * the best so far. */
static size_t estimate_as(const struct planes_form *f, unsigned phase, const uint8_t *src,
			  size_t len, size_t best)
{
	size_t n = blocks_of(f, len, phase), step = (size_t)PLANES_BLOCK * f->size;
	size_t tried = n / 16 < PROBES ? 1 + n / 16 : PROBES, sum = 0, scaled = SIZE_MAX;
	const struct planes_ops *o = planes_ops();
	uint8_t block[PLANES_BLOCK_MAX];
	struct planes_code code;

	for (size_t i = 0; i < tried && n; i++) {
		sum += code_size(f) +
		       o->encode_block(f, src + phase + i * n / tried * step, block, &code);
		scaled = sum * n / (i + 1) + len - n * step;
		if (scaled / WORSE > best / 8)
			break;
	}
	return scaled;
}

static size_t planes_estimate(const void *src, size_t len, void *scratch,
			      uint8_t params[CODEC_PARAMS])
{
	size_t best = SIZE_MAX;

	(void)scratch;
	for (unsigned k = 0; k < FORMS; k++)
		for (unsigned phase = 0; phase < forms[k].size; phase++) {
			size_t n = estimate_as(&forms[k], phase, src, len, best);

			if (n < best) {
				best = n;
				params[0] = (uint8_t)k;
				params[1] = (uint8_t)phase;
			}
		}
	return best;
}

static ssize_t planes_encode(const void *src, size_t len, void *dst, size_t cap,
			     const uint8_t params[CODEC_PARAMS])
{
	const struct planes_form *f = form_of(params);
	unsigned phase = params[1];
	size_t n = f ? blocks_of(f, len, phase) : 0, step = f ? (size_t)PLANES_BLOCK * f->size : 0;
	size_t at = f ? n * code_size(f) : 0, rest = len - n * step;
	const uint8_t *p = (const uint8_t *)src + phase;
	uint8_t *out = dst, block[PLANES_BLOCK_MAX];
	const struct planes_ops *o = planes_ops();

	if (!n || at + rest > cap)
		return 0;
	cap -= rest;
	for (size_t i = 0; i < n; i++, p += step) {
		bool tight = cap - at < PLANES_BLOCK_MAX;
		struct planes_code code;
		size_t k = o->encode_block(f, p, tight ? block : out + at, &code);

		if (k > cap - at)
			return 0;
		if (tight)
			memcpy(out + at, block, k);
		memcpy(out + i * code_size(f), &code, code_size(f));
		at += k;
	}
	memcpy(out + at, src, phase);
	memcpy(out + at + phase, p, rest - phase);
	return (ssize_t)(at + rest);
}

/* Of a block with that code. 0: there is no such code. */
static size_t block_length(const struct planes_form *f, const struct planes_code *c)
{
	if (c->width > f->width || (c->escapes && (!c->width || c->width == f->width)))
		return 0;
	if (f->size == 4 && c->kept > PLANES_MANTISSA)
		return 0;
	if (f->size == 4)
		return (size_t)(c->width + c->kept + 1u) * PLANES_BLOCK / 8 + c->escapes;
	return (size_t)(c->width + f->n_plain) * PLANES_BLOCK / 8 + c->escapes +
	       (f->size == 2 ? PLANES_BLOCK : 0);
}

static int planes_decode(const void *src, size_t len, void *dst, size_t raw_len,
			 const uint8_t params[CODEC_PARAMS])
{
	const struct planes_form *f = form_of(params);
	unsigned phase = params[1];
	uint8_t last[PLANES_BLOCK_MAX + PLANES_BEYOND] = { 0 };
	const struct planes_ops *o = planes_ops();
	const uint8_t *in = src;
	size_t n, step, at, rest;
	uint8_t *p = dst;

	if (!f || raw_len < phase)
		return -EBADMSG;
	n = blocks_of(f, raw_len, phase);
	step = (size_t)PLANES_BLOCK * f->size;
	at = n * code_size(f);
	rest = raw_len - n * step;
	if (at + rest > len)
		return -EBADMSG;
	len -= rest;
	p += phase;
	for (size_t i = 0; i < n; i++, p += step) {
		struct planes_code code = { 0 };
		const uint8_t *block;
		size_t k;

		memcpy(&code, in + i * code_size(f), code_size(f));
		k = block_length(f, &code);
		if (!k || k > len - at)
			return -EBADMSG;
		block = in + at;
		if (len - at - k + rest < PLANES_BEYOND)
			block = memcpy(last, block, k);
		if (!o->decode_block(f, &code, block, p))
			return -EBADMSG;
		at += k;
	}
	if (at != len)
		return -EBADMSG;
	memcpy(dst, in + at, phase);
	memcpy(p, in + at + phase, rest - phase);
	return 0;
}

const struct codec codec_planes = {
	.id = CODEC_PLANES,
	.name = "planes",
	.bound = planes_bound,
	.estimate = planes_estimate,
	.encode = planes_encode,
	.decode = planes_decode,
};
