/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One block of codec_planes.c, compiled twice: as it is, and with AVX2 (codec_planes_avx2.c). Vectors of
 * 32 bytes become what the target has.
 */
#include "store/codec_planes.h"

#include <string.h>

typedef uint8_t bytes __attribute__((vector_size(32)));
typedef uint16_t pairs __attribute__((vector_size(32)));
typedef uint32_t words __attribute__((vector_size(32)));
typedef uint64_t quads __attribute__((vector_size(32)));

#define STEPS (PLANES_BLOCK / 32)

#ifdef __AVX2__
#include <immintrin.h>

static inline uint32_t plane_of(bytes v, int bit)
{
	return (uint32_t)_mm256_movemask_epi8(
		_mm256_sll_epi16((__m256i)v, _mm_cvtsi32_si128(7 - bit)));
}

static inline bytes spread(uint32_t plane)
{
	const __m256i from = (__m256i)(bytes){ 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
					       2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3 };
	const bytes bit = (bytes)_mm256_set1_epi64x((long long)0x8040201008040201ull);

	return (bytes)(((bytes)_mm256_shuffle_epi8(_mm256_set1_epi32((int)plane), from) & bit) ==
		       bit);
}
#else
/* Bit k of the result is the given bit of byte k. */
static inline uint32_t plane_of(bytes v, int bit)
{
	quads q = ((quads)v >> bit) & 0x0101010101010101ull;
	uint32_t plane = 0;

	for (int k = 0; k < 4; k++)
		plane |= (uint32_t)(q[k] * 0x0102040810204080ull >> 56) << (8 * k);
	return plane;
}

/* Byte k of the result is 255 where bit k is set, else 0. */
static inline bytes spread(uint32_t plane)
{
	quads q;

	for (int k = 0; k < 4; k++)
		q[k] = (plane >> (8 * k) & 0xff) * 0x0101010101010101ull & 0x8040201008040201ull;
	return (bytes)((bytes)q != 0);
}
#endif

