/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows -o: kvfs's own options, the flags of any mount, and those that mount(8) and
 * systemd keep in fstab for themselves and pass on. Decides what the words mean and whether they
 * make sense together; never looks at the file system, never prints.
 */
#include "mount/mount.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Below these a tier would hold nothing worth having: a hot image takes at least one huge page. */
#define HOT_MIN   (UINT64_C(16) << 20)
#define WARM_MIN  (UINT64_C(1) << 20)
#define INDEX_MIN (UINT64_C(1) << 20)
/* Reads 4 TB a day, of which a drive for this notices 2 % and a processor less than a core's tenth. A
 * rate below the least would not come round in years. */
#define SCRUB_RATE    (UINT64_C(50) << 20)
#define SCRUB_MIN     (UINT64_C(64) << 10)
#define SECONDS_MAX   (10 * 365 * 86400)
#define OPEN_WAIT_MAX 600000

enum option_kind {
	OPTION_SIZE,   /* a size, at least min */
	OPTION_NUMBER, /* a whole number from min to max */
	OPTION_FLAG,   /* sets a bool */
	OPTION_CLEAR,  /* clears it */
	OPTION_IGNORE, /* of mount(8) or systemd, or what is so anyway */
	OPTION_REFUSE, /* known and not possible here; help says why */
	OPTION_CODEC,
	OPTION_DEDUP,
	OPTION_SCRUB,
	OPTION_RUNDIR,
	OPTION_TESTMASK,
};

struct option {
	const char *name;
	enum option_kind kind;
	size_t field; /* offset in struct mount_options */
	uint64_t min, max;
	const char *help;
};

#define FIELD(f) offsetof(struct mount_options, f)

static const struct option options[] = {
	{ "hot", OPTION_SIZE, FIELD(hot), HOT_MIN, 0, NULL },
	{ "warm", OPTION_SIZE, FIELD(warm), WARM_MIN, 0, NULL },
	{ "index", OPTION_SIZE, FIELD(index), INDEX_MIN, 0, NULL },
	{ "idle", OPTION_NUMBER, FIELD(idle_s), 1, SECONDS_MAX, "seconds" },
	{ "commit", OPTION_NUMBER, FIELD(commit_s), 1, 3600, "seconds" },
	{ "open_wait", OPTION_NUMBER, FIELD(open_wait_ms), 0, OPEN_WAIT_MAX, "milliseconds" },
	{ "codec", OPTION_CODEC, 0, 0, 0, NULL },
	{ "dedup", OPTION_DEDUP, 0, 0, 0, NULL },
	{ "scrub", OPTION_SCRUB, 0, 0, 0, NULL },
	{ "nopassthrough", OPTION_FLAG, FIELD(nopassthrough), 0, 0, NULL },
	{ "allow_other", OPTION_FLAG, FIELD(allow_other), 0, 0, NULL },
	{ "ro", OPTION_FLAG, FIELD(read_only), 0, 0, NULL },
	{ "rw", OPTION_CLEAR, FIELD(read_only), 0, 0, NULL },
	{ "rundir", OPTION_RUNDIR, 0, 0, 0, NULL },
	{ "testmask", OPTION_TESTMASK, 0, 0, 0, NULL },

	{ "nodev", OPTION_FLAG, FIELD(nodev), 0, 0, NULL },
	{ "dev", OPTION_CLEAR, FIELD(nodev), 0, 0, NULL },
	{ "nosuid", OPTION_FLAG, FIELD(nosuid), 0, 0, NULL },
	{ "suid", OPTION_CLEAR, FIELD(nosuid), 0, 0, NULL },
	{ "noexec", OPTION_FLAG, FIELD(noexec), 0, 0, NULL },
	{ "exec", OPTION_CLEAR, FIELD(noexec), 0, 0, NULL },
	{ "noatime", OPTION_FLAG, FIELD(noatime), 0, 0, NULL },
	{ "atime", OPTION_CLEAR, FIELD(noatime), 0, 0, NULL },
	{ "nodiratime", OPTION_FLAG, FIELD(nodiratime), 0, 0, NULL },
	{ "diratime", OPTION_CLEAR, FIELD(nodiratime), 0, 0, NULL },

	{ "relatime", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "norelatime", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "strictatime", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "nostrictatime", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "lazytime", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "nolazytime", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "async", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "silent", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "loud", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "defaults", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "default_permissions", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "auto", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "noauto", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "nofail", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "_netdev", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "user", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "nouser", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "users", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "nousers", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "owner", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "noowner", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "group", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "nogroup", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "comment", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "uhelper", OPTION_IGNORE, 0, 0, 0, NULL },
	{ "helper", OPTION_IGNORE, 0, 0, 0, NULL },

	{ "sync", OPTION_REFUSE, 0, 0, 0, "not possible: use fsync(2) or O_SYNC where it matters" },
	{ "dirsync", OPTION_REFUSE, 0, 0, 0, "not possible: use fsync(2) on the directory" },
	{ "remount", OPTION_REFUSE, 0, 0, 0,
	  "not possible: unmount with 'kvfs umount' and mount anew" },
	{ "allow_root", OPTION_REFUSE, 0, 0, 0, "not known: use allow_other" },
};

