/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees for the archive tests.
 *
 *	tree make DIR FILES BYTES SEED [KVDIR]
 *		makes about FILES files of BYTES in all below DIR: sizes over five orders of magnitude,
 *		modes, owners, times in ns, hard and symbolic links, xattrs, holes, odd names. With KVDIR
 *		half of the content is runs taken from the files there, so that it is real KV data.
 *	tree list DIR
 *		one line a name, sorted: everything a copy has to preserve, and a hash of the content.
 *		Two trees are the same if their lists are. Exits 1 if anything cannot be read.
 *	tree small DIR FILES SIZE
 *		FILES files of SIZE bytes of their own, 1,000 a folder, and nothing special
 *	tree stored DIR
 *		the sum of user.kvfs.stored and of st_blocks*512 of the regular files (each inode once), and
 *		their number
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <xxhash.h>

#include "pattern.h"

#define MAX_KV 32

static uint64_t rng_state;
static bool failed;

/* Real KV data, whole files. */
static struct {
	unsigned char *data;
	size_t len;
} kv[MAX_KV];
static int kv_count;

static void die(const char *what)
{
	fprintf(stderr, "tree: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t rnd(void)
{
	rng_state += 0x9e3779b97f4a7c15u;
	return pattern_mix(rng_state);
}

static uint64_t below(uint64_t n)
{
	return rnd() % n;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a directory, sorted; *ret_n of them. */
static char **names_of(const char *dir, size_t *ret_n)
{
	DIR *d = opendir(dir);
	char **list = NULL;
	size_t n = 0, room = 0;
	struct dirent *e;

	if (!d)
		die(dir);
	while (errno = 0, (e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (n == room) {
			room = room ? 2 * room : 64;
			list = realloc(list, room * sizeof(*list));
			if (!list)
				die("memory");
		}
		list[n++] = strdup(e->d_name);
	}
	if (errno)
		die(dir);
	closedir(d);
	if (n)
		qsort(list, n, sizeof(*list), by_name);
	*ret_n = n;
	return list;
}

static void free_names(char **list, size_t n)
{
	while (n)
		free(list[--n]);
	free(list);
}

static void kv_read(const char *dir)
{
	size_t n;
	char **names = names_of(dir, &n);

	for (size_t i = 0; i < n && kv_count < MAX_KV; i++) {
		char path[4096];
		struct stat st;
		int fd;

		if (!strstr(names[i], ".ggsq"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || fstat(fd, &st))
			die(path);
		kv[kv_count].data = malloc(st.st_size);
		kv[kv_count].len = st.st_size;
		if (!kv[kv_count].data || read(fd, kv[kv_count].data, st.st_size) != st.st_size)
			die(path);
		close(fd);
		kv_count++;
	}
	free_names(names, n);
}

static void fill(unsigned char *buf, size_t len)
{
	while (len) {
		size_t n;

		if (kv_count && below(2)) {
			int i = below(kv_count);
			size_t from = below(kv[i].len) & ~(size_t)3;

			n = kv[i].len - from < len ? kv[i].len - from : len;
			memcpy(buf, kv[i].data + from, n);
		} else {
			n = 1 + below(256 * 1024);
			if (n > len)
				n = len;
			pattern_fill(buf, n, rnd() | 1, 0);
		}
		buf += n;
		len -= n;
	}
}

static void put(int fd, const char *path, size_t len)
{
	static unsigned char buf[1 << 20];

	while (len) {
		size_t n = len < sizeof(buf) ? len : sizeof(buf);

		fill(buf, n);
		if (write(fd, buf, n) != (ssize_t)n)
			die(path);
		len -= n;
	}
}

/* Times of long ago: rsync takes a directory or a fifo made in the same second for unchanged. */
static void backdate(const char *path)
{
	struct timespec t[2];

	for (int i = 0; i < 2; i++) {
		t[i].tv_sec = 1000000000 + below(700000000);
		t[i].tv_nsec = below(1000000000);
	}
	if (utimensat(AT_FDCWD, path, t, 0))
		die(path);
}

static void dress(const char *path, bool dir)
{
	static const mode_t modes[] = { 0644, 0600, 0640, 0755, 0444, 0664, 02755, 01777 };
	char value[300];

	if (!below(8) && chown(path, 1000 + below(3), 1000 + below(3)))
		die(path);
	if (chmod(path, dir ? 0700 | (modes[below(8)] & 01777) : modes[below(6)]))
		die(path);
	if (!below(4)) {
		size_t n = below(sizeof(value));

		pattern_fill(value, n, rnd() | 1, 0);
		if (setxattr(path, below(2) ? "user.model" : "user.kv.layout", value, n, 0))
			die(path);
	}
	backdate(path);
}

static void make_file(const char *path, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

	if (fd < 0)
		die(path);
	put(fd, path, len);
	if (len > 100000 && !below(10)) {
		/* A hole at the end, another in the middle. */
		if (ftruncate(fd, len + 65536 + below(500000)) || lseek(fd, 300000, SEEK_END) < 0)
			die(path);
		put(fd, path, 5000);
	}
	if (close(fd))
		die(path);
	dress(path, false);
}

static void make_name(char *out, size_t size, const char *dir, unsigned i)
{
	static const char *const odd[] = { "with space", "-dash",     "ünïcode",
					   ".dot",       "tab\tnl\n", "*?[]'\"\\$" };

	if (i % 50 == 7)
		snprintf(out, size, "%s/%s.%u", dir, odd[below(6)], i);
	else if (i % 200 == 9)
		snprintf(out, size, "%s/%0200u", dir, i);
	else
		snprintf(out, size, "%s/layer.%03u", dir, i);
}

/* Sizes that add up to about bytes over files: many small, some large. */
static size_t size_of_one(uint64_t average)
{
	switch (below(10)) {
	case 0:
		return below(64);
	case 1:
	case 2:
	case 3:
		return below(average / 10 + 1);
	case 4:
	case 5:
	case 6:
	case 7:
		return average / 4 + below(average);
	default:
		return average * 2 + below(average * 2);
	}
}

static void make(const char *top, unsigned files, uint64_t bytes)
{
	unsigned sessions = files / 40 + 1;
	char dir[2048], path[4096], other[4096] = "", link_to[4200];
	char **dirs = calloc(sessions, sizeof(*dirs));

	if (!dirs)
		die("memory");
	for (unsigned s = 0, i = 0; s < sessions; s++) {
		snprintf(dir, sizeof(dir), "%s/session-%04u", top, s);
		if (mkdir(dir, 0755))
			die(dir);
		if (s % 7 == 3) {
			strcat(dir, "/branch");
			if (mkdir(dir, 0755))
				die(dir);
		}
		dirs[s] = strdup(dir);
		for (; i < (uint64_t)files * (s + 1) / sessions; i++) {
			make_name(path, sizeof(path), dir, i);
			make_file(path, size_of_one(bytes / files));
			if (other[0] && i % 31 == 5) {
				snprintf(link_to, sizeof(link_to), "%s.hard", path);
				if (link(other, link_to))
					die(link_to);
			}
			if (i % 37 == 5) {
				struct timespec t[2] = { { 1234567890, 123456789 },
							 { 1345678901, 987654321 } };

				snprintf(link_to, sizeof(link_to), "%s.soft", path);
				if (symlink(i % 2 ? "../nowhere" : strrchr(path, '/') + 1, link_to))
					die(link_to);
				if (utimensat(AT_FDCWD, link_to, t, AT_SYMLINK_NOFOLLOW))
					die(link_to);
			}
			strcpy(other, path);
		}
	}
	snprintf(path, sizeof(path), "%s/fifo", top);
	if (mkfifo(path, 0600))
		die(path);
	backdate(path);
	snprintf(path, sizeof(path), "%s/empty-session", top);
	if (mkdir(path, 0711))
		die(path);
	backdate(path);
	/* Last, so that nothing made later moves the times. */
	for (unsigned s = 0; s < sessions; s++) {
		char *branch = strstr(dirs[s], "/branch");

		dress(dirs[s], true);
		if (branch) {
			*branch = 0;
			dress(dirs[s], true);
		}
	}
	free_names(dirs, sessions);
}

static void make_small(const char *top, unsigned files, size_t size)
{
	unsigned char *buf = malloc(size + 1);
	char path[4096];

	if (!buf)
		die("memory");
	for (unsigned i = 0; i < files; i++) {
		int fd;

		if (i % 1000 == 0) {
			snprintf(path, sizeof(path), "%s/%u", top, i / 1000);
			if (mkdir(path, 0755))
				die(path);
		}
		snprintf(path, sizeof(path), "%s/%u/%u", top, i / 1000, i);
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
		pattern_fill(buf, size, i + 1, 0);
		if (fd < 0 || write(fd, buf, size) != (ssize_t)size || close(fd))
			die(path);
	}
	free(buf);
}

/* Escapes what would break a line. */
static void print_name(const char *name)
{
	for (; *name; name++) {
		if ((unsigned char)*name <= ' ' || *name == '\\')
			printf("\\%03o", (unsigned char)*name);
		else
			putchar(*name);
	}
}

static void print_content(const char *path, const struct stat *st)
{
	static unsigned char buf[1 << 20];
	XXH3_state_t *state = XXH3_createState();
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t total = 0;
	ssize_t r;

	XXH3_64bits_reset(state);
	while (fd >= 0 && (r = read(fd, buf, sizeof(buf))) > 0) {
		XXH3_64bits_update(state, buf, r);
		total += r;
	}
	if (fd < 0 || r < 0) {
		fprintf(stderr, "tree: %s: %s\n", path, strerror(errno));
		failed = true;
	} else if (total != (uint64_t)st->st_size) {
		fprintf(stderr, "tree: %s: %llu bytes read of %llu\n", path,
			(unsigned long long)total, (unsigned long long)st->st_size);
		failed = true;
	}
	printf(" %016llx", (unsigned long long)XXH3_64bits_digest(state));
	XXH3_freeState(state);
	if (fd >= 0)
		close(fd);
}

static void print_xattrs(const char *path)
{
	char list[65536], *sorted[256], value[65536];
	ssize_t n = llistxattr(path, list, sizeof(list));
	size_t count = 0;

	if (n < 0) {
		fprintf(stderr, "tree: %s: listxattr: %s\n", path, strerror(errno));
		failed = true;
		return;
	}
	for (char *p = list; p < list + n && count < 256; p += strlen(p) + 1)
		sorted[count++] = p;
	qsort(sorted, count, sizeof(sorted[0]), by_name);
	for (size_t i = 0; i < count; i++) {
		ssize_t len;

		/* What kvfs shows of itself is no content. */
		if (!strncmp(sorted[i], "user.kvfs.", 10))
			continue;
		len = lgetxattr(path, sorted[i], value, sizeof(value));
		printf(" %s=%zd:%016llx", sorted[i], len,
		       len < 0 ? 0 : (unsigned long long)XXH3_64bits(value, len));
	}
}

/* Links are told by the first name they were met under. */
struct link {
	ino_t ino;
	unsigned number;
};
static struct link *links;
static size_t link_count, link_room;
static unsigned link_number;

static unsigned link_group(ino_t ino)
{
	for (size_t i = 0; i < link_count; i++)
		if (links[i].ino == ino)
			return links[i].number;
	if (link_count == link_room) {
		link_room = link_room ? 2 * link_room : 256;
		links = realloc(links, link_room * sizeof(*links));
		if (!links)
			die("memory");
	}
	links[link_count++] = (struct link){ ino, ++link_number };
	return link_number;
}

typedef void visit_fn(const char *path, const char *shown, const struct stat *st);

static void walk(const char *path, const char *shown, visit_fn *visit)
{
	struct stat st;
	size_t n;
	char **names;

	if (lstat(path, &st))
		die(path);
	visit(path, shown, &st);
	if (!S_ISDIR(st.st_mode))
		return;
	names = names_of(path, &n);
	for (size_t i = 0; i < n; i++) {
		char below_it[8192], below_shown[8192];

		snprintf(below_it, sizeof(below_it), "%s/%s", path, names[i]);
		snprintf(below_shown, sizeof(below_shown), "%s/%s", shown, names[i]);
		walk(below_it, below_shown, visit);
		free(names[i]);
	}
	free(names);
}

static void list_one(const char *path, const char *shown, const struct stat *st)
{
	char target[4096];
	ssize_t n;

	print_name(shown);
	printf(" %o %u:%u", st->st_mode, st->st_uid, st->st_gid);
	/* The top is made by hand before a copy, and its times are not the copy's. */
	if (strcmp(shown, "."))
		printf(" %lld.%09ld", (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
	if (!S_ISDIR(st->st_mode)) {
		printf(" size=%lld", (long long)st->st_size);
		if (st->st_nlink > 1)
			printf(" link=%u/%u", link_group(st->st_ino), (unsigned)st->st_nlink);
	}
	if (S_ISLNK(st->st_mode)) {
		n = readlink(path, target, sizeof(target) - 1);
		target[n < 0 ? 0 : n] = 0;
		printf(" -> ");
		print_name(target);
	} else if (S_ISREG(st->st_mode)) {
		print_content(path, st);
	}
	print_xattrs(path);
	putchar('\n');
}

static unsigned long long sum_stored, sum_blocks, sum_files;

static void stored_one(const char *path, const char *shown, const struct stat *st)
{
	char value[64];
	ssize_t n;

	(void)shown;
	if (!S_ISREG(st->st_mode))
		return;
	if (st->st_nlink > 1) {
		size_t before = link_count;

		link_group(st->st_ino);
		if (link_count == before)
			return;
	}
	n = getxattr(path, "user.kvfs.stored", value, sizeof(value) - 1);
	if (n < 0)
		die(path);
	value[n] = 0;
	sum_stored += strtoull(value, NULL, 10);
	sum_blocks += st->st_blocks * 512ull;
	sum_files++;
}

int main(int argc, char **argv)
{
	umask(022);
	if (argc >= 6 && !strcmp(argv[1], "make")) {
		rng_state = strtoull(argv[5], NULL, 0);
		if (argc > 6)
			kv_read(argv[6]);
		make(argv[2], atoi(argv[3]), strtoull(argv[4], NULL, 0));
	} else if (argc == 5 && !strcmp(argv[1], "small")) {
		make_small(argv[2], atoi(argv[3]), strtoull(argv[4], NULL, 0));
	} else if (argc == 3 && !strcmp(argv[1], "list")) {
		walk(argv[2], ".", list_one);
	} else if (argc == 3 && !strcmp(argv[1], "stored")) {
		walk(argv[2], ".", stored_one);
		printf("%llu %llu %llu\n", sum_stored, sum_blocks, sum_files);
	} else {
		fprintf(stderr, "usage: tree make|list|small|stored DIR ...\n");
		return 2;
	}
	return failed;
}