/* The first byte of a vector is that of the lowest address on every target kvfs runs on. */
static inline bytes load(const uint8_t *p)
{
	bytes v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline void store(uint8_t *p, bytes v)
{
	memcpy(p, &v, sizeof(v));
}

static inline bytes all(int value)
{
	return (bytes){ 0 } + (uint8_t)value;
}

struct split {
	bytes high[STEPS], low[STEPS];
};

static inline void part_pairs(pairs a, pairs b, bytes *high, bytes *low)
{
	*low = __builtin_shufflevector((bytes)a, (bytes)b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20,
				       22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46, 48, 50,
				       52, 54, 56, 58, 60, 62);
	*high = __builtin_shufflevector((bytes)a, (bytes)b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21,
					23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51,
					53, 55, 57, 59, 61, 63);
}

static inline void pair_up(bytes high, bytes low, pairs *a, pairs *b)
{
	*a = (pairs)__builtin_shufflevector(low, high, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6,
					    38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45,
					    14, 46, 15, 47);
	*b = (pairs)__builtin_shufflevector(low, high, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21,
					    53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28,
					    60, 29, 61, 30, 62, 31, 63);
}

static inline void take_pairs(const uint8_t *src, bool rotate, bytes *high, bytes *low)
{
	pairs a = (pairs)load(src), b = (pairs)load(src + 32);

	if (rotate) {
		a = a << 1 | a >> 15;
		b = b << 1 | b >> 15;
	}
	part_pairs(a, b, high, low);
}

static inline void give_pairs(uint8_t *dst, bool rotate, bytes high, bytes low)
{
	pairs a, b;

	pair_up(high, low, &a, &b);
	if (rotate) {
		a = a >> 1 | a << 15;
		b = b >> 1 | b << 15;
	}
	store(dst, (bytes)a);
	store(dst + 32, (bytes)b);
}

/* 32 elements of 4 bytes, each rearranged to its exponent in the highest byte and, from the lowest bit on,
 * its sign and what is kept of its mantissa; the bytes of the same place to a vector each. */
static inline void take_words(const uint8_t *src, unsigned kept, bytes ret[4])
{
	words w[4];
	pairs low[2], high[2];

	for (int i = 0; i < 4; i++) {
		words v = (words)load(src + 32 * i);

		w[i] = v << 1 >> 24 << 24 | (v & 0x7fffff) >> (PLANES_MANTISSA - kept) << 1 |
		       v >> 31;
	}
	for (int i = 0; i < 2; i++) {
		low[i] = __builtin_shufflevector((pairs)w[2 * i], (pairs)w[2 * i + 1], 0, 2, 4, 6,
						 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
		high[i] = __builtin_shufflevector((pairs)w[2 * i], (pairs)w[2 * i + 1], 1, 3, 5, 7,
						  9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
	}
	part_pairs(low[0], low[1], &ret[1], &ret[0]);
	part_pairs(high[0], high[1], &ret[3], &ret[2]);
}

static inline void give_words(uint8_t *dst, unsigned kept, const bytes from[4])
{
	pairs low[2], high[2];

	pair_up(from[1], from[0], &low[0], &low[1]);
	pair_up(from[3], from[2], &high[0], &high[1]);
	for (int i = 0; i < 4; i++) {
		pairs l = low[i / 2], h = high[i / 2];
		words w = i % 2 ? (words)__builtin_shufflevector(l, h, 8, 24, 9, 25, 10, 26, 11, 27,
								 12, 28, 13, 29, 14, 30, 15, 31) :
				  (words)__builtin_shufflevector(l, h, 0, 16, 1, 17, 2, 18, 3, 19,
								 4, 20, 5, 21, 6, 22, 7, 23);

		store(dst + 32 * i,
		      (bytes)(w >> 24 << 23 | (w & 0xffffff) >> 1 << (PLANES_MANTISSA - kept) |
			      w << 31));
	}
}

static inline void take_all(const struct planes_form *f, const uint8_t *src, struct split *s)
{
	for (int i = 0; i < STEPS; i++) {
		if (f->size == 2)
			take_pairs(src + 64 * i, f->rotate, &s->high[i], &s->low[i]);
		else
			s->high[i] = load(src + 32 * i);
	}
}

/* ---- the code of a block ---- */

/* Of bytes that are at most 8 each, one for every vector of a block. */
static inline unsigned sum(bytes v)
{
	quads q = (quads)v * 0x0101010101010101ull >> 56;

	return (unsigned)(q[0] + q[1] + q[2] + q[3]);
}

static inline bytes larger(bytes a, bytes b)
{
	bytes m = (bytes)(a > b);

	return (a & m) | (b & ~m);
}

static inline unsigned largest(bytes v)
{
	uint8_t b[32];

	store(b, v);
	for (int half = 16; half; half /= 2)
		for (int k = 0; k < half; k++)
			b[k] = b[k] > b[k + half] ? b[k] : b[k + half];
	return b[0];
}

/* The best of the codes with that base. */
static inline void try_base(const bytes *field, const struct planes_form *f, unsigned base,
			    struct planes_code *best, unsigned *cost)
{
	bytes code[STEPS];

	for (int i = 0; i < STEPS; i++)
		code[i] = (all((int)base) - field[i]) & all(f->mask);
	for (uint8_t width = 2; width < f->width && width <= PLANES_WIDEST; width++) {
		bytes n = { 0 };
		unsigned escapes;

		for (int i = 0; i < STEPS; i++)
			n -= (bytes)(code[i] >= all((1 << width) - 1));
		escapes = sum(n);
		if (escapes <= UINT8_MAX && 32u * width + escapes < *cost) {
			*cost = 32u * width + escapes;
			*best = (struct planes_code){ (uint8_t)base, width, (uint8_t)escapes, 0 };
		}
	}
}

/* Exponents lie below the largest of the block, most of them within a few steps; a few channels that
 * stand out must not make all others pay. */
static inline struct planes_code choose(const bytes *field, const struct planes_form *f)
{
	bytes top = field[0], bottom = ~field[0];
	struct planes_code best = { .width = f->width };
	unsigned cost = 32u * f->width, high;

	for (int i = 1; i < STEPS; i++) {
		top = larger(top, field[i]);
		bottom = larger(bottom, ~field[i]);
	}
	high = largest(top);
	best.base = (uint8_t)high;
	if (high == (uint8_t)~largest(bottom)) {
		best.width = 0;
		return best;
	}
	for (unsigned below = 0; below <= PLANES_BELOW && below <= high; below += 2)
		try_base(field, f, high - below, &best, &cost);
	return best;
}

/* ---- a block ---- */

static inline uint8_t *put_word(uint8_t *p, uint32_t w)
{
	memcpy(p, &w, sizeof(w));
	return p + sizeof(w);
}

static inline uint8_t *put_escapes(uint8_t *p, bytes field, uint32_t which)
{
	uint8_t b[32];

	store(b, field);
	for (; which; which &= which - 1)
		*p++ = b[__builtin_ctz(which)];
	return p;
}

/* The planes of the codes, and the fields of those that do not fit. */
struct coded {
	bytes code, escape;
};

static inline struct coded code_of(const struct planes_form *f, const struct planes_code *c,
				   bytes field)
{
	struct coded r = { (all(c->base) - field) & all(f->mask), { 0 } };

	if (c->escapes) {
		r.escape = (bytes)(r.code >= all((1 << c->width) - 1));
		r.code |= r.escape;
	}
	return r;
}

static inline uint8_t *put_planes(uint8_t *p, bytes v, int n)
{
	for (int bit = 0; bit < n; bit++)
		p = put_word(p, plane_of(v, bit));
	return p;
}

/* How many bits of the mantissas of a block are not all zero, from the highest. */
static inline uint8_t kept_of(const uint8_t *src)
{
	words any = { 0 };
	uint32_t bits = 0;

	for (int i = 0; i < 4 * STEPS; i++)
		any |= (words)load(src + 32 * i);
	for (int k = 0; k < 8; k++)
		bits |= any[k];
	bits &= (1u << PLANES_MANTISSA) - 1;
	return bits ? (uint8_t)(PLANES_MANTISSA - (unsigned)__builtin_ctz(bits)) : 0;
}

static size_t encode_wide(const struct planes_form *f, const uint8_t *src, uint8_t *dst,
			  struct planes_code *ret)
{
	uint8_t kept = kept_of(src), *p = dst;
	int whole = (kept + 1) / 8, rest = (kept + 1) % 8;
	bytes field[STEPS], part[STEPS][4];
	struct planes_code c;

	for (int i = 0; i < STEPS; i++) {
		take_words(src + 128 * i, kept, part[i]);
		field[i] = part[i][3];
	}
	c = choose(field, f);
	c.kept = kept;
	for (int i = 0; i < STEPS; i++) {
		struct coded k = code_of(f, &c, field[i]);

		p = put_planes(p, k.code, c.width);
		p = put_planes(p, part[i][whole], rest);
		if (c.escapes)
			p = put_escapes(p, field[i], plane_of(k.escape, 7));
		for (int b = 0; b < whole; b++, p += 32)
			store(p, part[i][b]);
	}
	*ret = c;
	return (size_t)(p - dst);
}

static size_t encode_block(const struct planes_form *f, const uint8_t *src, uint8_t *dst,
			   struct planes_code *ret)
{
	struct split s;
	bytes field[STEPS];
	struct planes_code c;
	uint8_t *p = dst;

	if (f->size == 4)
		return encode_wide(f, src, dst, ret);
	take_all(f, src, &s);
	for (int i = 0; i < STEPS; i++)
		field[i] = s.high[i] >> f->shift & all(f->mask);
	c = choose(field, f);
	for (int i = 0; i < STEPS; i++) {
		struct coded k = code_of(f, &c, field[i]);

		p = put_planes(p, k.code, c.width);
		for (int n = 0; n < f->n_plain; n++)
			p = put_word(p, plane_of(s.high[i], f->plain[n]));
		if (c.escapes)
			p = put_escapes(p, field[i], plane_of(k.escape, 7));
		if (f->size == 2) {
			store(p, s.low[i]);
			p += 32;
		}
	}
	*ret = c;
	return (size_t)(p - dst);
}

static inline uint32_t get_word(const uint8_t *p)
{
	uint32_t w;

	memcpy(&w, p, sizeof(w));
	return w;
}

/*
 * The bytes at p become those of field where the code is all ones, in order. Returns how many they are;
 * more than left: nothing was taken. 32 bytes are read.
 */
#ifdef __AVX2__
static inline unsigned get_escapes(const uint8_t *p, unsigned left, bytes *field, bytes escape)
{
	const __m256i carry = _mm256_broadcastsi128_si256(
		_mm_set_epi8(7, 7, 7, 7, 7, 7, 7, 7, -1, -1, -1, -1, -1, -1, -1, -1));
	uint32_t which = (uint32_t)_mm256_movemask_epi8((__m256i)escape);
	unsigned n = (unsigned)__builtin_popcount(which);
	__m256i rank = (__m256i)((bytes){ 0 } - escape), from;

	if (n > left)
		return n;
	/* Of each byte, how many in its half of the vector are escapes up to itself. */
	rank = _mm256_add_epi8(rank, _mm256_slli_epi64(rank, 8));
	rank = _mm256_add_epi8(rank, _mm256_slli_epi64(rank, 16));
	rank = _mm256_add_epi8(rank, _mm256_slli_epi64(rank, 32));
	rank = _mm256_add_epi8(rank, _mm256_shuffle_epi8(rank, carry));
	from = _mm256_loadu2_m128i((const __m128i *)(p + __builtin_popcount(which & UINT16_MAX)),
				   (const __m128i *)p);
	from = _mm256_shuffle_epi8(from, (__m256i)((bytes)rank - all(1)));
	*field = (*field & ~escape) | ((bytes)from & escape);
	return n;
}
#else
static inline unsigned get_escapes(const uint8_t *p, unsigned left, bytes *field, bytes escape)
{
	uint32_t which = plane_of(escape, 7);
	unsigned n = 0;
	uint8_t b[32];

	store(b, *field);
	for (; which && n < left; which &= which - 1)
		b[__builtin_ctz(which)] = p[n++];
	*field = load(b);
	return which ? left + 1 : n;
}
#endif

/* What decode_block() does. Shape and width are arguments of their own so that those of one kind can be
 * constants. */
static inline __attribute__((always_inline)) bool
decode_steps(const struct planes_form *f, const struct planes_code *c, unsigned size, bool rotate,
	     unsigned shift, unsigned n_plain, unsigned width, const uint8_t *p, uint8_t *dst)
{
	const bytes base = all(c->base), mask = all(f->mask), ones = all((1 << width) - 1);
	unsigned left = c->escapes;

	for (int i = 0; i < STEPS; i++) {
		bytes code = { 0 }, high = { 0 }, field;

		for (unsigned bit = 0; bit < width; bit++, p += 4)
			code |= spread(get_word(p)) & all(1 << bit);
		field = base - code;
		for (unsigned k = 0; k < n_plain; k++, p += 4)
			high |= spread(get_word(p)) & all(1 << f->plain[k]);
		if (c->escapes) {
			unsigned n = get_escapes(p, left, &field, (bytes)(code == ones));

			if (n > left)
				return false;
			left -= n;
			p += n;
		}
		high |= (field & mask) << shift;
		if (size == 2) {
			give_pairs(dst + 64 * i, rotate, high, load(p));
			p += 32;
		} else {
			store(dst + 32 * i, high);
		}
	}
	return left == 0;
}

static inline __attribute__((always_inline)) bool decode_wide(const struct planes_code *c,
							      unsigned width, unsigned whole,
							      unsigned rest, const uint8_t *p,
							      uint8_t *dst)
{
	const bytes base = all(c->base), ones = all((1 << width) - 1);
	unsigned left = c->escapes;

	for (int i = 0; i < STEPS; i++) {
		bytes code = { 0 }, part[4] = { { 0 } };

		for (unsigned bit = 0; bit < width; bit++, p += 4)
			code |= spread(get_word(p)) & all(1 << bit);
		part[3] = base - code;
		for (unsigned bit = 0; bit < rest; bit++, p += 4)
			part[whole] |= spread(get_word(p)) & all(1 << bit);
		if (c->escapes) {
			unsigned n = get_escapes(p, left, &part[3], (bytes)(code == ones));

			if (n > left)
				return false;
			left -= n;
			p += n;
		}
		for (unsigned b = 0; b < whole; b++, p += 32)
			part[b] = load(p);
		give_words(dst + 128 * i, c->kept, part);
	}
	return left == 0;
}

/* Those that are common: bf16, fp16 and f32 in 4 bytes, in three bit planes. */
static bool decode_words(const struct planes_code *c, const uint8_t *src, uint8_t *dst)
{
	unsigned whole = (c->kept + 1u) / 8, rest = (c->kept + 1u) % 8;

	if (c->width == 3 && c->kept == 7)
		return decode_wide(c, 3, 1, 0, src, dst);
	if (c->width == 3 && c->kept == 10)
		return decode_wide(c, 3, 1, 3, src, dst);
	if (c->width == 3 && c->kept == 23)
		return decode_wide(c, 3, 3, 0, src, dst);
	return decode_wide(c, c->width, whole, rest, src, dst);
}

static bool decode_block(const struct planes_form *f, const struct planes_code *c,
			 const uint8_t *src, uint8_t *dst)
{
	if (f->size == 4)
		return decode_words(c, src, dst);
	if (f->rotate)
		switch (c->width) { /* bf16: those that are common */
		case 2:
			return decode_steps(f, c, 2, true, 0, 0, 2, src, dst);
		case 3:
			return decode_steps(f, c, 2, true, 0, 0, 3, src, dst);
		case 4:
			return decode_steps(f, c, 2, true, 0, 0, 4, src, dst);
		default:
			return decode_steps(f, c, 2, true, 0, 0, c->width, src, dst);
		}
	return decode_steps(f, c, f->size, false, f->shift, f->n_plain, c->width, src, dst);
}

/* ---- bytes apart and together, for codec_dense.c ---- */

static void split_pairs(const uint8_t *src, size_t n, bool rotate, uint8_t *high, uint8_t *low)
{
	size_t i = 0;

	for (; i + 32 <= n; i += 32) {
		bytes h, l;

		take_pairs(src + 2 * i, rotate, &h, &l);
		store(high + i, h);
		store(low + i, l);
	}
	for (; i < n; i++) {
		unsigned v = src[2 * i] | (unsigned)src[2 * i + 1] << 8;

		v = rotate ? v << 1 | v >> 15 : v;
		high[i] = (uint8_t)(v >> 8);
		low[i] = (uint8_t)v;
	}
}

static void join_pairs(const uint8_t *high, const uint8_t *low, size_t n, bool rotate, uint8_t *dst)
{
	size_t i = 0;

	for (; i + 32 <= n; i += 32)
		give_pairs(dst + 2 * i, rotate, load(high + i), load(low + i));
	for (; i < n; i++) {
		unsigned v = low[i] | (unsigned)high[i] << 8;

		v = rotate ? v >> 1 | v << 15 : v;
		dst[2 * i] = (uint8_t)v;
		dst[2 * i + 1] = (uint8_t)(v >> 8);
	}
}
