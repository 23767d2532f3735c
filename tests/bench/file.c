/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file: one file read again and again, or written anew again and again.
 *
 *	file fill PATH SIZE       writes the file that the others read
 *	file read PATH BLOCK      sequential reads of BLOCK bytes, open and close included
 *	file mmap PATH            mapped, every byte loaded, unmapped
 *	file rand PATH BLOCK      reads of BLOCK bytes at random multiples of BLOCK
 *	file write PATH SIZE BLOCK  a new file, O_WRONLY | O_CREAT, open and close included, then
 *	                          removed (not timed), then the next
 */
#include "tests/bench/data.h"

static uint64_t read_pass(const char *path, char *buf, size_t block)
{
	int fd = open_or_die(path, O_RDONLY);
	uint64_t total = 0;
	ssize_t n;

	while ((n = read(fd, buf, block)) > 0)
		total += (uint64_t)n;
	if (n < 0)
		die("read %s", path);
	close_or_die(fd, path);
	return total;
}

/* Loads every byte; eight sums, so that the additions do not wait for one another. */
static uint64_t sum_words(const uint64_t *w, size_t n)
{
	uint64_t s[8] = { 0 };

	for (size_t i = 0; i + 8 <= n; i += 8)
		for (unsigned j = 0; j < 8; j++)
			s[j] += w[i + j];
	return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static uint64_t mmap_pass(const char *path)
{
	static volatile uint64_t sink;
	int fd = open_or_die(path, O_RDONLY);
	struct stat st;
	void *p;

	if (fstat(fd, &st))
		die("fstat %s", path);
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		die("mmap %s", path);
	close_or_die(fd, path);
	sink = sum_words(p, (size_t)st.st_size / sizeof(uint64_t));
	(void)sink;
	munmap(p, (size_t)st.st_size);
	return (uint64_t)st.st_size;
}

static void repeat_reads(const char *path, size_t block)
{
	char *buf = block ? buffer_new(block) : NULL;
	double begin = now(), seconds;
	uint64_t total = 0;

	do {
		total += block ? read_pass(path, buf, block) : mmap_pass(path);
		seconds = now() - begin;
	} while (seconds < TIMED_S);
	report((double)total, seconds);
}

static void random_reads(const char *path, size_t block)
{
	int fd = open_or_die(path, O_RDONLY);
	uint64_t state = 1, ops = 0, blocks;
	char *buf = buffer_new(block);
	double begin, seconds;
	struct stat st;

	if (fstat(fd, &st))
		die("fstat %s", path);
	blocks = (uint64_t)st.st_size / block;
	begin = now();
	do {
		for (int i = 0; i < 4096; i++, ops++) {
			off_t at = (off_t)(splitmix(&state) % blocks * block);

			if (pread(fd, buf, block, at) != (ssize_t)block)
				die("pread %s at %lld", path, (long long)at);
		}
		seconds = now() - begin;
	} while (seconds < TIMED_S);
	report((double)ops, seconds);
}

static double write_pass(const char *path, uint64_t size, const char *buf, size_t block)
{
	double begin = now();
	int fd = open_or_die(path, O_WRONLY | O_CREAT);

	for (uint64_t done = 0; done < size; done += block)
		write_all(fd, buf, block, path);
	close_or_die(fd, path);
	return now() - begin;
}

static void repeat_writes(const char *path, uint64_t size, size_t block)
{
	struct data *d = data_new("random", 1);
	char *buf = buffer_new(block < DATA_BLOCK ? DATA_BLOCK : block);
	double seconds = 0;
	uint64_t total = 0;

	data_block(d, 0, 0, buf);
	unlink(path);
	do {
		seconds += write_pass(path, size, buf, block);
		total += size;
		if (unlink(path))
			die("unlink %s", path);
	} while (seconds < TIMED_S);
	report((double)total, seconds);
}

static void fill(const char *path, uint64_t size)
{
	struct data *d = data_new("normal", 7);
	char *buf = buffer_new(DATA_BLOCK);
	int fd = open_or_die(path, O_WRONLY | O_CREAT | O_TRUNC);
	double begin = now();

	for (uint64_t b = 0; b < size / DATA_BLOCK; b++) {
		data_block(d, 0, b, buf);
		write_all(fd, buf, DATA_BLOCK, path);
	}
	close_or_die(fd, path);
	report((double)size, now() - begin);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	if (!strcmp(what, "fill") && argc == 4)
		fill(argv[2], parse_size(argv[3]));
	else if (!strcmp(what, "read") && argc == 4)
		repeat_reads(argv[2], parse_size(argv[3]));
	else if (!strcmp(what, "mmap") && argc == 3)
		repeat_reads(argv[2], 0);
	else if (!strcmp(what, "rand") && argc == 4)
		random_reads(argv[2], parse_size(argv[3]));
	else if (!strcmp(what, "write") && argc == 5)
		repeat_writes(argv[2], parse_size(argv[3]), parse_size(argv[4]));
	else
		return fputs("usage: see the top of file.c\n", stderr), 2;
	return 0;
}
