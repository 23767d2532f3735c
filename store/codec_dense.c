/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_dense: elements of 1, 2 and 4 bytes, for stores that prefer size. Bytes of the same place in their
 * elements lie together; those that have redundancy, which of floats is the one with the exponent, are coded
 * by their frequencies alone: a zstd frame whose blocks are Huffman-coded literals without a sequence, as
 * looking for repeats in noise costs time and makes it longer.
 *
 * Encoded: the bytes before the first element (params: form, phase, which planes are coded); then for every
 * 65,536 elements or the rest of them each plane, the highest byte first: a coded one as u32 length and
 * frame, others as they are; then the bytes that are no whole element.
 */
#define ZSTD_STATIC_LINKING_ONLY /* for the encoder; decoding is the library's stable part */
#include <zstd.h>

#if ZSTD_VERSION_NUMBER < 10501
#error "kvfs needs libzstd 1.5.1 or newer"
#endif

#include "store/codec.h"
#include "store/codec_planes.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PART   65536u /* elements; a plane of them is one block of zstd */
#define WIDEST 4u
#define SAMPLE 4096u  /* elements looked at */
#define GLANCE 1024u  /* of them to tell the forms apart */
#define LEAST  GLANCE /* times WIDEST bytes; planes are as short then, and cheaper */
#define NOISE  0.975  /* of a plane, from which on coding it is not worth the time */
#define WORSE  1.02   /* than when the form was found: others are looked at */
#define POOR   0.95   /* of the length: that was no form */
#define AGAIN  16     /* chunks */
#define FRAME  16     /* bytes around a coded plane, about */
#define BETTER 0.99   /* how much shorter a wider form must be to be taken */

static const struct form {
	uint8_t size; /* of an element, little-endian */
	bool rotate;  /* left by a bit first: the exponent fills the highest byte */
} forms[] = { { 1, false }, { 2, true }, { 2, false }, { 4, true } };

#define FORMS (sizeof(forms) / sizeof(forms[0]))

/* ---- what a thread keeps from chunk to chunk ---- */

struct work {
	ZSTD_CCtx *c;
	ZSTD_DCtx *d;
	uint8_t plane[WIDEST][PART];
	uint8_t frame[ZSTD_COMPRESSBOUND(PART) + 64];
	double n_log_n[SAMPLE + 1]; /* of the index, in bits */
	uint8_t form, phase;        /* found last */
	double share;               /* of the length, then */
	unsigned uses;              /* since then; 0: never */
};

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_key;

static void free_work(void *arg)
{
	struct work *w = arg;

	ZSTD_freeCCtx(w->c);
	ZSTD_freeDCtx(w->d);
	free(w);
}

static void make_key(void)
{
	have_key = pthread_key_create(&key, free_work) == 0;
}

static bool set_up(ZSTD_CCtx *c)
{
	return !ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_blockDelimiters,
						    ZSTD_sf_explicitBlockDelimiters)) &&
	       !ZSTD_isError(
		       ZSTD_CCtx_setParameter(c, ZSTD_c_literalCompressionMode, ZSTD_ps_enable)) &&
	       !ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_windowLog, 17));
}

/* NULL: out of memory. */
static struct work *work(void)
{
	struct work *w;

	pthread_once(&once, make_key);
	w = have_key ? pthread_getspecific(key) : NULL;
	if (w || !have_key)
		return w;
	w = calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	for (unsigned n = 2; n <= SAMPLE; n++)
		w->n_log_n[n] = n * log2(n);
	w->d = ZSTD_createDCtx();
	if (w->d && !pthread_setspecific(key, w))
		return w;
	free_work(w);
	return NULL;
}

/* NULL: out of memory, or a library that encodes no more in this way. */
static ZSTD_CCtx *encoder(struct work *w)
{
	if (!w->c) {
		w->c = ZSTD_createCCtx();
		if (w->c && !set_up(w->c)) {
			ZSTD_freeCCtx(w->c);
			w->c = NULL;
		}
	}
	return w->c;
}

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

/*
 * Bytes that a coded plane of all elements takes, by the frequencies of n: those of so few look more uneven
 * than they are, by (kinds - 1) / (2 ln 2) bits (Miller and Madow), the table has about four bits a kind, and
 * Huffman's code has a bit a byte at least, unless all are equal.
 */
static double coded_bytes(const double *n_log_n, const uint8_t *p, size_t n, double all)
{
	uint32_t count[256] = { 0 };
	double bits = n_log_n[n];
	unsigned kinds = 0;

	for (size_t i = 0; i < n; i++)
		count[p[i]]++;
	for (unsigned k = 0; k < 256; k++) {
		bits -= n_log_n[count[k]];
		kinds += count[k] > 0;
	}
	bits += (kinds - 1) / (2 * M_LN2);
	if (kinds > 1 && bits < (double)n)
		bits = (double)n;
	return bits / 8 / (double)n * all + kinds / 2.0 + FRAME;
}

/* Bytes that len take by elements of that form from src on; *ret_coded: the planes worth coding. n
 * elements are looked at. */
static double estimate_as(const struct form *f, const uint8_t *src, size_t len, size_t n,
			  struct work *w, uint8_t *ret_coded)
{
	size_t all = len / f->size;
	double sum = 0;

