/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all actors of the concurrency checker share: whether to go on, the first failure, what each is at,
 * and the clocks and draws they use. The models are beside it, each with its own part of the shared
 * memory. Nothing here knows what is checked.
 */
#ifndef CONCURRENT_H
#define CONCURRENT_H

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "pattern.h"

#define PROCESSES 4
#define THREADS   3
#define WORKERS   (PROCESSES * THREADS)
#define MOVERS    2
#define CHECKER   (WORKERS + MOVERS) /* when nobody else is at work */
#define ACTORS    (CHECKER + 1)
#define IO_ROOM   (4u << 20)
#define IO_ALIGN  4096u
#define PIECE     (1u << 20)
#define PATH_ROOM 1024

enum mode { PASSTHROUGH, FALLBACK, NOMMAP };

enum count {
	COUNT_WRITES,
	COUNT_READS,
	COUNT_LOADS, /* reads of a mapping */
	COUNT_STORES,
	COUNT_RECORDS,
	COUNT_SAVES,
	COUNT_OPENS, /* of what is renamed over */
	COUNT_NAMES,
	COUNT_LISTS,
	COUNT_WON,
	COUNT_LOST,
	COUNT_MOVED,
	COUNT_BUSY,
	COUNT_LATE, /* calls that succeeded after the kill */
	COUNTS
};

static const char *const count_names[COUNTS] = {
	"writes", "reads", "loads", "stores",    "records", "saves", "opens",
	"names",  "lists", "won",   "not first", "moved",   "busy",  "late",
};

struct beat {
	atomic_uint count;
	char now[PATH_ROOM];
};

struct shared {
	char top[PATH_ROOM - 256];
	enum mode mode;
	bool small_pool; /* the hot tier is smaller than the files together */
	uint64_t seed;
	unsigned phase;
	atomic_bool stop, failed;
	atomic_bool killed; /* set just before the daemon is */
	char message[4096];
	atomic_ulong counts[COUNTS];
	struct beat beats[ACTORS];
};

struct held {
	bool used;
	int fd;
	unsigned doc, version;
};

#define HELD 3

/* What one actor has of its own. */
struct worker {
	struct shared *s;
	struct slots *slots;
	struct logs *logs;
	struct docs *docs;
	struct cuts *cuts;
	struct names *names;
	unsigned number;
	uint64_t state; /* of draw() */
	bool dead;      /* it has met the daemon's death */
	unsigned char *in, *out;
	struct bound *bounds;
	struct held held[HELD];
	sigjmp_buf *on_sigbus;
};

static _Thread_local struct worker *self;

/* ---- Draws and clocks ------------------------------------------------------------------------- */

static unsigned draw(struct worker *w, unsigned below)
{
	w->state += 0x9e3779b97f4a7c15u;
	return (unsigned)((pattern_mix(w->state) >> 16) % below);
}

/* Of so many bytes, to be written one after the other: a multiple of 8, at most IO_ROOM. */
static size_t draw_piece(struct worker *w, uint64_t bytes)
{
	size_t least = (size_t)(bytes / 24 / 8 + 1) * 8;
	size_t piece = 8 * (1 + draw(w, draw(w, 2) ? 20000 : PIECE / 8));

	return piece > least ? piece : least;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pause_us(unsigned us)
{
	struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000L };

	nanosleep(&t, NULL);
}

static void raise_to(atomic_ullong *to, unsigned long long value)
{
	unsigned long long old = atomic_load(to);

	while (old < value && !atomic_compare_exchange_weak(to, &old, value))
		;
}

/* ---- Going on and failing --------------------------------------------------------------------- */

static bool going(const struct worker *w)
{
	return !w->dead && !atomic_load(&w->s->stop);
}

static void counted(struct worker *w, enum count what)
{
	atomic_fetch_add_explicit(&w->s->counts[what], 1, memory_order_relaxed);
	if (atomic_load_explicit(&w->s->killed, memory_order_relaxed))
		atomic_fetch_add_explicit(&w->s->counts[COUNT_LATE], 1, memory_order_relaxed);
}

