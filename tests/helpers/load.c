/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load of the crash tests: random operations on a mount, with a record of what was acknowledged,
 * kept in this process and so outside of the mount. It lives on while the daemon is killed and started
 * again, and keeps handles and mappings across that. A case drives it with lines on stdin; each is
 * answered with a line, "ok ..." or "bad ...", after lines that say what is wrong.
 *
 *	load MNT SEED THREADS MODE [power] [KVDIR]
 *
 *	start           the threads run, each in a directory of its own, until stop or until the daemon dies
 *	stop            they stop; prints how many operations were done and whether the daemon had died
 *	remounted       a new daemon serves MNT: what can no longer be reached by old handles is dropped
 *	late            stores through every handle and mapping that is still held
 *	verify MNT      everything acknowledged is there and nothing else (after a kill)
 *	drop            closes all handles and mappings
 *	hold | unhold   power: from here on (no longer) an fsync changes what has to be durable
 *	alldurable      power: everything done so far is durable (unsettled_bytes was 0)
 *	power MNT       power: what was durable at `hold` is on this mount of a copy, the rest is old or new
 *
 * What counts as acknowledged: the call returned success. A call that the daemon's death failed may have
 * happened or not, a write in part. A store to a mapping counts when the mapping is one of the hot
 * image, which outlives the daemon; else when msync or fsync returned.
 *
 * Power loss, per file: bytes as of its last fsync before `hold`, or of any later write; size likewise.
 * Per name: what the last fsync of file or directory left there, or any later binding; a file renamed
 * over an existing name has at least the bytes it had then. No file is empty that was never so.
 *
 * The sequence of operations of a thread follows from SEED; their timing does not.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "pattern.h"

#define MAX_THREADS 8
#define DIRS        3 /* the thread's own, and two below it; the last is renamed now and then */
#define LEAVES      6 /* names in each */
#define NAMES       (DIRS * LEAVES)
#define MAX_FDS     4
#define MAX_MAPS    3
#define MAX_SIZE    (4u << 20)
#define PATH_ROOM   512

enum kind { REG, DIRECTORY, SYMLINK };
enum change_kind { WRITE, TRUNC, ZERO };

/* A change of content. TRUNC: off is the new size. */
struct change {
	enum change_kind kind;
	uint64_t off, len;
	unsigned char *data; /* WRITE */
	uint64_t size_after;
	bool optional; /* a store to a mapping that was not synced */
};

struct changes {
	struct change *list;
	size_t n, room;
};

struct file {
	int refs;
	unsigned id;
	enum kind kind;
	/* What was acknowledged. */
	unsigned char *cur;
	uint64_t size, room;
	unsigned mode, mode_maybe;
	unsigned attr, attr_maybe; /* a counter kept in an xattr */
	struct changes maybe;      /* may have happened or not */
	int holds;                 /* handles and mappings of ours */
	/* Power: what was durable, and what came later. */
	bool has_base;
	unsigned char *base;
	uint64_t base_size;
	unsigned base_attr;
	struct changes later;
	bool empty_ok;
};

/* A file that may be found under a name after power loss; at least with its first `from` later
 * changes. */
struct binding {
	struct file *f; /* NULL: nothing */
	size_t from;
};

struct name {
	int dir;
	char leaf[16];
	struct file *f; /* NULL: nothing */
	struct binding durable;
	struct binding *later;
	size_t n_later, room_later;
};

struct held_fd {
	int fd;
	unsigned gen;
	bool append;
	struct file *f;
};

struct held_map {
	unsigned char *addr;
	uint64_t len;
	bool imaged; /* of the hot image, so stores outlive the daemon */
	struct file *f;
};

/* A namespace operation that failed with the daemon: all of before, or all of after. */
struct unsure {
	int n;
	struct name *name[2];
	struct file *before[2], *after[2];
	bool dir_rename;
};

struct worker {
	unsigned number;
	uint64_t rng;
	pthread_t thread;
	bool running;
	struct name names[NAMES];
	bool alt; /* the last directory is called e2, not d2 */
	bool alt_durable, alt_later[2];
	struct held_fd fds[MAX_FDS];
	struct held_map maps[MAX_MAPS];
	struct unsure unsure;
	unsigned long ops;
	bool dead;
	sigjmp_buf *on_sigbus;
	/* The pool of content that files share. */
	unsigned char *scratch;
};

static char mnt[PATH_ROOM];
static __typeof__(((struct statfs *)0)->f_type) mnt_type;
static bool power_mode;
static const char *mode;
static struct worker workers[MAX_THREADS];
static unsigned n_workers;
static atomic_bool stopping, holding;
static atomic_uint next_id, problems;
static unsigned gen;
/* Held for reading by every operation; for writing by those that speak of all workers. */
static pthread_rwlock_t all_lock = PTHREAD_RWLOCK_INITIALIZER;
static unsigned char *kv_data;
static size_t kv_len;
static _Thread_local struct worker *self;
static unsigned long count_maybe, count_late, count_mapped_late, count_files;

static void problem(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void problem(const char *format, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, format);
	vsnprintf(line, sizeof(line), format, ap);
	va_end(ap);
	/* The first few say it; a broken mount would give thousands. */
	if (atomic_fetch_add(&problems, 1) < 20)
		printf("wrong: %s\n", line);
	fflush(stdout);
}

static void *allocate(void *old, size_t size)
{
	void *p = realloc(old, size ? size : 1);

	if (!p) {
		fprintf(stderr, "load: out of memory\n");
		abort();
	}
	return p;
}

static uint64_t rnd(struct worker *w)
{
	w->rng += 0x9e3779b97f4a7c15u;
	return pattern_mix(w->rng);
}

static uint64_t below(struct worker *w, uint64_t n)
{
	return rnd(w) % n;
}

/* ---- The record --------------------------------------------------------------------------------- */

static void changes_add(struct changes *c, const struct change *one)
{
	if (c->n == c->room) {
		c->room = c->room ? 2 * c->room : 8;
		c->list = allocate(c->list, c->room * sizeof(*c->list));
	}
	c->list[c->n] = *one;
	if (one->kind == WRITE) {
		c->list[c->n].data = allocate(NULL, one->len);
		memcpy(c->list[c->n].data, one->data, one->len);
	}
	c->n++;
}

static void changes_clear(struct changes *c)
{
	for (size_t i = 0; i < c->n; i++)
		if (c->list[i].kind == WRITE)
			free(c->list[i].data);
	c->n = 0;
}

static struct file *file_new(enum kind kind)
{
	struct file *f = calloc(1, sizeof(*f));

	if (!f)
		abort();
	f->refs = 1;
	f->id = atomic_fetch_add(&next_id, 1);
	f->kind = kind;
	f->mode = f->mode_maybe = kind == DIRECTORY ? 0755 : 0644;
	f->has_base = kind != REG;
	return f;
}

static struct file *file_ref(struct file *f)
{
	if (f)
		f->refs++;
	return f;
}

static void file_unref(struct file *f)
{
	if (!f || --f->refs)
		return;
	changes_clear(&f->maybe);
	changes_clear(&f->later);
	free(f->maybe.list);
	free(f->later.list);
	free(f->cur);
	free(f->base);
	free(f);
}

static void bytes_resize(unsigned char **buf, uint64_t *size, uint64_t *room, uint64_t to)
{
	if (to > *room) {
		*room = to + to / 2;
		*buf = allocate(*buf, *room);
	}
	if (to > *size)
		memset(*buf + *size, 0, to - *size);
	*size = to;
}

