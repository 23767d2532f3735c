/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_quants: blocks of 32 values as llama.cpp quantises KV, q8_0 and q4_0: a scale, which is an fp16, and
 * quants of 8 or 4 bits. They are coded by their frequencies (codec_huffman.c), apart from each other: the
 * byte of the scale with its exponent; the quants, of which those in columns of small ones have frequencies
 * of their own, as channels differ in size and the largest of a block makes the scale. The scale's low byte
 * is noise.
 *
 * Encoded: the bytes before the first block (params: form, phase, classes); with four classes the class of
 * each column; then for as many blocks as have 65,536 bytes of quants, or the rest of them: the low bytes of
 * the scales as they are, their high bytes, the quants of each class; then the bytes that are no whole block.
 */
#include "store/codec.h"
#include "store/codec_huffman.h"
#include "store/codec_quants_block.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define SCALE   QUANTS_SCALE
#define COLUMNS QUANTS_COLUMNS
#define CLASSES QUANTS_CLASSES
#define LARGEST (SCALE + COLUMNS)
#define LEAST   4096u /* bytes: tables would take what is gained of less */
#define BINS    64u
#define APART   1.5   /* times as good as any other a phase must be */
#define BETTER  0.995 /* how much shorter several classes must be to be taken */

const struct quants_ops quants_portable = { split, join };

static const struct form {
	uint8_t columns; /* bytes of quants in a block */
	uint8_t bits;    /* of a quant */
} forms[] = { { 32, 8 }, { 16, 4 } };

#define FORMS (sizeof(forms) / sizeof(forms[0]))

/* The parts of the blocks, in planes of the thread. */
enum { LOW, HIGH, QUANTS };

static struct quants_shape shape_for(uint8_t form, uint8_t phase, uint8_t classes)
{
	uint8_t columns = forms[form].columns;
	struct quants_shape s = { .columns = columns,
				  .size = (uint8_t)(columns + SCALE),
				  .phase = phase,
				  .classes = classes,
				  .per = (uint8_t)(columns / classes) };

	for (uint8_t k = 0; k < columns; k++)
		s.order[k] = k;
	return s;
}

/* False: there are no such blocks. */
static bool shape_of(const uint8_t params[CODEC_PARAMS], struct quants_shape *ret)
{
	if (params[0] >= FORMS || params[1] >= forms[params[0]].columns + SCALE ||
	    (params[2] != 1 && params[2] != CLASSES))
		return false;
	*ret = shape_for(params[0], params[1], params[2]);
	return true;
}

/* Blocks of one part. */
static size_t part_of(const struct quants_shape *s, size_t len)
{
	size_t n = len / s->size, most = HUFFMAN_MOST / s->columns;

	return n < most ? n : most;
}

static const struct quants_ops *ops(void)
{
#ifdef HAVE_QUANTS_AVX2 /* by the Makefile, which compiles it */
	if (__builtin_cpu_supports("avx2"))
		return &quants_avx2;
#endif
	return &quants_portable;
}

/* ---- classes ---- */

/* In order of the classes, of which each has as many columns. */
static void order_by(struct quants_shape *s, const uint8_t class[COLUMNS])
{
	uint8_t at = 0;

	for (uint8_t k = 0; k < CLASSES; k++)
		for (uint8_t c = 0; c < s->columns; c++)
			if (class[c] == k)
				s->order[at++] = c;
}

static unsigned magnitude(unsigned bits, uint8_t v)
{
	if (bits == 8)
		return (unsigned)abs((int8_t)v);
	return (unsigned)(abs((v & 15) - 8) + abs((v >> 4) - 8));
}

/* The columns in order of how large the quants in them are. */
static void find_classes(const struct form *f, const uint8_t *src, size_t n,
			 uint8_t ret_class[COLUMNS])
{
	uint32_t sum[COLUMNS] = { 0 };

	for (size_t i = 0; i < n; i++, src += f->columns + SCALE)
		for (unsigned c = 0; c < f->columns; c++)
			sum[c] += magnitude(f->bits, src[SCALE + c]);
	for (unsigned c = 0; c < f->columns; c++) {
		unsigned smaller = 0;

		for (unsigned k = 0; k < f->columns; k++)
			smaller += sum[k] < sum[c] || (sum[k] == sum[c] && k < c);
		ret_class[c] = (uint8_t)(smaller * CLASSES / f->columns);
	}
}

/* Two bits a column. */
static void pack_classes(const struct quants_shape *s, const uint8_t class[COLUMNS],
			 uint8_t ret[COLUMNS / 4])
{
	for (unsigned c = 0; c < s->columns; c += 4)
		ret[c / 4] = (uint8_t)(class[c] | class[c + 1] << 2 | class[c + 2] << 4 |
				       class[c + 3] << 6);
}

