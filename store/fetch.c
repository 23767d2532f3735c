/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch: a range of an object's extents, from warm memory and the device, to memory or to a file.
 *
 * In two steps, so that the device reads one range while another is verified and decoded. On its
 * way to a file a raw chunk is written straight from where the device put it, once verified; what
 * has to be decoded is decoded into scratch memory first. All goes to the file in one write (of up to
 * 1,024 pieces), which lets a tmpfs take whole huge pages without zeroing them.
 */
#include "store/chunker.h"
#include "store/store_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <syslog.h>

_Static_assert(FETCH_MAX + CHUNK_MAX <= SCRATCH_SIZE, "scratch holds a range and a chunk");

/* The wanted part of an extent. */
struct piece {
	uint64_t off; /* in the file */
	uint32_t len, skip;
	struct chunk *chunk;
	const char *at; /* where its bytes are, len of them; NULL while nowhere */
};

struct fetch {
	struct object *o;
	uint64_t off, len;
	struct piece *piece; /* in the order of the file */
	size_t pieces;
	struct segset_read_req *req; /* for what is not warm, in the order of the store */
	size_t reqs;
	struct segset_read *read; /* NULL with no requests */
	bool holds;               /* payloads stay where they are until the end */
	char *buf;                /* for [off, off + len); NULL while nothing needs it */
	char *scratch;            /* buf, if it is ours: CHUNK_MAX bytes more behind the range */
	void *warm;               /* CHUNK_MAX bytes for payloads of the warm tier, likewise */
	void *spare;              /* CHUNK_MAX bytes, made when needed and buf is not ours */
	struct fetch *after;      /* begins with the rest of the chunk that this one ends with */
	char *rest;               /* that rest, at the one that begins with it */
	int err;
};

static void report_damage(struct object *o, const struct piece *p, int err)
{
	struct segment_loc loc = chunk_loc(p->chunk);

	atomic_fetch_add(&o->store->damaged_total, 1);
	store_log(o->store, LOG_ERR,
		  "inode %" PRIu64 ": bytes %" PRIu64 " to %" PRIu64 ": chunk %" PRIu64
		  " in segment %08x at %" PRIu64 " is damaged (%s): reads give EIO",
		  o->ino, p->off, p->off + p->len, p->chunk->info.chunk_id, loc.segment,
		  (uint64_t)loc.offset * RECORD_ALIGN, strerror(-err));
}

/* ---- memory ---- */

/* Where the bytes of the file at off go. NULL when out of memory. */
static char *place_of(struct fetch *f, uint64_t off)
{
	if (!f->buf)
		f->buf = f->scratch = scratch_get(f->o->store);
	return f->buf ? f->buf + (off - f->off) : NULL;
}

/* CHUNK_MAX bytes for what is on its way. NULL when out of memory. */
static void *spare_of(struct fetch *f)
{
	if (f->scratch)
		return f->scratch + FETCH_MAX;
	if (!f->spare)
		f->spare = malloc(CHUNK_MAX);
	return f->spare;
}

/* ---- pieces ---- */

/* raw: the chunk of p, decoded. Hands what p does not want of it on to the fetch that does. */
static void hand_on(struct fetch *f, const struct piece *p, const char *raw)
{
	struct piece *next = f->after ? &f->after->piece[0] : NULL;

	if (!next || p != &f->piece[f->pieces - 1])
		return;
	memcpy(f->after->rest, raw + next->skip, next->len);
	next->at = f->after->rest;
}

/* Decodes one chunk to its place. */
static int decode(struct fetch *f, struct piece *p, const void *payload)
{
	const struct record_info *info = &p->chunk->info;
	const struct codec *codec = codec_by_id(info->codec);
	char *dst = place_of(f, p->off), *raw = dst;
	int r;

	if (!codec)
		return -EBADMSG;
	if (dst && p->len != info->raw_len)
		raw = spare_of(f);
	if (!raw)
		return -ENOMEM;
	r = codec->decode(payload, info->stored_len, raw, info->raw_len, info->params);
	if (!r && raw != dst) {
		memcpy(dst, raw + p->skip, p->len);
		hand_on(f, p, raw);
	}
	p->at = dst;
	return r;
}

