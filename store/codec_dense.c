/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_dense: elements of 1, 2 and 4 bytes, for stores that prefer size. Bytes of the same place in their
 * elements lie together; those that have redundancy, which of floats is the one with the exponent, are coded
 * by their frequencies alone (codec_huffman.c).
 *
 * Encoded: the bytes before the first element (params: form, phase, which planes are coded); then for every
 * 65,536 elements or the rest of them each plane, the highest byte first: a coded one as u32 length and
 * frame, others as they are; then the bytes that are no whole element.
 */
#include "store/codec.h"
#include "store/codec_huffman.h"
#include "store/codec_planes.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define PART   HUFFMAN_MOST /* elements */
#define WIDEST HUFFMAN_PLANES
#define SAMPLE HUFFMAN_SAMPLE /* elements looked at */
#define GLANCE 1024u          /* of them to tell the forms apart */
#define LEAST  GLANCE         /* times WIDEST bytes; planes are as short then, and cheaper */
#define NOISE  0.975          /* of a plane, from which on coding it is not worth the time */
#define WORSE  1.02           /* than when the form was found: others are looked at */
#define POOR   0.95           /* of the length: that was no form */
#define AGAIN  16             /* chunks */
#define BETTER 0.99           /* how much shorter a wider form must be to be taken */

static const struct form {
	uint8_t size; /* of an element, little-endian */
	bool rotate;  /* left by a bit first: the exponent fills the highest byte */
} forms[] = { { 1, false }, { 2, true }, { 2, false }, { 4, true } };

#define FORMS (sizeof(forms) / sizeof(forms[0]))

/* What chunks of this thread were made of when it was looked at last. */
static _Thread_local struct {
	uint8_t form, phase;
	double share;  /* of the length, then */
	unsigned uses; /* since then; 0: never */
} found;

/* ---- planes ---- */

/* planes[0] gets the highest bytes. */
static void split(const struct form *f, const uint8_t *src, size_t n, uint8_t (*plane)[PART])
{
	if (f->size == 1) {
		memcpy(plane[0], src, n);
		return;
	}
	if (f->size == 2) {
		planes_ops()->split_pairs(src, n, f->rotate, plane[0], plane[1]);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		uint32_t v;

		memcpy(&v, src + 4 * i, sizeof(v));
		v = v << 1 | v >> 31;
		plane[0][i] = (uint8_t)(v >> 24);
		plane[1][i] = (uint8_t)(v >> 16);
		plane[2][i] = (uint8_t)(v >> 8);
		plane[3][i] = (uint8_t)v;
	}
}

static void join(const struct form *f, const uint8_t *const plane[WIDEST], size_t n, uint8_t *dst)
{
	if (f->size == 1) {
		memcpy(dst, plane[0], n);
		return;
	}
	if (f->size == 2) {
		planes_ops()->join_pairs(plane[0], plane[1], n, f->rotate, dst);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		uint32_t v = (uint32_t)plane[0][i] << 24 | (uint32_t)plane[1][i] << 16 |
			     (uint32_t)plane[2][i] << 8 | plane[3][i];

		v = v >> 1 | v << 31;
		memcpy(dst + 4 * i, &v, sizeof(v));
	}
}

/* NULL: there is no such form, phase or plane. */
static const struct form *form_of(const uint8_t params[CODEC_PARAMS])
{
	const struct form *f = params[0] < FORMS ? &forms[params[0]] : NULL;

	return f && params[1] < f->size && params[2] >> f->size == 0 ? f : NULL;
}

/* ---- estimate ---- */

/* Bytes that len take by elements of that form from src on; *ret_coded: the planes worth coding. n
 * elements are looked at. */
static double estimate_as(const struct form *f, const uint8_t *src, size_t len, size_t n,
			  struct huffman *h, uint8_t *ret_coded)
{
	size_t all = len / f->size;
	double sum = 0;

	*ret_coded = 0;
	split(f, src + (all - n) / 2 * f->size, n, h->plane);
	for (unsigned k = 0; k < f->size; k++) {
		double bytes = huffman_estimate(h, h->plane[k], n, (double)all);

		if (bytes < NOISE * (double)all)
			*ret_coded |= (uint8_t)(1u << k);
		sum += *ret_coded >> k & 1 ? bytes : (double)all;
	}
	return sum;
}

static size_t at_most(size_t n, size_t most)
{
	return n < most ? n : most;
}