static const struct {
	const char *name;
	unsigned bit;
} testmasks[] = {
	{ "no-passthrough", TESTMASK_NO_PASSTHROUGH },
	{ "no-direct-mmap", TESTMASK_NO_DIRECT_MMAP },
	{ "same-hash", TESTMASK_SAME_HASH },
};

#define FAIL(err, ...)                                                                             \
	({                                                                                         \
		snprintf(err, OPTIONS_ERROR, __VA_ARGS__);                                         \
		-EINVAL;                                                                           \
	})

uint64_t options_machine_memory(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

	return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

void options_init(struct mount_options *o, uint64_t memory)
{
	*o = (struct mount_options){
		.memory = memory,
		.idle_s = 300,
		.commit_s = 5,
		.open_wait_ms = 500,
		.scrub = SCRUB_RATE,
	};
}

void options_done(struct mount_options *o)
{
	free(o->rundir);
	o->rundir = NULL;
}

static int option_size(struct mount_options *o, const struct option *opt, const char *value,
		       char err[static OPTIONS_ERROR])
{
	char have[SIZE_TEXT];
	uint64_t bytes;
	int r = size_parse(value, o->memory, &bytes);

	size_format(o->memory, have);
	if (r == -ERANGE || (r == 0 && o->memory && bytes > o->memory))
		return FAIL(err,
			    "%s=%.100s: more than this machine's memory (%s): give a smaller size",
			    opt->name, value, have);
	if (r < 0)
		return FAIL(err, "%s=%.100s: not a size: write it like 512M, 1.5G or 25%%",
			    opt->name, value);
	if (bytes < opt->min)
		return FAIL(err, "%s=%.100s: too small: give at least %uM", opt->name, value,
			    (unsigned)(opt->min >> 20));
	memcpy((char *)o + opt->field, &bytes, sizeof(bytes));
	return 0;
}

static int option_number(struct mount_options *o, const struct option *opt, const char *value,
			 char err[static OPTIONS_ERROR])
{
	uint64_t n;
	unsigned u;

	if (number_parse(value, opt->min, opt->max, &n) < 0)
		return FAIL(err, "%s=%.100s: not a number of %s: give a whole number from %u to %u",
			    opt->name, value, opt->help, (unsigned)opt->min, (unsigned)opt->max);
	u = (unsigned)n;
	memcpy((char *)o + opt->field, &u, sizeof(u));
	return 0;
}

/* The daemon leaves the working directory, so a relative path would mean another place later. */
static int option_rundir(struct mount_options *o, const char *value, char err[static OPTIONS_ERROR])
{
	char *copy;

	if (value[0] != '/' || strlen(value) >= PATH_MAX)
		return FAIL(err, "rundir=%.100s: not an absolute path: give one that starts with /",
			    value);
	copy = strdup(value);
	if (!copy)
		return FAIL(err, "rundir=%.100s: out of memory: free some", value);
	free(o->rundir);
	o->rundir = copy;
	return 0;
}

static int option_codec(struct mount_options *o, const char *value, char err[static OPTIONS_ERROR])
{
	enum codec_choice choice;

	if (codec_choice_parse(value, &choice) || choice == CODEC_CHOICE_STORE)
		return FAIL(err, "codec=%.100s: no such choice: use auto, fast, dense, lz4 or none",
			    value);
	o->codec = choice;
	return 0;
}

static int option_dedup(struct mount_options *o, const char *value, char err[static OPTIONS_ERROR])
{
	if (dedup_scope_parse(value, &o->dedup))
		return FAIL(err, "dedup=%.100s: no such scope: use owner, store or none", value);
	return 0;
}

static int option_scrub(struct mount_options *o, const char *value, char err[static OPTIONS_ERROR])
{
	uint64_t rate = 0;

	if (strcmp(value, "off") && size_parse(value, 0, &rate) < 0)
		return FAIL(err, "scrub=%.100s: not a rate: write bytes a second like 50M, or off",
			    value);
	if (rate && rate < SCRUB_MIN)
		return FAIL(err, "scrub=%.100s: too slow: give at least %uK, or off", value,
			    (unsigned)(SCRUB_MIN >> 10));
	o->scrub = rate;
	return 0;
}

/* Words joined by '+' as ',' already parts the options. */
static int option_testmask(struct mount_options *o, const char *value,
			   char err[static OPTIONS_ERROR])
{
	const char *word = value;

	while (*word) {
		size_t len = strcspn(word, "+"), i;

		for (i = 0; i < sizeof(testmasks) / sizeof(*testmasks); i++)
			if (strlen(testmasks[i].name) == len &&
			    !strncmp(word, testmasks[i].name, len))
				break;
		if (i == sizeof(testmasks) / sizeof(*testmasks))
			return FAIL(
				err,
				"testmask=%.100s: no such mask: use no-passthrough, no-direct-mmap, "
				"same-hash or several with a + between",
				value);
		o->testmask |= testmasks[i].bit;
		word += len + (word[len] == '+');
	}
	return 0;
}

static bool option_takes_value(enum option_kind kind)
{
	return kind == OPTION_SIZE || kind == OPTION_NUMBER || kind == OPTION_CODEC ||
	       kind == OPTION_DEDUP || kind == OPTION_SCRUB || kind == OPTION_RUNDIR ||
	       kind == OPTION_TESTMASK;
}

static int option_apply(struct mount_options *o, const struct option *opt, const char *value,
			char err[static OPTIONS_ERROR])
{
	if (option_takes_value(opt->kind) && (!value || !*value))
		return FAIL(err, "%s: needs a value: write %s=...", opt->name, opt->name);
	if (value && (opt->kind == OPTION_FLAG || opt->kind == OPTION_CLEAR))
		return FAIL(err, "%s=%.100s: takes no value: write %s", opt->name, value,
			    opt->name);
	switch (opt->kind) {
	case OPTION_SIZE:
		return option_size(o, opt, value, err);
	case OPTION_NUMBER:
		return option_number(o, opt, value, err);
	case OPTION_FLAG:
	case OPTION_CLEAR:
		*(bool *)((char *)o + opt->field) = opt->kind == OPTION_FLAG;
		return 0;
	case OPTION_CODEC:
		return option_codec(o, value, err);
	case OPTION_DEDUP:
		return option_dedup(o, value, err);
	case OPTION_SCRUB:
		return option_scrub(o, value, err);
	case OPTION_RUNDIR:
		return option_rundir(o, value, err);
	case OPTION_TESTMASK:
		return option_testmask(o, value, err);
	case OPTION_REFUSE:
		return FAIL(err, "option %s: %s", opt->name, opt->help);
	case OPTION_IGNORE:
		break;
	}
	return 0;
}

static int option_parse(struct mount_options *o, char *word, char err[static OPTIONS_ERROR])
{
	char *value = strchr(word, '=');

	if (!strncmp(word, "x-", 2) || !strncmp(word, "X-", 2))
		return 0;
	if (value)
		*value++ = '\0';
	for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
		if (!strcmp(word, options[i].name))
			return option_apply(o, &options[i], value, err);
	if (o->sloppy)
		return 0;
	return FAIL(err, "option %.100s: not known: see 'kvfs mount --help' or kvfs(8)", word);
}

int options_parse(struct mount_options *o, const char *list, char err[static OPTIONS_ERROR])
{
	char *copy = strdup(list), *rest = copy, *word;
	int r = 0;

	if (!copy)
		return FAIL(err, "options: out of memory: free some");
	while (r == 0 && (word = strsep(&rest, ",")))
		if (*word)
			r = option_parse(o, word, err);
	free(copy);
	return r;
}

int options_check(const struct mount_options *o, char err[static OPTIONS_ERROR])
{
	/* The store's defaults, for the sum. */
	uint64_t hot = o->hot ? o->hot : o->memory / 2;
	uint64_t warm = o->warm ? o->warm : o->memory / 8;
	char a[SIZE_TEXT], b[SIZE_TEXT], c[SIZE_TEXT];

	if (o->memory && hot > o->memory - (warm < o->memory ? warm : o->memory))
		return FAIL(err,
			    "hot=%s and warm=%s%s: together more than this machine's memory (%s): "
			    "give smaller sizes",
			    size_format(hot, a), size_format(warm, b),
			    o->hot && o->warm ? "" : " (the default)", size_format(o->memory, c));
	if (o->memory && o->index > o->memory - hot - warm)
		return FAIL(err,
			    "index=%s: more than hot=%s and warm=%s leave of this machine's memory: "
			    "give smaller sizes",
			    size_format(o->index, a), size_format(hot, b), size_format(warm, c));
	return 0;
}
