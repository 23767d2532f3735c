/* SPDX-License-Identifier: Apache-2.0 */
/* kvfs mount, and mount.kvfs as mount(8) calls it: two command lines for one request. */
#include "mount/mount.h"

#include <argp.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The exit codes of mount(8). */
enum {
	MOUNT_EXIT_USAGE = 1,
	MOUNT_EXIT_SYSTEM = 2,
	MOUNT_EXIT_FAILED = 32,
};

/* ---- kvfs mount ------------------------------------------------------------------------------- */

static void add_options(struct argp_state *state, struct mount_options *o, const char *list)
{
	char err[OPTIONS_ERROR];

	(void)state;
	if (options_parse(o, list, err) == 0)
		return;
	complain("%s", err);
	exit(KVFS_EXIT_USAGE);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct mount_request *req = state->input;

	switch (key) {
	case 'o':
		add_options(state, &req->opt, arg);
		return 0;
	case 'f':
		req->foreground = true;
		return 0;
	case ARGP_KEY_ARG:
		if (!req->store)
			req->store = arg;
		else if (!req->mountpoint)
			req->mountpoint = arg;
		else
			usage_fail(state->name,
				   "%s: one argument too many: give STORE and MOUNTPOINT", arg);
		return 0;
	case ARGP_KEY_END:
		if (!req->mountpoint)
			usage_fail(state->name, "%s: give STORE and MOUNTPOINT",
				   req->store ? "no mount point" : "no store");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option option_table[] = {
	{ "options", 'o', "LIST", 0, "Mount options, separated by commas (below)", 0 },
	{ "foreground", 'f', NULL, 0, "Stay in the foreground and log to standard error", 0 },
	{ 0 },
};

static const struct argp argp = {
	.options = option_table,
	.parser = parse,
	.args_doc = "STORE MOUNTPOINT",
	.doc = "Mounts the store in the directory STORE, which is created on first use."
	       "\v"
	       "Mount options:\n"
	       "  hot=SIZE         memory for whole hot files (default: half of the machine's)\n"
	       "  warm=SIZE        memory for encoded chunks (default: an eighth)\n"
	       "  index=SIZE       memory for the dedup index (default: a sixty-fourth)\n"
	       "  idle=SECONDS     a hot file not used for so long leaves (default: 300)\n"
	       "  commit=SECONDS   written files become durable after so long (default: 5)\n"
	       "  open_wait=MS     an open may wait so long for its file (default: 500)\n"
	       "  codec=CHOICE     how chunks are encoded: auto, fast, dense, lz4, none\n"
	       "                   (default: auto)\n"
	       "  dedup=SCOPE      whose files share content: owner, store, none\n"
	       "                   (default: owner)\n"
	       "  scrub=RATE       look for damage, so many bytes a second, or off\n"
	       "                   (default: 50M)\n"
	       "  nopassthrough    all reads and writes go through the daemon\n"
	       "  allow_other      other users may enter\n"
	       "  ro               read-only\n"
	       "  rundir=PATH      where hot files and the journal live (a tmpfs)\n"
	       "and the usual ones of mount(8). A SIZE is like 512M, 1.5G or 25%.",
};

int cmd_mount(int argc, char **argv)
{
	struct mount_request req = { 0 };
	int status;

	options_init(&req.opt, options_machine_memory());
	arguments_parse(&argp, argc, argv, 0, &req);
	status = serve_mount(&req);
	options_done(&req.opt);
	return status;
}

/* ---- mount.kvfs ------------------------------------------------------------------------------- */

#define HELPER_USAGE "usage: mount.kvfs STORE MOUNTPOINT [-sfnv] [-o OPTIONS] [-t TYPE]"

static int helper_usage(const char *what)
{
	complain("%s: " HELPER_USAGE, what);
	return MOUNT_EXIT_USAGE;
}

static int helper_option_wrong(int c)
{
	complain("-%c: %s: " HELPER_USAGE, optopt, c == ':' ? "needs a value" : "no such option");
	return MOUNT_EXIT_USAGE;
}

/* -n and -v mean nothing here, -t tells the type that led to this program. */
static int helper_parse(int argc, char **argv, struct mount_request *req, const char *lists[],
			int *ret_lists)
{
	int c, n = 0;

	opterr = 0;
	while ((c = getopt(argc, argv, ":sfnvo:t:N:")) != -1) {
		switch (c) {
		case 's':
			req->opt.sloppy = true;
			break;
		case 'f':
			req->fake = true;
			break;
		case 'o':
			lists[n++] = optarg;
			break;
		case 'n':
		case 'v':
		case 't':
		case 'N':
			break;
		default:
			return helper_option_wrong(c);
		}
	}
	*ret_lists = n;
	if (argc - optind != 2)
		return helper_usage("a store and a mount point are needed");
	req->store = argv[optind];
	req->mountpoint = argv[optind + 1];
	return 0;
}

static int helper_exit_code(int status)
{
	switch (status) {
	case KVFS_EXIT_OK:
		return 0;
	case KVFS_EXIT_USAGE:
		return MOUNT_EXIT_USAGE;
	default:
		return MOUNT_EXIT_FAILED;
	}
}

int cmd_mount_helper(int argc, char **argv)
{
	const char **lists = calloc((size_t)argc + 1, sizeof(*lists));
	struct mount_request req = { 0 };
	char err[OPTIONS_ERROR];
	int n = 0, status;

	if (!lists) {
		complain("mount.kvfs: out of memory: free some");
		return MOUNT_EXIT_SYSTEM;
	}
	options_init(&req.opt, options_machine_memory());
	status = helper_parse(argc, argv, &req, lists, &n);
	/* Only now is it known whether to be sloppy. */
	for (int i = 0; status == 0 && i < n; i++) {
		if (options_parse(&req.opt, lists[i], err) == 0)
			continue;
		complain("%s", err);
		status = MOUNT_EXIT_USAGE;
	}
	if (status == 0)
		status = helper_exit_code(serve_mount(&req));
	options_done(&req.opt);
	free(lists);
	return status;
}
