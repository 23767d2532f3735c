/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shell for system calls: the open files and mappings of one process, driven line by line, so that a
 * case written in bash can hold a handle or a mapping while it does something else. It must never do
 * anything with a file that its command did not say: no buffering, no stat, no retry.
 *
 *	iosh COMMAND...        runs each argument, stops at the first that fails, prints what they return
 *	iosh                   reads commands from stdin, answers each with a line: "ok [VALUE]",
 *	                       "err ENAME" or "bad EXPLANATION" (content that is not what it should be)
 *
 * Commands (H names a handle, M a mapping; numbers take K, M, G; SEED as in pattern.h):
 *	open H PATH FLAG,... [MODE]     close H
 *	pwrite H OFF LEN SEED [BS]      pread H OFF LEN SEED [BS]   in pieces of BS (1M)
 *	write H LEN SEED                as pwrite, at the position; the pattern starts at 0
 *	cmp H PATH                      the whole of H, by pread, against PATH
 *	map M H OFF LEN PROT FLAG,...   unmap M              msync M
 *	store M OFF LEN SEED FILEOFF    load M OFF LEN SEED FILEOFF
 *	fsync H | fdatasync H | ftruncate H SIZE | truncate PATH SIZE
 *	fallocate H keep,punch,zero,collapse,insert|0 OFF LEN
 *	lseek H OFF set|end|data|hole   setfl H FLAG,...|0   fstat H FIELD   stat PATH FIELD
 *	copy H OFF H2 OFF2 LEN          utime PATH NS        (both times)
 *	rename A B [noreplace|exchange] linkfd H PATH         unlink PATH
 *	flock H sh|ex|un                lock H rd|wr|un OFF LEN
 *	getx PATH NAME                  setx PATH NAME VALUE [create|replace]  getxlen PATH NAME SIZE
 * Prefixes: "is VALUE COMMAND" and "fails ENAME,... COMMAND".
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "pattern.h"

#define NAMES  64
#define WORDS  16
#define ANSWER 512

struct handle {
	char name[32];
	int fd;
};

struct mapping {
	char name[32];
	unsigned char *addr;
	size_t len;
};

static struct handle handles[NAMES];
static struct mapping mappings[NAMES];
/* What the command returns, and what is wrong with content. */
static char value[ANSWER];
static char wrong[ANSWER];
static sigjmp_buf on_sigbus;

struct word {
	const char *name;
	unsigned bits;
};

static const struct word open_flags[] = { { "rdonly", O_RDONLY },
					  { "wronly", O_WRONLY },
					  { "rdwr", O_RDWR },
					  { "creat", O_CREAT },
					  { "excl", O_EXCL },
					  { "trunc", O_TRUNC },
					  { "append", O_APPEND },
					  { "direct", O_DIRECT },
					  { "sync", O_SYNC },
					  { "dsync", O_DSYNC },
					  { "tmpfile", O_TMPFILE },
					  { "directory", O_DIRECTORY },
					  { "nofollow", O_NOFOLLOW },
					  { "path", O_PATH },
					  { "nonblock", O_NONBLOCK },
					  { "noatime", O_NOATIME },
					  { NULL, 0 } };
static const struct word prot_flags[] = { { "r", PROT_READ },
					  { "w", PROT_WRITE },
					  { "rw", PROT_READ | PROT_WRITE },
					  { "none", PROT_NONE },
					  { NULL, 0 } };
static const struct word map_flags[] = { { "shared", MAP_SHARED },
					 { "private", MAP_PRIVATE },
					 { "populate", MAP_POPULATE },
					 { NULL, 0 } };
static const struct word falloc_flags[] = {
	{ "keep", FALLOC_FL_KEEP_SIZE },      { "punch", FALLOC_FL_PUNCH_HOLE },
	{ "zero", FALLOC_FL_ZERO_RANGE },     { "collapse", FALLOC_FL_COLLAPSE_RANGE },
	{ "insert", FALLOC_FL_INSERT_RANGE }, { NULL, 0 }
};
static const struct word seek_words[] = { { "set", SEEK_SET },
					  { "end", SEEK_END },
					  { "data", SEEK_DATA },
					  { "hole", SEEK_HOLE },
					  { NULL, 0 } };
static const struct word rename_words[] = { { "noreplace", RENAME_NOREPLACE },
					    { "exchange", RENAME_EXCHANGE },
					    { NULL, 0 } };