/* What it is at, for the failure and for who waits in vain. */
static void at(struct worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void at(struct worker *w, const char *format, ...)
{
	struct beat *b = &w->s->beats[w->number];
	va_list args;

	va_start(args, format);
	vsnprintf(b->now, sizeof b->now, format, args);
	va_end(args);
	atomic_fetch_add(&b->count, 1);
}

static const char *actor_name(unsigned number)
{
	return number < WORKERS ? "worker" : number < CHECKER ? "mover" : "the checker,";
}

/* The first failure counts: the others follow from it, or wait for the next run. */
static _Noreturn void fail(struct worker *w, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static _Noreturn void fail(struct worker *w, const char *format, ...)
{
	struct shared *s = w->s;
	char what[2048];
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof what, format, args);
	va_end(args);
	if (!atomic_exchange(&s->failed, true))
		snprintf(s->message, sizeof s->message, "%s %u, phase %u%s: %s\n  %s",
			 actor_name(w->number), w->number, s->phase,
			 atomic_load(&s->killed) ? ", daemon killed" : "", s->beats[w->number].now,
			 what);
	atomic_store(&s->stop, true);
	_exit(1);
}

static bool was_killed(struct worker *w)
{
	w->dead |= atomic_load(&w->s->killed);
	return w->dead;
}

/* Whether this is the daemon's death; every other errno is a failure. */
static bool died(struct worker *w, const char *what, const char *path)
{
	int e = errno;

	if ((e != ENOTCONN && e != ECONNABORTED && e != EIO) || !was_killed(w))
		fail(w, "%s %s: %s", what, path, strerrorname_np(e));
	return true;
}

/* A call of several requests, some of which the daemon lived to answer. */
static void cut_short(struct worker *w, size_t n, size_t len)
{
	if (!was_killed(w))
		fail(w, "%zu bytes of %zu", n, len);
}

static char *path_in(const struct worker *w, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static char *path_in(const struct worker *w, const char *format, ...)
{
	static _Thread_local char room[8][PATH_ROOM];
	static _Thread_local unsigned turn;
	char *p = room[turn++ % 8];
	size_t n = (size_t)snprintf(p, PATH_ROOM, "%s/", w->s->top);
	va_list args;

	va_start(args, format);
	vsnprintf(p + n, PATH_ROOM - n, format, args);
	va_end(args);
	return p;
}

/* -1: the daemon is dead. */
static int open_or_die(struct worker *w, const char *path, int flags)
{
	int fd;

	at(w, "open %s, flags %#o", path, (unsigned)flags);
	fd = open(path, flags | O_CLOEXEC, 0644);
	if (fd < 0)
		died(w, "open", path);
	return fd;
}

/* FLUSH goes to the daemon. */
static void close_file(struct worker *w, int fd)
{
	if (close(fd) < 0)
		died(w, "close", "");
}

/* All of it in one call. False: the daemon is dead. */
static bool read_at(struct worker *w, int fd, void *to, size_t len, uint64_t off, size_t *ret_n)
{
	ssize_t n = pread(fd, to, len, (off_t)off);

	*ret_n = n < 0 ? 0 : (size_t)n;
	return n >= 0 || !died(w, "pread", "");
}

/* ---- Mappings --------------------------------------------------------------------------------- */

/* Of the page cache of a mount whose daemon is dead. */
static void caught_sigbus(int signal_number)
{
	if (self && self->on_sigbus)
		siglongjmp(*self->on_sigbus, 1);
	signal(signal_number, SIG_DFL);
	raise(signal_number);
}

static bool load_mapped(struct worker *w, void *to, const void *from, size_t len)
{
	sigjmp_buf jump;

	w->on_sigbus = &jump;
	if (sigsetjmp(jump, 1)) {
		w->on_sigbus = NULL;
		errno = EIO;
		return !died(w, "SIGBUS at a load from", "a mapping");
	}
	memcpy(to, from, len);
	w->on_sigbus = NULL;
	return true;
}

/* Whether the page is one of a tmpfs, so of the image, and not of the page cache of the mount. */
static bool page_of_image(const void *addr)
{
	uint64_t entry = 0, flags = 0;
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	int kpageflags = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);

	if (pread(pagemap, &entry, 8, (off_t)((uintptr_t)addr / IO_ALIGN * 8)) != 8 ||
	    pread(kpageflags, &flags, 8, (off_t)((entry & ((1ull << 55) - 1)) * 8)) != 8)
		flags = 0;
	close(pagemap);
	close(kpageflags);
	return flags >> 14 & 1; /* KPF_SWAPBACKED */
}

/* Stores to such a mapping are there at once for all, and outlive the daemon. False too when it is dead. */
static bool maps_image(struct worker *w, const void *addr)
{
	char byte;

	return w->s->mode == PASSTHROUGH && load_mapped(w, &byte, addr, 1) && page_of_image(addr);
}

/* ---- Content ---------------------------------------------------------------------------------- */

#define STAMP_SHIFT 40
#define STAMP_MAX   ((1u << 24) - 1)

/* A word says which write it is of and can be of that one alone, at that place of that file. Stamp 0 is
 * what nobody wrote: zeros. */
static uint64_t stamped_word(unsigned file, unsigned stamp, uint64_t index)
{
	uint64_t tag = pattern_word((uint64_t)(file + 1) << 32 | stamp, index);

	return stamp ? (uint64_t)stamp << STAMP_SHIFT | (tag & ((UINT64_C(1) << STAMP_SHIFT) - 1)) :
		       0;
}

static unsigned stamp_of(uint64_t word)
{
	return (unsigned)(word >> STAMP_SHIFT);
}

/* off and len are multiples of 8. */
static void stamp_words(void *to, unsigned file, unsigned stamp, uint64_t off, size_t len)
{
	uint64_t *word = to;

	for (size_t k = 0; k < len / 8; k++)
		word[k] = stamped_word(file, stamp, off / 8 + k);
}

/* ---- What may have been last ------------------------------------------------------------------ */

#define RING 256

/*
 * The changes of one thing by many: each has a number, and begins and ends. One is over when another began
 * after its end and has ended. What somebody sees must have begun before he had seen it and must not have
 * been over when he began to look.
 */
struct history {
	atomic_ullong covered; /* ns: when the last one that surely happened began */
	struct {
		atomic_uint number;
		atomic_ullong begin, end; /* ns; 0: not yet */
	} ring[RING];
};

static void history_begin(struct history *h, unsigned number)
{
	atomic_store(&h->ring[number % RING].number, 0);
	atomic_store(&h->ring[number % RING].end, 0);
	atomic_store(&h->ring[number % RING].begin, now_ns());
	atomic_store(&h->ring[number % RING].number, number);
}

static void history_end(struct history *h, unsigned number)
{
	unsigned long long begin = atomic_load(&h->ring[number % RING].begin);

	atomic_store(&h->ring[number % RING].end, now_ns());
	raise_to(&h->covered, begin);
}

/* Those of a dead daemon have happened or never will. */
static void history_cut(struct history *h)
{
	for (unsigned k = 0; k < RING; k++)
		if (atomic_load(&h->ring[k].begin) && !atomic_load(&h->ring[k].end))
			atomic_store(&h->ring[k].end, now_ns());
}

/* covered is what it was before the look, which is over. */
static bool history_allows(struct history *h, unsigned number, unsigned long long covered)
{
	unsigned long long begin = atomic_load(&h->ring[number % RING].begin);
	unsigned long long end = atomic_load(&h->ring[number % RING].end);

	if (!number)
		return !covered;
	/* Another has its place: then it is long over, unless the look took as long. */
	if (atomic_load(&h->ring[number % RING].number) != number)
		return begin > covered;
	return !end || end >= covered;
}

/* Somebody saw all of it, so it has happened. */
static void history_seen(struct history *h, unsigned number)
{
	unsigned long long begin = atomic_load(&h->ring[number % RING].begin);

	if (atomic_load(&h->ring[number % RING].number) == number)
		raise_to(&h->covered, begin);
}

/* A number that goes up and down, as far as it is known while others change it. */
struct tally {
	atomic_ullong up_begun, up_ended, down_begun, down_ended;
};

struct tally_before {
	unsigned long long up, down;
};

static struct tally_before tally_look(struct tally *t)
{
	struct tally_before b = { .down = atomic_load(&t->down_ended) };

	b.up = atomic_load(&t->up_ended);
	return b;
}

static bool tally_allows(struct tally *t, const struct tally_before *b, unsigned long long value,
			 unsigned long long *ret_lo, unsigned long long *ret_hi)
{
	unsigned long long down = atomic_load(&t->down_begun), up = atomic_load(&t->up_begun);

	*ret_lo = b->up > down ? b->up - down : 0;
	*ret_hi = up - b->down;
	return value >= *ret_lo && value <= *ret_hi;
}

static void tally_set(struct tally *t, unsigned long long value)
{
	atomic_store(&t->up_begun, value);
	atomic_store(&t->up_ended, value);
	atomic_store(&t->down_begun, 0);
	atomic_store(&t->down_ended, 0);
}

#endif