/* Makes the change on an array of bytes. */
static void change_apply(const struct change *c, unsigned char **buf, uint64_t *size,
			 uint64_t *room)
{
	uint64_t end = c->off + c->len;

	switch (c->kind) {
	case TRUNC:
		bytes_resize(buf, size, room, c->off);
		break;
	case WRITE:
		if (end > *size)
			bytes_resize(buf, size, room, end);
		memcpy(*buf + c->off, c->data, c->len);
		break;
	case ZERO:
		if (end > *size)
			end = *size;
		if (end > c->off)
			memset(*buf + c->off, 0, end - c->off);
		break;
	}
}

/* What byte at gives a change that touches it; -1: it does not. */
static int change_byte(const struct change *c, uint64_t at)
{
	switch (c->kind) {
	case WRITE:
		return at >= c->off && at < c->off + c->len ? c->data[at - c->off] : -1;
	case ZERO:
		return at >= c->off && at < c->off + c->len ? 0 : -1;
	case TRUNC:
		return at >= c->off ? 0 : -1;
	}
	return -1;
}

/* An acknowledged change. */
static void file_change(struct file *f, enum change_kind kind, uint64_t off, uint64_t len,
			unsigned char *data)
{
	struct change c = { .kind = kind, .off = off, .len = len, .data = data };

	change_apply(&c, &f->cur, &f->size, &f->room);
	c.size_after = f->size;
	if (!f->size && kind == TRUNC)
		f->empty_ok = true;
	if (power_mode)
		changes_add(&f->later, &c);
	/* It came after whatever is unsure, and there it decides. */
	for (size_t i = 0; i < f->maybe.n; i++) {
		struct change *m = &f->maybe.list[i];

		if (kind == TRUNC && m->kind == WRITE && m->off + m->len > off) {
			m->off = m->off < off ? m->off : off;
			m->len = off - m->off;
			m->size_after = f->size;
		}
		for (uint64_t at = m->off; m->kind == WRITE && at < m->off + m->len; at++) {
			int b = change_byte(&c, at);

			if (b >= 0)
				m->data[at - m->off] = b;
		}
	}
}

/* A change that may have happened or not. */
static void file_maybe(struct file *f, enum change_kind kind, uint64_t off, uint64_t len,
		       unsigned char *data)
{
	struct change c = { .kind = kind, .off = off, .len = len, .data = data };

	c.size_after = kind == TRUNC                        ? off :
		       kind == WRITE && off + len > f->size ? off + len :
							      f->size;
	changes_add(&f->maybe, &c);
	c.optional = true;
	if (power_mode)
		changes_add(&f->later, &c);
}

/* What was unsure did happen, as far as it lies below end. */
static void file_sure(struct file *f, uint64_t end)
{
	struct changes m = f->maybe;

	memset(&f->maybe, 0, sizeof(f->maybe));
	for (size_t i = 0; i < m.n; i++) {
		struct change *c = &m.list[i];

		if (c->off + c->len <= end)
			file_change(f, c->kind, c->off, c->len, c->data);
		else
			changes_add(&f->maybe, c);
	}
	changes_clear(&m);
	free(m.list);
}

static void name_forget_later(struct name *n)
{
	for (size_t i = 0; i < n->n_later; i++)
		file_unref(n->later[i].f);
	n->n_later = 0;
}

static void name_durable(struct name *n)
{
	file_ref(n->f);
	file_unref(n->durable.f);
	n->durable = (struct binding){ n->f, 0 };
	name_forget_later(n);
}

/* The name is bound to f, or to nothing; takes no reference of the caller's. over: f was renamed over
 * an existing name. */
static void name_bind(struct name *n, struct file *f, bool over)
{
	file_ref(f);
	file_unref(n->f);
	n->f = f;
	if (!power_mode)
		return;
	if (n->n_later == n->room_later) {
		n->room_later = n->room_later ? 2 * n->room_later : 8;
		n->later = allocate(n->later, n->room_later * sizeof(*n->later));
	}
	n->later[n->n_later++] = (struct binding){ file_ref(f), over && f ? f->later.n : 0 };
}

/* The file is durable as it is, with all its names. Does nothing while a copy is being made. */
static void file_durable(struct worker *w, struct file *f)
{
	if (!power_mode || atomic_load(&holding))
		return;
	if (f->kind == REG) {
		f->base = allocate(f->base, f->size);
		if (f->size)
			memcpy(f->base, f->cur, f->size);
		f->base_size = f->size;
		if (!f->size)
			f->empty_ok = true;
	}
	f->has_base = true;
	f->base_attr = f->attr;
	changes_clear(&f->later);
	/* Pages of a mapping that were not synced may still come. */
	for (size_t i = 0; i < f->maybe.n; i++) {
		struct change c = f->maybe.list[i];

		c.optional = true;
		changes_add(&f->later, &c);
	}
	for (struct name *n = w->names; n < w->names + NAMES; n++) {
		if (n->f == f)
			name_durable(n);
		for (size_t i = 0; i < n->n_later; i++)
			if (n->later[i].f == f)
				n->later[i].from = 0;
	}
}

static void dir_durable(struct worker *w, int dir)
{
	if (!power_mode || atomic_load(&holding))
		return;
	for (struct name *n = w->names; n < w->names + NAMES; n++)
		if (n->dir == dir)
			name_durable(n);
}

static void all_durable(void)
{
	for (struct worker *w = workers; w < workers + n_workers; w++) {
		for (struct name *n = w->names; n < w->names + NAMES; n++)
			if (n->f)
				file_durable(w, n->f);
		for (int d = 0; d < DIRS; d++)
			dir_durable(w, d);
		if (!atomic_load(&holding)) {
			w->alt_durable = w->alt;
			w->alt_later[0] = w->alt_later[1] = false;
		}
	}
}

/* ---- Operations --------------------------------------------------------------------------------- */

