/* SPDX-License-Identifier: Apache-2.0 */
/* codec_huffman: frames without sequences, how long they will be, and what a thread needs for them. */
#define ZSTD_STATIC_LINKING_ONLY /* for the encoder; decoding is the library's stable part */
#include <zstd.h>

#if ZSTD_VERSION_NUMBER < 10501
#error "kvfs needs libzstd 1.5.1 or newer"
#endif

#include "store/codec_huffman.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#define FRAME 16 /* bytes around what is coded, about */

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_key;

static void free_huffman(void *arg)
{
	struct huffman *h = arg;

	ZSTD_freeCCtx(h->c);
	ZSTD_freeDCtx(h->d);
	free(h);
}

static void make_key(void)
{
	have_key = pthread_key_create(&key, free_huffman) == 0;
}

static bool set_up(ZSTD_CCtx *c)
{
	return !ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_blockDelimiters,
						    ZSTD_sf_explicitBlockDelimiters)) &&
	       !ZSTD_isError(
		       ZSTD_CCtx_setParameter(c, ZSTD_c_literalCompressionMode, ZSTD_ps_enable)) &&
	       !ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_windowLog, 17));
}

struct huffman *huffman_of_thread(void)
{
	struct huffman *h;

	pthread_once(&once, make_key);
	h = have_key ? pthread_getspecific(key) : NULL;
	if (h || !have_key)
		return h;
	h = calloc(1, sizeof(*h));
	if (!h)
		return NULL;
	for (unsigned n = 2; n <= HUFFMAN_SAMPLE; n++)
		h->n_log_n[n] = n * log2(n);
	h->c = ZSTD_createCCtx();
	if (h->c && !set_up(h->c)) {
		ZSTD_freeCCtx(h->c);
		h->c = NULL;
	}
	h->d = ZSTD_createDCtx();
	if (h->d && !pthread_setspecific(key, h))
		return h;
	free_huffman(h);
	return NULL;
}

/*
 * Frequencies of so few look more uneven than they are, by (kinds - 1) / (2 ln 2) bits (Miller and Madow), the
 * table has about four bits a kind, and Huffman's code has a bit a byte at least, unless all are equal.
 */
double huffman_estimate(const struct huffman *h, const uint8_t *p, size_t n, double all)
{
	uint32_t count[256] = { 0 };
	double bits = h->n_log_n[n];
	unsigned kinds = 0;

	for (size_t i = 0; i < n; i++)
		count[p[i]]++;
	for (unsigned k = 0; k < 256; k++) {
		bits -= h->n_log_n[count[k]];
		kinds += count[k] > 0;
	}
	bits += (kinds - 1) / (2 * M_LN2);
	if (kinds > 1 && bits < (double)n)
		bits = (double)n;
	return bits / 8 / (double)n * all + kinds / 2.0 + FRAME;
}

bool huffman_put(struct out *o, struct huffman *h, const uint8_t *p, size_t n)
{
	const ZSTD_Sequence literals = { .litLength = (unsigned)n };
	/* The library of 1.5.4 does not look how much room there is, so it gets enough. */
	size_t k = ZSTD_compressSequences(h->c, h->frame, sizeof(h->frame), &literals, 1, p, n);
	uint32_t len = (uint32_t)k;

	_Static_assert(sizeof(h->frame) >= ZSTD_COMPRESSBOUND(HUFFMAN_MOST), "room for any frame");
	return !ZSTD_isError(k) && put(o, &len, sizeof(len)) && put(o, h->frame, k);
}

const uint8_t *huffman_get(struct in *i, struct huffman *h, uint8_t *dst, size_t n)
{
	const uint8_t *length = get(i, sizeof(uint32_t)), *frame;
	uint32_t len;

	if (!length)
		return NULL;
	memcpy(&len, length, sizeof(len));
	frame = get(i, len);
	return frame && ZSTD_decompressDCtx(h->d, dst, n, frame, len) == n ? dst : NULL;
}
