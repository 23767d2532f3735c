/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls: see calls.h. The functions carry the names that libc gives those for 64-bit offsets, so that
 * kvfs and libsqlite3 find them first; each does the system call itself.
 */
#include "tests/fault/calls.h"
#include "tests/fault/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FDS  4096
#define PATH TRACE_PATH

struct calls *calls;

static const char *const names[FAULT_KINDS] = {
	[FAULT_NONE] = "none",
	[FAULT_EIO] = "eio",
	[FAULT_ENOSPC] = "enospc",
	[FAULT_EDQUOT] = "edquot",
	[FAULT_EINTR] = "eintr",
	[FAULT_SHORT] = "short",
	[FAULT_TORN] = "torn",
	[FAULT_DELAY] = "delay",
	[FAULT_KILL] = "kill",
	[FAULT_EIO_ON] = "eio-on",
	[FAULT_ENOSPC_ON] = "enospc-on",
	[FAULT_ROT_READ] = "rot-read",
	[FAULT_ROT_WRITE] = "rot-write",
	[FAULT_LOST_WRITE] = "lost-write",
	[FAULT_MALLOC] = "malloc",
	[FAULT_SQLITE] = "sqlite-malloc",
	[FAULT_MALLOC_SOME] = "malloc-some",
};

const char *fault_name(enum fault_kind kind)
{
	return names[kind];
}

/* ---- files ---- */

enum place { SEGMENT, DATABASE, RUN, OTHER, NOWHERE };

static struct {
	pthread_mutex_t lock;
	char folder[PATH];
	size_t folder_len;
	bool armed;
	struct {
		enum place place;
		int file; /* in the trace; -1 */
		char name[24];
	} fd[FDS];
} files = { .lock = PTHREAD_MUTEX_INITIALIZER };

void calls_init(const char *folder)
{
	snprintf(files.folder, sizeof(files.folder), "%s", folder);
	files.folder_len = strlen(folder);
	trace_init(folder);
	for (int i = 0; i < FDS; i++)
		files.fd[i].place = NOWHERE;
}

void calls_arm(void)
{
	pthread_mutex_lock(&files.lock);
	files.armed = true;
	pthread_mutex_unlock(&files.lock);
}

void calls_lock(void)
{
	pthread_mutex_lock(&files.lock);
}

void calls_unlock(void)
{
	pthread_mutex_unlock(&files.lock);
}