static const struct word flock_words[] = {
	{ "sh", LOCK_SH | LOCK_NB }, { "ex", LOCK_EX | LOCK_NB }, { "un", LOCK_UN }, { NULL, 0 }
};
static const struct word lock_words[] = {
	{ "rd", F_RDLCK }, { "wr", F_WRLCK }, { "un", F_UNLCK }, { NULL, 0 }
};
static const struct word xattr_words[] = { { "create", XATTR_CREATE },
					   { "replace", XATTR_REPLACE },
					   { NULL, 0 } };

static void usage(const char *what, const char *text)
{
	fprintf(stderr, "iosh: %s: %s\n", what, text);
	exit(2);
}

/* "a,b" in the words of a table, or a plain number. */
static unsigned flags_of(const char *text, const struct word *table)
{
	char copy[128];
	unsigned bits = 0;

	if (isdigit((unsigned char)text[0]))
		return strtoul(text, NULL, 0);
	snprintf(copy, sizeof(copy), "%s", text);
	for (char *save, *w = strtok_r(copy, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
		const struct word *t = table;

		while (t->name && strcmp(t->name, w))
			t++;
		if (!t->name)
			usage("unknown flag", w);
		bits |= t->bits;
	}
	return bits;
}

static int64_t number_of(const char *text)
{
	char *end;
	int64_t n = strtoll(text, &end, 0);

	switch (*end) {
	case 'G':
		n *= 1024; /* fall through */
	case 'M':
		n *= 1024; /* fall through */
	case 'K':
		n *= 1024;
		end++;
	}
	if (*end)
		usage("not a number", text);
	return n;
}

static struct handle *handle_find(const char *name, bool make)
{
	for (struct handle *h = handles; h < handles + NAMES; h++)
		if (!strcmp(h->name, name))
			return h;
	if (!make)
		usage("no such handle", name);
	for (struct handle *h = handles; h < handles + NAMES; h++) {
		if (!h->name[0]) {
			snprintf(h->name, sizeof(h->name), "%s", name);
			h->fd = -1;
			return h;
		}
	}
	usage("too many handles", name);
	return NULL;
}

static int fd_of(const char *name)
{
	return handle_find(name, false)->fd;
}

static struct mapping *mapping_find(const char *name, bool make)
{
	for (struct mapping *m = mappings; m < mappings + NAMES; m++)
		if (!strcmp(m->name, name))
			return m;
	if (!make)
		usage("no such mapping", name);
	for (struct mapping *m = mappings; m < mappings + NAMES; m++) {
		if (!m->name[0]) {
			snprintf(m->name, sizeof(m->name), "%s", name);
			return m;
		}
	}
	usage("too many mappings", name);
	return NULL;
}

/* Aligned for O_DIRECT, kept for the next call. */
static unsigned char *buffer(size_t len)
{
	static unsigned char *buf;
	static size_t size;

	if (len > size) {
		free(buf);
		size = (len + 4095) & ~(size_t)4095;
		buf = aligned_alloc(4096, size);
		if (!buf)
			usage("out of memory", "buffer");
	}
	return buf;
}

static int do_pwrite(int fd, int64_t off, int64_t len, uint64_t seed, size_t bs, bool seq)
{
	while (len > 0) {
		size_t n = (size_t)len < bs ? (size_t)len : bs;
		unsigned char *buf = buffer(bs);
		ssize_t r;

		pattern_fill(buf, n, seed, off);
		r = seq ? write(fd, buf, n) : pwrite(fd, buf, n, off);
		if (r < 0)
			return -errno;
		if ((size_t)r != n) {
			/* A short write is an error to every client kvfs has. */
			snprintf(wrong, sizeof(wrong), "short write: %zd of %zu at %lld", r, n,
				 (long long)off);
			return 0;
		}
		off += n;
		len -= n;
	}
	return 0;
}

static void bad_byte(int64_t off, unsigned got, uint64_t seed)
{
	unsigned char want;

	pattern_fill(&want, 1, seed, off);
	snprintf(wrong, sizeof(wrong), "byte %lld is 0x%02x, not 0x%02x", (long long)off, got,
		 want);
}

static int do_pread(int fd, int64_t off, int64_t len, uint64_t seed, size_t bs)
{
	while (len > 0) {
		size_t n = (size_t)len < bs ? (size_t)len : bs;
		unsigned char *buf = buffer(bs);
		ssize_t r = pread(fd, buf, n, off);
		size_t ok;

		if (r < 0)
			return -errno;
		if ((size_t)r != n) {
			snprintf(wrong, sizeof(wrong), "short read: %zd of %zu at %lld", r, n,
				 (long long)off);
			return 0;
		}
		ok = pattern_check(buf, n, seed, off);
		if (ok != n) {
			bad_byte(off + ok, buf[ok], seed);
			return 0;
		}
		off += n;
		len -= n;
	}
	return 0;
}

/* Compares what two descriptors hold, by pread. */
static int compare(int a, int b)
{
	static unsigned char one[1 << 16], two[1 << 16];
	int64_t off = 0;

	for (;;) {
		ssize_t n = pread(a, one, sizeof(one), off);
		ssize_t m = n < 0 ? -1 : pread(b, two, sizeof(two), off);

		if (n < 0 || m < 0)
			return -errno;
		for (ssize_t i = 0; i < n && i < m; i++) {
			if (one[i] != two[i]) {
				snprintf(wrong, sizeof(wrong), "byte %lld is 0x%02x, not 0x%02x",
					 (long long)off + i, one[i], two[i]);
				return 0;
			}
		}
		if (n != m) {
			snprintf(wrong, sizeof(wrong), "%zd bytes, not %zd, at %lld", n, m,
				 (long long)off);
			return 0;
		}
		if (!n)
			return 0;
		off += n;
	}
}

static int compare_path(int fd, const char *path)
{
	int other = open(path, O_RDONLY | O_CLOEXEC);
	int rc;

	if (other < 0)
		usage("cannot open", path);
	rc = compare(fd, other);
	close(other);
	return rc;
}

static int do_map(const char *name, int fd, int64_t off, int64_t len, int prot, int flags)
{
	void *p = mmap(NULL, len, prot, flags, fd, off);
	struct mapping *m;

	if (p == MAP_FAILED)
		return -errno;
	m = mapping_find(name, true);
	m->addr = p;
	m->len = len;
	return 0;
}

static struct mapping *mapping_range(const char *name, int64_t off, int64_t len)
{
	struct mapping *m = mapping_find(name, false);

	if (off < 0 || len < 0 || (uint64_t)off + len > m->len)
		usage("outside of the mapping", name);
	return m;
}

static int do_load(const struct mapping *m, int64_t off, int64_t len, uint64_t seed, int64_t at)
{
	size_t ok = pattern_check(m->addr + off, len, seed, at);

	if (ok != (size_t)len)
		bad_byte(at + ok, m->addr[off + ok], seed);
	return 0;
}

static long long ns_of(struct timespec t)
{
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int do_stat(const struct stat *st, const char *field)
{
	const struct {
		const char *name;
		long long value;
	} fields[] = {
		{ "size", st->st_size },         { "blocks", st->st_blocks },
		{ "nlink", st->st_nlink },       { "mode", st->st_mode },
		{ "ino", st->st_ino },           { "uid", st->st_uid },
		{ "gid", st->st_gid },           { "mtime", ns_of(st->st_mtim) },
		{ "atime", ns_of(st->st_atim) }, { "ctime", ns_of(st->st_ctim) },
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (!strcmp(fields[i].name, field)) {
			snprintf(value, sizeof(value), "%lld", fields[i].value);
			return 0;
		}
	}
	usage("unknown field", field);
	return 0;
}

static int do_getx(const char *path, const char *name)
{
	ssize_t r = getxattr(path, name, value, sizeof(value) - 1);

	if (r < 0) {
		r = -errno;
		value[0] = 0;
		return r;
	}
	value[r] = 0;
	return 0;
}

static int do_lock(int fd, unsigned type, int64_t off, int64_t len)
{
	struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_start = off, .l_len = len };

	return fcntl(fd, F_SETLK, &l) ? -errno : 0;
}

static int do_utime(const char *path, int64_t ns)
{
	struct timespec t = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
	struct timespec both[2] = { t, t };

	return utimensat(AT_FDCWD, path, both, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

static int do_linkfd(int fd, const char *path)
{
	char self[64];

	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) ? -errno : 0;
}

static int do_copy(int a, int64_t off, int b, int64_t off2, int64_t len)
{
	while (len > 0) {
		off64_t x = off, y = off2;
		ssize_t r = copy_file_range(a, &x, b, &y, len, 0);

		if (r < 0)
			return -errno;
		if (!r) {
			snprintf(wrong, sizeof(wrong), "copied nothing at %lld", (long long)off);
			return 0;
		}
		off += r;
		off2 += r;
		len -= r;
	}
	return 0;
}

#define RC(call) ((call) < 0 ? -errno : 0)

/* One command. argc counts the words. Returns 0 or a negative errno. */
static int run_file(int argc, char **a, bool *known)
{
	struct stat st;
	int64_t n;

	*known = true;
	if (!strcmp(a[0], "open") && argc >= 4) {
		int fd = open(a[2], flags_of(a[3], open_flags) | O_CLOEXEC,
			      argc > 4 ? strtoul(a[4], NULL, 8) : 0644);

		if (fd < 0)
			return -errno;
		handle_find(a[1], true)->fd = fd;
		return 0;
	}
	if (!strcmp(a[0], "close") && argc == 2) {
		struct handle *h = handle_find(a[1], false);

		h->name[0] = 0;
		return RC(close(h->fd));
	}
	if (!strcmp(a[0], "pwrite") && argc >= 5)
		return do_pwrite(fd_of(a[1]), number_of(a[2]), number_of(a[3]), number_of(a[4]),
				 argc > 5 ? number_of(a[5]) : 1 << 20, false);
	if (!strcmp(a[0], "write") && argc >= 4)
		return do_pwrite(fd_of(a[1]), 0, number_of(a[2]), number_of(a[3]),
				 argc > 4 ? number_of(a[4]) : 1 << 20, true);
	if (!strcmp(a[0], "pread") && argc >= 5)
		return do_pread(fd_of(a[1]), number_of(a[2]), number_of(a[3]), number_of(a[4]),
				argc > 5 ? number_of(a[5]) : 1 << 20);
	if (!strcmp(a[0], "cmp") && argc == 3)
		return compare_path(fd_of(a[1]), a[2]);
	if (!strcmp(a[0], "fsync") && argc == 2)
		return RC(fsync(fd_of(a[1])));
	if (!strcmp(a[0], "fdatasync") && argc == 2)
		return RC(fdatasync(fd_of(a[1])));
	if (!strcmp(a[0], "ftruncate") && argc == 3)
		return RC(ftruncate(fd_of(a[1]), number_of(a[2])));
	if (!strcmp(a[0], "fallocate") && argc == 5)
		return RC(fallocate(fd_of(a[1]), flags_of(a[2], falloc_flags), number_of(a[3]),
				    number_of(a[4])));
	if (!strcmp(a[0], "lseek") && argc == 4) {
		n = lseek(fd_of(a[1]), number_of(a[2]), flags_of(a[3], seek_words));
		if (n < 0)
			return -errno;
		snprintf(value, sizeof(value), "%lld", (long long)n);
		return 0;
	}
	if (!strcmp(a[0], "setfl") && argc == 3)
		return RC(fcntl(fd_of(a[1]), F_SETFL, flags_of(a[2], open_flags)));
	if (!strcmp(a[0], "fstat") && argc == 3)
		return fstat(fd_of(a[1]), &st) ? -errno : do_stat(&st, a[2]);
	if (!strcmp(a[0], "linkfd") && argc == 3)
		return do_linkfd(fd_of(a[1]), a[2]);
	if (!strcmp(a[0], "copy") && argc == 6)
		return do_copy(fd_of(a[1]), number_of(a[2]), fd_of(a[3]), number_of(a[4]),
			       number_of(a[5]));
	if (!strcmp(a[0], "flock") && argc == 3)
		return RC(flock(fd_of(a[1]), flags_of(a[2], flock_words)));
	if (!strcmp(a[0], "lock") && argc == 5)
		return do_lock(fd_of(a[1]), flags_of(a[2], lock_words), number_of(a[3]),
			       number_of(a[4]));
	*known = false;
	return 0;
}

static int run_mapping(int argc, char **a, bool *known)
{
	struct mapping *m;

	*known = true;
	if (!strcmp(a[0], "map") && argc == 7)
		return do_map(a[1], fd_of(a[2]), number_of(a[3]), number_of(a[4]),
			      flags_of(a[5], prot_flags), flags_of(a[6], map_flags));
	if (!strcmp(a[0], "unmap") && argc == 2) {
		m = mapping_find(a[1], false);
		m->name[0] = 0;
		return RC(munmap(m->addr, m->len));
	}
	if (!strcmp(a[0], "msync") && argc == 2) {
		m = mapping_find(a[1], false);
		return RC(msync(m->addr, m->len, MS_SYNC));
	}
	if (!strcmp(a[0], "store") && argc == 6) {
		m = mapping_range(a[1], number_of(a[2]), number_of(a[3]));
		pattern_fill(m->addr + number_of(a[2]), number_of(a[3]), number_of(a[4]),
			     number_of(a[5]));
		return 0;
	}
	if (!strcmp(a[0], "load") && argc == 6)
		return do_load(mapping_range(a[1], number_of(a[2]), number_of(a[3])),
			       number_of(a[2]), number_of(a[3]), number_of(a[4]), number_of(a[5]));
	*known = false;
	return 0;
}

static int run_path(int argc, char **a, bool *known)
{
	struct stat st;

	*known = true;
	if (!strcmp(a[0], "stat") && argc == 3)
		return lstat(a[1], &st) ? -errno : do_stat(&st, a[2]);
	if (!strcmp(a[0], "truncate") && argc == 3)
		return RC(truncate(a[1], number_of(a[2])));
	if (!strcmp(a[0], "rename") && argc >= 3)
		return RC(renameat2(AT_FDCWD, a[1], AT_FDCWD, a[2],
				    argc > 3 ? flags_of(a[3], rename_words) : 0));
	if (!strcmp(a[0], "unlink") && argc == 2)
		return RC(unlink(a[1]));
	if (!strcmp(a[0], "utime") && argc == 3)
		return do_utime(a[1], number_of(a[2]));
	if (!strcmp(a[0], "getx") && argc == 3)
		return do_getx(a[1], a[2]);
	if (!strcmp(a[0], "getxlen") && argc == 4) {
		char got[70000];
		ssize_t r = getxattr(a[1], a[2], got, number_of(a[3]));

		if (r < 0)
			return -errno;
		snprintf(value, sizeof(value), "%zd", r);
		return 0;
	}
	if (!strcmp(a[0], "setx") && argc >= 4)
		return RC(setxattr(a[1], a[2], a[3], strlen(a[3]),
				   argc > 4 ? flags_of(a[4], xattr_words) : 0));
	*known = false;
	return 0;
}

static int run_words(int argc, char **a)
{
	bool known;
	int rc;

	/* A store to a mapping whose file is shorter, or whose server is gone. */
	if (sigsetjmp(on_sigbus, 1)) {
		snprintf(wrong, sizeof(wrong), "SIGBUS");
		return 0;
	}
	rc = run_file(argc, a, &known);
	if (!known)
		rc = run_mapping(argc, a, &known);
	if (!known)
		rc = run_path(argc, a, &known);
	if (!known)
		usage("unknown command or wrong number of words", a[0]);
	return rc;
}

/* True if the comma-separated list has the word. */
static bool listed(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = list; (p = strstr(p, word)); p += n)
		if ((p == list || p[-1] == ',') && (!p[n] || p[n] == ','))
			return true;
	return false;
}

/* Runs a line; out gets the answer as the interactive form prints it. True when it is an "ok". */
static bool run_line(const char *line, char *out, size_t size)
{
	char copy[8192];
	char *words[WORDS], **a = words;
	const char *want_value = NULL, *want_error = NULL;
	int argc = 0, rc;

	snprintf(copy, sizeof(copy), "%s", line);
	for (char *save, *w = strtok_r(copy, " \t\n", &save); w && argc < WORDS;
	     w = strtok_r(NULL, " \t\n", &save))
		words[argc++] = w;
	value[0] = wrong[0] = out[0] = 0;
	while (argc > 2 && (!strcmp(a[0], "is") || !strcmp(a[0], "fails"))) {
		*(a[0][0] == 'i' ? &want_value : &want_error) = a[1];
		a += 2;
		argc -= 2;
	}
	if (!argc) {
		snprintf(out, size, "ok");
		return true;
	}
	rc = run_words(argc, a);
	if (rc) {
		const char *name = strerrorname_np(-rc);

		if (want_error && listed(want_error, name)) {
			snprintf(out, size, "ok");
			return true;
		}
		snprintf(out, size, "err %s", name);
		return false;
	}
	if (wrong[0] && !(want_error && listed(want_error, wrong))) {
		snprintf(out, size, "bad %.400s", wrong);
		return false;
	}
	if (want_error && !wrong[0]) {
		snprintf(out, size, "bad succeeded, not %.300s", want_error);
		return false;
	}
	if (want_value && strcmp(want_value, value)) {
		snprintf(out, size, "bad is %.200s, not %.200s", value, want_value);
		return false;
	}
	if (value[0] && !want_value)
		snprintf(out, size, "ok %s", value);
	else
		snprintf(out, size, "ok");
	return true;
}

static void caught_sigbus(int sig)
{
	(void)sig;
	siglongjmp(on_sigbus, 1);
}

int main(int argc, char **argv)
{
	static char line[8192], out[1024];

	signal(SIGBUS, caught_sigbus);
	signal(SIGPIPE, SIG_IGN);
	if (argc < 2) {
		while (fgets(line, sizeof(line), stdin)) {
			run_line(line, out, sizeof(out));
			puts(out);
			fflush(stdout);
		}
		return 0;
	}
	for (int i = 1; i < argc; i++) {
		if (!run_line(argv[i], out, sizeof(out))) {
			fprintf(stderr, "iosh: %s: %s\n", argv[i], out);
			return 1;
		}
		if (out[2])
			puts(out + 3);
	}
	return 0;
}
