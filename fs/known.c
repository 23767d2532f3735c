/* SPDX-License-Identifier: Apache-2.0 */
/*
 * known: hash tables with linear probing. Taking one out moves the ones behind it up, so that no
 * probe has to pass over graves.
 */
#include "fs/known.h"

#include <errno.h>
#include <stdlib.h>

#define LEAST 16u /* slots */

/* Inode numbers are given one after the other: the top bits of the product spread them (Knuth, The Art
 * of Computer Programming, vol. 3, 6.4: multiplicative hashing by the golden ratio). */
static uint64_t mix(uint64_t ino)
{
	return ino * 0x9e3779b97f4a7c15ull;
}

static struct known_shard *shard_of(struct known *k, uint64_t ino)
{
	return &k->shard[mix(ino) >> 56];
}

static size_t home(const struct known_shard *s, uint64_t ino)
{
	return (mix(ino) >> 24) & (s->size - 1);
}

/* Where it is, or where it would go. */
static size_t probe(const struct known_shard *s, uint64_t ino)
{
	size_t at = home(s, ino);

	while (s->slot[at].ino && s->slot[at].ino != ino)
		at = (at + 1) & (s->size - 1);
	return at;
}

static int grow(struct known_shard *s)
{
	struct known_shard to = { .size = s->size ? s->size * 2 : LEAST, .n = s->n };

	to.slot = calloc(to.size, sizeof(*to.slot));
	if (!to.slot)
		return -ENOMEM;
	for (size_t i = 0; i < s->size; i++)
		if (s->slot[i].ino)
			to.slot[probe(&to, s->slot[i].ino)] = s->slot[i];
	free(s->slot);
	*s = to;
	return 0;
}

int known_add(struct known *k, const struct known_file *f)
{
	struct known_shard *s = shard_of(k, f->ino);

	if ((s->n + 1) * 4 > s->size * 3) {
		int r = grow(s);

		if (r)
			return r;
	}
	s->slot[probe(s, f->ino)] = *f;
	s->n++;
	return 0;
}

static struct known_file *find(struct known *k, uint64_t ino)
{
	struct known_shard *s = shard_of(k, ino);
	size_t at;

	if (!s->n)
		return NULL;
	at = probe(s, ino);
	return s->slot[at].ino ? &s->slot[at] : NULL;
}

bool known_find(struct known *k, uint64_t ino, struct known_file *ret)
{
	const struct known_file *f = find(k, ino);

	if (f)
		*ret = *f;
	return f;
}

static void take_out(struct known_shard *s, size_t at)
{
	size_t mask = s->size - 1;

	for (size_t i = (at + 1) & mask; s->slot[i].ino; i = (i + 1) & mask) {
		/* The way from its home must not lead over the gap. */
		if (((i - home(s, s->slot[i].ino)) & mask) < ((i - at) & mask))
			continue;
		s->slot[at] = s->slot[i];
		at = i;
	}
	s->slot[at] = (struct known_file){ 0 };
	s->n--;
}

bool known_take(struct known *k, uint64_t ino, struct known_file *ret)
{
	struct known_shard *s = shard_of(k, ino);
	struct known_file *f = find(k, ino);

	if (!f)
		return false;
	*ret = *f;
	take_out(s, (size_t)(f - s->slot));
	return true;
}

void known_forget(struct known *k, uint64_t ino, uint64_t n)
{
	struct known_shard *s = shard_of(k, ino);
	struct known_file *f = find(k, ino);

	if (!f)
		return;
	if (f->nlookup > n)
		f->nlookup -= (uint32_t)n;
	else
		take_out(s, (size_t)(f - s->slot));
}

void known_free(struct known *k)
{
	for (size_t i = 0; i < KNOWN_SHARDS; i++)
		free(k->shard[i].slot);
	*k = (struct known){ 0 };
}
