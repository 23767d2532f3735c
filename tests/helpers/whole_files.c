/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines that move a block with one call: each thread writes a file with a single write(2), reads that of
 * another one with a single read(2) while others still write, and then its own. A call that returns less than
 * all of it is an error to them, and here.
 *
 *	whole_files DIR THREADS BYTES
 */
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define THREADS_MAX 256
#define SHIFT       4160 /* content of the files differs by so many bytes of one noise */

static unsigned threads;
static size_t bytes;
static const uint8_t *noise;
static atomic_bool written[THREADS_MAX];

static uint8_t *pages(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	return p;
}

static const uint8_t *content(unsigned file)
{
	return noise + (size_t)file * SHIFT;
}

static int open_file(unsigned file, int flags)
{
	char name[32];
	int fd;

	snprintf(name, sizeof(name), "%03u", file);
	fd = open(name, flags, 0644);
	if (fd < 0)
		err(1, "open %s", name);
	return fd;
}

static void write_whole(unsigned file)
{
	int fd = open_file(file, O_WRONLY | O_CREAT | O_TRUNC);
	ssize_t n = write(fd, content(file), bytes);

	if (n < 0)
		err(1, "write %u", file);
	if ((size_t)n != bytes)
		errx(1, "write %u: %zd of %zu bytes", file, n, bytes);
	if (close(fd))
		err(1, "close %u", file);
	written[file] = true;
}

static void read_whole(unsigned file, uint8_t *buf)
{
	int fd = open_file(file, O_RDONLY);
	ssize_t n = read(fd, buf, bytes);

	if (n < 0)
		err(1, "read %u", file);
	if ((size_t)n != bytes)
		errx(1, "read %u: %zd of %zu bytes", file, n, bytes);
	if (memcmp(buf, content(file), bytes))
		errx(1, "read %u: not what was written", file);
	close(fd);
}

static void *work(void *arg)
{
	unsigned self = (unsigned)(uintptr_t)arg;
	uint8_t *buf = pages(bytes);

	write_whole(self);
	for (unsigned k = 1; k < threads; k++) {
		unsigned other = (self + k) % threads;

		if (written[other]) {
			read_whole(other, buf);
			break;
		}
	}
	read_whole(self, buf);
	munmap(buf, bytes);
	return NULL;
}

/* xorshift64*, Vigna: no two places alike. */
static void make_noise(uint64_t *v, size_t words)
{
	uint64_t x = 88172645463325252ull;

	for (size_t k = 0; k < words; k++) {
		x ^= x >> 12;
		x ^= x << 25;
		x ^= x >> 27;
		v[k] = x * 2685821657736338717ull;
	}
}

int main(int argc, char **argv)
{
	pthread_t thread[THREADS_MAX];
	uint8_t *all;

	threads = argc == 4 ? (unsigned)atoi(argv[2]) : 0;
	if (!threads || threads > THREADS_MAX || chdir(argv[1]))
		errx(2, "usage: whole_files DIR THREADS BYTES");
	bytes = strtoull(argv[3], NULL, 0);
	all = pages(bytes + (size_t)threads * SHIFT);
	make_noise((uint64_t *)(void *)all, (bytes + (size_t)threads * SHIFT) / 8);
	noise = all;
	for (unsigned k = 0; k < threads; k++)
		if (pthread_create(&thread[k], NULL, work, (void *)(uintptr_t)k))
			errx(1, "pthread_create");
	for (unsigned k = 0; k < threads; k++)
		pthread_join(thread[k], NULL);
	/* All of them at the end, when they have been through the tiers. */
	all = pages(bytes);
	for (unsigned k = 0; k < threads; k++)
		read_whole(k, all);
	return 0;
}