static bool begins(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

/* What of the folder's a path is: it follows folder and a slash; "" for the folder. */
static const char *below(const char *path)
{
	const char *p = path + files.folder_len;

	if (strncmp(path, files.folder, files.folder_len) || (*p && *p != '/'))
		return NULL;
	return *p ? p + 1 : p;
}

static enum place place_of(const char *path)
{
	const char *p = below(path);

	if (!p)
		return NOWHERE;
	if (begins(p, "store/segments/"))
		return SEGMENT;
	if (begins(p, "store/meta.db") && !begins(p, "store/meta.db-shm"))
		return DATABASE;
	return begins(p, "run/") ? RUN : OTHER;
}

static void path_of(int dirfd, const char *name, char ret[PATH])
{
	char link[64];
	ssize_t n = 0;

	if (*name == '/' || dirfd == AT_FDCWD) {
		snprintf(ret, PATH, "%s", name);
		return;
	}
	snprintf(link, sizeof(link), "/proc/self/fd/%d", dirfd);
	n = readlink(link, ret, PATH - 1);
	ret[n < 0 ? 0 : n] = 0;
	if (!strcmp(name, "..") && n > 0)
		*strrchr(ret, '/') = 0;
	else if (strcmp(name, ".") && n > 0)
		snprintf(ret + n, (size_t)(PATH - n), "/%s", name);
}

static const char *last_name(const char *path)
{
	const char *p = strrchr(path, '/');

	return p ? p + 1 : path;
}

static void copy_name(char ret[24], const char *path)
{
	snprintf(ret, 24, "%.23s", last_name(path));
}

static bool is_traced(const char *path)
{
	const char *p = below(path);

	return trace && files.armed && p && (!*p || begins(p, "store")) &&
	       !begins(p, "store/meta.db-shm") && strcmp(p, "store/lock");
}

static void trace_fd(enum step_type type, int fd, uint64_t off, uint64_t len, const void *data)
{
	if (trace && files.armed && fd >= 0 && fd < FDS && files.fd[fd].place != NOWHERE &&
	    files.fd[fd].file >= 0)
		trace_step(type, files.fd[fd].file, off, len, data);
}

/* ---- faults ---- */

enum call { OPEN, CREATE, READ, WRITE, SYNC, TRUNCATE, ALLOCATE, REMOVE, MKDIR, RENAME, CLOSE };

static bool takes_room(enum call c)
{
	return c == CREATE || c == WRITE || c == ALLOCATE || c == MKDIR || c == TRUNCATE;
}

static bool changes(enum call c)
{
	return c != OPEN && c != READ && c != CLOSE;
}

static bool can_be(enum fault_kind kind, enum call c, enum place where)
{
	switch (kind) {
	case FAULT_NONE:
	case FAULT_EIO:
	case FAULT_DELAY:
	case FAULT_KILL:
		return true;
	case FAULT_EINTR:
		return c != CLOSE && c != MKDIR && c != REMOVE && c != RENAME;
	case FAULT_ENOSPC:
	case FAULT_EDQUOT:
	case FAULT_ENOSPC_ON:
		return takes_room(c);
	case FAULT_SHORT:
		return c == READ || c == WRITE;
	case FAULT_TORN:
		return c == WRITE;
	case FAULT_EIO_ON:
		return where != RUN && changes(c);
	case FAULT_ROT_READ:
		return where == SEGMENT && c == READ;
	case FAULT_ROT_WRITE:
	case FAULT_LOST_WRITE:
		return where == SEGMENT && c == WRITE;
	default:
		return false;
	}
}

bool calls_is_it(void)
{
	uint64_t n = atomic_fetch_add(&calls->count, 1) + 1;
	bool on = calls->kind == FAULT_EIO_ON || calls->kind == FAULT_ENOSPC_ON;
	bool some = calls->kind == FAULT_MALLOC_SOME;

	if (!calls->at || n < calls->at || (n > calls->at && !on && !some) ||
	    (some && n >= calls->at + 20))
		return false;
	atomic_fetch_add(&calls->fired, 1);
	return true;
}

void calls_note(const char *what, const char *name)
{
	if (!calls->what[0])
		snprintf(calls->what, sizeof(calls->what), "%s %s", what, name);
}

static const char *const call_name[] = { "open",  "create",   "read",      "write",
					 "sync",  "truncate", "fallocate", "unlink",
					 "mkdir", "rename",   "close" };

static void rest(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 30 * 1000000L }, NULL);
}

/* Lock held. What becomes of a call: FAULT_NONE most of the time. Those that end the process or wait
 * have done so, but for what is to be done first. */
static enum fault_kind judge(enum call c, enum place where, const char *name)
{
	if (!files.armed || where == NOWHERE)
		return FAULT_NONE;
	calls->seen[where]++;
	if (!can_be(calls->kind, c, where) || !calls_is_it())
		return FAULT_NONE;
	calls_note(call_name[c], name);
	if (calls->kind == FAULT_KILL)
		_exit(KILLED);
	if (calls->kind == FAULT_DELAY) {
		pthread_mutex_unlock(&files.lock);
		rest();
		pthread_mutex_lock(&files.lock);
		return FAULT_NONE;
	}
	return calls->kind;
}

/* The errno of a call that is not done at all; 0: it is done, in some way. */
static int refused(enum fault_kind f)
{
	switch (f) {
	case FAULT_EIO:
	case FAULT_EIO_ON:
		return EIO;
	case FAULT_ENOSPC:
	case FAULT_ENOSPC_ON:
		return ENOSPC;
	case FAULT_EDQUOT:
		return EDQUOT;
	case FAULT_EINTR:
		return EINTR;
	default:
		return 0;
	}
}

/* Ends a call: what it returns and what errno says. */
static long end(long r)
{
	int e = errno;

	pthread_mutex_unlock(&files.lock);
	errno = e;
	return r;
}

static long fail(int error)
{
	pthread_mutex_unlock(&files.lock);
	errno = error;
	return -1;
}

/* ---- the calls ---- */

