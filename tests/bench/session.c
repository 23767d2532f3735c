/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session: a folder of equal files, layer_000 and on, saved and restored the way an engine does it.
 *
 *	session save DIR FILES SIZE BLOCK KIND SEED [fsync]
 *	                   makes DIR and its files with writes of BLOCK bytes (1 MiB at most), each
 *	                   with an fsync before its close if asked for. Timed: open, write, fsync,
 *	                   close; not the making of the content.
 *	session restore DIR    reads every file in the order of names, 1 MiB a read
 *	session map DIR        maps every file in that order and loads every page
 *	session rand DIR COUNT COUNT reads of 4 KiB in each file, at random multiples of that
 *	session verify DIR KIND SEED  compares every byte with what save wrote (reports no time worth
 *	                   having)
 *	session sync PATH      fsync of one file or directory
 */
#include "tests/bench/data.h"

#include <limits.h>
#include <sys/mman.h>

#define PAGE 4096

/* Where the timed calls leave their sum. */
struct timing {
	double seconds;
	uint64_t bytes;
};

static void layer_path(char path[PATH_MAX], const char *dir, unsigned file)
{
	if (snprintf(path, PATH_MAX, "%s/layer_%03u", dir, file) >= PATH_MAX) {
		errno = ENAMETOOLONG;
		die("%s", dir);
	}
}

static void save_file(const struct data *d, const char *dir, unsigned file, uint64_t size,
		      size_t block, bool sync, struct timing *t)
{
	static char *buf;
	char path[PATH_MAX];
	double begin;
	int fd;

	if (!buf)
		buf = buffer_new(DATA_BLOCK);
	layer_path(path, dir, file);
	begin = now();
	fd = open_or_die(path, O_WRONLY | O_CREAT | O_EXCL);
	t->seconds += now() - begin;
	for (uint64_t b = 0; b < size / DATA_BLOCK; b++) {
		data_block(d, file, b, buf);
		begin = now();
		for (size_t at = 0; at < DATA_BLOCK; at += block)
			write_all(fd, buf + at, block, path);
		t->seconds += now() - begin;
		t->bytes += DATA_BLOCK;
	}
	begin = now();
	if (sync && fsync(fd))
		die("fsync %s", path);
	close_or_die(fd, path);
	t->seconds += now() - begin;
}

static void save(const char *dir, unsigned files, uint64_t size, size_t block, struct data *d,
		 bool sync)
{
	struct timing t = { 0 };

	if (size % DATA_BLOCK || DATA_BLOCK % block) {
		errno = EINVAL;
		die("sizes that are not multiples of 1 MiB and parts of it");
	}
	if (mkdir(dir, 0700))
		die("mkdir %s", dir);
	for (unsigned i = 0; i < files; i++)
		save_file(d, dir, i, size, block, sync, &t);
	report((double)t.bytes, t.seconds);
}

/* Calls fn with an open descriptor for every file of the session, in order. */
static unsigned for_layers(const char *dir, void (*fn)(void *arg, int fd, unsigned file), void *arg)
{
	char path[PATH_MAX];
	unsigned i;

	for (i = 0;; i++) {
		int fd;

		layer_path(path, dir, i);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 && errno == ENOENT && i)
			break;
		if (fd < 0)
			die("open %s", path);
		fn(arg, fd, i);
		close_or_die(fd, path);
	}
	return i;
}

struct restore {
	char *buf;
	uint64_t bytes;
};

static void restore_layer(void *arg, int fd, unsigned file)
{
	struct restore *r = arg;
	ssize_t n;

	while ((n = read(fd, r->buf, DATA_BLOCK)) > 0)
		r->bytes += (uint64_t)n;
	if (n < 0)
		die("read of layer %u", file);
}

static void restore(const char *dir)
{
	struct restore r = { .buf = buffer_new(DATA_BLOCK) };
	double begin = now();

	for_layers(dir, restore_layer, &r);
	report((double)r.bytes, now() - begin);
}

static void map_layer(void *arg, int fd, unsigned file)
{
	struct restore *r = arg;
	off_t size = lseek(fd, 0, SEEK_END);
	const volatile char *p = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		die("mmap of layer %u", file);
	for (off_t at = 0; at < size; at += PAGE)
		(void)p[at];
	munmap((void *)p, (size_t)size);
	r->bytes += (uint64_t)size;
}

static void map(const char *dir)
{
	struct restore r = { 0 };
	double begin = now();

	for_layers(dir, map_layer, &r);
	report((double)r.bytes, now() - begin);
}

struct draws {
	uint64_t count, done, state;
	char page[PAGE];
};

static void rand_layer(void *arg, int fd, unsigned file)
{
	struct draws *d = arg;
	uint64_t pages = (uint64_t)lseek(fd, 0, SEEK_END) / PAGE;

	for (uint64_t i = 0; i < d->count; i++, d->done++) {
		d->state = d->state * 6364136223846793005u + 1442695040888963407u;
		if (pread(fd, d->page, PAGE, (off_t)((d->state >> 33) % pages * PAGE)) != PAGE)
			die("read of layer %u", file);
	}
}

static void rand_reads(const char *dir, uint64_t count)
{
	struct draws d = { .count = count, .state = 1 };
	double begin = now();

	for_layers(dir, rand_layer, &d);
	report((double)d.done, now() - begin);
}

struct verify {
	const struct data *data;
	char *want, *got;
	uint64_t bytes;
};

static void verify_layer(void *arg, int fd, unsigned file)
{
	struct verify *v = arg;
	ssize_t n;

	for (uint64_t b = 0; (n = read(fd, v->got, DATA_BLOCK)) > 0; b++) {
		data_block(v->data, file, b, v->want);
		if (n != DATA_BLOCK || memcmp(v->want, v->got, DATA_BLOCK)) {
			fprintf(stderr, "layer %u differs in its MiB number %llu\n", file,
				(unsigned long long)b);
			exit(1);
		}
		v->bytes += DATA_BLOCK;
	}
	if (n < 0)
		die("read of layer %u", file);
}

static void verify(const char *dir, const struct data *d)
{
	struct verify v = { d, buffer_new(DATA_BLOCK), buffer_new(DATA_BLOCK), 0 };
	double begin = now();

	for_layers(dir, verify_layer, &v);
	report((double)v.bytes, now() - begin);
}

static void sync_path(const char *path)
{
	int fd = open_or_die(path, O_RDONLY);
	double begin = now();

	if (fsync(fd))
		die("fsync %s", path);
	report(1, now() - begin);
	close_or_die(fd, path);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	bool with_fsync = argc == 9 && !strcmp(argv[8], "fsync");

	if (!strcmp(what, "save") && (argc == 8 || with_fsync))
		save(argv[2], (unsigned)parse_size(argv[3]), parse_size(argv[4]),
		     parse_size(argv[5]), data_new(argv[6], parse_size(argv[7])), with_fsync);
	else if (!strcmp(what, "restore") && argc == 3)
		restore(argv[2]);
	else if (!strcmp(what, "map") && argc == 3)
		map(argv[2]);
	else if (!strcmp(what, "rand") && argc == 4)
		rand_reads(argv[2], parse_size(argv[3]));
	else if (!strcmp(what, "verify") && argc == 5)
		verify(argv[2], data_new(argv[3], parse_size(argv[4])));
	else if (!strcmp(what, "sync") && argc == 3)
		sync_path(argv[2]);
	else
		return fputs("usage: see the top of session.c\n", stderr), 2;
	return 0;
}
