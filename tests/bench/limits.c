/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits: what one machine's cores can do at best, without files, devices or kernel.
 *
 *	limits memcpy              copies of 1 MiB pieces of a large buffer, one core
 *	limits encode KIND         what settling must do to a byte, one core: copy it to private
 *	                           memory, find the cuts, hash, trial and encode, checksum, copy
 *	                           into the buffer that goes to the device
 *	limits decode KIND THREADS what a restore must do: checksum and decode
 *	limits touch SIZE          touches so much memory once, so that the machine has it
 *
 * KIND as in data.h. These call the store's own chunker, hash and codecs.
 */
#include "store/chunker.h"
#include "store/codec.h"
#include "store/hash.h"
#include "tests/bench/data.h"
#include "tests/bench/team.h"

#include <stdatomic.h>

#define SAMPLE    (256u * MIB)
#define FILE_SIZE (128u * MIB) /* from 16 MiB on all files are cut alike */
#define WINDOW    (8u * MIB)

struct encoded {
	size_t at, len, raw_len;
	const struct codec *codec;
	uint8_t params[CODEC_PARAMS];
	uint64_t sum;
};

static char *sample_new(const char *kind)
{
	struct data *d = data_new(kind, 17);
	char *p = buffer_new(SAMPLE);

	for (uint64_t at = 0; at < SAMPLE; at += DATA_BLOCK)
		data_block(d, 0, at / DATA_BLOCK, p + at);
	free(d);
	return p;
}

/* One chunk: hash, encode, checksum, into out. */
static void encode_chunk(const char *src, char *scratch, char *out, struct encoded *e)
{
	const struct codec_set fast = codec_set(CODEC_CHOICE_FAST, 0, 1);
	static volatile uint64_t sink;
	const char *form;

	sink = hash128(src, e->raw_len).lo;
	(void)sink;
	e->codec = codec_encode(&fast, src, e->raw_len, scratch, &e->len, e->params);
	form = e->codec->id == CODEC_RAW ? src : scratch;
	e->sum = sum64(form, e->len);
	memcpy(out, form, e->len);
}

/* Encodes the window at src; returns how many of its bytes made whole chunks. */
static size_t encode_window(const char *src, size_t len, char *private, char *scratch, char *out,
			    struct encoded *list, size_t *n)
{
	struct chunker c = chunker_for(FILE_SIZE);
	size_t at = 0, out_at = 0, cut;

	memcpy(private, src, len);
	while ((cut = chunker_next(&c, private + at, len - at, false))) {
		struct encoded *e = &list[*n];

		e->at = out_at;
		e->raw_len = cut;
		encode_chunk(private + at, scratch, out + out_at, e);
		out_at += e->len;
		at += cut;
		++*n;
	}
	return at;
}

static void limit_encode(const char *kind)
{
	char *src = sample_new(kind), *private = buffer_new(WINDOW), *out = buffer_new(WINDOW);
	char *scratch = buffer_new(CHUNK_MAX);
	struct encoded *list = buffer_new(WINDOW / CHUNK_MIN_AVERAGE * 4 * sizeof(*list));
	double begin = now(), seconds;
	uint64_t total = 0;
	size_t at = 0;

	do {
		size_t n = 0;

		if (at + WINDOW > SAMPLE)
			at = 0;
		at += encode_window(src + at, WINDOW, private, scratch, out, list, &n);
		for (size_t i = 0; i < n; i++)
			total += list[i].raw_len;
		seconds = now() - begin;
	} while (seconds < TIMED_S);
	report((double)total, seconds);
}

struct decode_job {
	struct team team;
	const char *form;
	const struct encoded *list;
	size_t n;
	atomic_uint_least64_t next, bytes;
	uint64_t chunks; /* to decode in all */
};

static void *decode_some(void *arg)
{
	struct decode_job *j = arg;
	char *out = buffer_new(CHUNK_MAX);
	uint64_t i, bytes = 0;

	team_start(&j->team);
	while ((i = atomic_fetch_add(&j->next, 1)) < j->chunks) {
		const struct encoded *e = &j->list[i % j->n];

		if (sum64(j->form + e->at, e->len) != e->sum ||
		    e->codec->decode(j->form + e->at, e->len, out, e->raw_len, e->params)) {
			fputs("decode: not what was encoded\n", stderr);
			exit(1);
		}
		bytes += e->raw_len;
	}
	atomic_fetch_add(&j->bytes, bytes);
	free(out);
	return NULL;
}

static void limit_decode(const char *kind, unsigned threads)
{
	static struct decode_job j;
	char *src = sample_new(kind), *out = buffer_new(SAMPLE);
	char *private = buffer_new(SAMPLE), *scratch = buffer_new(CHUNK_MAX);
	struct encoded *list = buffer_new(SAMPLE / CHUNK_MIN_AVERAGE * 4 * sizeof(*list));
	double begin, seconds = 0, total = 0;

	encode_window(src, SAMPLE, private, scratch, out, list, &j.n);
	j.form = out;
	j.list = list;
	for (j.chunks = j.n; seconds < TIMED_S; j.chunks *= 2) {
		j.next = j.bytes = 0;
		begin = team_run(&j.team, threads, decode_some, &j);
		seconds = now() - begin;
		total = (double)j.bytes;
	}
	report(total, seconds);
}

static void limit_memcpy(void)
{
	char *src = sample_new("random"), *out = buffer_new(SAMPLE);
	double begin = now(), seconds;
	uint64_t total = 0;

	do {
		for (size_t at = 0; at < SAMPLE; at += MIB)
			memcpy(out + at, src + at, MIB);
		total += SAMPLE;
		seconds = now() - begin;
	} while (seconds < TIMED_S);
	report((double)total, seconds);
}

static void touch(uint64_t size)
{
	double begin = now();

	free(buffer_new(size));
	report((double)size, now() - begin);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "memcpy") && argc == 2)
		limit_memcpy();
	else if (!strcmp(what, "encode") && argc == 3)
		limit_encode(argv[2]);
	else if (!strcmp(what, "decode") && argc == 4)
		limit_decode(argv[2], (unsigned)parse_size(argv[3]));
	else if (!strcmp(what, "touch") && argc == 3)
		touch(parse_size(argv[2]));
	else
		return fputs("usage: see the top of limits.c\n", stderr), 2;
	return 0;
}
