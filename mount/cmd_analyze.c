/* SPDX-License-Identifier: Apache-2.0 */
/* kvfs analyze: what a store would make of ordinary files, anywhere, without a mount. */
#include "mount/mount.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct job {
	bool json, quiet;
	char **paths; /* NULL-terminated, in argv */
	struct analyzer *analyzer;
	struct progress progress;
	struct analysis total;
	uint64_t files, failed;
	json_t *list; /* with json */
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct job *j = state->input;

	(void)arg;
	switch (key) {
	case 'j':
		j->json = true;
		return 0;
	case 'q':
		j->quiet = true;
		return 0;
	case ARGP_KEY_ARGS:
		j->paths = state->argv + state->next;
		return 0;
	case ARGP_KEY_NO_ARGS:
		usage_fail(state->name, "no path: give files or directories");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option option_table[] = {
	{ "json", 'j', NULL, 0, "Print the results as JSON, for programs", 0 },
	{ "quiet", 'q', NULL, 0, "Do not show progress", 0 },
	{ 0 },
};

static const struct argp argp = {
	.options = option_table,
	.parser = parse,
	.args_doc = "PATH...",
	.doc = "Says what a store would make of files and of all files below directories: what their "
	       "elements are, what they share with the files before them, and how much shorter each "
	       "codec makes the rest. Reads them whole; needs no mount and changes nothing.",
};

/* ---- Numbers ---------------------------------------------------------------------------------- */

static uint64_t raw_bytes(const struct analysis *a)
{
	return a->size - a->holes - a->shared;
}

static void add(struct analysis *sum, const struct analysis *a)
{
	sum->size += a->size;
	sum->holes += a->holes;
	sum->shared += a->shared;
	sum->chunks += a->chunks;
	for (unsigned e = 0; e < ELEMENTS; e++)
		sum->element[e] += a->element[e];
	for (unsigned k = 0; k < ANALYZE_CHOICES; k++) {
		sum->by[k].stored += a->by[k].stored;
		sum->by[k].encode_ns += a->by[k].encode_ns;
		sum->by[k].decode_ns += a->by[k].decode_ns;
	}
}

/* What most of it is; NULL: there is nothing. */
static const char *element_of(const struct analysis *a)
{
	unsigned best = 0;

	for (unsigned e = 1; e < ELEMENTS; e++)
		if (a->element[e] > a->element[best])
			best = e;
	return a->element[best] ? analyze_element_name(best) : NULL;
}

/* ---- For people ------------------------------------------------------------------------------- */

static void print_head(void)
{
	printf("%8s %7s  %-8s", "size", "shared", "elements");
	for (unsigned k = 0; k < ANALYZE_CHOICES; k++)
		printf(" %6s", codec_choice_name(analyze_choices[k]));
	puts("  file");
}

static void print_ratio(uint64_t raw, uint64_t stored)
{
	if (stored)
		printf(" %6.2f", (double)raw / (double)stored);
	else
		printf(" %6s", "-");
}

static void print_row(const struct analysis *a, uint64_t raw, const char *name)
{
	const char *element = element_of(a);
	char size[SIZE_TEXT];

	printf("%8s %6.0f%%  %-8s", size_format(a->size, size),
	       a->size ? 100 * (double)a->shared / (double)a->size : 0, element ? element : "-");
	for (unsigned k = 0; k < ANALYZE_CHOICES; k++)
		print_ratio(raw, a->by[k].stored);
	printf("  %s\n", name);
}

static void print_rate(const struct analysis *a, const char *what, bool decode)
{
	printf("%26s", "");
	for (unsigned k = 0; k < ANALYZE_CHOICES; k++) {
		uint64_t ns = decode ? a->by[k].decode_ns : a->by[k].encode_ns;

		printf(" %6.2f", ns ? (double)raw_bytes(a) / (double)ns : 0);
	}
	printf("  GB/s %s, one core\n", what);
}

static void print_total(const struct job *j)
{
	char name[64];

	snprintf(name, sizeof(name), "%lu files, what they share stored once",
		 (unsigned long)j->files);
	if (j->files > 1)
		print_row(&j->total, j->total.size, name);
	if (raw_bytes(&j->total)) {
		print_rate(&j->total, "encode", false);
		print_rate(&j->total, "decode", true);
	}
}

/* ---- For programs ----------------------------------------------------------------------------- */

static void set(json_t *o, const char *key, uint64_t value)
{
	json_object_set_new(o, key, json_integer((json_int_t)value));
}

static json_t *as_json(const struct analysis *a)
{
	json_t *o = json_object(), *elements = json_object(), *codecs = json_object();

	set(o, "size", a->size);
	set(o, "holes", a->holes);
	set(o, "shared", a->shared);
	set(o, "chunks", a->chunks);
	for (unsigned e = 0; e < ELEMENTS; e++)
		if (a->element[e])
			set(elements, analyze_element_name(e), a->element[e]);
	json_object_set_new(o, "elements", elements);
	for (unsigned k = 0; k < ANALYZE_CHOICES; k++) {
		json_t *c = json_object();

		set(c, "stored", a->by[k].stored);
		set(c, "encode_ns", a->by[k].encode_ns);
		set(c, "decode_ns", a->by[k].decode_ns);
		json_object_set_new(codecs, codec_choice_name(analyze_choices[k]), c);
	}
	json_object_set_new(o, "codecs", codecs);
	return o;
}

static void list_file(struct job *j, const struct analysis *a, const char *path)
{
	json_t *o = as_json(a);

	/* A name that is not UTF-8 is no JSON string. */
	json_object_set_new(o, "path", json_string(path) ?: json_string("?"));
	json_array_append_new(j->list, o);
}

static int print_json(const struct job *j)
{
	json_t *o = json_pack("{s:O, s:o}", "files", j->list, "total", as_json(&j->total));
	int r = o && !json_dumpf(o, stdout, JSON_INDENT(2)) && putchar('\n') != EOF ? 0 : -EIO;

	json_decref(o);
	return r;
}

/* ---- The files -------------------------------------------------------------------------------- */

static void done(void *arg, uint64_t bytes)
{
	struct job *j = arg;

	progress_add(&j->progress, 0, bytes);
}

static void complain_file(struct job *j, const char *path, int error)
{
	progress_clear(&j->progress);
	complain("%s: %s: give files and directories that exist and may be read", path,
		 strerror(error));
	j->failed++;
}

static void analyze(struct job *j, const char *path, uint64_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), r;
	struct analysis a;

	(void)size;
	if (fd < 0) {
		complain_file(j, path, errno);
		return;
	}
	r = analyzer_file(j->analyzer, fd, done, j, &a);
	close(fd);
	if (r) {
		complain_file(j, path, -r);
		return;
	}
	progress_add(&j->progress, 1, 0);
	progress_clear(&j->progress);
	add(&j->total, &a);
	if (j->json)
		list_file(j, &a, path);
	else if (!j->files)
		print_head();
	if (!j->json)
		print_row(&a, raw_bytes(&a), path);
	j->files++;
}