/* snprintf into a path; one that does not fit is a mistake of the caller's. */
static void path_print(char *out, size_t size, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static void path_print(char *out, size_t size, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	if ((size_t)vsnprintf(out, size, format, ap) >= size)
		abort();
	va_end(ap);
}

static void dir_path(char *out, const char *top, const struct worker *w, int dir, bool alt)
{
	if (!dir)
		path_print(out, PATH_ROOM, "%s/s%u", top, w->number);
	else
		path_print(out, PATH_ROOM, "%s/s%u/%c%d", top, w->number,
			   dir == DIRS - 1 && alt ? 'e' : 'd', dir);
}

static void path_of(char *out, const struct worker *w, const struct name *n)
{
	char dir[PATH_ROOM];

	dir_path(dir, mnt, w, n->dir, w->alt);
	path_print(out, PATH_ROOM + 20, "%s/%s", dir, n->leaf);
}

/* True, and the worker stops, if the daemon's death explains the errno; or its unmount, after which
 * another file system is there. A stat would be answered from a cache. */
static bool died(struct worker *w, int e)
{
	struct statfs st;

	if (e == ENOTCONN || e == ECONNABORTED || statfs(mnt, &st) || st.f_type != mnt_type)
		w->dead = true;
	return w->dead;
}

/* An unexpected failure, unless the daemon died. */
static void failed(struct worker *w, const char *what, const char *path)
{
	int e = errno;

	if (!died(w, e))
		problem("%s %s: %s", what, path, strerror(e));
}

static uint64_t some_size(struct worker *w)
{
	switch (below(w, 10)) {
	case 0:
		return 1 + below(w, 100);
	case 1:
	case 2:
	case 3:
	case 4:
		return 1 + below(w, 65536);
	case 5:
	case 6:
	case 7:
	case 8:
		return 4096 * (1 + below(w, 128));
	default:
		return 1 + below(w, MAX_SIZE / 2);
	}
}

/* Content: new bytes, real KV data, bytes another file has, zeros. */
static unsigned char *some_bytes(struct worker *w, uint64_t len)
{
	unsigned char *p = w->scratch;
	struct file *f = w->names[below(w, NAMES)].f;
	uint64_t from;

	switch (below(w, 8)) {
	case 0:
	case 1:
		if (kv_len > len) {
			from = below(w, kv_len - len) & ~(uint64_t)3;
			memcpy(p, kv_data + from, len);
			return p;
		}
		break;
	case 2:
	case 3:
		if (f && f->kind == REG && f->size > len) {
			from = below(w, f->size - len) & ~(uint64_t)3;
			memcpy(p, f->cur + from, len);
			return p;
		}
		break;
	case 4:
		if (!below(w, 4)) {
			memset(p, 0, len);
			return p;
		}
		break;
	}
	pattern_fill(p, len, rnd(w) | 1, 0);
	return p;
}

static struct name *some_name(struct worker *w)
{
	return &w->names[below(w, NAMES)];
}

/* A name bound to a regular file, or NULL. */
static struct name *some_file(struct worker *w)
{
	unsigned first = below(w, NAMES);

	for (unsigned i = 0; i < NAMES; i++) {
		struct name *n = &w->names[(first + i) % NAMES];

		if (n->f && n->f->kind == REG)
			return n;
	}
	return NULL;
}

/* Opens an existing file and counts it. -1: failed, said. */
static int open_file(struct worker *w, struct file *f, const char *path, int flags)
{
	int fd;

	fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		failed(w, "open", path);
	else
		f->holds++;
	return fd;
}

static void close_file(struct file *f, int fd)
{
	close(fd);
	f->holds--;
}

/* A write at off, or at the end. Returns false if nothing more can be done with fd. */
static bool write_some(struct worker *w, struct file *f, int fd, uint64_t off, uint64_t len,
		       bool append)
{
	unsigned char *data = some_bytes(w, len);
	ssize_t r;

	if (append)
		off = f->size;
	r = append ? write(fd, data, len) : pwrite(fd, data, len, off);
	if (r == (ssize_t)len) {
		file_change(f, WRITE, off, len, data);
		return true;
	}
	if (r < 0) {
		if (died(w, errno))
			file_maybe(f, WRITE, off, len, data);
		else
			problem("write of file %u at %llu: %s", f->id, (unsigned long long)off,
				strerror(errno));
		return false;
	}
	/* Cut short: by the death of the daemon, or it is an error to every client. */
	if (r)
		file_change(f, WRITE, off, r, data);
	file_maybe(f, WRITE, off + r, len - r, data + r);
	if (!died(w, EIO))
		problem("short write of file %u: %zd of %llu", f->id, r, (unsigned long long)len);
	return false;
}

static struct held_fd *free_fd(struct worker *w)
{
	for (struct held_fd *h = w->fds; h < w->fds + MAX_FDS; h++)
		if (!h->f)
			return h;
	return NULL;
}

/* Keeps an open file in place of closing it, if there is room and the dice say so. */
static void keep_or_close(struct worker *w, struct file *f, int fd, bool append)
{
	struct held_fd *h = free_fd(w);

	if (h && !below(w, 6)) {
		*h = (struct held_fd){ .fd = fd, .gen = gen, .append = append, .f = file_ref(f) };
		return;
	}
	close_file(f, fd);
	if (!f->size)
		f->empty_ok = true;
}

static void drop_fd(struct held_fd *h)
{
	close_file(h->f, h->fd);
	if (!h->f->size)
		h->f->empty_ok = true;
	file_unref(h->f);
	h->f = NULL;
}

static void drop_map(struct held_map *m)
{
	munmap(m->addr, m->len);
	m->f->holds--;
	file_unref(m->f);
	m->f = NULL;
}

static void unsure(struct worker *w, struct name *a, struct file *a_after, struct name *b,
		   struct file *b_after)
{
	struct unsure *u = &w->unsure;

	u->n = b ? 2 : 1;
	u->name[0] = a;
	u->before[0] = a->f;
	u->after[0] = file_ref(a_after);
	u->name[1] = b;
	u->before[1] = b ? b->f : NULL;
	u->after[1] = file_ref(b_after);
}

/* New content the way engines write it: O_WRONLY|O_CREAT, streamed. */
static void fill_new(struct worker *w, struct file *f, int fd)
{
	uint64_t len = some_size(w), done = 0;
	bool ok = true;

	f->holds++;
	while (ok && done < len) {
		uint64_t n = below(w, 2) ? len : 1 + below(w, 131072);

		if (n > len - done)
			n = len - done;
		ok = write_some(w, f, fd, done, n, false);
		done += n;
	}
	if (ok && power_mode && !below(w, 3)) {
		if (fsync(fd))
			failed(w, "fsync", "new file");
		else
			file_durable(w, f);
	}
	keep_or_close(w, f, fd, false);
}

static void op_new(struct worker *w)
{
	struct name *n = some_name(w);
	char path[PATH_ROOM + 20];
	int flags = O_WRONLY | O_CREAT | O_CLOEXEC;
	int fd;

	path_of(path, w, n);
	if (n->f && n->f->kind != REG)
		return;
	if (n->f) {
		fd = open(path, flags | O_TRUNC, 0644);
		if (fd >= 0) {
			file_change(n->f, TRUNC, 0, 0, NULL);
			fill_new(w, n->f, fd);
		} else if (died(w, errno)) {
			file_maybe(n->f, TRUNC, 0, 0, NULL);
		} else {
			failed(w, "open O_TRUNC", path);
		}
		return;
	}
	struct file *f = file_new(REG);

	fd = open(path, flags | (below(w, 2) ? O_EXCL : O_TRUNC), 0644);
	if (fd >= 0) {
		name_bind(n, f, false);
		fill_new(w, f, fd);
	} else if (died(w, errno)) {
		unsure(w, n, f, NULL, NULL);
	} else {
		failed(w, "create", path);
	}
	file_unref(f);
}

/* tmp, write, rename over: atomic replacement. */
static void op_replace(struct worker *w)
{
	struct name *tmp = some_name(w), *to = some_name(w);
	char from_path[PATH_ROOM + 20], to_path[PATH_ROOM + 20];
	struct file *f;
	int fd;

	if (tmp->f || tmp == to || (to->f && to->f->kind == DIRECTORY))
		return;
	path_of(from_path, w, tmp);
	path_of(to_path, w, to);
	f = file_new(REG);
	fd = open(from_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0) {
		if (died(w, errno))
			unsure(w, tmp, f, NULL, NULL);
		else
			failed(w, "create", from_path);
		file_unref(f);
		return;
	}
	name_bind(tmp, f, false);
	fill_new(w, f, fd);
	if (!w->dead) {
		if (!rename(from_path, to_path)) {
			bool over = to->f;

			name_bind(tmp, NULL, false);
			name_bind(to, f, over);
		} else if (died(w, errno)) {
			unsure(w, tmp, NULL, to, f);
		} else {
			failed(w, "rename", from_path);
		}
	}
	file_unref(f);
}

static void op_rename(struct worker *w)
{
	struct name *a = some_name(w), *b = some_name(w);
	char pa[PATH_ROOM + 20], pb[PATH_ROOM + 20];
	bool exchange = !below(w, 4);

	if (!a->f || a->f == b->f || (exchange && !b->f))
		return;
	if (!exchange && b->f && (a->f->kind == DIRECTORY) != (b->f->kind == DIRECTORY))
		return;
	path_of(pa, w, a);
	path_of(pb, w, b);
	if (renameat2(AT_FDCWD, pa, AT_FDCWD, pb, exchange ? RENAME_EXCHANGE : 0)) {
		if (died(w, errno))
			unsure(w, a, exchange ? b->f : NULL, b, a->f);
		else
			failed(w, "rename", pa);
		return;
	}
	struct file *fa = file_ref(a->f), *fb = file_ref(b->f);

	name_bind(a, exchange ? fb : NULL, exchange);
	name_bind(b, fa, fb != NULL);
	file_unref(fa);
	file_unref(fb);
}

static void op_unlink(struct worker *w)
{
	struct name *n = some_name(w);
	char path[PATH_ROOM + 20];

	if (!n->f)
		return;
	path_of(path, w, n);
	if (!(n->f->kind == DIRECTORY ? rmdir(path) : unlink(path)))
		name_bind(n, NULL, false);
	else if (died(w, errno))
		unsure(w, n, NULL, NULL, NULL);
	else
		failed(w, "unlink", path);
}

static void target_of(char *out, const struct file *f)
{
	snprintf(out, 64, "target-of-%u", f->id);
}

/* mkdir, symlink or link. */
static void op_special(struct worker *w)
{
	struct name *n = some_name(w), *other = some_file(w);
	char path[PATH_ROOM + 20], from[PATH_ROOM + 20], target[64];
	struct file *f;
	int rc;

	if (n->f)
		return;
	path_of(path, w, n);
	switch (below(w, 3)) {
	case 0:
		f = file_new(DIRECTORY);
		rc = mkdir(path, 0755);
		break;
	case 1:
		f = file_new(SYMLINK);
		target_of(target, f);
		rc = symlink(target, path);
		break;
	default:
		if (!other)
			return;
		f = file_ref(other->f);
		path_of(from, w, other);
		rc = link(from, path);
	}
	if (!rc)
		name_bind(n, f, false);
	else if (died(w, errno))
		unsure(w, n, f, NULL, NULL);
	else
		failed(w, "mkdir, symlink or link", path);
	file_unref(f);
}

/* Amends in place: daemon mode. */
static void op_amend(struct worker *w)
{
	struct name *n = some_file(w);
	char path[PATH_ROOM + 20];
	struct file *f;
	int fd, flags, times = 1 + below(w, 4);
	bool append = !below(w, 4), sync = power_mode && !below(w, 4);

	if (!n)
		return;
	f = n->f;
	path_of(path, w, n);
	flags = (below(w, 2) ? O_RDWR : O_WRONLY) | (append ? O_APPEND : 0);
	if (sync)
		flags |= below(w, 2) ? O_SYNC : O_DSYNC;
	fd = open_file(w, f, path, flags);
	if (fd < 0)
		return;
	while (times--) {
		/* ds4 rewrites 48 bytes; others 4 KiB and more. */
		uint64_t len = below(w, 2) ? 48 : 1 + below(w, 40000);
		uint64_t off = f->size ? below(w, f->size) : 0;

		if (off + len > MAX_SIZE || f->size > MAX_SIZE)
			break;
		if (!write_some(w, f, fd, off, len, append))
			break;
		if (sync && !w->dead)
			file_durable(w, f);
	}
	keep_or_close(w, f, fd, append);
}

static void op_truncate(struct worker *w)
{
	struct name *n = some_file(w);
	char path[PATH_ROOM + 20];
	uint64_t to;

	if (!n)
		return;
	path_of(path, w, n);
	to = below(w, 3) ? below(w, n->f->size + 1) : n->f->size + below(w, 100000);
	if (to > MAX_SIZE)
		return;
	if (!truncate(path, to))
		file_change(n->f, TRUNC, to, 0, NULL);
	else if (died(w, errno))
		file_maybe(n->f, TRUNC, to, 0, NULL);
	else
		failed(w, "truncate", path);
}

static void op_punch(struct worker *w)
{
	struct name *n = some_file(w);
	char path[PATH_ROOM + 20];
	uint64_t off, len;
	int fd;

	if (!n || !n->f->size)
		return;
	path_of(path, w, n);
	fd = open_file(w, n->f, path, O_WRONLY);
	if (fd < 0)
		return;
	off = below(w, n->f->size);
	len = 1 + below(w, 100000);
	if (!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len))
		file_change(n->f, ZERO, off, len, NULL);
	else if (died(w, errno))
		file_maybe(n->f, ZERO, off, len, NULL);
	else
		failed(w, "fallocate", path);
	close_file(n->f, fd);
}

