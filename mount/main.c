/* SPDX-License-Identifier: Apache-2.0 */
/* The one binary: by its own name and a command, or by the name mount(8) calls it. */
#include "mount/mount.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} commands[] = {
	{ "mount", cmd_mount, "mount a store" },
	{ "umount", cmd_umount, "make everything durable, unmount and wait for the daemon" },
	{ "status", cmd_status, "show what a mount holds, where, and what it costs" },
	{ "evict", cmd_evict, "free the memory that files and sessions take" },
	{ "prefetch", cmd_prefetch, "bring files and sessions into memory" },
	{ "gc", cmd_gc, "give the space of deleted files back now" },
	{ "analyze", cmd_analyze, "say what a store would make of ordinary files" },
	{ "fsck", cmd_fsck, "check a store that is not mounted, and repair it" },
	{ "gpu-check", cmd_gpu_check, "let a GPU read files in place and compare" },
};

#define COMMANDS (sizeof(commands) / sizeof(*commands))

struct chosen {
	int next; /* index in argv of the command */
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct chosen *c = state->input;

	switch (key) {
	case 'V':
		version_print();
		exit(KVFS_EXIT_OK);
	case ARGP_KEY_ARG:
		(void)arg;
		c->next = state->next - 1;
		state->next = state->argc;
		return 0;
	case ARGP_KEY_NO_ARGS:
		usage_fail(state->name, "no command: give one, see 'kvfs --help'");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* The list of commands, below the options. */
static char *help_filter(int key, const char *text, void *input)
{
	char *list = NULL;
	size_t size;
	FILE *f;

	(void)input;
	if (key != ARGP_KEY_HELP_POST_DOC)
		return (char *)text;
	f = open_memstream(&list, &size);
	if (!f)
		return (char *)text;
	fputs("Commands:\n", f);
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
	fputs("\n'kvfs COMMAND --help' tells about each; kvfs(8) is the manual.\n"
	      "'kvfs STORE MOUNTPOINT -o OPTIONS' is 'kvfs mount', for mount.fuse3.",
	      f);
	return fclose(f) == 0 ? list : (char *)text;
}

static const struct argp_option option_table[] = {
	{ "version", 'V', NULL, 0, "Print the versions of kvfs and of what it is built on", -1 },
	{ 0 },
};

static const struct argp argp = {
	.options = option_table,
	.parser = parse,
	.args_doc = "COMMAND [ARGUMENT...]",
	.doc = "A file system for the KV caches of LLM sessions.\v",
	.help_filter = help_filter,
};

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int run_command(const struct command *c, int argc, char **argv)
{
	char name[64];

	snprintf(name, sizeof(name), "kvfs %s", c->name);
	argv[0] = name;
	return c->run(argc, argv);
}

/* For the type fuse.kvfs mount(8) calls mount.fuse3, which runs kvfs from PATH with the source first;
 * other than a command, that has a slash in it. */
static bool is_bare_mount(int argc, char **argv)
{
	return argc >= 3 && argv[1][0] != '-' && strchr(argv[1], '/');
}

int main(int argc, char **argv)
{
	const char *self = argc > 0 ? base_name(argv[0]) : "kvfs";
	struct chosen c = { 0 };

	argp_err_exit_status = KVFS_EXIT_USAGE;
	if (!strcmp(self, "mount.kvfs"))
		return cmd_mount_helper(argc, argv);
	if (is_bare_mount(argc, argv))
		return run_command(&commands[0], argc, argv);
	arguments_parse(&argp, argc, argv, ARGP_IN_ORDER, &c);
	for (size_t i = 0; i < COMMANDS; i++)
		if (!strcmp(argv[c.next], commands[i].name))
			return run_command(&commands[i], argc - c.next, argv + c.next);
	complain("%s: no such command: see 'kvfs --help'", argv[c.next]);
	return KVFS_EXIT_USAGE;
}
