/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that their owner rewrites in place, cuts and lets grow while all others read. Of a read beside a
 * change only the words are known: of the content before it, of the new one, or zeros. A read that no
 * change met sees exactly what is there.
 */
#ifndef CONCURRENT_CUTS_H
#define CONCURRENT_CUTS_H

#include "concurrent.h"

#define CUTS     6
#define CUT_MAX  (3u << 20)
#define CUT_FILE 128 /* of the first, in stamps */

struct cut {
	atomic_uint turn; /* odd: being changed, or cut short by a kill */
	/* From here on stored by the owner alone, while turn is odd. Bytes, multiples of 8. */
	atomic_uint begun, stamp; /* of the newest content; of what is there */
	atomic_uint len, size;    /* that much of it is there, zeros follow */
};

struct cuts {
	struct cut v[CUTS];
};

struct cut_look {
	unsigned turn, stamp, len, size;
};

static struct cut_look cut_look(struct cut *c)
{
	return (struct cut_look){ .turn = atomic_load(&c->turn),
				  .stamp = atomic_load(&c->stamp),
				  .len = atomic_load(&c->len),
				  .size = atomic_load(&c->size) };
}

/* ---- Reading ---------------------------------------------------------------------------------- */

static void check_exact(struct worker *w, unsigned k, const struct cut_look *c, size_t n,
			uint64_t st_size)
{
	const uint64_t *word = (const uint64_t *)w->out;

	if (n != c->size || st_size != c->size)
		fail(w, "file cut.%u: expected %u bytes, read %zu, fstat says %llu", k, c->size, n,
		     (unsigned long long)st_size);
	for (uint64_t i = 0; i < n / 8; i++) {
		uint64_t want = i * 8 < c->len ? stamped_word(CUT_FILE + k, c->stamp, i) : 0;

		if (word[i] != want)
			fail(w,
			     "file cut.%u, offset %llu of %u (%u bytes of version %u, then zeros): expected "
			     "%#llx, saw %#llx (of version %u, if of any)",
			     k, (unsigned long long)i * 8, c->size, c->len, c->stamp,
			     (unsigned long long)want, (unsigned long long)word[i],
			     stamp_of(word[i]));
	}
}

static void check_words(struct worker *w, unsigned k, unsigned lo, unsigned hi, size_t n)
{
	const uint64_t *word = (const uint64_t *)w->out;

	for (uint64_t i = 0; i < n / 8; i++) {
		unsigned stamp = stamp_of(word[i]);

		if (word[i] &&
		    (stamp < lo || stamp > hi || word[i] != stamped_word(CUT_FILE + k, stamp, i)))
			fail(w,
			     "file cut.%u, offset %llu: expected a word of version %u to %u or zeros, saw "
			     "%#llx (of version %u, if of any)",
			     k, (unsigned long long)i * 8, lo, hi, (unsigned long long)word[i],
			     stamp);
	}
}

/* False: the daemon is dead. */
static bool read_cut(struct worker *w, unsigned k, int fd)
{
	struct cut *c = &w->cuts->v[k];
	struct cut_look before = cut_look(c), after;
	struct stat st;
	size_t n;

	at(w, "pread of cut.%u", k);
	if (!read_at(w, fd, w->out, IO_ROOM, 0, &n))
		return false;
	if (fstat(fd, &st) < 0)
		return !died(w, "fstat", "cut");
	after = cut_look(c);
	if (atomic_load(&w->s->killed) && n < after.size)
		return false;
	/* The look is of one moment if the turn was even before it and is the same now. */
	if (before.turn == after.turn && before.turn % 2 == 0)
		check_exact(w, k, &before, n, (uint64_t)st.st_size);
	else
		check_words(w, k, before.stamp, atomic_load(&c->begun), n);
	counted(w, COUNT_READS);
	return true;
}

static void cuts_read(struct worker *w)
{
	static const int flags[] = { O_RDONLY, O_RDONLY, O_RDWR };
	unsigned k = draw(w, CUTS), n = 1 + draw(w, 4);
	int fd = open_or_die(w, path_in(w, "cut.%u", k), flags[draw(w, 3)]);

	if (fd < 0)
		return;
	while (n-- && going(w) && read_cut(w, k, fd))
		if (draw(w, 2))
			pause_us(draw(w, 2000));
	close_file(w, fd);
}

/* ---- Changing --------------------------------------------------------------------------------- */

