/* SPDX-License-Identifier: Apache-2.0 */
/* kvfs status: what .kvfs/status says, for people. */
#include "mount/mount.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct arguments {
	bool json;
	const char *mountpoint;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;

	switch (key) {
	case 'j':
		a->json = true;
		return 0;
	case ARGP_KEY_ARG:
		if (a->mountpoint)
			usage_fail(state->name, "%s: one mount point at a time", arg);
		a->mountpoint = arg;
		return 0;
	case ARGP_KEY_NO_ARGS:
		usage_fail(state->name, "no mount point: give one");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option option_table[] = {
	{ "json", 'j', NULL, 0, "Print the status as JSON, for programs", 0 },
	{ 0 },
};

static const struct argp argp = {
	.options = option_table,
	.parser = parse,
	.args_doc = "MOUNTPOINT",
	.doc = "Shows what a mounted kvfs holds, where, and what it costs.",
};

/* ---- Printing --------------------------------------------------------------------------------- */

static uint64_t number(const json_t *o, const char *key)
{
	json_int_t n = json_integer_value(json_object_get(o, key));

	return n > 0 ? (uint64_t)n : 0;
}

static const char *text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "?";
}

static bool yes(const json_t *o, const char *key)
{
	return json_is_true(json_object_get(o, key));
}

static const char *bytes(const json_t *o, const char *key, char buf[static SIZE_TEXT])
{
	return size_format(number(o, key), buf);
}

static void print_uptime(uint64_t s)
{
	if (s >= 86400)
		printf("%lud %luh", (unsigned long)(s / 86400), (unsigned long)(s / 3600 % 24));
	else if (s >= 3600)
		printf("%luh %lum", (unsigned long)(s / 3600), (unsigned long)(s / 60 % 60));
	else if (s >= 60)
		printf("%lum %lus", (unsigned long)(s / 60), (unsigned long)(s % 60));
	else
		printf("%lus", (unsigned long)s);
}

static void print_head(const json_t *s)
{
	printf("kvfs %s at %s%s, pid %lu, up ", text(s, "version"), text(s, "mountpoint"),
	       yes(s, "read_only") ? " (read-only)" : "", (unsigned long)number(s, "pid"));
	print_uptime(number(s, "uptime_s"));
	printf("\nstore        %s\nrundir       %s\npassthrough  ", text(s, "store"),
	       text(s, "rundir"));
	if (yes(s, "passthrough"))
		puts("on");
	else
		printf("off: %s\n", text(s, "passthrough_why"));
}

static void print_tier(const json_t *tiers, const char *name, bool bars)
{
	const json_t *t = json_object_get(tiers, name);
	uint64_t used = number(t, "bytes"), budget = number(t, "budget");
	char a[SIZE_TEXT], b[SIZE_TEXT], c[24] = "-", bar[BAR_TEXT];

	if (json_is_integer(json_object_get(t, "files")))
		snprintf(c, sizeof(c), "%lu", (unsigned long)number(t, "files"));
	printf("%-6s %8s %8s %10s", name, size_format(used, a),
	       budget ? size_format(budget, b) : "-", c);
	if (bars && budget)
		printf("  %s", bar_format(used, budget, bar));
	putchar('\n');
}

static void print_scrub(const json_t *scrub)
{
	char a[SIZE_TEXT], b[SIZE_TEXT], when[32] = "never";
	time_t ended = (time_t)number(scrub, "pass_ended");
	uint64_t damaged = number(scrub, "damaged_total");
	struct tm tm;

	if (!number(scrub, "rate")) {
		puts("scrub off");
		return;
	}
	if (ended && localtime_r(&ended, &tm))
		strftime(when, sizeof(when), "%F %R", &tm);
	printf("scrub ");
	if (yes(scrub, "running"))
		printf("%.0f %% done", 100 * json_number_value(json_object_get(scrub, "progress")));
	else
		printf("waits");
	printf(", at most %s/s, %s since mount, last whole pass %s", bytes(scrub, "rate", a),
	       bytes(scrub, "bytes_total", b), when);
	if (damaged)
		printf(", %lu DAMAGED chunks: see the log", (unsigned long)damaged);
	putchar('\n');
}

static void print_status(const json_t *s)
{
	const json_t *tiers = json_object_get(s, "tiers");
	bool bars = isatty(STDOUT_FILENO);
	char a[SIZE_TEXT], b[SIZE_TEXT], c[SIZE_TEXT];

	print_head(s);
	printf("\n%-6s %8s %8s %10s\n", "tier", "used", "budget", "files");
	print_tier(tiers, "hot", bars);
	print_tier(tiers, "warm", bars);
	print_tier(tiers, "cold", bars);
	printf("\nlogical %s, unique %s (dedup %.2fx), stored %s (compression %.2fx)\n",
	       bytes(s, "logical_bytes", a), bytes(s, "unique_bytes", b),
	       json_number_value(json_object_get(s, "dedup_ratio")), bytes(s, "stored_bytes", c),
	       json_number_value(json_object_get(s, "compression_ratio")));
	printf("dedup index %s of %s, %lu of %lu chunks in it\n", bytes(s, "index_bytes", a),
	       bytes(s, "index_budget", b), (unsigned long)number(s, "index_entries"),
	       (unsigned long)number(s, "chunks"));
	if (!yes(s, "chunks_loaded"))
		puts("chunks are still being read: unique and stored grow, dedup finds a part");
	printf("segments %lu, dead bytes in them %s\n", (unsigned long)number(s, "segments"),
	       bytes(json_object_get(s, "gc"), "dead_bytes", a));
	print_scrub(json_object_get(s, "scrub"));
	printf("dirty %s, unsettled %s in %lu files, pinned by openers %s\n",
	       bytes(s, "dirty_bytes", a), bytes(s, "unsettled_bytes", b),
	       (unsigned long)number(s, "unsettled_files"), bytes(s, "pinned_bytes", c));
	printf("%lu inodes, %lu in memory, %lu open handles\n", (unsigned long)number(s, "inodes"),
	       (unsigned long)number(s, "cached_inodes"), (unsigned long)number(s, "open_handles"));
}

static int show(const char *point, const char *status)
{
	json_error_t why;
	json_t *s = json_loads(status, 0, &why);

	if (!s) {
		complain("%s/.kvfs/status: not understood (%s): kvfs and the daemon are of "
			 "different versions; try --json",
			 point, why.text);
		return KVFS_EXIT_FAILED;
	}
	print_status(s);
	json_decref(s);
	return KVFS_EXIT_OK;
}

int cmd_status(int argc, char **argv)
{
	struct arguments a = { 0 };
	struct mount_entry m;
	char *status;
	int r;

	arguments_parse(&argp, argc, argv, 0, &a);
	if (control_find_live(a.mountpoint, &m) < 0)
		return KVFS_EXIT_FAILED;
	r = control_status_text(m.point, &status);
	if (mount_error_is_dead(r))
		control_complain_dead(m.point);
	else if (r < 0)
		complain("%s: %s: run this as the user who mounted it, or as root", m.point,
			 strerror(-r));
	if (r < 0)
		return KVFS_EXIT_FAILED;
	r = KVFS_EXIT_OK;
	if (a.json)
		fputs(status, stdout);
	else
		r = show(m.point, status);
	free(status);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		complain("standard output: %s: see where it goes", strerror(errno));
		r = KVFS_EXIT_FAILED;
	}
	return r;
}
