/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks: one file a block, the way vLLM's fs tier stores them: many threads, each block
 * access(2)ed first; stored as O_CREAT | O_EXCL | O_DIRECT under a temporary name, one write(2),
 * close, rename; loaded with one read(2).
 *
 *	blocks store DIR N SIZE THREADS SEED   makes DIR with N blocks
 *	blocks load DIR N SIZE THREADS
 *	blocks drop DIR N SIZE THREADS         removes them and DIR
 */
#include "tests/bench/data.h"
#include "tests/bench/team.h"

#include <limits.h>
#include <stdatomic.h>

struct job {
	struct team team;
	const char *dir;
	void (*one)(const struct job *j, const char *path, uint64_t i, char *buf);
	uint64_t n;
	size_t size;
	const char *content; /* all blocks, made before the clock starts, no two alike */
	int direct;          /* O_DIRECT where the file system takes it */
	atomic_uint_least64_t next;
};

static void store_block(const struct job *j, const char *path, uint64_t i, char *buf)
{
	char tmp[PATH_MAX + 8];
	int fd;

	(void)buf;
	snprintf(tmp, sizeof(tmp), "%s.tmp", path);
	if (!access(path, F_OK)) {
		errno = EEXIST;
		die("%s", path);
	}
	fd = open_or_die(tmp, O_WRONLY | O_CREAT | O_EXCL | j->direct);
	if (write(fd, j->content + i * j->size, j->size) != (ssize_t)j->size)
		die("write %s", tmp);
	close_or_die(fd, tmp);
	if (rename(tmp, path))
		die("rename %s", tmp);
}

static void load_block(const struct job *j, const char *path, uint64_t i, char *buf)
{
	int fd;

	(void)i;
	if (access(path, F_OK))
		die("access %s", path);
	fd = open_or_die(path, O_RDONLY | j->direct);
	if (read(fd, buf, j->size) != (ssize_t)j->size)
		die("read %s", path);
	close_or_die(fd, path);
}

static void drop_block(const struct job *j, const char *path, uint64_t i, char *buf)
{
	(void)j;
	(void)i;
	(void)buf;
	if (unlink(path))
		die("unlink %s", path);
}

static void *work(void *arg)
{
	struct job *j = arg;
	char path[PATH_MAX], *buf = buffer_new(j->size);
	uint64_t i;

	team_start(&j->team);
	while ((i = atomic_fetch_add(&j->next, 1)) < j->n) {
		if (snprintf(path, sizeof(path), "%s/%016llx.bin", j->dir, (unsigned long long)i) >=
		    (int)sizeof(path))
			die("%s", j->dir);
		j->one(j, path, i, buf);
	}
	free(buf);
	return NULL;
}

static const char *make_content(uint64_t bytes, uint64_t seed)
{
	struct data *d = data_new("normal", seed);
	char *content = buffer_new(bytes);

	for (uint64_t at = 0; at + DATA_BLOCK <= bytes; at += DATA_BLOCK)
		data_block(d, 0, at / DATA_BLOCK, content + at);
	return content;
}

static int direct_flag(const char *dir)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/probe", dir);
	fd = open(path, O_WRONLY | O_CREAT | O_DIRECT, 0600);
	if (fd >= 0)
		close(fd);
	unlink(path);
	return fd >= 0 ? O_DIRECT : 0;
}

int main(int argc, char **argv)
{
	bool store = argc == 7 && !strcmp(argv[1], "store");
	bool drop = argc == 6 && !strcmp(argv[1], "drop");
	static struct job j;
	double begin;

	if (!store && !drop && (argc != 6 || strcmp(argv[1], "load")))
		return fputs("usage: see the top of blocks.c\n", stderr), 2;
	j.dir = argv[2];
	j.one = store ? store_block : drop ? drop_block : load_block;
	j.n = parse_size(argv[3]);
	j.size = parse_size(argv[4]);
	if (store && mkdir(j.dir, 0700))
		die("mkdir %s", j.dir);
	if (store)
		j.content = make_content(j.n * j.size, parse_size(argv[6]));
	j.direct = direct_flag(j.dir);
	begin = team_run(&j.team, (unsigned)parse_size(argv[5]), work, &j);
	report((double)j.n * (double)j.size, now() - begin);
	if (drop && rmdir(j.dir))
		die("rmdir %s", j.dir);
	return 0;
}
