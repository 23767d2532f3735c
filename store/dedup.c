/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedup: content that the store has already. The hash finds candidates, the bytes decide. A
 * candidate that cannot be read is none: the content is stored again, which heals it.
 *
 * The first candidates of all cuts are read together, in the order of the store: content that comes
 * again tends to come in the same order, and chunks of small files are about 1 KiB, which one at a
 * time settled 17 MB/s.
 */
#include "store/chunker.h"
#include "store/store_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct search {
	struct store *s;
	const char *data; /* of the cuts */
	char *encoded;    /* CHUNK_MAX bytes */
	char *raw;        /* CHUNK_MAX bytes to decode to */
};

static bool equal(const struct chunk *c, const void *payload, const char *data, char *raw)
{
	const struct record_info *info = &c->info;
	const struct codec *codec = codec_by_id(info->codec);

	if (!codec || (info->codec == CODEC_RAW && info->stored_len != info->raw_len))
		return false;
	if (info->codec != CODEC_RAW) {
		if (codec->decode(payload, info->stored_len, raw, info->raw_len, info->params))
			return false;
		payload = raw;
	}
	return !memcmp(payload, data, info->raw_len);
}

/* One candidate, now. encoded and raw: CHUNK_MAX bytes each. */
static bool is_same(struct store *s, struct chunk *c, const char *data, char *encoded, char *raw)
{
	struct segment_loc loc;
	int r = 0;

	if (!warm_get(s->chunks, c, encoded))
		do {
			loc = chunk_loc(c);
			r = segset_read(s->segs, loc, &c->info, encoded);
		} while (r && !chunk_is_at(c, loc));
	return !r && equal(c, encoded, data, raw);
}

static int on_candidate(void *arg, const struct segset_read_req *req, const void *payload, int err)
{
	const struct search *q = arg;
	struct cut *cut = req->user;
	const char *data = q->data + cut->at;

	if (err && !chunk_is_at(cut->chunk, req->loc)) /* compaction has moved it */
		cut->same = is_same(q->s, cut->chunk, data, q->encoded, q->raw);
	else
		cut->same = !err && equal(cut->chunk, payload, data, q->raw);
	return 0;
}

static const char *const scopes[DEDUP_SCOPES] = { "owner", "store", "none" };

const char *dedup_scope_name(enum dedup_scope scope)
{
	return scopes[scope];
}

int dedup_scope_parse(const char *name, enum dedup_scope *ret)
{
	for (unsigned i = 0; i < DEDUP_SCOPES; i++)
		if (!strcmp(name, scopes[i])) {
			*ret = (enum dedup_scope)i;
			return 0;
		}
	return -EINVAL;
}

uint32_t dedup_tenant(struct object *o)
{
	uint32_t tenant;

	pthread_mutex_lock(&o->mu);
	tenant = o->store->opt.dedup == DEDUP_STORE ? TENANT_ALL : o->tenant;
	pthread_mutex_unlock(&o->mu);
	return tenant;
}

/* The next one after last, whose reference it takes over. */
static struct chunk *candidate(struct store *s, uint32_t tenant, const struct cut *cut,
			       struct chunk *last)
{
	if (s->opt.dedup == DEDUP_NONE)
		return NULL;
	return chunk_find(s->chunks, tenant, cut->hash, cut->len, last);
}

void dedup_first(struct store *s, uint32_t tenant, struct cut *cut, size_t n, const char *data,
		 char *scratch)
{
	struct search q = { s, data, scratch, scratch + CHUNK_MAX };
	struct segset_read_req *req = calloc(n + 1, sizeof(*req));
	size_t reqs = 0;

	for (size_t i = 0; i < n; i++) {
		struct chunk *c = candidate(s, tenant, &cut[i], NULL);

		cut[i].chunk = c;
		cut[i].same = false;
		if (!c)
			continue;
		if (req && !c->warm) /* a hint; is_same looks under the lock */
			req[reqs++] = (struct segset_read_req){ chunk_loc(c), &c->info, &cut[i] };
		else
			cut[i].same = is_same(s, c, data + cut[i].at, scratch, q.raw);
	}
	if (reqs) {
		qsort(req, reqs, sizeof(*req), segset_by_location);
		/* What it cannot read is not the same. */
		(void)segset_read_many(s->segs, req, reqs, on_candidate, &q);
	}
	free(req);
}

struct chunk *dedup_next(struct store *s, uint32_t tenant, const struct cut *cut, const char *data,
			 char *scratch)
{
	struct chunk *c = cut->chunk;

	if (cut->same)
		return c;
	while ((c = candidate(s, tenant, cut, c)))
		if (is_same(s, c, data + cut->at, scratch, scratch + CHUNK_MAX))
			return c;
	return NULL;
}