static int do_open(int dirfd, const char *name, int flags, mode_t mode)
{
	bool made = false;
	enum place where;
	char path[PATH];
	struct stat st;
	enum fault_kind f;
	int fd;

	pthread_mutex_lock(&files.lock);
	path_of(dirfd, name, path);
	where = place_of(path);
	if (where != NOWHERE && flags & O_CREAT)
		made = lstat(path, &st) != 0;
	f = judge(made ? CREATE : OPEN, where, last_name(path));
	if (refused(f))
		return (int)fail(refused(f));
	fd = (int)syscall(SYS_openat, dirfd, name, flags, mode);
	if (fd >= 0 && fd < FDS) {
		files.fd[fd].place = where;
		files.fd[fd].file = -1;
		copy_name(files.fd[fd].name, path);
		if (is_traced(path))
			files.fd[fd].file = trace_open(path, flags & O_DIRECTORY);
	}
	return (int)end(fd);
}

static enum place place_of_fd(int fd)
{
	return fd >= 0 && fd < FDS ? files.fd[fd].place : NOWHERE;
}

static const char *name_of_fd(int fd)
{
	return place_of_fd(fd) == NOWHERE ? "" : files.fd[fd].name;
}

int fault_open(const char *name, int flags, ...) __asm__("open64");
int fault_open(const char *name, int flags, ...)
{
	mode_t mode = 0;
	va_list ap;

	va_start(ap, flags);
	if (flags & (O_CREAT | __O_TMPFILE))
		mode = va_arg(ap, mode_t);
	va_end(ap);
	return do_open(AT_FDCWD, name, flags, mode);
}

int fault_openat(int dirfd, const char *name, int flags, ...) __asm__("openat64");
int fault_openat(int dirfd, const char *name, int flags, ...)
{
	mode_t mode = 0;
	va_list ap;

	va_start(ap, flags);
	if (flags & (O_CREAT | __O_TMPFILE))
		mode = va_arg(ap, mode_t);
	va_end(ap);
	return do_open(dirfd, name, flags, mode);
}

int fault_close(int fd) __asm__("close");
int fault_close(int fd)
{
	enum fault_kind f;
	int r;

	pthread_mutex_lock(&files.lock);
	f = judge(CLOSE, place_of_fd(fd), name_of_fd(fd));
	if (fd >= 0 && fd < FDS)
		files.fd[fd].place = NOWHERE;
	r = (int)syscall(SYS_close, fd);
	if (refused(f))
		return (int)fail(refused(f));
	return (int)end(r);
}

/* A byte in the middle. */
static void rot(void *buf, ssize_t len)
{
	if (len > 0)
		((uint8_t *)buf)[len / 2] ^= 0x10;
}

ssize_t fault_pread(int fd, void *buf, size_t len, off_t off) __asm__("pread64");
ssize_t fault_pread(int fd, void *buf, size_t len, off_t off)
{
	enum fault_kind f;
	ssize_t r;

	pthread_mutex_lock(&files.lock);
	f = judge(READ, place_of_fd(fd), name_of_fd(fd));
	if (refused(f))
		return fail(refused(f));
	if (f == FAULT_SHORT && len > 1)
		len /= 2;
	r = syscall(SYS_pread64, fd, buf, len, off);
	if (f == FAULT_ROT_READ)
		rot(buf, r);
	return end(r);
}

static ssize_t write_rotten(int fd, const void *buf, size_t len, off_t off)
{
	size_t room = (len + 8191) & ~(size_t)4095;
	uint8_t *copy =
		mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ssize_t r;

	if (copy == MAP_FAILED)
		return syscall(SYS_pwrite64, fd, buf, len, off);
	memcpy(copy, buf, len);
	/* Where something is: buffers end with zeros. */
	copy[len > 4096 ? len / 3 : len / 2] ^= 0x10;
	r = syscall(SYS_pwrite64, fd, copy, len, off);
	munmap(copy, room);
	return r;
}

