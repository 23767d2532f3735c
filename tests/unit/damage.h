/* SPDX-License-Identifier: Apache-2.0 */
/* damage: an encoded chunk with some bytes, its parameters or its lengths changed, for the sanitizers. */
#ifndef UNIT_DAMAGE_H
#define UNIT_DAMAGE_H

#include "store/codec.h"
#include "tests/unit/random.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* True if it was refused; false also if the codec has no use for src. dst: len bytes. */
static inline bool damaged_is_refused(const struct codec *c, const uint8_t *src, size_t len,
				      uint8_t *dst)
{
	uint8_t params[CODEC_PARAMS] = { 0 }, *encoded, *back;
	size_t raw = len, n;
	ssize_t got;
	bool refused;

	if (c->estimate(src, len, dst, params) == SIZE_MAX)
		return false;
	got = c->encode(src, len, dst, len, params);
	if (got <= 0)
		return false;
	n = (size_t)got;
	encoded = malloc(n);
	memcpy(encoded, dst, n);
	for (unsigned k = draw(4); k; k--)
		encoded[draw(draw(2) ? 60 : (uint32_t)n)] = (uint8_t)draw(256);
	if (draw(4) == 0)
		params[draw(3)] = (uint8_t)draw(256);
	if (draw(4) == 0)
		raw = 1 + draw(80000);
	back = malloc(raw);
	refused = c->decode(encoded, draw(4) ? n : draw((uint32_t)n), back, raw, params) != 0;
	free(back);
	free(encoded);
	return refused;
}

#endif
