/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan: how fast one core finds the chunks of a file and hashes them, which bounds a settle of content
 * that is there already.
 *
 *	scan cut|hash|both    raw bytes: noise of 16 MiB in windows of 2 MiB, as of a file of 64 MiB
 */
#include "store/chunker.h"
#include "store/hash.h"
#include "tests/bench/data.h"
#include "tests/bench/worker.h"

#define SAMPLE (16 * MIB)
#define WINDOW (2 * MIB)
#define LARGE  (64ull * MIB)

static uint64_t used; /* so that nothing measured is left out as unused */

static void pass(const struct chunker *c, const char *window, bool cut, bool hash)
{
	size_t at = 0, len;

	for (; at < WINDOW; at += len) {
		len = WINDOW - at < c->average ? WINDOW - at : c->average;
		if (cut)
			len = chunker_next(c, window + at, WINDOW - at, true);
		if (hash)
			used += hash128(window + at, len).lo;
		used += len;
	}
}

int main(int argc, char **argv)
{
	struct chunker c = chunker_for(LARGE);
	bool cut = argc == 2 && strcmp(argv[1], "hash"), hash = argc == 2 && strcmp(argv[1], "cut");
	char *noise = malloc(SAMPLE);
	double begin, seconds;
	uint64_t bytes = 0;
	struct data *d;

	if (argc != 2 || (cut && hash && strcmp(argv[1], "both")))
		return fputs("usage: see the top of scan.c\n", stderr), 2;
	if (!noise)
		die("malloc");
	d = data_new("random", 1);
	for (size_t b = 0; b < SAMPLE / DATA_BLOCK; b++)
		data_block(d, 0, b, noise + b * DATA_BLOCK);
	begin = now();
	do {
		for (size_t at = 0; at < SAMPLE; at += WINDOW)
			pass(&c, noise + at, cut, hash);
		bytes += SAMPLE;
		seconds = now() - begin;
	} while (seconds < TIMED_S);
	if (used < bytes)
		return 1;
	report((double)bytes, seconds);
	return 0;
}
