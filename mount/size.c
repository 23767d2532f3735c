/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes and numbers as people write them. Exact: no floating point, no silent wrap, nothing
 * accepted that is not understood to the last character.
 */
#include "mount/mount.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char units[] = "KMGTPE";

/* A decimal number: whole part and a fraction of num/den, den a power of ten. */
struct decimal {
	uint64_t whole;
	uint64_t num, den;
};

/* More digits than these cannot change a size by a byte, so they are read and dropped. */
#define FRACTION_MAX UINT64_C(1000000000000000000)

static int decimal_parse(const char **text, struct decimal *ret)
{
	const char *p = *text;
	struct decimal d = { .den = 1 };

	if (!isdigit((unsigned char)*p))
		return -EINVAL;
	for (; isdigit((unsigned char)*p); p++) {
		if (__builtin_mul_overflow(d.whole, UINT64_C(10), &d.whole) ||
		    __builtin_add_overflow(d.whole, (uint64_t)(*p - '0'), &d.whole))
			return -ERANGE;
	}
	if (*p == '.') {
		if (!isdigit((unsigned char)p[1]))
			return -EINVAL;
		for (p++; isdigit((unsigned char)*p); p++) {
			if (d.den >= FRACTION_MAX)
				continue;
			d.num = d.num * 10 + (uint64_t)(*p - '0');
			d.den *= 10;
		}
	}
	*text = p;
	*ret = d;
	return 0;
}

/* d * by / div, rounded down. */
static int decimal_scale(const struct decimal *d, uint64_t by, uint64_t div, uint64_t *ret)
{
	unsigned __int128 value = (unsigned __int128)d->whole * by;

	value += (unsigned __int128)d->num * by / d->den;
	value /= div;
	if (value > UINT64_MAX)
		return -ERANGE;
	*ret = (uint64_t)value;
	return 0;
}

int size_parse(const char *text, uint64_t whole, uint64_t *ret)
{
	struct decimal d;
	const char *unit;
	uint64_t by = 1;
	int r = decimal_parse(&text, &d);

	if (r < 0)
		return r;
	if (*text == '%') {
		if (text[1] != '\0' || whole == 0)
			return -EINVAL;
		if (d.whole > 100 || (d.whole == 100 && d.num > 0))
			return -ERANGE;
		return decimal_scale(&d, whole, 100, ret);
	}
	unit = *text ? strchr(units, toupper((unsigned char)*text)) : NULL;
	if (unit) {
		by = UINT64_C(1) << (10 * (unit - units + 1));
		text++;
		if (*text == 'i')
			text++;
	}
	if (*text == 'B')
		text++;
	/* Half a byte is a mistake, not a size. */
	if (*text != '\0' || (!unit && d.den > 1))
		return -EINVAL;
	return decimal_scale(&d, by, 1, ret);
}

const char *size_format(uint64_t bytes, char buf[static SIZE_TEXT])
{
	unsigned shift = 0;
	uint64_t tenths;

	if (bytes < 1000) {
		snprintf(buf, SIZE_TEXT, "%u", (unsigned)bytes);
		return buf;
	}
	/* Never four digits: 1000K is 1.0M. */
	do {
		shift += 10;
		tenths = (uint64_t)(((unsigned __int128)bytes * 10 + (UINT64_C(1) << shift) / 2) >>
				    shift);
	} while (tenths >= 9995 && units[shift / 10]);
	if (tenths < 100)
		snprintf(buf, SIZE_TEXT, "%u.%u%c", (unsigned)(tenths / 10),
			 (unsigned)(tenths % 10), units[shift / 10 - 1]);
	else
		snprintf(buf, SIZE_TEXT, "%u%c", (unsigned)((tenths + 5) / 10),
			 units[shift / 10 - 1]);
	return buf;
}

int number_parse(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
	struct decimal d;
	int r = decimal_parse(&text, &d);

	if (r < 0)
		return r;
	if (*text != '\0' || d.den > 1)
		return -EINVAL;
	if (d.whole < min || d.whole > max)
		return -ERANGE;
	*ret = d.whole;
	return 0;
}