/* False: they are not of equal size. */
static bool unpack_classes(struct quants_shape *s, const uint8_t *packed)
{
	uint8_t class[COLUMNS], count[CLASSES] = { 0 };

	for (unsigned c = 0; c < s->columns; c++) {
		class[c] = packed[c / 4] >> (c % 4 * 2) & 3;
		if (++count[class[c]] > s->per)
			return false;
	}
	order_by(s, class);
	return true;
}

/* Those of blocks from the middle of the chunk. */
static size_t middle(const struct form *f, size_t len, size_t n)
{
	size_t size = f->columns + SCALE;

	return (len / size - n) / 2 * size;
}

static size_t sample_of(const struct form *f, size_t len)
{
	size_t n = len / (f->columns + SCALE), most = HUFFMAN_SAMPLE / f->columns;

	return n < most ? n : most;
}

/* ---- estimate ---- */

/* How often two blocks have the same in the high bits of the byte at each place. */
static void count_alike(const uint8_t *p, size_t n, unsigned size, uint32_t ret[LARGEST])
{
	uint16_t count[LARGEST][BINS] = { 0 };

	for (size_t i = 0; i < n; i++, p += size)
		for (unsigned c = 0; c < size; c++)
			count[c][p[c] / (256 / BINS)]++;
	for (unsigned c = 0; c < size; c++) {
		ret[c] = 0;
		for (unsigned k = 0; k < BINS; k++)
			ret[c] += (uint32_t)count[c][k] * count[c][k];
	}
}

/*
 * Where a scale begins: its second byte has the exponent, one of few values, the first has bits of the
 * mantissa alone, of all values alike. Only there, else these are elements whose size divides the period; -1 then.
 */
static int find_phase(const struct form *f, const uint8_t *src, size_t len)
{
	size_t n = sample_of(f, len) / 2;
	unsigned size = f->columns + SCALE;
	double best = 0, second = 0;
	uint32_t alike[LARGEST];
	int phase = 0;

	count_alike(src + middle(f, len, n), n, size, alike);
	for (unsigned c = 0; c < size; c++) {
		double score = (double)alike[(c + 1) % size] / alike[c];

		second = fmax(second, fmin(score, best));
		if (score <= best)
			continue;
		best = score;
		phase = (int)c;
	}
	return best >= APART * second ? phase : -1;
}

/* Bytes that len take by such blocks, of which n are at sample. */
static double estimate_as(const struct quants_shape *s, const uint8_t *sample, size_t len, size_t n,
			  struct huffman *h)
{
	size_t blocks = (len - s->phase) / s->size;
	double all = (double)blocks, bytes = all;

	ops()->split(s, sample, n, h->plane[LOW], h->plane[HIGH], h->plane[QUANTS]);
	bytes += huffman_estimate(h, h->plane[HIGH], n, all);
	for (unsigned k = 0; k < s->classes; k++)
		bytes += huffman_estimate(h, h->plane[QUANTS] + k * n * s->per, n * s->per,
					  all * s->per);
	return bytes + (double)(len - blocks * s->size);
}

/* The shorter of one class and several. */
static double estimate_form(uint8_t form, uint8_t phase, const uint8_t *src, size_t len,
			    struct huffman *h, uint8_t params[CODEC_PARAMS])
{
	const struct form *f = &forms[form];
	uint8_t class[COLUMNS];
	size_t n = sample_of(f, len - phase);
	const uint8_t *sample = src + phase + middle(f, len - phase, n);
	struct quants_shape one = shape_for(form, phase, 1),
			    several = shape_for(form, phase, CLASSES);
	double together = estimate_as(&one, sample, len, n, h), apart;
	bool better;

	find_classes(f, sample, n, class);
	order_by(&several, class);
	apart = estimate_as(&several, sample, len, n, h) + f->columns / 4;
	better = apart < together * BETTER;
	params[0] = form;
	params[1] = phase;
	params[2] = better ? CLASSES : 1;
	return better ? apart : together;
}

static size_t quants_estimate(const void *src, size_t len, void *scratch,
			      uint8_t params[CODEC_PARAMS])
{
	struct huffman *h = huffman_of_thread();
	double least = (double)len;
	uint8_t own[CODEC_PARAMS] = { 0 };

	(void)scratch;
	if (!h || !h->c || len < LEAST)
		return SIZE_MAX;
	for (uint8_t k = 0; k < FORMS; k++) {
		int phase = find_phase(&forms[k], src, len);
		double bytes;

		if (phase < 0)
			continue;
		bytes = estimate_form(k, (uint8_t)phase, src, len, h, own);
		if (bytes >= least)
			continue;
		least = bytes;
		memcpy(params, own, CODEC_PARAMS);
	}
	return least < (double)len ? (size_t)least : SIZE_MAX;
}