static void op_copy(struct worker *w)
{
	struct name *a = some_file(w), *b = some_file(w);
	char pa[PATH_ROOM + 20], pb[PATH_ROOM + 20];
	uint64_t from, to, len, done;
	off64_t x, y;
	int in, out;
	ssize_t r;

	/* Bytes that are unsure cannot be copied to a place where they would be sure. */
	if (!a || !b || a->f == b->f || !a->f->size || a->f->maybe.n)
		return;
	path_of(pa, w, a);
	path_of(pb, w, b);
	from = below(w, a->f->size);
	len = a->f->size - from;
	to = below(w, b->f->size + 1);
	if (to + len > MAX_SIZE)
		return;
	in = open_file(w, a->f, pa, O_RDONLY);
	if (in < 0)
		return;
	out = open_file(w, b->f, pb, O_WRONLY);
	if (out >= 0) {
		unsigned char *data = allocate(NULL, len);

		memcpy(data, a->f->cur + from, len);
		x = from;
		y = to;
		r = copy_file_range(in, &x, out, &y, len, 0);
		done = r > 0 ? r : 0;
		if (done)
			file_change(b->f, WRITE, to, done, data);
		/* The kernel copies in pieces: the sum of those before is told of one that died. */
		if (done < len && died(w, r < 0 ? errno : EIO))
			file_maybe(b->f, WRITE, to + done, len - done, data + done);
		else if (done < len)
			problem("copy_file_range %s: %zd of %llu: %s", pa, r,
				(unsigned long long)len, strerror(errno));
		free(data);
		close_file(b->f, out);
	}
	close_file(a->f, in);
}

/* True if the page is one of a tmpfs, so of the hot image, and not of the page cache of the mount. The
 * tier alone does not tell: a RELEASE still on its way can keep a hot file direct-only. */
static bool page_of_image(const unsigned char *addr)
{
	uint64_t entry = 0, flags = 0;
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	int kpageflags = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);

	if (pread(pagemap, &entry, 8, (uintptr_t)addr / 4096 * 8) != 8 ||
	    pread(kpageflags, &flags, 8, (entry & ((1ull << 55) - 1)) * 8) != 8)
		flags = 0;
	close(pagemap);
	close(kpageflags);
	return flags >> 14 & 1; /* KPF_SWAPBACKED */
}

