/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codecs: what each choice of codecs makes of elements of each kind, in chunks of 64 KiB on one core.
 *
 *	codecs KIND|FILE CHOICE    prints "RATIO ENCODE DECODE", the last two in raw bytes/s
 *
 * KIND: bf16, bf16-channels (one channel in 16 ten times as large), fp16, e4m3, e5m2, f32, bf16-in-f32, fp16-in-f32,
 * q8_0, q4_0 (blocks of 32 as llama.cpp has them), q8_0-channels, q4_0-channels, noise. All are generated from a normal distribution, but
 * for noise; 16 MiB of each. A FILE is taken as it is, whole chunks of it.
 */
#include "store/codec.h"
#include "tests/bench/worker.h"

#include <math.h>

#define SAMPLE (16 * MIB)
#define CHUNK  65536u
#define CHUNKS (SAMPLE / CHUNK)

struct encoded {
	const struct codec *codec;
	size_t len;
	uint8_t params[CODEC_PARAMS];
};

static uint64_t seed = 1;

static uint32_t draw(void)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 32);
}

static float normal(void)
{
	double u = (draw() + 1.0) / 4294967297.0, v = draw() / 4294967296.0;

	return (float)(sqrt(-2 * log(u)) * cos(2 * M_PI * v));
}

/* The nearest value with so many bits of exponent and mantissa, rounded to even. */
static uint32_t narrow(float x, int exponent_bits, int mantissa_bits)
{
	int bias = (1 << (exponent_bits - 1)) - 1, e;
	double m = frexp(fabs((double)x), &e), scaled;
	uint32_t sign = signbit(x) ? 1u << (exponent_bits + mantissa_bits) : 0;

	e = e - 1 + bias;
	if (m == 0)
		return sign;
	scaled = e > 0 ? ldexp(m, mantissa_bits + 1) : ldexp(m, mantissa_bits + e);
	if (e <= 0)
		return sign | (uint32_t)lrint(scaled);
	return sign |
	       (((uint32_t)e << mantissa_bits) + (uint32_t)lrint(scaled) - (1u << mantissa_bits));
}

static void put(uint8_t *p, size_t at, uint32_t v, size_t size)
{
	memcpy(p + at, &v, size);
}

static uint8_t nibble(float x)
{
	return (uint8_t)fminf(x + 8.5f, 15);
}

/* A scale of fp16 and 32 quants of so many bits. */
static size_t put_block(uint8_t *p, int bits, bool channels)
{
	float x[32], most = 0, scale;

	for (int i = 0; i < 32; i++) {
		x[i] = normal() * (channels && i % 16 == 5 ? 10 : 1);
		most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
	}
	scale = bits == 8 ? fabsf(most) / 127 : most / -8;
	put(p, 0, narrow(scale, 5, 10), 2);
	for (int i = 0; i < 32 && bits == 8; i++)
		p[2 + i] = (uint8_t)(int8_t)lrintf(x[i] / scale);
	for (int i = 0; i < 16 && bits == 4; i++)
		p[2 + i] = (uint8_t)(nibble(x[i] / scale) | nibble(x[i + 16] / scale) << 4);
	return bits == 8 ? 34 : 18;
}

static bool generate(const char *kind, uint8_t *p)
{
	static const struct {
		const char *kind;
		int size, exponent, mantissa, shift;
	} floats[] = { { "bf16", 2, 8, 7, 0 },         { "bf16-channels", 2, 8, 7, 0 },
		       { "fp16", 2, 5, 10, 0 },        { "e4m3", 1, 4, 3, 0 },
		       { "e5m2", 1, 5, 2, 0 },         { "f32", 4, 8, 23, 0 },
		       { "bf16-in-f32", 4, 8, 7, 16 }, { "fp16-in-f32", 4, 8, 10, 13 } };
	bool channels = strstr(kind, "-channels");
	size_t at = 0;

	for (size_t k = 0; k < sizeof(floats) / sizeof(floats[0]); k++) {
		if (strcmp(kind, floats[k].kind))
			continue;
		for (size_t i = 0; at < SAMPLE; i++, at += (size_t)floats[k].size)
			put(p, at,
			    narrow(normal() * (channels && i % 16 == 5 ? 10 : 1),
				   floats[k].exponent, floats[k].mantissa)
				    << floats[k].shift,
			    (size_t)floats[k].size);
		return true;
	}
	if (!strncmp(kind, "q8_0", 4) || !strncmp(kind, "q4_0", 4)) {
		while (at + 34 <= SAMPLE)
			at += put_block(p + at, kind[1] - '0', channels);
		return true;
	}
	for (; at < SAMPLE; at += 4)
		put(p, at, draw(), 4);
	return !strcmp(kind, "noise");
}

/* Chunks of the file, again and again. */
static void take_file(const char *path, uint8_t *p)
{
	int fd = open_or_die(path, O_RDONLY);
	ssize_t n = read(fd, p, SAMPLE);
	size_t whole;

	if (n < 0)
		die("read %s", path);
	whole = (size_t)n / CHUNK * CHUNK;
	if (!whole) {
		fprintf(stderr, "%s: shorter than a chunk\n", path);
		exit(1);
	}
	for (size_t at = whole; at < SAMPLE; at += CHUNK)
		memcpy(p + at, p + at % whole, CHUNK);
	close_or_die(fd, path);
}

static double encode_all(const struct codec_set *set, const uint8_t *src, uint8_t *out,
			 struct encoded *e)
{
	double begin = now();

	for (size_t i = 0; i < CHUNKS; i++)
		e[i].codec = codec_encode(set, src + i * CHUNK, CHUNK, out + i * CHUNK, &e[i].len,
					  e[i].params);
	return now() - begin;
}

static double decode_all(const uint8_t *src, const uint8_t *form, uint8_t *back,
			 const struct encoded *e)
{
	double begin = now();

	for (size_t i = 0; i < CHUNKS; i++) {
		const uint8_t *in = (e[i].codec->id == CODEC_RAW ? src : form) + i * CHUNK;

		if (e[i].codec->decode(in, e[i].len, back + i * CHUNK, CHUNK, e[i].params)) {
			fputs("codecs: not what was encoded\n", stderr);
			exit(1);
		}
	}
	return now() - begin;
}

int main(int argc, char **argv)
{
	uint8_t *src = buffer_new(SAMPLE), *form = buffer_new(SAMPLE), *back = buffer_new(SAMPLE);
	struct encoded *e = buffer_new(CHUNKS * sizeof(*e));
	double encode = 1e9, decode = 1e9;
	enum codec_choice choice;
	struct codec_set set;
	size_t stored = 0;

	if (argc != 3 || codec_choice_parse(argv[2], &choice))
		return fputs("usage: see the top of codecs.c\n", stderr), 2;
	set = codec_set(choice, 0, 1);
	if (!generate(argv[1], src))
		take_file(argv[1], src);
	for (int round = 0; round < 5; round++) {
		encode = fmin(encode, encode_all(&set, src, form, e));
		decode = fmin(decode, decode_all(src, form, back, e));
	}
	if (memcmp(src, back, SAMPLE)) {
		fputs("codecs: not what was encoded\n", stderr);
		return 1;
	}
	for (size_t i = 0; i < CHUNKS; i++)
		stored += e[i].len;
	printf("%.4f %.0f %.0f\n", (double)SAMPLE / (double)stored, SAMPLE / encode,
	       SAMPLE / decode);
	return 0;
}