static void count_file(struct job *j, const char *path, uint64_t size)
{
	(void)path;
	j->progress.total_files++;
	j->progress.total_bytes += size;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* One path and what is below it. */
static int walk(struct job *j, char *path,
		void (*file)(struct job *j, const char *path, uint64_t size), bool tell)
{
	char *paths[] = { path, NULL };
	FTS *fts = fts_open(paths, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
	FTSENT *e;
	int r;

	if (!fts)
		return -errno;
	while (errno = 0, (e = fts_read(fts))) {
		if (e->fts_info == FTS_F)
			file(j, e->fts_path, (uint64_t)e->fts_statp->st_size);
		else if (tell && (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR ||
				  e->fts_info == FTS_NS))
			complain_file(j, e->fts_path, e->fts_errno);
		else if (tell && e->fts_info == FTS_DEFAULT && e->fts_level == 0)
			complain_file(j, e->fts_path, EINVAL);
	}
	r = -errno;
	fts_close(fts);
	return r;
}

static int run(struct job *j)
{
	int r = analyzer_new(&j->analyzer);

	if (r)
		return r;
	progress_begin(&j->progress, "analyzing", j->quiet);
	for (char **p = j->paths; j->progress.shown && *p; p++)
		walk(j, *p, count_file, false);
	for (char **p = j->paths; r == 0 && *p; p++)
		r = walk(j, *p, analyze, true);
	progress_clear(&j->progress);
	if (r == 0 && j->json)
		r = print_json(j);
	else if (r == 0 && j->files)
		print_total(j);
	if (fflush(stdout))
		r = -errno;
	analyzer_free(j->analyzer);
	return r;
}

int cmd_analyze(int argc, char **argv)
{
	struct job j = { 0 };
	int r;

	arguments_parse(&argp, argc, argv, 0, &j);
	j.list = json_array();
	r = run(&j);
	json_decref(j.list);
	if (r < 0) {
		complain("analyze: %s: free memory, or see that the output can be written",
			 strerror(-r));
		return KVFS_EXIT_FAILED;
	}
	return j.failed ? KVFS_EXIT_FAILED : KVFS_EXIT_OK;
}
