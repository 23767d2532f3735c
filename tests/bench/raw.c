/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw: what the device under the store gives, past every cache.
 *
 *	raw make PATH SIZE          preallocates and writes a file of noise
 *	raw read PATH SIZE BLOCK DEPTH   reads its first SIZE bytes with O_DIRECT, DEPTH threads each
 *	                            with one request of BLOCK bytes in flight, in order
 *	raw load PATH SIZE BLOCK DEPTH   reads them the same way, each block to memory of its own, as a
 *	                            restore does; read uses the same few, which stay in the cache
 *	raw write PATH SIZE BLOCK DEPTH  writes over them the same way, then fdatasync, which counts
 *	raw new PATH SIZE BLOCK DEPTH    the same into space of a file just preallocated, and removes it:
 *	                            what new data costs on the file system, whoever writes it
 *
 * With DEPTH 1 this is dd. Threads and not io_uring, as these are large requests: a thread that
 * waits costs nothing, and nothing can be said to be different about how kvfs asks.
 */
#include "tests/bench/data.h"
#include "tests/bench/team.h"

#include <stdatomic.h>

struct job {
	struct team team;
	const char *path;
	int fd;
	bool write;
	char *memory; /* for all of it; NULL: each thread uses one block again and again */
	uint64_t size;
	size_t block;
	atomic_uint_least64_t next; /* offset of the next block that nobody has taken */
};

static void *transfer(void *arg)
{
	struct data *d = data_new("random", 3);
	struct job *j = arg;
	char *buf = buffer_new(j->block);
	uint64_t at;

	for (size_t i = 0; i + DATA_BLOCK <= j->block; i += DATA_BLOCK)
		data_block(d, 1, i, buf + i);
	team_start(&j->team);
	while ((at = atomic_fetch_add(&j->next, j->block)) < j->size) {
		char *to = j->memory ? j->memory + at : buf;
		ssize_t n = j->write ? pwrite(j->fd, buf, j->block, (off_t)at) :
				       pread(j->fd, to, j->block, (off_t)at);

		if (n != (ssize_t)j->block)
			die("%s of %s at %llu", j->write ? "write" : "read", j->path,
			    (unsigned long long)at);
	}
	free(d);
	free(buf);
	return NULL;
}

static void preallocate(const char *path, uint64_t size)
{
	int fd;

	unlink(path);
	fd = open_or_die(path, O_WRONLY | O_CREAT | O_EXCL);
	errno = posix_fallocate(fd, 0, (off_t)size);
	if (errno || fsync(fd))
		die("preallocate %s", path);
	close_or_die(fd, path);
}

static void transfer_all(struct job *j, unsigned depth)
{
	double begin;

	j->fd = open_or_die(j->path, O_DIRECT | (j->write ? O_WRONLY : O_RDONLY));
	j->size -= j->size % j->block;
	begin = team_run(&j->team, depth, transfer, j);
	if (j->write && fdatasync(j->fd))
		die("fdatasync %s", j->path);
	report((double)j->size, now() - begin);
	close_or_die(j->fd, j->path);
}

static void make(const char *path, uint64_t size)
{
	struct data *d = data_new("random", 5);
	char *buf = buffer_new(DATA_BLOCK);
	int fd = open_or_die(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT);
	double begin = now();

	errno = posix_fallocate(fd, 0, (off_t)size);
	if (errno)
		die("preallocate %s", path);
	for (uint64_t b = 0; b < size / DATA_BLOCK; b++) {
		data_block(d, 0, b, buf);
		write_all(fd, buf, DATA_BLOCK, path);
	}
	if (fsync(fd))
		die("fsync %s", path);
	close_or_die(fd, path);
	report((double)size, now() - begin);
}

int main(int argc, char **argv)
{
	static struct job j;

	if (argc == 4 && !strcmp(argv[1], "make"))
		return make(argv[2], parse_size(argv[3])), 0;
	if (argc != 6 || (strcmp(argv[1], "read") && strcmp(argv[1], "load") &&
			  strcmp(argv[1], "write") && strcmp(argv[1], "new")))
		return fputs("usage: see the top of raw.c\n", stderr), 2;
	j.write = argv[1][0] == 'w' || argv[1][0] == 'n';
	j.path = argv[2];
	j.size = parse_size(argv[3]);
	j.block = parse_size(argv[4]);
	if (argv[1][0] == 'l')
		j.memory = buffer_new(j.size);
	if (argv[1][0] == 'n')
		preallocate(j.path, j.size);
	transfer_all(&j, (unsigned)parse_size(argv[5]));
	if (argv[1][0] == 'n')
		unlink(j.path);
	free(j.memory);
	return 0;
}
