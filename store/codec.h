/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec: how the bytes of one chunk are encoded in its record.
 *
 * A codec is a small table of functions and an id that is written to disk and never reused.
 */
#ifndef STORE_CODEC_H
#define STORE_CODEC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "store/store.h"

#define CODEC_PARAMS 4 /* parameter bytes kept in the record */

enum codec_id {
	CODEC_RAW = 0,
	CODEC_LZ4 = 1,
	CODEC_PLANES = 2,
	CODEC_DENSE = 3,
	CODEC_QUANTS = 4,
};

struct codec {
	uint8_t id;
	const char *name;
	/* Largest encoded length of len raw bytes. */
	size_t (*bound)(size_t len);
	/* About how long the encoded form will be, by a sample; SIZE_MAX: this is nothing for the
	 * codec. Fills params. scratch has len bytes. NULL for raw, which is what is left. */
	size_t (*estimate)(const void *src, size_t len, void *scratch,
			   uint8_t params[CODEC_PARAMS]);
	/* Encoded length, 0 when it would exceed cap, or negative errno. params are those of an
	 * estimate. */
	ssize_t (*encode)(const void *src, size_t len, void *dst, size_t cap,
			  const uint8_t params[CODEC_PARAMS]);
	/* Decodes exactly raw_len bytes from exactly len; -EBADMSG for anything else. Never reads or
	 * writes outside of the two buffers whatever the input. */
	int (*decode)(const void *src, size_t len, void *dst, size_t raw_len,
		      const uint8_t params[CODEC_PARAMS]);
};

extern const struct codec codec_raw, codec_lz4, codec_planes, codec_dense, codec_quants;

/* NULL for an unknown id. */
const struct codec *codec_by_id(uint8_t id);

#define CODEC_CANDIDATES 4

/* The codecs that may be tried, up to the first NULL; raw always. */
struct codec_set {
	const struct codec *v[CODEC_CANDIDATES];
};

/* Of a choice. With CODEC_CHOICE_AUTO those that so many threads decode faster than a device reads that
 * gives read_rate bytes/s; 0: not known, all of fast. */
struct codec_set codec_set(enum codec_choice choice, uint64_t read_rate, unsigned threads);

/* Raw bytes/s that one core decodes, measured once, in about a millisecond; UINT64_MAX: not known. */
uint64_t codec_decode_rate(const struct codec *c);

/*
 * Encodes with the codec that a sample of the chunk says is best, of those of the set; raw when the gain
 * is below 1/64 of the length, by the sample or on the whole. dst must hold len bytes: the result is never
 * longer. Returns the codec; *ret_len its length. With the raw codec the encoded form is src itself, and
 * what is in dst means nothing.
 */
const struct codec *codec_encode(const struct codec_set *set, const void *src, size_t len,
				 void *dst, size_t *ret_len, uint8_t params[CODEC_PARAMS]);

#endif