/* open, mmap, close: the mapping stays, and is stored to later. */
static void op_map(struct worker *w)
{
	struct name *n = some_file(w);
	struct held_map *m = w->maps;
	char path[PATH_ROOM + 20];
	sigjmp_buf jump;
	struct file *f;
	char byte;
	int fd;

	while (m < w->maps + MAX_MAPS && m->f)
		m++;
	if (!n || !n->f->size || m == w->maps + MAX_MAPS)
		return;
	f = n->f;
	path_of(path, w, n);
	/* Reading completes the image of a cold file; a mapping then outlives the daemon. */
	if (!f->holds && below(w, 4)) {
		fd = open_file(w, f, path, O_RDONLY);
		if (fd < 0)
			return;
		if (read(fd, &byte, 1) != 1)
			failed(w, "read", path);
		close_file(f, fd);
	}
	fd = open_file(w, f, path, O_RDWR);
	if (fd < 0)
		return;
	m->len = f->size;
	m->addr = mmap(NULL, m->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m->addr == MAP_FAILED) {
		if (errno != ENODEV || strcmp(mode, "nommap"))
			failed(w, "mmap", path);
	} else {
		m->f = file_ref(f);
		f->holds++;
		w->on_sigbus = &jump;
		if (sigsetjmp(jump, 1)) {
			died(w, EIO);
			drop_map(m);
		} else {
			byte = *(volatile unsigned char *)m->addr;
			m->imaged = !strcmp(mode, "passthrough") && page_of_image(m->addr);
		}
		w->on_sigbus = NULL;
	}
	close_file(f, fd);
}

/* Stores through a held mapping. */
static void store_some(struct worker *w, struct held_map *m)
{
	sigjmp_buf jump;
	struct file *f = m->f;
	uint64_t end = m->len < f->size ? m->len : f->size;
	uint64_t off, len;
	unsigned char *data;

	/* A truncate that the daemon's death cut short may have happened. */
	for (size_t i = 0; i < f->maybe.n; i++)
		if (f->maybe.list[i].kind == TRUNC && f->maybe.list[i].off < end)
			end = f->maybe.list[i].off;
	if (!end)
		return;
	off = below(w, end);
	len = 1 + below(w, below(w, 2) ? 64 : 100000);
	if (len > end - off)
		len = end - off;
	data = some_bytes(w, len);
	w->on_sigbus = &jump;
	if (sigsetjmp(jump, 1)) {
		w->on_sigbus = NULL;
		file_maybe(f, WRITE, off, len, data);
		if (m->imaged || !died(w, EIO))
			problem("SIGBUS at a store to file %u%s", f->id, m->imaged ? ", hot" : "");
		drop_map(m);
		return;
	}
	memcpy(m->addr + off, data, len);
	w->on_sigbus = NULL;
	if (m->imaged)
		file_change(f, WRITE, off, len, data);
	else
		file_maybe(f, WRITE, off, len, data);
}

static void op_store(struct worker *w)
{
	struct held_map *m = &w->maps[below(w, MAX_MAPS)];

	if (!m->f)
		return;
	store_some(w, m);
	if (!m->f || w->dead)
		return;
	if (!below(w, 3)) {
		if (msync(m->addr, m->len, MS_SYNC)) {
			if (!died(w, errno))
				problem("msync of file %u: %s", m->f->id, strerror(errno));
		} else {
			file_sure(m->f, m->len);
		}
	} else if (!below(w, 6) && (m->imaged || !m->f->maybe.n)) {
		drop_map(m);
	}
}

static void op_held(struct worker *w)
{
	struct held_fd *h = &w->fds[below(w, MAX_FDS)];
	uint64_t off, len;

	if (!h->f)
		return;
	if (!below(w, 5) || h->f->size > MAX_SIZE) {
		drop_fd(h);
		return;
	}
	off = below(w, h->f->size + 1);
	len = some_size(w) / 4 + 1;
	if (h->gen == gen) {
		write_some(w, h->f, h->fd, off, len, h->append);
		return;
	}
	/* A handle of a daemon that was killed: passthrough, or dead. */
	unsigned char *data = some_bytes(w, len);
	ssize_t r = pwrite(h->fd, data, len, off);

	if (r == (ssize_t)len && !h->append)
		file_change(h->f, WRITE, off, len, data);
	else
		drop_fd(h);
}

static void op_fsync(struct worker *w)
{
	struct name *n = some_file(w);
	char path[PATH_ROOM + 20];
	int fd, rc;

	if (!n)
		return;
	path_of(path, w, n);
	fd = open_file(w, n->f, path, below(w, 2) ? O_RDONLY : O_WRONLY);
	if (fd < 0)
		return;
	rc = below(w, 2) ? fsync(fd) : fdatasync(fd);
	if (rc) {
		failed(w, "fsync", path);
	} else {
		file_sure(n->f, UINT64_MAX);
		file_durable(w, n->f);
	}
	close_file(n->f, fd);
}

static void op_fsyncdir(struct worker *w)
{
	int dir = below(w, DIRS);
	char path[PATH_ROOM];
	int fd;

	dir_path(path, mnt, w, dir, w->alt);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) {
		failed(w, "open", path);
		return;
	}
	if (fsync(fd)) {
		failed(w, "fsync", path);
	} else {
		dir_durable(w, dir);
		/* Its own name goes with it. */
		if (dir == DIRS - 1 && !atomic_load(&holding)) {
			w->alt_durable = w->alt;
			w->alt_later[0] = w->alt_later[1] = false;
		}
	}
	close(fd);
}

static void op_rename_dir(struct worker *w)
{
	char from[PATH_ROOM], to[PATH_ROOM];

	dir_path(from, mnt, w, DIRS - 1, w->alt);
	dir_path(to, mnt, w, DIRS - 1, !w->alt);
	if (!rename(from, to)) {
		w->alt = !w->alt;
		w->alt_later[w->alt] = true;
	} else if (died(w, errno)) {
		w->unsure.dir_rename = true;
	} else {
		failed(w, "rename", from);
	}
}

static void op_meta(struct worker *w)
{
	struct name *n = some_file(w);
	char path[PATH_ROOM + 20], value[32];

	if (!n)
		return;
	path_of(path, w, n);
	if (below(w, 2)) {
		unsigned to = 0600 | below(w, 64);

		n->f->mode_maybe = to;
		if (!chmod(path, to))
			n->f->mode = to;
		else if (!died(w, errno))
			failed(w, "chmod", path);
		return;
	}
	n->f->attr_maybe = n->f->attr + 1;
	snprintf(value, sizeof(value), "%u", n->f->attr_maybe);
	if (!setxattr(path, "user.load", value, strlen(value), 0))
		n->f->attr = n->f->attr_maybe;
	else
		failed(w, "setxattr", path);
}

static void op_tier(struct worker *w)
{
	struct name *n = some_file(w);
	char path[PATH_ROOM + 20];
	int rc;

	if (!n)
		return;
	path_of(path, w, n);
	switch (below(w, 3)) {
	case 0:
		rc = setxattr(path, "user.kvfs.evict", "cold", 4, 0);
		break;
	case 1:
		rc = setxattr(path, "user.kvfs.evict", "warm", 4, 0);
		break;
	default:
		rc = setxattr(path, "user.kvfs.prefetch", "1", 1, 0);
	}
	/* Held by us, or by a RELEASE that is still on its way. */
	if (rc && errno != EBUSY && errno != EAGAIN)
		failed(w, "evict or prefetch", path);
}

