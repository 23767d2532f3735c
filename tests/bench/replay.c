/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay: a trace of requests as an engine meets it that keeps each request's KV cache in files.
 *
 *	replay DIR TRACE REQUESTS LAYERS FACTOR
 *
 * TRACE is as Mooncake has published them: a JSON object a line with hash_ids, blocks of 512 tokens, an
 * equal id meaning an equal prefix up to that block. Layers are those of Llama 3, of 8B and of 70B alike:
 * 8 heads of 128 channels in bf16, 4 KiB a token; of their 32 or 80 so many are kept, and a token is FACTOR
 * times smaller (fewer channels), so that a trace fits.
 *
 * For each of the first REQUESTS: the session that has the longest prefix of it is looked for, its blocks
 * of the prefix are read layer by layer, keys and then values, and compared; then the request's own session
 * is written, a file of [2, tokens, heads, channels] a layer. Content depends on block, layer and slab
 * alone, as an engine's depends on the prefix.
 *
 * Prints one line of JSON: what was written and read, the trace's own distinct blocks, the tiers files were
 * in when they were opened, and how long it took.
 */
#include "tests/bench/data.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <sys/xattr.h>

#define TOKENS 512u             /* of a block */
#define TOKEN  (8u * 128u * 2u) /* bytes of a token in a slab of a layer */
#define IDS    (1u << 20)

struct replay {
	const char *dir;
	unsigned layers;
	size_t block; /* bytes of a block in a slab of a layer */
	struct data *data;
	char *made, *got;
	unsigned *last; /* by id: 1 + the last request that has that block */
	uint64_t written, read, distinct, tier[3], unknown;
	double write_s, read_s;
};

/* The id's content in that layer; slab 0 keys, 1 values. */
static void make_block(struct replay *r, unsigned layer, unsigned slab, uint64_t id)
{
	uint64_t state = (id << 20 | layer << 1 | slab) * 0x2545f4914f6cdd1dull,
		 *word = (void *)r->made;
	const uint16_t *q = r->data->quantile;

	state = splitmix(&state);
	for (size_t i = 0; i < r->block / sizeof(*word); i++) {
		uint64_t v = splitmix(&state);

		word[i] = q[v & 0xffff] | (uint64_t)q[v >> 16 & 0xffff] << 16 |
			  (uint64_t)q[v >> 32 & 0xffff] << 32 | (uint64_t)q[v >> 48] << 48;
	}
}

static void layer_path(const struct replay *r, unsigned request, unsigned layer,
		       char path[PATH_MAX])
{
	if (snprintf(path, PATH_MAX, "%s/request_%06u/layer_%03u", r->dir, request, layer) >=
	    PATH_MAX) {
		errno = ENAMETOOLONG;
		die("%s", r->dir);
	}
}

static void note_tier(struct replay *r, const char *path)
{
	static const char *const tiers[] = { "hot", "warm", "cold" };
	char now[16] = "";

	if (getxattr(path, "user.kvfs.tier", now, sizeof(now) - 1) < 0) {
		r->unknown++;
		return;
	}
	for (unsigned k = 0; k < 3; k++)
		r->tier[k] += !strcmp(now, tiers[k]);
}

/* So many blocks of the slab, which begins at off. */
static void read_slab(struct replay *r, int fd, const char *path, uint64_t off, const json_t *ids,
		      size_t blocks, unsigned layer, unsigned slab)
{
	for (size_t b = 0; b < blocks; b++) {
		double begin = now();

		if (pread(fd, r->got, r->block, (off_t)(off + b * r->block)) != (ssize_t)r->block)
			die("read %s", path);
		r->read_s += now() - begin;
		make_block(r, layer, slab, (uint64_t)json_integer_value(json_array_get(ids, b)));
		if (memcmp(r->made, r->got, r->block)) {
			fprintf(stderr, "replay: %s: not what was written\n", path);
			exit(1);
		}
		r->read += r->block;
	}
}

