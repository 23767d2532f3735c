/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunker: where content-defined chunks end.
 *
 * A gear hash over 4-byte little-endian words: h = (h << 1) + word * K, so h is a function of the
 * last 64 words. A cut comes after a word, at least min bytes into the chunk, when the top bits of h
 * that the mask selects are all ones; at max at the latest. Masks nest: the bits of a smaller
 * average are among those of a larger one, so a place that may be a cut at a large average may be
 * one at every smaller average too. Zeros never make a cut: a long run of them is chunks of max
 * bytes, all the same.
 */
#ifndef STORE_CHUNKER_H
#define STORE_CHUNKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHUNK_MIN_AVERAGE 1024u
#define CHUNK_MAX_AVERAGE 32768u
#define CHUNK_MAX         262144u /* no chunk is longer; an earlier kvfs made such */

struct chunker {
	uint32_t min, average, max; /* bytes, multiples of 4; average a power of two */
	uint64_t mask;              /* the top bits */
};

/*
 * The sizes for a file of so many bytes. The average is 1 KiB below 1 MiB, 8 KiB below 4 MiB, else
 * 32 KiB; min = average / 2, max = average * 4. Few and wide steps, and none where layers of real models
 * lie, as a session that outgrows one shares nothing with what it was before. In each slab about two
 * averages of a shared prefix are lost, and a slab is between a 160th of a file (all layers of a large
 * model) and half of one (one layer).
 */
struct chunker chunker_for(uint64_t file_size);

/*
 * Length of the chunk that starts at data, of which len bytes are at hand. last: the data ends
 * there for good, so a shorter chunk is final. Without last, 0 means more bytes are needed; never 0
 * when len >= max. A pure function of the bytes: the place in the file does not matter.
 */
size_t chunker_next(const struct chunker *c, const void *data, size_t len, bool last);

#endif