/* Form and phase by a glance at each. */
static void find_form(struct huffman *h, const uint8_t *src, size_t len, size_t n)
{
	double least = (double)len;
	uint8_t coded;

	found.form = found.phase = 0;
	for (uint8_t k = 0; k < FORMS; k++)
		for (uint8_t phase = 0; phase < forms[k].size; phase++) {
			double bytes = estimate_as(&forms[k], src + phase, len - phase,
						   at_most(n, GLANCE), h, &coded);

			if (bytes >= least * BETTER)
				continue;
			least = bytes;
			found.form = k;
			found.phase = phase;
		}
}

static double estimate_as_found(struct huffman *h, const uint8_t *src, size_t len, size_t n,
				uint8_t *ret_coded)
{
	return estimate_as(&forms[found.form], src + found.phase, len - found.phase,
			   at_most(n, SAMPLE), h, ret_coded);
}

/* Chunks that follow each other are of the same elements: what was found last is tried first, and others
 * when it does worse than then, and now and then. */
static size_t dense_estimate(const void *src, size_t len, void *scratch,
			     uint8_t params[CODEC_PARAMS])
{
	size_t n = len / WIDEST - 1;
	struct huffman *h = huffman_of_thread();
	double bytes = INFINITY;

	(void)scratch;
	if (!h || !h->c || len < (size_t)LEAST * WIDEST)
		return SIZE_MAX;
	if (found.uses++ % AGAIN && found.share <= POOR)
		bytes = estimate_as_found(h, src, len, n, &params[2]);
	if (bytes > (double)len * found.share * WORSE) {
		find_form(h, src, len, n);
		bytes = estimate_as_found(h, src, len, n, &params[2]);
		found.share = bytes / (double)len;
		found.uses = 1;
	}
	params[0] = found.form;
	params[1] = found.phase;
	return params[2] ? (size_t)bytes : SIZE_MAX;
}

/* ---- encode ---- */

static size_t dense_bound(size_t len)
{
	return len + (len / PART + 1) * WIDEST * (sizeof(uint32_t) + 64);
}

static bool put_part(struct out *o, struct huffman *h, const struct form *f, unsigned coded,
		     size_t n)
{
	for (unsigned k = 0; k < f->size; k++)
		if (!(coded >> k & 1 ? huffman_put(o, h, h->plane[k], n) : put(o, h->plane[k], n)))
			return false;
	return true;
}

static ssize_t dense_encode(const void *src, size_t len, void *dst, size_t cap,
			    const uint8_t params[CODEC_PARAMS])
{
	const struct form *f = form_of(params);
	const uint8_t *p = src;
	struct out o = { dst, cap };
	struct huffman *h = huffman_of_thread();
	size_t left, n;

	if (!h || !h->c)
		return -ENOMEM;
	if (!f || len < params[1])
		return -EINVAL;
	if (!put(&o, p, params[1]))
		return 0;
	p += params[1];
	for (left = len - params[1]; left >= f->size; left -= n * f->size, p += n * f->size) {
		n = left / f->size < PART ? left / f->size : PART;
		split(f, p, n, h->plane);
		if (!put_part(&o, h, f, params[2], n))
			return 0;
	}
	return put(&o, p, left) ? (ssize_t)(cap - o.left) : 0;
}

/* ---- decode ---- */

static bool get_part(struct in *i, struct huffman *h, const struct form *f, unsigned coded,
		     size_t n, uint8_t *dst)
{
	const uint8_t *plane[WIDEST];

	for (unsigned k = 0; k < f->size; k++) {
		plane[k] = coded >> k & 1 ? huffman_get(i, h, h->plane[k], n) : get(i, n);
		if (!plane[k])
			return false;
	}
	join(f, plane, n, dst);
	return true;
}

static int dense_decode(const void *src, size_t len, void *dst, size_t raw_len,
			const uint8_t params[CODEC_PARAMS])
{
	const struct form *f = form_of(params);
	struct in i = { src, len };
	struct huffman *h = huffman_of_thread();
	const uint8_t *rest;
	uint8_t *p = dst;
	size_t left, n;

	if (!h)
		return -ENOMEM;
	if (!f || raw_len < params[1] || !(rest = get(&i, params[1])))
		return -EBADMSG;
	memcpy(p, rest, params[1]);
	p += params[1];
	for (left = raw_len - params[1]; left >= f->size; left -= n * f->size, p += n * f->size) {
		n = left / f->size < PART ? left / f->size : PART;
		if (!get_part(&i, h, f, params[2], n, p))
			return -EBADMSG;
	}
	rest = get(&i, left);
	if (!rest || i.left)
		return -EBADMSG;
	memcpy(p, rest, left);
	return 0;
}

const struct codec codec_dense = {
	.id = CODEC_DENSE,
	.name = "dense",
	.bound = dense_bound,
	.estimate = dense_estimate,
	.encode = dense_encode,
	.decode = dense_decode,
};
