/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of a command line, looked at before argp(3) gets them: argp tells of a wrong one in two
 * lines, neither of which says what to do. What is found in order here, argp takes.
 */
#include "mount/mount.h"

#include <argp.h>
#include <string.h>

/* What argp adds to every command. */
static const struct argp_option own_options[] = {
	{ "help", '?', NULL, 0, NULL, 0 },
	{ "usage", 0, NULL, 0, NULL, 0 },
	{ 0 },
};

struct scan {
	const char *program;
	const struct argp_option *options;
	bool help; /* asked for: argp answers and ends the process */
};

static bool is_short(const struct argp_option *o, const char *name, size_t len)
{
	return o->key == *name && len == 1;
}

static bool is_long(const struct argp_option *o, const char *name, size_t len)
{
	return !strncmp(o->name, name, len) && !o->name[len];
}

static bool is_abbreviation(const struct argp_option *o, const char *name, size_t len)
{
	return !strncmp(o->name, name, len);
}

static const struct argp_option *find(struct scan *s, const char *name, size_t len,
				      bool (*is)(const struct argp_option *o, const char *name,
						 size_t len))
{
	const struct argp_option *tables[] = { s->options, own_options }, *found = NULL;

	for (size_t t = 0; t < sizeof(tables) / sizeof(*tables); t++) {
		for (const struct argp_option *o = tables[t]; o->name; o++) {
			if (!is(o, name, len))
				continue;
			if (found)
				return NULL; /* short for more than one */
			found = o;
			s->help |= t == 1;
		}
	}
	return found;
}

/* True if the next word is the option's value. */
static bool check_long(struct scan *s, const char *word, const char *next)
{
	const char *name = word + 2;
	size_t len = strcspn(name, "=");
	const struct argp_option *o = find(s, name, len, is_long);

	if (!o)
		o = find(s, name, len, is_abbreviation);
	if (!o)
		usage_fail(s->program, "%s: no such option: see '%s --help'", word, s->program);
	if (name[len] && !o->arg)
		usage_fail(s->program, "%s: takes no value: write --%s", word, o->name);
	if (!name[len] && o->arg && !next)
		usage_fail(s->program, "%s: needs a value: write --%s=%s", word, o->name, o->arg);
	return !name[len] && o->arg;
}

/* The same for a word of one letter or more. */
static bool check_short(struct scan *s, const char *word, const char *next)
{
	for (const char *p = word + 1; *p && !s->help; p++) {
		const struct argp_option *o = find(s, p, 1, is_short);

		if (!o)
			usage_fail(s->program, "-%c: no such option: see '%s --help'", *p,
				   s->program);
		if (!o->arg)
			continue;
		if (!p[1] && !next)
			usage_fail(s->program, "-%c: needs a value: write -%c %s", *p, *p, o->arg);
		return !p[1];
	}
	return false;
}

void arguments_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input)
{
	const char *self = argc > 0 ? argv[0] : "kvfs", *slash = strrchr(self, '/');
	struct scan s = { .program = slash ? slash + 1 : self, .options = argp->options };

	for (int i = 1; i < argc && !s.help; i++) {
		const char *next = i + 1 < argc ? argv[i + 1] : NULL;

		if (!strcmp(argv[i], "--"))
			break;
		if (argv[i][0] != '-' || !argv[i][1]) {
			if (flags & ARGP_IN_ORDER)
				break;
			continue;
		}
		if (argv[i][1] == '-' ? check_long(&s, argv[i], next) :
					check_short(&s, argv[i], next))
			i++;
	}
	argp_parse(argp, argc, argv, flags, NULL, input);
}
