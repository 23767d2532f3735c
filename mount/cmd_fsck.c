/* SPDX-License-Identifier: Apache-2.0 */
/* kvfs fsck: checks a store that is not mounted, and repairs it. Its exit codes are those of e2fsck(8). */
#include "mount/mount.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	FSCK_CLEAN = 0,
	FSCK_CORRECTED = 1,
	FSCK_UNCORRECTED = 4,
	FSCK_FAILED = 8,
	FSCK_USAGE = 16,
	FSCK_CANCELLED = 32,
};

struct job {
	bool json, quiet;
	struct fsck_options opt;
	struct progress progress;
	json_t *list; /* with json */
};

static volatile int cancelled;

static void cancel(int sig)
{
	cancelled = sig;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct job *j = state->input;

	switch (key) {
	case 'r':
		j->opt.repair = true;
		return 0;
	case 'd':
		j->opt.deep = true;
		return 0;
	case 'j':
		j->json = true;
		return 0;
	case 'q':
		j->quiet = true;
		return 0;
	case ARGP_KEY_ARG:
		if (j->opt.path)
			usage_fail(state->name, "%s: one store at a time: give STORE alone", arg);
		j->opt.path = arg;
		return 0;
	case ARGP_KEY_NO_ARGS:
		usage_fail(state->name, "no store: give its directory");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option option_table[] = {
	{ "repair", 'r', NULL, 0, "Put right what can be; what cannot be read stays an error", 0 },
	{ "deep", 'd', NULL, 0, "Read, decode and compare every chunk too", 0 },
	{ "json", 'j', NULL, 0, "Print the results as JSON, for programs", 0 },
	{ "quiet", 'q', NULL, 0, "Do not show progress", 0 },
	{ 0 },
};

static const struct argp argp = {
	.options = option_table,
	.parser = parse,
	.args_doc = "STORE",
	.doc = "Checks a store that is not mounted: names, inodes, the content of files, chunks and the segments "
	       "they lie in. Changes nothing without --repair. Exit codes: 0 clean, 1 all was repaired, 4 something is "
	       "left, 8 the check failed, 16 usage, 32 cancelled.",
};

/* ---- Findings --------------------------------------------------------------------------------- */

static const char *remedy_text(const struct job *j, const struct fsck_finding *d)
{
	if (d->remedy == FSCK_KEPT)
		return "cannot be repaired: ";
	return j->opt.repair ? "repaired: " : "with --repair ";
}

static void print_finding(const struct job *j, const struct fsck_finding *d)
{
	if (d->path)
		printf("%s (inode %" PRIu64 "): ", d->path, d->ino);
	else if (d->ino)
		printf("inode %" PRIu64 ": ", d->ino);
	printf("%s; %s%s\n", d->what, remedy_text(j, d), d->repair);
}

static void list_finding(struct job *j, const struct fsck_finding *d)
{
	json_t *o = json_pack("{s:s, s:s, s:s, s:b}", "kind", d->kind, "what", d->what, "repair",
			      d->repair, "repairable", d->remedy == FSCK_MENDED);

	if (!o) /* what is not UTF-8 */
		o = json_pack("{s:s, s:s, s:b}", "kind", d->kind, "repair", d->repair, "repairable",
			      d->remedy == FSCK_MENDED);
	if (d->ino)
		json_object_set_new(o, "inode", json_integer((json_int_t)d->ino));
	if (d->path)
		json_object_set_new(o, "path", json_string(d->path) ?: json_null());
	if (d->len) {
		json_object_set_new(o, "offset", json_integer((json_int_t)d->off));
		json_object_set_new(o, "length", json_integer((json_int_t)d->len));
	}
	json_array_append_new(j->list, o);
}

static void found(void *arg, const struct fsck_finding *d)
{
	struct job *j = arg;

	progress_clear(&j->progress);
	if (j->json)
		list_finding(j, d);
	else
		print_finding(j, d);
}

static void progress(void *arg, uint64_t bytes, uint64_t total)
{
	struct job *j = arg;

	j->progress.total_bytes = total;
	if (bytes > j->progress.bytes)
		progress_add(&j->progress, 0, bytes - j->progress.bytes);
}

/* ---- The summary ------------------------------------------------------------------------------ */

static void set(json_t *o, const char *key, uint64_t value)
{
	json_object_set_new(o, key, json_integer((json_int_t)value));
}

static int print_json(const struct job *j, const struct fsck_result *r)
{
	json_t *o = json_object();
	int rc;

	json_object_set(o, "findings", j->list);
	set(o, "inodes", r->inodes);
	set(o, "files", r->files);
	set(o, "directories", r->directories);
	set(o, "names", r->names);
	set(o, "xattrs", r->xattrs);
	set(o, "extents", r->extents);
	set(o, "chunks", r->chunks);
	set(o, "segments", r->segments);
	set(o, "logical_bytes", r->logical_bytes);
	set(o, "stored_bytes", r->stored_bytes);
	set(o, "dead_bytes", r->dead_bytes);
	set(o, "verified_bytes", r->payload_bytes);
	set(o, "repairable", r->mended);
	set(o, "unrepairable", r->kept);
	json_object_set_new(o, "repaired", json_boolean(r->repaired));
	rc = json_dumpf(o, stdout, JSON_INDENT(2)) || putchar('\n') == EOF ? -EIO : 0;
	json_decref(o);
	return rc;
}

static void print_summary(const struct job *j, const struct fsck_result *r)
{
	char logical[SIZE_TEXT], stored[SIZE_TEXT], verified[SIZE_TEXT];

	printf("%s: %" PRIu64 " files of %s, %" PRIu64 " directories, %" PRIu64
	       " chunks of %s in %" PRIu64 " segments",
	       j->opt.path, r->files, size_format(r->logical_bytes, logical), r->directories,
	       r->chunks, size_format(r->stored_bytes, stored), r->segments);
	if (j->opt.deep)
		printf(", %s read", size_format(r->payload_bytes, verified));
	if (!r->mended && !r->kept) {
		puts(": clean");
		return;
	}
	printf(": %" PRIu64 " %s", r->mended, r->repaired ? "repaired" : "to repair");
	if (r->kept)
		printf(", %" PRIu64 " that cannot be repaired", r->kept);
	putchar('\n');
}

static int exit_code(const struct fsck_result *r)
{
	if (!r->mended && !r->kept)
		return FSCK_CLEAN;
	return r->kept || !r->repaired ? FSCK_UNCORRECTED : FSCK_CORRECTED;
}

static int run(struct job *j)
{
	struct fsck_result result;
	struct store_error err;
	int r;

	progress_begin(&j->progress, "checking", j->quiet);
	r = store_fsck(&j->opt, &result, &err);
	progress_clear(&j->progress);
	if (r < 0) {
		complain("fsck: %s", err.text);
		return r == -ECANCELED ? FSCK_CANCELLED : FSCK_FAILED;
	}
	if (j->json)
		r = print_json(j, &result);
	else
		print_summary(j, &result);
	if (fflush(stdout) || r) {
		complain("fsck: the results cannot be written: %s", strerror(errno));
		return FSCK_FAILED;
	}
	return exit_code(&result);
}

int cmd_fsck(int argc, char **argv)
{
	struct job j = { .opt = { .found = found, .progress = progress, .cancel = &cancelled } };
	struct sigaction act = { .sa_handler = cancel, .sa_flags = (int)SA_RESETHAND };
	int r;

	argp_err_exit_status = FSCK_USAGE;
	arguments_parse(&argp, argc, argv, 0, &j);
	j.opt.arg = &j;
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	j.list = json_array();
	r = run(&j);
	json_decref(j.list);
	return r;
}