/* One chunk's payload, verified. stays: it may be pointed at. */
static int take(struct fetch *f, struct piece *p, const void *payload, bool stays)
{
	const struct record_info *info = &p->chunk->info;
	char *dst;

	if (info->codec != CODEC_RAW)
		return decode(f, p, payload);
	if (info->stored_len != info->raw_len)
		return -EBADMSG;
	p->at = (const char *)payload + p->skip;
	hand_on(f, p, payload);
	if (stays)
		return 0;
	dst = place_of(f, p->off);
	if (!dst)
		return -ENOMEM;
	memcpy(dst, p->at, p->len);
	p->at = dst;
	return 0;
}

static int on_payload(void *arg, const struct segset_read_req *req, const void *payload, int err)
{
	struct fetch *f = arg;
	struct piece *p = req->user;

	/* Compaction has moved it: take_rest() reads it where it is now. */
	if (err && !chunk_is_at(p->chunk, req->loc))
		return 0;
	if (!err)
		err = take(f, p, payload, f->holds);
	if (err == -EBADMSG || err == -EIO) {
		report_damage(f->o, p, err);
		err = -EIO;
	}
	f->err = err;
	return err != 0;
}

/* From the warm tier, if it is there. */
static bool take_warm(struct fetch *f, struct piece *p)
{
	struct chunk_table *t = f->o->store->chunks;
	struct chunk *c = p->chunk;
	void *to;

	if (!c->warm) /* a hint; warm_get looks under the lock */
		return false;
	if (c->info.codec == CODEC_RAW && p->len == c->info.stored_len) {
		to = place_of(f, p->off);
		if (to && warm_get(t, c, to))
			p->at = to;
		return p->at;
	}
	if (!f->warm)
		f->warm = malloc(CHUNK_MAX);
	return f->warm && warm_get(t, c, f->warm) && !take(f, p, f->warm, false);
}

/* The pieces of the range, each with a reference on its chunk. */
static int find_pieces(struct fetch *f)
{
	struct object *o = f->o;
	uint64_t end = f->off + f->len;
	struct extmap *m;
	size_t i, last;
	int r = 0;

	pthread_mutex_lock(&o->mu);
	m = extmap_ref(o->under);
	i = extmap_find(m, f->off);
	for (last = i; last < m->n && m->e[last].off < end; last++)
		;
	f->piece = calloc(last - i + 1, sizeof(*f->piece));
	for (; f->piece && i < last; i++) {
		const struct extent *e = &m->e[i];
		uint64_t from = e->off > f->off ? e->off : f->off;
		uint64_t to = e->off + e->len < end ? e->off + e->len : end;
		struct piece *p = &f->piece[f->pieces];

		p->chunk = chunk_get(o->store->chunks, e->chunk);
		if (!p->chunk) { /* the map's references say that there is one */
			r = -EIO;
			break;
		}
		p->off = from;
		p->len = to - from;
		p->skip = e->skip + (from - e->off);
		f->pieces++;
	}
	pthread_mutex_unlock(&o->mu);
	extmap_unref(m);
	return f->piece ? r : -ENOMEM;
}

/* ---- the calls ---- */

/* Lets f have its first piece from the fetch before it, if that ends in the same chunk. Without memory
 * for it f reads the chunk. */
static void take_over(struct fetch *f, struct fetch *before)
{
	const struct piece *p = &f->piece[0], *last;

	if (!before || !before->pieces || !f->pieces)
		return;
	last = &before->piece[before->pieces - 1];
	if (last->chunk != p->chunk || last->skip + last->len != p->skip)
		return;
	f->rest = malloc(p->len);
	before->after = f->rest ? f : NULL;
}

int fetch_begin(struct object *o, uint64_t off, size_t len, struct fetch *before,
		struct fetch **ret)
{
	struct fetch *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return -ENOMEM;
	f->o = o;
	f->off = off;
	f->len = len;
	r = find_pieces(f);
	if (!r)
		f->req = calloc(f->pieces + 1, sizeof(*f->req));
	if (!r && !f->req)
		r = -ENOMEM;
	if (!r)
		take_over(f, before);
	for (size_t i = f->rest != NULL; !r && i < f->pieces; i++) {
		struct chunk *c = f->piece[i].chunk;

		if (!c->warm)
			f->req[f->reqs++] =
				(struct segset_read_req){ chunk_loc(c), &c->info, &f->piece[i] };
	}
	if (!r && f->reqs) {
		qsort(f->req, f->reqs, sizeof(*f->req), segset_by_location);
		r = segset_read_begin(o->store->segs, f->req, f->reqs, &f->read);
	}
	if (r && before && before->after == f)
		before->after = NULL;
	if (r)
		fetch_end(f);
	else
		*ret = f;
	return r;
}