static bool content_ok(const char *path, struct file *f, bool adopt, char *why);

static void op_read(struct worker *w)
{
	struct name *n = some_file(w);
	char path[PATH_ROOM + 20], why[256];

	if (!n)
		return;
	path_of(path, w, n);
	errno = 0;
	if (!content_ok(path, n->f, false, why) && !died(w, errno))
		problem("while running, %s: %s", path, why);
}

static void worker_op(struct worker *w)
{
	static void (*const ops[])(struct worker *) = {
		op_new,   op_new,   op_replace, op_replace,  op_rename, op_unlink,     op_special,
		op_amend, op_amend, op_amend,   op_truncate, op_punch,  op_copy,       op_map,
		op_store, op_store, op_store,   op_held,     op_held,   op_held,       op_fsync,
		op_meta,  op_tier,  op_tier,    op_read,     op_read,   op_rename_dir,
	};
	unsigned n = sizeof(ops) / sizeof(ops[0]);
	unsigned pick = below(w, n + (power_mode ? 6 : 0));

	if (pick >= n)
		(pick % 2 ? op_fsync : op_fsyncdir)(w);
	else
		ops[pick](w);
	w->ops++;
}

static void fsync_all(struct worker *w)
{
	int fd = open(mnt, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0) {
		failed(w, "open", mnt);
		return;
	}
	if (fsync(fd))
		failed(w, "fsync", mnt);
	else
		all_durable();
	close(fd);
}

static void *worker_run(void *arg)
{
	struct worker *w = arg;

	self = w;
	while (!atomic_load(&stopping) && !w->dead) {
		struct timespec pause = { 0, below(w, 4000000) };

		if (power_mode && !below(w, 300)) {
			pthread_rwlock_wrlock(&all_lock);
			fsync_all(w);
		} else {
			pthread_rwlock_rdlock(&all_lock);
			worker_op(w);
		}
		pthread_rwlock_unlock(&all_lock);
		/* What the store can take: the load is there to be interrupted, not to fill a disk. */
		nanosleep(&pause, NULL);
	}
	return NULL;
}

/* ---- Checking ----------------------------------------------------------------------------------- */

/* Reads a whole file, by read or by mmap. NULL, with errno, if that fails. */
static unsigned char *slurp(const char *path, uint64_t *ret_size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	unsigned char *buf = NULL;
	uint64_t size = 0, room = 0;
	ssize_t r = 0;

	if (fd < 0)
		return NULL;
	do {
		size += r;
		if (room - size < 65536) {
			room = room ? 2 * room : 1 << 20;
			buf = allocate(buf, room);
		}
		r = read(fd, buf + size, room - size);
	} while (r > 0);
	if (r < 0) {
		int e = errno;

		free(buf);
		close(fd);
		errno = e;
		return NULL;
	}
	close(fd);
	*ret_size = size;
	return buf;
}

/* True if got (size bytes) is what is expected, save for the optional changes. why says what is not. */
static bool bytes_ok(const unsigned char *got, uint64_t size, const unsigned char *want,
		     uint64_t want_size, const struct change *optional, size_t n, char *why)
{
	uint64_t lo = want_size, hi = want_size;

	for (size_t i = 0; i < n; i++) {
		if (optional[i].size_after < lo)
			lo = optional[i].size_after;
		if (optional[i].size_after > hi)
			hi = optional[i].size_after;
	}
	if (size < lo || size > hi) {
		snprintf(why, 256, "size %llu, not %llu to %llu", (unsigned long long)size,
			 (unsigned long long)lo, (unsigned long long)hi);
		return false;
	}
	for (uint64_t at = 0; at < size; at++) {
		uint64_t block = 4096 < size - at ? 4096 : size - at;
		bool found;

		if (at % 4096 == 0 && at + block <= want_size &&
		    !memcmp(got + at, want + at, block)) {
			at += block - 1;
			continue;
		}
		found = got[at] == (at < want_size ? want[at] : 0);
		for (size_t i = 0; !found && i < n; i++)
			found = change_byte(&optional[i], at) == got[at];
		if (!found) {
			snprintf(why, 256, "byte %llu of %llu is 0x%02x, not 0x%02x (%zu maybes)",
				 (unsigned long long)at, (unsigned long long)size, got[at],
				 at < want_size ? want[at] : 0, n);
			return false;
		}
	}
	return true;
}

/* The file at path is what was acknowledged. adopt: from now on what was found is. */
static bool content_ok(const char *path, struct file *f, bool adopt, char *why)
{
	uint64_t size;
	unsigned char *got = slurp(path, &size);
	bool ok;

	if (!got) {
		snprintf(why, 256, "read: %s", strerror(errno));
		return false;
	}
	ok = bytes_ok(got, size, f->cur, f->size, f->maybe.list, f->maybe.n, why);
	if (ok && adopt && f->maybe.n) {
		bytes_resize(&f->cur, &f->size, &f->room, size);
		if (size)
			memcpy(f->cur, got, size);
		changes_clear(&f->maybe);
	}
	errno = 0;
	free(got);
	return ok;
}

static bool symlink_ok(const char *path, const struct file *f)
{
	char want[64], got[64];
	ssize_t r = readlink(path, got, sizeof(got) - 1);

	target_of(want, f);
	got[r < 0 ? 0 : r] = 0;
	return !strcmp(want, got);
}

static int kind_of(const struct stat *st)
{
	return S_ISDIR(st->st_mode) ? DIRECTORY : S_ISLNK(st->st_mode) ? SYMLINK : REG;
}

static int attr_of(const char *path)
{
	char value[32];
	ssize_t r = getxattr(path, "user.load", value, sizeof(value) - 1);

	if (r < 0)
		return errno == ENODATA ? 0 : -1;
	value[r] = 0;
	return atoi(value);
}

static int names_bound(const struct worker *w, const struct file *f)
{
	int n = 0;

	for (const struct name *x = w->names; x < w->names + NAMES; x++)
		n += x->f == f;
	return n;
}

/* What is at path is f. */
static bool is_file(const char *path, struct file *f, char *why)
{
	struct stat st;

	if (lstat(path, &st)) {
		if (errno == ENOENT && !f)
			return true;
		snprintf(why, 256, "%s", strerror(errno));
		return false;
	}
	if (!f) {
		snprintf(why, 256, "is there, and was removed");
		return false;
	}
	if (kind_of(&st) != (int)f->kind) {
		snprintf(why, 256, "is of another type: %o", st.st_mode);
		return false;
	}
	if (f->kind == SYMLINK && !symlink_ok(path, f)) {
		snprintf(why, 256, "the symbolic link points elsewhere");
		return false;
	}
	return f->kind != REG || content_ok(path, f, false, why);
}

static void decide_unsure(struct worker *w)
{
	struct unsure *u = &w->unsure;
	char path[PATH_ROOM + 20], other[PATH_ROOM], why[256], why_not[256];
	bool before = true, after = true;
	struct stat st;

	if (u->dir_rename) {
		dir_path(other, mnt, w, DIRS - 1, !w->alt);
		if (!stat(other, &st))
			w->alt = !w->alt;
		count_maybe++;
	}
	for (int i = 0; i < u->n; i++) {
		path_of(path, w, u->name[i]);
		before = before && is_file(path, u->before[i], why);
	}
	for (int i = 0; i < u->n && !before; i++) {
		path_of(path, w, u->name[i]);
		after = after && is_file(path, u->after[i], why_not);
	}
	if (!before && !after)
		problem("%s: neither the old (%s) nor the new (%s)", path, why, why_not);
	for (int i = 0; i < u->n; i++) {
		count_maybe++;
		if (!before)
			name_bind(u->name[i], u->after[i], false);
	}
	for (int i = 0; i < u->n; i++)
		file_unref(u->after[i]);
	memset(u, 0, sizeof(*u));
}