static bool write_cut(struct worker *w, unsigned k, int fd, unsigned stamp, unsigned from,
		      unsigned to)
{
	unsigned piece = (unsigned)draw_piece(w, to - from), n;

	for (unsigned off = from; off < to; off += n) {
		ssize_t r;

		n = to - off < piece ? to - off : piece;
		stamp_words(w->in, CUT_FILE + k, stamp, off, n);
		at(w, "pwrite [%u, +%u) of version %u to cut.%u", off, n, stamp, k);
		r = pwrite(fd, w->in, n, off);
		if (r < 0)
			return !died(w, "pwrite to", "cut");
		if ((unsigned)r != n) {
			cut_short(w, (size_t)r, n);
			return false;
		}
		counted(w, COUNT_WRITES);
	}
	return true;
}

static unsigned draw_cut_size(struct worker *w)
{
	static const unsigned limits[] = { 1, 600, 10000, 40000, CUT_MAX / 8 };

	return 8 * draw(w, limits[draw(w, 5)]);
}

/* With O_TRUNC, by one who may only write or by one who may read as well. */
static bool rewrite_cut(struct worker *w, unsigned k)
{
	struct cut *c = &w->cuts->v[k];
	unsigned stamp = atomic_load(&c->begun) + 1, size = draw_cut_size(w);
	int fd;
	bool ok;

	atomic_store(&c->begun, stamp);
	fd = open_or_die(w, path_in(w, "cut.%u", k),
			 (draw(w, 2) ? O_RDWR : O_WRONLY) | O_CREAT | O_TRUNC);
	if (fd < 0)
		return false;
	ok = write_cut(w, k, fd, stamp, 0, size);
	close_file(w, fd);
	if (!ok)
		return false;
	atomic_store(&c->stamp, stamp);
	atomic_store(&c->len, size);
	atomic_store(&c->size, size);
	return true;
}

static bool resize_cut(struct worker *w, unsigned k)
{
	struct cut *c = &w->cuts->v[k];
	unsigned size = draw_cut_size(w);

	at(w, "truncate cut.%u from %u to %u", k, atomic_load(&c->size), size);
	if (truncate(path_in(w, "cut.%u", k), size) < 0)
		return !died(w, "truncate", "cut");
	if (size < atomic_load(&c->len))
		atomic_store(&c->len, size);
	atomic_store(&c->size, size);
	return true;
}

/* More of the same content, over the zeros and behind them. */
static bool extend_cut(struct worker *w, unsigned k)
{
	struct cut *c = &w->cuts->v[k];
	unsigned len = atomic_load(&c->len), to = len + draw_cut_size(w) / 4 / 8 * 8;
	int fd;
	bool ok;

	if (to > CUT_MAX || !atomic_load(&c->stamp))
		return true;
	fd = open_or_die(w, path_in(w, "cut.%u", k), draw(w, 2) ? O_RDWR : O_WRONLY);
	if (fd < 0)
		return false;
	ok = write_cut(w, k, fd, atomic_load(&c->stamp), len, to);
	close_file(w, fd);
	if (!ok)
		return false;
	atomic_store(&c->len, to);
	if (to > atomic_load(&c->size))
		atomic_store(&c->size, to);
	return true;
}

static void cuts_change(struct worker *w)
{
	unsigned k = w->number;
	struct cut *c = &w->cuts->v[k];
	bool unsure, ok;

	if (k >= CUTS)
		return;
	unsure = atomic_load(&c->turn) % 2;
	if (!unsure)
		atomic_fetch_add(&c->turn, 1);
	switch (unsure ? 0 : draw(w, 4)) {
	case 0:
	case 1:
		ok = rewrite_cut(w, k);
		break;
	case 2:
		ok = resize_cut(w, k);
		break;
	default:
		ok = extend_cut(w, k);
	}
	if (ok)
		atomic_fetch_add(&c->turn, 1);
}

/* ---- While nobody else is at work ------------------------------------------------------------- */

static void cuts_make(struct worker *w)
{
	for (unsigned k = 0; k < CUTS; k++)
		close_file(w, open_or_die(w, path_in(w, "cut.%u", k), O_WRONLY | O_CREAT | O_EXCL));
}

static void cuts_compare(struct worker *w)
{
	for (unsigned k = 0; k < CUTS; k++) {
		int fd = open_or_die(w, path_in(w, "cut.%u", k), O_RDONLY);

		read_cut(w, k, fd);
		close_file(w, fd);
	}
}

#endif
