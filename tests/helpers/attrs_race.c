/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two threads ask for the attributes of a file while a third renames, exchanges, links and
 * unlinks it and sets an xattr: what it sees right after each of these is of after it, and stays so when the
 * two have their answers, as one that was on its way meanwhile is not kept.
 *
 *	attrs_race DIR ROUNDS
 */
#include <err.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define ASKERS 2
/* The kernel marks attributes as valid before it has put all of them in place, so that one in 25,000 was late
 * here all the same; one in 50 when nobody told the kernel. */
#define LATE_MAX(rounds) (1 + (rounds) / 500)

enum change { RENAME, EXCHANGE, LINK, UNLINK, SETXATTR, CHANGES };
static const char *const change_name[] = { "rename", "exchange", "link", "unlink", "setxattr" };

static int fd;
static atomic_uint turn, answered; /* turn 0: none yet; UINT_MAX: the end */

/* Once a turn, past the cache. */
static void *ask(void *arg)
{
	struct statx sx;
	unsigned last = 0;

	for (;;) {
		while (turn == last)
			sched_yield();
		last = turn;
		if (last == UINT_MAX)
			return arg;
		if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &sx))
			err(1, "statx");
		answered++;
	}
}

static void do_change(enum change c, unsigned round)
{
	/* It goes from a to b and back. */
	const char *from = round % 2 ? "b" : "a", *to = round % 2 ? "a" : "b";
	int r = -1;

	switch (c) {
	case RENAME:
		r = rename(from, to);
		break;
	case EXCHANGE:
		r = renameat2(AT_FDCWD, to, AT_FDCWD, "other", RENAME_EXCHANGE);
		if (r == 0)
			r = renameat2(AT_FDCWD, to, AT_FDCWD, "other", RENAME_EXCHANGE);
		break;
	case LINK:
		r = link(to, "link");
		break;
	case UNLINK:
		r = unlink("link");
		break;
	default:
		r = fsetxattr(fd, "user.x", &round, sizeof(round), 0);
	}
	if (r)
		err(1, "%s", change_name[c]);
}

static struct stat look(void)
{
	struct stat st;

	if (fstat(fd, &st))
		err(1, "fstat");
	return st;
}

static bool is_old(const struct stat *before, enum change c)
{
	struct stat st = look();

	return st.st_nlink != (c == LINK ? 2 : 1) ||
	       (st.st_ctim.tv_sec == before->st_ctim.tv_sec &&
		st.st_ctim.tv_nsec == before->st_ctim.tv_nsec);
}

/* True if the file was seen as it was before, for a moment. */
static bool try_change(enum change c, unsigned round)
{
	struct stat before = look();
	bool late;

	answered = 0;
	turn++;
	/* At another moment of the answers each time. */
	for (unsigned k = round % 16; k; k--)
		sched_yield();
	do_change(c, round);
	late = is_old(&before, c);
	while (answered != ASKERS)
		sched_yield();
	if (is_old(&before, c))
		errx(1, "round %u: attributes of before the %s are kept", round, change_name[c]);
	return late;
}

int main(int argc, char **argv)
{
	unsigned rounds = argc == 3 ? (unsigned)atoi(argv[2]) : 0, late[CHANGES] = { 0 };
	pthread_t thread[ASKERS];

	if (!rounds || chdir(argv[1]))
		errx(2, "usage: attrs_race DIR ROUNDS");
	close(open("other", O_WRONLY | O_CREAT, 0644));
	fd = open("a", O_RDWR | O_CREAT | O_EXCL, 0644);
	if (fd < 0)
		err(1, "a");
	for (int k = 0; k < ASKERS; k++)
		if (pthread_create(&thread[k], NULL, ask, NULL))
			errx(1, "pthread_create");
	for (unsigned round = 0; round < rounds; round++)
		for (int c = 0; c < CHANGES; c++)
			late[c] += try_change((enum change)c, round);
	turn = UINT_MAX;
	for (int k = 0; k < ASKERS; k++)
		pthread_join(thread[k], NULL);
	for (int c = 0; c < CHANGES; c++) {
		printf("%s: %u of %u late\n", change_name[c], late[c], rounds);
		if (late[c] > LATE_MAX(rounds))
			errx(1, "%s: seen late", change_name[c]);
	}
	return 0;
}