ssize_t fault_pwrite(int fd, const void *buf, size_t len, off_t off) __asm__("pwrite64");
ssize_t fault_pwrite(int fd, const void *buf, size_t len, off_t off)
{
	enum fault_kind f;
	ssize_t r;

	pthread_mutex_lock(&files.lock);
	f = judge(WRITE, place_of_fd(fd), name_of_fd(fd));
	if (refused(f))
		return fail(refused(f));
	if (f == FAULT_LOST_WRITE)
		return end((ssize_t)len);
	if ((f == FAULT_SHORT || f == FAULT_TORN) && len > 1)
		len /= 2;
	r = f == FAULT_ROT_WRITE ? write_rotten(fd, buf, len, off) :
				   syscall(SYS_pwrite64, fd, buf, len, off);
	if (r > 0)
		trace_fd(STEP_WRITE, fd, (uint64_t)off, (uint64_t)r, buf);
	return f == FAULT_TORN ? fail(EIO) : end(r);
}

ssize_t fault_write(int fd, const void *buf, size_t len) __asm__("write");
ssize_t fault_write(int fd, const void *buf, size_t len)
{
	enum fault_kind f;
	off_t at;
	ssize_t r;

	if (fd < 3)
		return syscall(SYS_write, fd, buf, len);
	pthread_mutex_lock(&files.lock);
	f = judge(WRITE, place_of_fd(fd), name_of_fd(fd));
	if (refused(f))
		return fail(refused(f));
	at = place_of_fd(fd) == NOWHERE ? 0 : lseek(fd, 0, SEEK_CUR);
	if ((f == FAULT_SHORT || f == FAULT_TORN) && len > 1)
		len /= 2;
	r = syscall(SYS_write, fd, buf, len);
	if (r > 0)
		trace_fd(STEP_WRITE, fd, (uint64_t)at, (uint64_t)r, buf);
	return f == FAULT_TORN ? fail(EIO) : end(r);
}

/* To images only, which no trace holds. */
ssize_t fault_pwritev(int fd, const struct iovec *v, int n, off_t off) __asm__("pwritev64");
ssize_t fault_pwritev(int fd, const struct iovec *v, int n, off_t off)
{
	enum fault_kind f;
	ssize_t r;

	pthread_mutex_lock(&files.lock);
	f = judge(WRITE, place_of_fd(fd), name_of_fd(fd));
	if (refused(f))
		return fail(refused(f));
	if (f == FAULT_SHORT || f == FAULT_TORN)
		r = syscall(SYS_pwrite64, fd, v[0].iov_base, (v[0].iov_len + 1) / 2, off);
	else
		r = syscall(SYS_pwritev, fd, v, n, (long)off, 0L);
	return f == FAULT_TORN ? fail(EIO) : end(r);
}

/* The machine that runs this loses no power: nothing has to reach a device. */
static int do_sync(int fd)
{
	enum fault_kind f;

	pthread_mutex_lock(&files.lock);
	f = judge(SYNC, place_of_fd(fd), name_of_fd(fd));
	if (refused(f))
		return (int)fail(refused(f));
	trace_fd(STEP_SYNC, fd, 0, 0, NULL);
	return (int)end(0);
}

int fault_fsync(int fd) __asm__("fsync");
int fault_fsync(int fd)
{
	return do_sync(fd);
}

int fault_fdatasync(int fd) __asm__("fdatasync");
int fault_fdatasync(int fd)
{
	return do_sync(fd);
}

int fault_ftruncate(int fd, off_t size) __asm__("ftruncate64");
int fault_ftruncate(int fd, off_t size)
{
	enum fault_kind f;
	int r;

	pthread_mutex_lock(&files.lock);
	f = judge(TRUNCATE, place_of_fd(fd), name_of_fd(fd));
	if (refused(f))
		return (int)fail(refused(f));
	r = (int)syscall(SYS_ftruncate, fd, size);
	if (!r)
		trace_fd(STEP_TRUNCATE, fd, (uint64_t)size, 0, NULL);
	return (int)end(r);
}

/* What is preallocated is given its size and no pages here: so many zeros a run take longer than the rest
 * of it. */
static int allocate(int fd, int mode, off_t off, off_t len)
{
	struct stat st;

	if (mode == FALLOC_FL_KEEP_SIZE || (!mode && !fstat(fd, &st) && st.st_size >= off + len))
		return 0;
	if (!mode)
		return (int)syscall(SYS_ftruncate, fd, off + len);
	return (int)syscall(SYS_fallocate, fd, mode, off, len);
}

