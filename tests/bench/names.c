/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names: what a flat directory of many files costs.
 *
 *	names create DIR N     O_CREAT | O_EXCL and close, N new empty files; makes DIR
 *	names stat DIR N       stat(2) of each, in a scattered order, until enough time is measured
 *	names access DIR N     the same with access(2)
 *	names missing DIR N    access(2) of N names that do not exist and were never asked for before
 *	names missing-again DIR N   of N names that do not exist and were asked for just before
 *	names readdir DIR N    lists the directory, checks that N names come
 *	names unlink DIR N     removes the files and DIR
 */
#include "tests/bench/worker.h"

#include <dirent.h>
#include <limits.h>

#define SCATTER 7919u /* a prime: i * SCATTER % n visits every i once, unless it divides n */

static void file_path(char path[PATH_MAX], const char *dir, const char *prefix, uint64_t i)
{
	if (snprintf(path, PATH_MAX, "%s/%s%016llx.kv", dir, prefix, (unsigned long long)i) >=
	    PATH_MAX) {
		errno = ENAMETOOLONG;
		die("%s", dir);
	}
}

static void create(const char *dir, uint64_t n)
{
	char path[PATH_MAX];
	double begin;

	if (mkdir(dir, 0700))
		die("mkdir %s", dir);
	begin = now();
	for (uint64_t i = 0; i < n; i++) {
		file_path(path, dir, "", i);
		close_or_die(open_or_die(path, O_WRONLY | O_CREAT | O_EXCL), path);
	}
	report((double)n, now() - begin);
}

static void stat_one(const char *path)
{
	struct stat st;

	if (stat(path, &st))
		die("stat %s", path);
}

static void access_one(const char *path)
{
	if (access(path, F_OK))
		die("access %s", path);
}

static void missing_one(const char *path)
{
	if (!access(path, F_OK) || errno != ENOENT)
		die("access %s", path);
}

/* Again and again until enough time is measured. */
static void scattered(const char *dir, const char *prefix, uint64_t n, void (*one)(const char *))
{
	double begin = now(), seconds;
	char path[PATH_MAX];
	uint64_t ops = 0;

	do {
		for (uint64_t i = 0; i < n; i++, ops++) {
			file_path(path, dir, prefix, i * SCATTER % n);
			one(path);
		}
		seconds = now() - begin;
	} while (seconds < TIMED_S);
	report((double)ops, seconds);
}

static void stat_all(const char *dir, uint64_t n)
{
	scattered(dir, "", n, stat_one);
}

static void access_all(const char *dir, uint64_t n)
{
	scattered(dir, "", n, access_one);
}

/* Names of their own for every run: one that was asked for before may be remembered. */
static void missing_prefix(char prefix[64])
{
	snprintf(prefix, 64, "no-%lld-", (long long)(now() * 1e6));
}

static void ask_once(const char *dir, const char *prefix, uint64_t n)
{
	char path[PATH_MAX];

	for (uint64_t i = 0; i < n; i++) {
		file_path(path, dir, prefix, i);
		missing_one(path);
	}
}

static void missing(const char *dir, uint64_t n)
{
	char prefix[64];
	double begin;

	missing_prefix(prefix);
	begin = now();
	ask_once(dir, prefix, n);
	report((double)n, now() - begin);
}

static void missing_again(const char *dir, uint64_t n)
{
	char prefix[64];

	missing_prefix(prefix);
	ask_once(dir, prefix, n);
	scattered(dir, prefix, n, missing_one);
}

static uint64_t readdir_pass(const char *dir)
{
	DIR *d = opendir(dir);
	uint64_t n = 0;

	if (!d)
		die("opendir %s", dir);
	for (struct dirent *e; (errno = 0, e = readdir(d));)
		n += e->d_name[0] != '.';
	if (errno)
		die("readdir %s", dir);
	closedir(d);
	return n;
}

static void list(const char *dir, uint64_t n)
{
	double begin = now(), seconds;
	uint64_t total = 0;

	do {
		uint64_t found = readdir_pass(dir);

		if (found != n) {
			fprintf(stderr, "%s: %llu names, not %llu\n", dir,
				(unsigned long long)found, (unsigned long long)n);
			exit(1);
		}
		total += found;
		seconds = now() - begin;
	} while (seconds < TIMED_S);
	report((double)total, seconds);
}

static void remove_all(const char *dir, uint64_t n)
{
	double begin = now(), seconds;
	char path[PATH_MAX];

	for (uint64_t i = 0; i < n; i++) {
		file_path(path, dir, "", i);
		if (unlink(path))
			die("unlink %s", path);
	}
	seconds = now() - begin;
	if (rmdir(dir))
		die("rmdir %s", dir);
	report((double)n, seconds);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(const char *dir, uint64_t n);
	} what[] = {
		{ "create", create },
		{ "stat", stat_all },
		{ "access", access_all },
		{ "missing", missing },
		{ "missing-again", missing_again },
		{ "readdir", list },
		{ "unlink", remove_all },
	};

	for (size_t i = 0; argc == 4 && i < sizeof(what) / sizeof(what[0]); i++) {
		if (!strcmp(argv[1], what[i].name))
			return what[i].run(argv[2], parse_size(argv[3])), 0;
	}
	return fputs("usage: see the top of names.c\n", stderr), 2;
}