/* ---- encode ---- */

static size_t quants_bound(size_t len)
{
	return len + COLUMNS / 4 +
	       (len / HUFFMAN_MOST + 1) * (CLASSES + 1) * (sizeof(uint32_t) + 64);
}

/* Puts the class of each column, and what follows from it into the shape. */
static bool put_classes(struct out *o, struct quants_shape *s, const struct form *f,
			const uint8_t *src, size_t len)
{
	uint8_t class[COLUMNS], packed[COLUMNS / 4];

	if (s->classes == 1)
		return true;
	find_classes(f, src, len / s->size, class);
	pack_classes(s, class, packed);
	order_by(s, class);
	return put(o, packed, s->columns / 4);
}

static bool put_part(struct out *o, const struct quants_shape *s, struct huffman *h, size_t n)
{
	if (!put(o, h->plane[LOW], n) || !huffman_put(o, h, h->plane[HIGH], n))
		return false;
	for (unsigned k = 0; k < s->classes; k++)
		if (!huffman_put(o, h, h->plane[QUANTS] + k * n * s->per, n * s->per))
			return false;
	return true;
}

static ssize_t quants_encode(const void *src, size_t len, void *dst, size_t cap,
			     const uint8_t params[CODEC_PARAMS])
{
	struct huffman *h = huffman_of_thread();
	struct out o = { dst, cap };
	const uint8_t *p = src;
	struct quants_shape s;
	size_t left, n;

	if (!h || !h->c)
		return -ENOMEM;
	if (!shape_of(params, &s) || len < s.phase)
		return -EINVAL;
	left = len - s.phase;
	if (!put(&o, p, s.phase) || !put_classes(&o, &s, &forms[params[0]], p + s.phase, left))
		return 0;
	for (p += s.phase; left >= s.size; left -= n * s.size, p += n * s.size) {
		n = part_of(&s, left);
		ops()->split(&s, p, n, h->plane[LOW], h->plane[HIGH], h->plane[QUANTS]);
		if (!put_part(&o, &s, h, n))
			return 0;
	}
	return put(&o, p, left) ? (ssize_t)(cap - o.left) : 0;
}

/* ---- decode ---- */

static bool get_part(struct in *i, const struct quants_shape *s, struct huffman *h, size_t n,
		     uint8_t *dst)
{
	const uint8_t *low = get(i, n);

	if (!low || !huffman_get(i, h, h->plane[HIGH], n))
		return false;
	for (unsigned k = 0; k < s->classes; k++)
		if (!huffman_get(i, h, h->plane[QUANTS] + k * n * s->per, n * s->per))
			return false;
	ops()->join(s, low, h->plane[HIGH], h->plane[QUANTS], n, dst);
	return true;
}

/* The bytes before the first block, and how those that follow are taken apart. */
static bool get_head(struct in *i, struct quants_shape *s, uint8_t *dst)
{
	const uint8_t *before = get(i, s->phase), *packed;

	if (!before)
		return false;
	memcpy(dst, before, s->phase);
	if (s->classes == 1)
		return true;
	packed = get(i, s->columns / 4);
	return packed && unpack_classes(s, packed);
}

static int quants_decode(const void *src, size_t len, void *dst, size_t raw_len,
			 const uint8_t params[CODEC_PARAMS])
{
	struct huffman *h = huffman_of_thread();
	struct in i = { src, len };
	const uint8_t *rest;
	uint8_t *p = dst;
	size_t left, n;
	struct quants_shape s;

	if (!h)
		return -ENOMEM;
	if (!shape_of(params, &s) || raw_len < s.phase || !get_head(&i, &s, p))
		return -EBADMSG;
	p += s.phase;
	for (left = raw_len - s.phase; left >= s.size; left -= n * s.size, p += n * s.size) {
		n = part_of(&s, left);
		if (!get_part(&i, &s, h, n, p))
			return -EBADMSG;
	}
	rest = get(&i, left);
	if (!rest || i.left)
		return -EBADMSG;
	memcpy(p, rest, left);
	return 0;
}

const struct codec codec_quants = {
	.id = CODEC_QUANTS,
	.name = "quants",
	.bound = quants_bound,
	.estimate = quants_estimate,
	.encode = quants_encode,
	.decode = quants_decode,
};