int fault_fallocate(int fd, int mode, off_t off, off_t len) __asm__("fallocate64");
int fault_fallocate(int fd, int mode, off_t off, off_t len)
{
	bool punch = mode & FALLOC_FL_PUNCH_HOLE;
	enum fault_kind f;
	int r;

	pthread_mutex_lock(&files.lock);
	f = judge(ALLOCATE, place_of_fd(fd), name_of_fd(fd));
	if (refused(f))
		return (int)fail(refused(f));
	r = allocate(fd, mode, off, len);
	if (!r && punch)
		trace_fd(STEP_PUNCH, fd, (uint64_t)off, (uint64_t)len, NULL);
	else if (!r && !(mode & FALLOC_FL_KEEP_SIZE))
		trace_fd(STEP_RESERVE, fd, (uint64_t)(off + len), 0, NULL);
	return (int)end(r);
}

static int do_unlink(int dirfd, const char *name, int flags)
{
	enum fault_kind f;
	char path[PATH];
	bool traced;
	int r;

	pthread_mutex_lock(&files.lock);
	path_of(dirfd, name, path);
	f = judge(REMOVE, place_of(path), last_name(path));
	if (refused(f))
		return (int)fail(refused(f));
	traced = is_traced(path);
	r = (int)syscall(SYS_unlinkat, dirfd, name, flags);
	if (!r && traced)
		trace_remove(path);
	return (int)end(r);
}

int fault_unlink(const char *name) __asm__("unlink");
int fault_unlink(const char *name)
{
	return do_unlink(AT_FDCWD, name, 0);
}

int fault_unlinkat(int dirfd, const char *name, int flags) __asm__("unlinkat");
int fault_unlinkat(int dirfd, const char *name, int flags)
{
	return do_unlink(dirfd, name, flags);
}

static int do_mkdir(int dirfd, const char *name, mode_t mode)
{
	enum fault_kind f;
	char path[PATH];
	int r;

	pthread_mutex_lock(&files.lock);
	path_of(dirfd, name, path);
	f = judge(MKDIR, place_of(path), last_name(path));
	if (refused(f))
		return (int)fail(refused(f));
	r = (int)syscall(SYS_mkdirat, dirfd, name, mode);
	if (!r && is_traced(path))
		trace_open(path, true);
	return (int)end(r);
}

int fault_mkdir(const char *name, mode_t mode) __asm__("mkdir");
int fault_mkdir(const char *name, mode_t mode)
{
	return do_mkdir(AT_FDCWD, name, mode);
}

int fault_mkdirat(int dirfd, const char *name, mode_t mode) __asm__("mkdirat");
int fault_mkdirat(int dirfd, const char *name, mode_t mode)
{
	return do_mkdir(dirfd, name, mode);
}

/* In the run directory only. */
int fault_renameat(int from_dir, const char *from, int to_dir, const char *to) __asm__("renameat");
int fault_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	enum fault_kind f;
	char path[PATH];
	int r;

	pthread_mutex_lock(&files.lock);
	path_of(to_dir, to, path);
	if (is_traced(path))
		abort();
	f = judge(RENAME, place_of(path), last_name(path));
	if (refused(f))
		return (int)fail(refused(f));
	r = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
	return (int)end(r);
}

/* A file system of 16 MiB, so that segments are of 1 MiB, which always has room. */
int fault_fstatvfs(int fd, struct statvfs *ret) __asm__("fstatvfs64");
int fault_fstatvfs(int fd, struct statvfs *ret)
{
	(void)fd;
	*ret = (struct statvfs){ .f_bsize = 4096,
				 .f_frsize = 4096,
				 .f_blocks = (16u << 20) / 4096,
				 .f_bfree = (1u << 30) / 4096,
				 .f_bavail = (1u << 30) / 4096,
				 .f_namemax = 255 };
	return 0;
}

/* The run directory is a plain folder. */
int fault_mount(const char *a, const char *b, const char *c, unsigned long d,
		const void *e) __asm__("mount");
int fault_mount(const char *a, const char *b, const char *c, unsigned long d, const void *e)
{
	(void)a, (void)b, (void)c, (void)d, (void)e;
	errno = EPERM;
	return -1;
}