static void read_prefix(struct replay *r, unsigned from, const json_t *ids, size_t blocks)
{
	char path[PATH_MAX];

	for (unsigned layer = 0; layer < r->layers; layer++) {
		double begin;
		struct stat st;
		int fd;

		layer_path(r, from, layer, path);
		note_tier(r, path);
		begin = now();
		fd = open_or_die(path, O_RDONLY);
		r->read_s += now() - begin;
		if (fstat(fd, &st))
			die("stat %s", path);
		for (unsigned slab = 0; slab < 2; slab++)
			read_slab(r, fd, path, slab * (uint64_t)st.st_size / 2, ids, blocks, layer,
				  slab);
		close_or_die(fd, path);
	}
}

static void write_session(struct replay *r, unsigned request, const json_t *ids)
{
	char path[PATH_MAX];

	layer_path(r, request, 0, path);
	*strrchr(path, '/') = '\0';
	if (mkdir(path, 0700))
		die("mkdir %s", path);
	for (unsigned layer = 0; layer < r->layers; layer++) {
		double begin = now();
		int fd;

		layer_path(r, request, layer, path);
		fd = open_or_die(path, O_WRONLY | O_CREAT | O_EXCL);
		r->write_s += now() - begin;
		for (unsigned slab = 0; slab < 2; slab++)
			for (size_t b = 0; b < json_array_size(ids); b++) {
				make_block(r, layer, slab,
					   (uint64_t)json_integer_value(json_array_get(ids, b)));
				begin = now();
				write_all(fd, r->made, r->block, path);
				r->write_s += now() - begin;
				r->written += r->block;
			}
		begin = now();
		close_or_die(fd, path);
		r->write_s += now() - begin;
	}
}

static void serve(struct replay *r, unsigned request, const json_t *ids)
{
	size_t n = json_array_size(ids), known = 0;
	unsigned from = 0;

	for (size_t b = 0; b < n; b++) {
		json_int_t id = json_integer_value(json_array_get(ids, b));

		if (id < 0 || id >= IDS) {
			fprintf(stderr, "replay: block %lld: not from 0 to %u\n", (long long)id,
				IDS);
			exit(1);
		}
		if (r->last[id] && known == b) {
			known++;
			from = r->last[id] - 1;
		}
		r->distinct += !r->last[id];
	}
	if (known)
		read_prefix(r, from, ids, known);
	write_session(r, request, ids);
	for (size_t b = 0; b < n; b++)
		r->last[json_integer_value(json_array_get(ids, b))] = request + 1;
}

static unsigned serve_all(struct replay *r, const char *trace, unsigned requests)
{
	FILE *f = fopen(trace, "re");
	char *line = NULL;
	size_t size = 0;
	unsigned n = 0;

	if (!f)
		die("%s", trace);
	while (n < requests && getline(&line, &size, f) > 0) {
		json_t *o = json_loads(line, 0, NULL), *ids = json_object_get(o, "hash_ids");

		if (!json_is_array(ids)) {
			fprintf(stderr, "replay: %s:%u: no hash_ids\n", trace, n + 1);
			exit(1);
		}
		serve(r, n++, ids);
		json_decref(o);
	}
	free(line);
	fclose(f);
	return n;
}

int main(int argc, char **argv)
{
	struct replay r = { 0 };
	unsigned n;

	if (argc != 6)
		return fputs("usage: see the top of replay.c\n", stderr), 2;
	r.dir = argv[1];
	r.layers = (unsigned)parse_size(argv[4]);
	r.data = data_new("normal", 5);
	r.block = (size_t)TOKENS * TOKEN / parse_size(argv[5]) & ~(size_t)7;
	r.made = buffer_new(r.block);
	r.got = buffer_new(r.block);
	r.last = buffer_new(IDS * sizeof(*r.last));
	n = serve_all(&r, argv[2], (unsigned)parse_size(argv[3]));
	printf("{\"requests\": %u, \"written\": %" PRIu64 ", \"read\": %" PRIu64
	       ", \"distinct\": %" PRIu64 ", \"hot\": %" PRIu64 ", \"warm\": %" PRIu64
	       ", \"cold\": %" PRIu64 ", \"unknown\": %" PRIu64
	       ", \"write_s\": %.6f, \"read_s\": %.6f}\n",
	       n, r.written, r.read, r.distinct * 2 * r.layers * r.block, r.tier[0], r.tier[1],
	       r.tier[2], r.unknown, r.write_s, r.read_s);
	return 0;
}