static void verify_name(struct worker *w, struct name *n)
{
	char path[PATH_ROOM + 20], why[256] = "";
	struct file *f = n->f;
	struct stat st;
	int attr;

	path_of(path, w, n);
	if (!is_file(path, f, why)) {
		/* A write through a handle of a dead mount moves the size of the new one, which the
		 * kernel may remember for attr_timeout: once more, when that is over. */
		struct timespec second = { 1, 200000000 };

		nanosleep(&second, NULL);
		if (!is_file(path, f, why)) {
			problem("%s: %s", path, why);
			return;
		}
	}
	if (!f)
		return;
	count_files++;
	if (f->kind == REG) {
		count_maybe += f->maybe.n;
		content_ok(path, f, true, why);
	}
	if (lstat(path, &st)) {
		problem("%s: stat: %s", path, strerror(errno));
		return;
	}
	if (f->kind == REG && (uint64_t)st.st_size != f->size)
		problem("%s: stat says %llu bytes, %llu can be read", path,
			(unsigned long long)st.st_size, (unsigned long long)f->size);
	if (f->kind != DIRECTORY && (int)st.st_nlink != names_bound(w, f))
		problem("%s: %u links, not %d", path, (unsigned)st.st_nlink, names_bound(w, f));
	if (f->kind != REG)
		return;
	if ((st.st_mode & 07777) != f->mode && (st.st_mode & 07777) != f->mode_maybe)
		problem("%s: mode %o, not %o", path, st.st_mode & 07777, f->mode);
	f->mode = f->mode_maybe = st.st_mode & 07777;
	attr = attr_of(path);
	if (attr != (int)f->attr && attr != (int)f->attr_maybe)
		problem("%s: xattr %d, not %u", path, attr, f->attr);
	f->attr = f->attr_maybe = attr;
}

/* Names that nobody made. */
static void verify_listing(const char *top, const struct worker *w, int dir, bool alt)
{
	char path[PATH_ROOM];
	struct dirent *e;
	DIR *d;

	dir_path(path, top, w, dir, alt);
	d = opendir(path);
	if (!d) {
		problem("%s: %s", path, strerror(errno));
		return;
	}
	while ((e = readdir(d))) {
		bool known = e->d_name[0] == '.' ||
			     (!dir && (e->d_name[0] == 'd' || e->d_name[0] == 'e'));

		for (const struct name *n = w->names; n < w->names + NAMES; n++)
			known = known || (n->dir == dir && !strcmp(n->leaf, e->d_name));
		if (!known)
			problem("%s/%s: nobody made it", path, e->d_name);
	}
	closedir(d);
}

static void verify_held(struct worker *w)
{
	unsigned char *buf = w->scratch;

	for (struct held_map *m = w->maps; m < w->maps + MAX_MAPS; m++) {
		uint64_t end;

		if (!m->f || !m->imaged)
			continue;
		end = m->len < m->f->size ? m->len : m->f->size;
		if (end && !m->f->maybe.n && memcmp(m->addr, m->f->cur, end))
			problem("a mapping of file %u has other bytes than were stored", m->f->id);
	}
	for (struct held_fd *h = w->fds; h < w->fds + MAX_FDS; h++) {
		ssize_t r;

		if (!h->f || h->f->maybe.n || h->f->size > 2 * MAX_SIZE)
			continue;
		r = pread(h->fd, buf, 2 * MAX_SIZE, 0);
		/* EBADF: open for writing only. */
		if (r >= 0 && ((uint64_t)r != h->f->size || memcmp(buf, h->f->cur, r)))
			problem("a handle of file %u reads other bytes than were written",
				h->f->id);
	}
}

static void verify(void)
{
	count_files = count_maybe = 0;
	for (struct worker *w = workers; w < workers + n_workers; w++) {
		decide_unsure(w);
		for (struct name *n = w->names; n < w->names + NAMES; n++)
			verify_name(w, n);
		for (int d = 0; d < DIRS; d++)
			verify_listing(mnt, w, d, w->alt);
		verify_held(w);
	}
}

/* What was found at path (got, size) may be what is left of f. */
static bool survivor_ok(const unsigned char *got, uint64_t size, const struct binding *b, int attr,
			char *why)
{
	struct file *f = b->f;
	unsigned char *want = NULL;
	uint64_t want_size = 0, room = 0;
	size_t from = b->from < f->later.n ? b->from : f->later.n, n = 0;
	struct change *maybe;
	bool ok;

	if (f->has_base) {
		bytes_resize(&want, &want_size, &room, f->base_size);
		if (f->base_size)
			memcpy(want, f->base, f->base_size);
	}
	maybe = allocate(NULL, (f->later.n + f->maybe.n) * sizeof(*maybe));
	for (size_t i = 0; i < f->later.n; i++) {
		if (i < from && !f->later.list[i].optional)
			change_apply(&f->later.list[i], &want, &want_size, &room);
		else
			maybe[n++] = f->later.list[i];
	}
	for (size_t i = 0; i < f->maybe.n; i++)
		maybe[n++] = f->maybe.list[i];
	ok = bytes_ok(got, size, want, want_size, maybe, n, why);
	free(maybe);
	if (ok && !size && !f->empty_ok) {
		snprintf(why, 256, "is empty, and never was");
		ok = false;
	}
	if (ok && (attr < (int)f->base_attr || attr > (int)f->attr)) {
		snprintf(why, 256, "xattr %d, not %u to %u", attr, f->base_attr, f->attr);
		ok = false;
	}
	free(want);
	return ok;
}

static void power_name(const char *top, struct worker *w, struct name *n, bool alt)
{
	char dir[PATH_ROOM], path[PATH_ROOM + 20], why[256] = "", all[1024] = "";
	unsigned char *got = NULL;
	uint64_t size = 0;
	struct stat st;
	bool there, ok = false;
	int attr = 0;

	dir_path(dir, top, w, n->dir, alt);
	path_print(path, sizeof(path), "%s/%s", dir, n->leaf);
	there = !lstat(path, &st);
	if (!there && errno != ENOENT) {
		problem("%s: %s", path, strerror(errno));
		return;
	}
	if (there && S_ISREG(st.st_mode)) {
		got = slurp(path, &size);
		if (!got) {
			problem("%s: read: %s", path, strerror(errno));
			return;
		}
		attr = attr_of(path);
		count_files++;
	}
	for (size_t i = 0; i <= n->n_later && !ok; i++) {
		struct binding *b = i ? &n->later[i - 1] : &n->durable;

		snprintf(why, sizeof(why), "absent");
		if (!b->f)
			ok = !there;
		else if (!there)
			snprintf(why, sizeof(why), "file %u", b->f->id);
		else if (kind_of(&st) != (int)b->f->kind)
			snprintf(why, sizeof(why), "another type");
		else if (b->f->kind == REG)
			ok = survivor_ok(got, size, b, attr, why);
		else
			ok = b->f->kind != SYMLINK || symlink_ok(path, b->f);
		if (strlen(all) + strlen(why) + 20 < sizeof(all)) {
			strcat(all, i ? "; or: " : "durable: ");
			strcat(all, why);
		}
	}
	if (!ok)
		problem("%s is %s, wanted %s", path, there ? "there" : "absent", all);
	free(got);
}

