/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz: what the fuzzers share. Each is one LLVMFuzzerTestOneInput(), built by `make fuzzers` with clang and
 * the sanitizers; inputs worth keeping are in tests/fuzz/corpus.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define must(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);    \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* Of exactly that length, so that a read behind it is seen. */
static inline void *copy_of(const uint8_t *data, size_t len)
{
	void *p = malloc(len ? len : 1);

	must(p);
	memcpy(p, data, len);
	return p;
}

/* The same with a NUL. */
static inline char *text_of(const uint8_t *data, size_t len)
{
	char *p = malloc(len + 1);

	must(p);
	memcpy(p, data, len);
	p[len] = '\0';
	return p;
}

#endif
