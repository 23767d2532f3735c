/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two threads write numbered blocks with write(2), a third reads elsewhere in the file, which moves its times,
 * and the first looks through a shared mapping: it must see no less than a write that had returned, nor more
 * than one that had begun.
 *
 *	mapped_writes FILE SECONDS
 */
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define WRITERS 2
#define BLOCK   65536
#define PAGE    4096
#define WORDS   (BLOCK / sizeof(uint64_t))

static atomic_ullong begun[WRITERS], returned[WRITERS];
static atomic_bool stop;
static const char *path;

static int open_file(int flags)
{
	int fd = open(path, flags, 0644);

	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

static void *write_blocks(void *arg)
{
	size_t w = (uintptr_t)arg;
	int fd = open_file(O_RDWR);
	static _Thread_local uint64_t block[WORDS];

	while (!stop) {
		uint64_t n = begun[w] + 1;

		for (size_t i = 0; i < WORDS; i++)
			block[i] = n;
		begun[w] = n;
		if (pwrite(fd, block, BLOCK, (off_t)(w * BLOCK)) != BLOCK)
			err(1, "%s: write", path);
		returned[w] = n;
	}
	close(fd);
	return NULL;
}

static void *read_elsewhere(void *arg)
{
	char page[PAGE];
	int fd = open_file(O_RDONLY);

	(void)arg;
	while (!stop)
		if (pread(fd, page, PAGE, (off_t)WRITERS * BLOCK) != PAGE)
			err(1, "%s: read", path);
	close(fd);
	return NULL;
}

static const volatile uint64_t *page_of(const void *map, size_t w, size_t offset)
{
	return (const volatile uint64_t *)((const char *)map + w * BLOCK + offset);
}

static void look(const void *map, size_t w, size_t offset)
{
	uint64_t least = returned[w];
	uint64_t seen = *page_of(map, w, offset);
	uint64_t most = begun[w];

	if (seen < least || seen > most)
		errx(1, "%s: offset %zu of a mapping: got write %ju, expected %ju to %ju", path,
		     w * BLOCK + offset, (uintmax_t)seen, (uintmax_t)least, (uintmax_t)most);
}

int main(int argc, char **argv)
{
	pthread_t threads[WRITERS + 1];
	time_t end;
	void *map;
	int fd;

	if (argc != 3)
		errx(2, "usage: mapped_writes FILE SECONDS");
	path = argv[1];
	fd = open_file(O_RDWR | O_CREAT);
	if (ftruncate(fd, (off_t)(WRITERS + 1) * BLOCK))
		err(1, "%s", path);
	map = mmap(NULL, (size_t)WRITERS * BLOCK, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		err(1, "%s: mmap", path);
	for (uintptr_t w = 0; w < WRITERS; w++)
		if (pthread_create(&threads[w], NULL, write_blocks, (void *)w))
			errx(1, "no thread");
	if (pthread_create(&threads[WRITERS], NULL, read_elsewhere, NULL))
		errx(1, "no thread");
	end = time(NULL) + atoi(argv[2]);
	while (time(NULL) < end)
		for (size_t w = 0; w < WRITERS; w++)
			for (size_t offset = 0; offset < BLOCK; offset += PAGE)
				look(map, w, offset);
	stop = true;
	for (size_t i = 0; i <= WRITERS; i++)
		pthread_join(threads[i], NULL);
	for (size_t w = 0; w < WRITERS; w++)
		for (size_t offset = 0; offset < BLOCK; offset += PAGE)
			look(map, w, offset);
	printf("%ju writes\n", (uintmax_t)(begun[0] + begun[1]));
	return 0;
}