static void power(const char *top)
{
	count_files = 0;
	for (struct worker *w = workers; w < workers + n_workers; w++) {
		char d2[PATH_ROOM], e2[PATH_ROOM];
		struct stat st;
		bool is_d, is_e, alt;

		dir_path(d2, top, w, DIRS - 1, false);
		dir_path(e2, top, w, DIRS - 1, true);
		is_d = !stat(d2, &st);
		is_e = !stat(e2, &st);
		alt = is_e;
		if (is_d == is_e)
			problem("%s and %s: %s", d2, e2, is_d ? "both are there" : "both are gone");
		else if (alt != w->alt_durable && !w->alt_later[alt])
			problem("%s is not where it durably was", d2);
		for (struct name *n = w->names; n < w->names + NAMES; n++)
			power_name(top, w, n, alt);
		for (int d = 0; d < DIRS; d++)
			verify_listing(top, w, d, alt);
	}
}

/* ---- Driving ------------------------------------------------------------------------------------ */

static void late(void)
{
	count_late = count_mapped_late = 0;
	for (struct worker *w = workers; w < workers + n_workers; w++) {
		self = w;
		for (struct held_map *m = w->maps; m < w->maps + MAX_MAPS; m++) {
			if (!m->f)
				continue;
			if (!m->imaged) {
				/* The pages go with the daemon. */
				drop_map(m);
				continue;
			}
			store_some(w, m);
			count_mapped_late++;
		}
		for (struct held_fd *h = w->fds; h < w->fds + MAX_FDS; h++) {
			uint64_t off, len;
			unsigned char *data;
			ssize_t r;

			if (!h->f)
				continue;
			off = h->append ? h->f->size : below(w, h->f->size + 1);
			len = 1 + below(w, 20000);
			data = some_bytes(w, len);
			r = pwrite(h->fd, data, len, off);
			if (r == (ssize_t)len) {
				file_change(h->f, WRITE, off, len, data);
				count_late++;
			} else if (r >= 0) {
				problem("short late write: %zd", r);
			} else if (errno == ENOTCONN || errno == ECONNABORTED) {
				drop_fd(h);
			} else {
				problem("late write of file %u: %s", h->f->id, strerror(errno));
			}
		}
		w->dead = false;
	}
}

static void drop(void)
{
	for (struct worker *w = workers; w < workers + n_workers; w++) {
		for (struct held_fd *h = w->fds; h < w->fds + MAX_FDS; h++)
			if (h->f)
				drop_fd(h);
		for (struct held_map *m = w->maps; m < w->maps + MAX_MAPS; m++) {
			if (!m->f)
				continue;
			if (!m->imaged && !msync(m->addr, m->len, MS_SYNC))
				file_sure(m->f, m->len);
			drop_map(m);
		}
	}
}

static void caught_sigbus(int sig)
{
	if (self && self->on_sigbus)
		siglongjmp(*self->on_sigbus, 1);
	signal(sig, SIG_DFL);
	raise(sig);
}

static void start(void)
{
	atomic_store(&stopping, false);
	for (struct worker *w = workers; w < workers + n_workers; w++) {
		w->dead = false;
		w->running = !pthread_create(&w->thread, NULL, worker_run, w);
	}
}

static void stop(void)
{
	atomic_store(&stopping, true);
	for (struct worker *w = workers; w < workers + n_workers; w++) {
		if (w->running)
			pthread_join(w->thread, NULL);
		w->running = false;
	}
}

static void setup(uint64_t seed)
{
	char path[PATH_ROOM];
	struct statfs st;

	if (statfs(mnt, &st)) {
		perror(mnt);
		exit(1);
	}
	mnt_type = st.f_type;

	for (unsigned i = 0; i < n_workers; i++) {
		struct worker *w = &workers[i];

		w->number = i;
		w->rng = seed * 1000003 + i;
		w->scratch = allocate(NULL, 2 * MAX_SIZE + 65536);
		for (int d = 0; d < DIRS; d++) {
			dir_path(path, mnt, w, d, false);
			if (mkdir(path, 0755)) {
				perror(path);
				exit(1);
			}
		}
		for (int j = 0; j < NAMES; j++) {
			w->names[j].dir = j % DIRS;
			snprintf(w->names[j].leaf, sizeof(w->names[j].leaf), "n%d", j / DIRS);
		}
	}
}

static void read_kv(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	char path[1024];

	while (d && (e = readdir(d))) {
		unsigned char *got;
		uint64_t size;

		if (!strstr(e->d_name, ".ggsq"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		got = slurp(path, &size);
		if (!got)
			continue;
		kv_data = allocate(kv_data, kv_len + size);
		memcpy(kv_data + kv_len, got, size);
		kv_len += size;
		free(got);
	}
	if (d)
		closedir(d);
}

static void stop_and_count(char *out, size_t size)
{
	unsigned long ops = 0;
	bool dead = false;

	stop();
	for (unsigned i = 0; i < n_workers; i++) {
		ops += workers[i].ops;
		dead = dead || workers[i].dead;
	}
	snprintf(out, size, " ops=%lu %s", ops, dead ? "dead" : "alive");
}

int main(int argc, char **argv)
{
	char line[PATH_ROOM], out[256];

	if (argc < 5) {
		fprintf(stderr, "usage: load MNT SEED THREADS MODE [power] [KVDIR]\n");
		return 2;
	}
	snprintf(mnt, sizeof(mnt), "%s", argv[1]);
	n_workers = atoi(argv[3]) < MAX_THREADS ? atoi(argv[3]) : MAX_THREADS;
	mode = argv[4];
	power_mode = argc > 5 && !strcmp(argv[5], "power");
	if (argc > 5 + power_mode)
		read_kv(argv[5 + power_mode]);
	signal(SIGBUS, caught_sigbus);
	umask(022);
	setup(strtoull(argv[2], NULL, 0));
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		out[0] = 0;
		/* What the threads found wrong is told by the stop. */
		if (strcmp(line, "stop"))
			atomic_store(&problems, 0);
		if (!strcmp(line, "start"))
			start();
		else if (!strcmp(line, "stop"))
			stop_and_count(out, sizeof(out));
		else if (!strcmp(line, "remounted"))
			gen++;
		else if (!strcmp(line, "late"))
			late();
		else if (!strcmp(line, "drop"))
			drop();
		else if (!strcmp(line, "verify"))
			verify();
		else if (!strcmp(line, "hold") || !strcmp(line, "unhold"))
			atomic_store(&holding, line[0] == 'h');
		else if (!strcmp(line, "alldurable"))
			all_durable();
		else if (!strncmp(line, "power ", 6))
			power(line + 6);
		else
			problem("unknown command: %s", line);
		if (!strcmp(line, "late"))
			snprintf(out, sizeof(out), " handles=%lu mappings=%lu", count_late,
				 count_mapped_late);
		if (!strcmp(line, "verify") || !strncmp(line, "power", 5))
			snprintf(out, sizeof(out), " files=%lu maybe=%lu", count_files,
				 count_maybe);
		printf("%s%s\n", atomic_load(&problems) ? "bad" : "ok", out);
		fflush(stdout);
	}
	stop();
	return 0;
}