void fetch_wait(struct fetch *f)
{
	if (f->read)
		segset_read_wait(f->read);
}

/* What was warm at the beginning: from there, or from the device if it is not any more; what the
 * fetch before this one could not hand on; and what has moved since it was asked for. */
static int take_rest(struct fetch *f)
{
	struct segset_read_req req;
	int r = 0;

	f->holds = false;
	for (size_t i = 0; i < f->pieces && !r; i++) {
		struct piece *p = &f->piece[i];

		if (p->at || take_warm(f, p))
			continue;
		do {
			req = (struct segset_read_req){ chunk_loc(p->chunk), &p->chunk->info, p };
			r = segset_read_many(f->o->store->segs, &req, 1, on_payload, f);
		} while (!r && !p->at);
	}
	return r;
}

/* Every piece has its bytes afterwards. */
static int collect(struct fetch *f)
{
	int r = f->read ? segset_read_finish(f->read, on_payload, f) : 0;

	if (!r)
		r = take_rest(f);
	if (f->err)
		return f->err;
	return r > 0 ? -EIO : r;
}

int fetch_to_memory(struct fetch *f, void *buf)
{
	uint64_t at = f->off;
	int r;

	f->buf = buf;
	r = collect(f);
	for (size_t i = 0; i < f->pieces && !r; i++) {
		const struct piece *p = &f->piece[i];

		memset(f->buf + (at - f->off), 0, p->off - at);
		at = p->off + p->len;
	}
	if (!r)
		memset(f->buf + (at - f->off), 0, f->off + f->len - at);
	return r;
}

/* Appends len bytes at p, to the last one where it follows. */
static void iov_add(struct iovec *iov, size_t *n, const char *p, size_t len)
{
	if (!len)
		return;
	if (*n && (char *)iov[*n - 1].iov_base + iov[*n - 1].iov_len == p)
		iov[*n - 1].iov_len += len;
	else
		iov[(*n)++] = (struct iovec){ (void *)p, len };
}

/* The range as it is in memory, gaps as zeros. */
static ssize_t gather(struct fetch *f, struct iovec *iov)
{
	uint64_t at = f->off, next;
	size_t n = 0;

	for (size_t i = 0; i <= f->pieces; i++) {
		const struct piece *p = i < f->pieces ? &f->piece[i] : NULL;
		char *zeros;

		next = p ? p->off : f->off + f->len;
		if (next > at) {
			zeros = place_of(f, at);
			if (!zeros)
				return -ENOMEM;
			memset(zeros, 0, next - at);
			iov_add(iov, &n, zeros, next - at);
		}
		if (!p)
			break;
		iov_add(iov, &n, p->at, p->len);
		at = p->off + p->len;
	}
	return n;
}

int fetch_to_file(struct fetch *f, int fd)
{
	struct iovec *iov = calloc(f->pieces * 2 + 1, sizeof(*iov));
	ssize_t n;
	int r;

	if (!iov)
		return -ENOMEM;
	f->holds = f->read && segset_read_holds(f->read);
	r = collect(f);
	if (!r) {
		n = gather(f, iov);
		r = n < 0 ? (int)n : io_writev_full(fd, iov, n, f->off);
	}
	free(iov);
	return r;
}

void fetch_end(struct fetch *f)
{
	if (!f)
		return;
	segset_read_end(f->read);
	for (size_t i = 0; i < f->pieces; i++)
		chunk_put(f->o->store->chunks, f->piece[i].chunk);
	scratch_put(f->o->store, f->scratch);
	free(f->rest);
	free(f->spare);
	free(f->warm);
	free(f->req);
	free(f->piece);
	free(f);
}

int fetch_extents(struct object *o, void *buf, size_t len, uint64_t off)
{
	struct fetch *f;
	int r = fetch_begin(o, off, len, NULL, &f);

	if (r)
		return r;
	r = fetch_to_memory(f, buf);
	fetch_end(f);
	return r;
}