	*ret_coded = 0;
	split(f, src + (all - n) / 2 * f->size, n, w->plane);
	for (unsigned k = 0; k < f->size; k++) {
		double bytes = coded_bytes(w->n_log_n, w->plane[k], n, (double)all);

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
static void find_form(struct work *w, const uint8_t *src, size_t len, size_t n)
{
	double least = (double)len;
	uint8_t coded;

	w->form = w->phase = 0;
	for (uint8_t k = 0; k < FORMS; k++)
		for (uint8_t phase = 0; phase < forms[k].size; phase++) {
			double bytes = estimate_as(&forms[k], src + phase, len - phase,
						   at_most(n, GLANCE), w, &coded);

			if (bytes >= least * BETTER)
				continue;
			least = bytes;
			w->form = k;
			w->phase = phase;
		}
}

static double estimate_as_found(struct work *w, const uint8_t *src, size_t len, size_t n,
				uint8_t *ret_coded)
{
	return estimate_as(&forms[w->form], src + w->phase, len - w->phase, at_most(n, SAMPLE), w,
			   ret_coded);
}

/* Chunks that follow each other are of the same elements: what was found last is tried first, and others
 * when it does worse than then, and now and then. */
static size_t dense_estimate(const void *src, size_t len, void *scratch,
			     uint8_t params[CODEC_PARAMS])
{
	size_t n = len / WIDEST - 1;
	struct work *w = work();
	double bytes = INFINITY;

	(void)scratch;
	if (!w || !encoder(w) || len < (size_t)LEAST * WIDEST)
		return SIZE_MAX;
	if (w->uses++ % AGAIN && w->share <= POOR)
		bytes = estimate_as_found(w, src, len, n, &params[2]);
	if (bytes > (double)len * w->share * WORSE) {
		find_form(w, src, len, n);
		bytes = estimate_as_found(w, src, len, n, &params[2]);
		w->share = bytes / (double)len;
		w->uses = 1;
	}
	params[0] = w->form;
	params[1] = w->phase;
	return params[2] ? (size_t)bytes : SIZE_MAX;
}

/* ---- encode ---- */

static size_t dense_bound(size_t len)
{
	return len + (len / PART + 1) * WIDEST * (sizeof(uint32_t) + 64);
}

struct out {
	uint8_t *p;
	size_t left;
};

static bool put(struct out *o, const void *p, size_t n)
{
	if (n > o->left)
		return false;
	memcpy(o->p, p, n);
	o->p += n;
	o->left -= n;
	return true;
}

static bool put_coded(struct out *o, struct work *w, const uint8_t *plane, size_t n)
{
	const ZSTD_Sequence literals = { .litLength = (unsigned)n };
	/* The library of 1.5.4 does not look how much room there is, so it gets enough. */
	size_t k = ZSTD_compressSequences(w->c, w->frame, sizeof(w->frame), &literals, 1, plane, n);
	uint32_t len = (uint32_t)k;

	return !ZSTD_isError(k) && put(o, &len, sizeof(len)) && put(o, w->frame, k);
}

static bool put_part(struct out *o, struct work *w, const struct form *f, unsigned coded, size_t n)
{
	for (unsigned k = 0; k < f->size; k++)
		if (!(coded >> k & 1 ? put_coded(o, w, w->plane[k], n) : put(o, w->plane[k], n)))
			return false;
	return true;
}

static ssize_t dense_encode(const void *src, size_t len, void *dst, size_t cap,
			    const uint8_t params[CODEC_PARAMS])
{
	const struct form *f = form_of(params);
	const uint8_t *p = src;
	struct out o = { dst, cap };
	struct work *w = work();
	size_t left, n;

	if (!w || !encoder(w))
		return -ENOMEM;
	if (!f || len < params[1])
		return -EINVAL;
	if (!put(&o, p, params[1]))
		return 0;
	p += params[1];
	for (left = len - params[1]; left >= f->size; left -= n * f->size, p += n * f->size) {
		n = left / f->size < PART ? left / f->size : PART;
		split(f, p, n, w->plane);
		if (!put_part(&o, w, f, params[2], n))
			return 0;
	}
	return put(&o, p, left) ? (ssize_t)(cap - o.left) : 0;
}

/* ---- decode ---- */

struct in {
	const uint8_t *p;
	size_t left;
};

/* NULL: there is not so much. */
static const uint8_t *get(struct in *i, size_t n)
{
	const uint8_t *p = i->p;

	if (n > i->left)
		return NULL;
	i->p += n;
	i->left -= n;
	return p;
}

static const uint8_t *get_coded(struct in *i, ZSTD_DCtx *d, uint8_t *plane, size_t n)
{
	const uint8_t *length = get(i, sizeof(uint32_t)), *frame;
	uint32_t len;

	if (!length)
		return NULL;
	memcpy(&len, length, sizeof(len));
	frame = get(i, len);
	return frame && ZSTD_decompressDCtx(d, plane, n, frame, len) == n ? plane : NULL;
}

static bool get_part(struct in *i, struct work *w, const struct form *f, unsigned coded, size_t n,
		     uint8_t *dst)
{
	const uint8_t *plane[WIDEST];

	for (unsigned k = 0; k < f->size; k++) {
		plane[k] = coded >> k & 1 ? get_coded(i, w->d, w->plane[k], n) : get(i, n);
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
	struct work *w = work();
	const uint8_t *rest;
	uint8_t *p = dst;
	size_t left, n;

	if (!w)
		return -ENOMEM;
	if (!f || raw_len < params[1] || !(rest = get(&i, params[1])))
		return -EBADMSG;
	memcpy(p, rest, params[1]);
	p += params[1];
	for (left = raw_len - params[1]; left >= f->size; left -= n * f->size, p += n * f->size) {
		n = left / f->size < PART ? left / f->size : PART;
		if (!get_part(&i, w, f, params[2], n, p))
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
