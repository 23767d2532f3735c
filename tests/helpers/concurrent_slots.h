/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of slots, of a size that stays. A slot has one owner, who numbers his writes to it: whoever reads
 * must see in each word at least the last write that had returned before he began, and at most the last
 * one that had begun before he was done; and where the file system has one copy of the bytes, nothing
 * older than what somebody saw before. Within these bounds a read may be torn, as on any Linux file
 * system. The slots of one file belong to all: a write is whole against other writes.
 */
#ifndef CONCURRENT_SLOTS_H
#define CONCURRENT_SLOTS_H

#include "concurrent.h"

struct slot_file {
	const char *name;
	uint32_t size; /* of a slot, in bytes, a multiple of 8 */
	uint32_t n;
	bool pages; /* slots share no pages, so O_DIRECT is no matter of luck */
};

enum { FILE_SMALL, FILE_ODD, FILE_BLOCKS, FILE_MIDDLE, FILE_LARGE, FILE_HUGE, OWNED_FILES };

/* An image in the small tmpfs; slots that share pages and blocks; blocks; more than one request; more than
 * half of the small pool, so never whole in memory. */
static const struct slot_file slot_files[OWNED_FILES] = {
	[FILE_SMALL] = { "small", 4096, 64, true },
	[FILE_ODD] = { "odd", 5000, 400, false },
	[FILE_BLOCKS] = { "blocks", 65536, 48, true },
	[FILE_MIDDLE] = { "middle", 262144, 24, true },
	[FILE_LARGE] = { "large", 1u << 20, 12, true },
	[FILE_HUGE] = { "huge", 1u << 20, 40, true },
};

#define SLOTS_MAX   400
#define BOTH        8
#define BOTH_SIZE   131072u
#define BOTH_FILE   (OWNED_FILES + 1) /* in stamps */
#define ZEROS_EVERY 16                /* such a write is of zeros, or punches a hole */

struct slot {
	atomic_uint begun, acked; /* stored by the owner alone */
	atomic_uint seen;         /* all of the slot was seen to be at least that */
};

struct both_slot {
	atomic_uint begun[WORKERS];
	atomic_ullong covered;    /* ns: when the last write began that has returned */
	atomic_ullong torn_since; /* ns: a write was cut short then; 0: none was */
	struct history by[WORKERS];
};

struct slots {
	struct slot v[OWNED_FILES][SLOTS_MAX];
	struct both_slot both[BOTH];
};

/* Of one slot, while it is read. */
struct bound {
	unsigned lo, hi, seen;
};

static unsigned files_used(const struct worker *w)
{
	return w->s->small_pool ? OWNED_FILES : FILE_HUGE;
}

static uint64_t slot_file_size(unsigned f)
{
	return (uint64_t)slot_files[f].size * slot_files[f].n;
}

static bool writes_zeros(unsigned stamp)
{
	return stamp % ZEROS_EVERY == ZEROS_EVERY - 1;
}

static void slot_fill(void *to, unsigned f, unsigned stamp, uint64_t off, size_t len)
{
	if (writes_zeros(stamp))
		memset(to, 0, len);
	else
		stamp_words(to, f, stamp, off, len);
}

/* ---- Checking --------------------------------------------------------------------------------- */

/* What was read, and how. */
struct reading {
	unsigned f;
	uint64_t off;
	size_t len;
	const unsigned char *bytes;
	bool one_copy; /* what others saw before binds this reader too */
	const char *how;
};

static unsigned first_slot(const struct reading *r)
{
	return (unsigned)(r->off / slot_files[r->f].size);
}

static unsigned end_slot(const struct reading *r)
{
	return (unsigned)((r->off + r->len - 1) / slot_files[r->f].size) + 1;
}

static void bounds_before(struct worker *w, const struct reading *r)
{
	struct slot *s = w->slots->v[r->f];

	for (unsigned i = first_slot(r); i < end_slot(r); i++) {
		w->bounds[i].lo = atomic_load(&s[i].acked);
		w->bounds[i].seen = atomic_load(&s[i].seen);
	}
}

static void bounds_after(struct worker *w, const struct reading *r)
{
	for (unsigned i = first_slot(r); i < end_slot(r); i++)
		w->bounds[i].hi = atomic_load(&w->slots->v[r->f][i].begun);
}

static bool zeros_within(unsigned lo, unsigned hi)
{
	return !lo || (hi + 1) / ZEROS_EVERY > lo / ZEROS_EVERY;
}

static bool word_fits(unsigned f, uint64_t word, uint64_t index, unsigned lo, unsigned hi)
{
	unsigned stamp = stamp_of(word);

	if (!word)
		return zeros_within(lo, hi);
	return stamp >= lo && stamp <= hi && word == stamped_word(f, stamp, index);
}

static const char *tell_word(unsigned f, uint64_t word, uint64_t index)
{
	static char text[128];
	unsigned stamp = stamp_of(word);

	if (!word)
		return "zeros";
	if (word == stamped_word(f, stamp, index))
		snprintf(text, sizeof text, "write %u", stamp);
	else
		snprintf(text, sizeof text, "%#llx, which nobody wrote there",
			 (unsigned long long)word);
	return text;
}

static _Noreturn void fail_slot(struct worker *w, const struct reading *r, unsigned i, uint64_t off,
				unsigned lo)
{
	const struct bound *b = &w->bounds[i];
	const struct slot *s = &w->slots->v[r->f][i];
	const uint64_t *words = (const uint64_t *)r->bytes;
	uint64_t end = off;
	char saw[128];

	snprintf(saw, sizeof saw, "%s", tell_word(r->f, words[(off - r->off) / 8], off / 8));
	while (end < r->off + r->len && end / slot_files[r->f].size == i &&
	       !word_fits(r->f, words[(end - r->off) / 8], end / 8, lo, b->hi))
		end += 8;
	fail(w,
	     "%s of file %s, [%llu, +%zu), at offset %llu (slot %u at %llu, wrong up to %llu): "
	     "expected write %u to %u (returned before: %u, seen by another: %u), saw %s; by now %u "
	     "have returned and %u begun",
	     r->how, slot_files[r->f].name, (unsigned long long)r->off, r->len,
	     (unsigned long long)off, i, (unsigned long long)i * slot_files[r->f].size,
	     (unsigned long long)end, lo, b->hi, b->lo, b->seen, saw, atomic_load(&s->acked),
	     atomic_load(&s->begun));
}

/* The part [from, to) of the file, which lies in slot i. */
static void check_slot(struct worker *w, const struct reading *r, unsigned i, uint64_t from,
		       uint64_t to)
{
	const struct bound *b = &w->bounds[i];
	struct slot *s = &w->slots->v[r->f][i];
	unsigned lo = r->one_copy && b->seen > b->lo ? b->seen : b->lo, least = STAMP_MAX;
	bool zeros = false;

	for (uint64_t off = from; off < to; off += 8) {
		uint64_t word = *(const uint64_t *)(r->bytes + (off - r->off));

		if (!word_fits(r->f, word, off / 8, lo, b->hi))
			fail_slot(w, r, i, off, lo);
		zeros |= !word;
		if (stamp_of(word) < least)
			least = stamp_of(word);
	}
	if (!r->one_copy || zeros || to - from != slot_files[r->f].size)
		return;
	for (unsigned old = atomic_load(&s->seen);
	     old < least && !atomic_compare_exchange_weak(&s->seen, &old, least);)
		;
}

static void check_slots(struct worker *w, const struct reading *r)
{
	uint64_t size = slot_files[r->f].size, end = r->off + r->len;

	for (unsigned i = first_slot(r); i < end_slot(r); i++) {
		uint64_t from = i * size, to = from + size;

		check_slot(w, r, i, from < r->off ? r->off : from, to > end ? end : to);
	}
}

/* ---- Reading ---------------------------------------------------------------------------------- */

enum { BY_PREAD, BY_PREAD_RDWR, BY_DIRECT, BY_MAP, READ_WAYS };

/* An open file or a mapping of it. */
struct slot_reader {
	struct reading r;
	int fd; /* -1: closed, as mappings may outlive it */
	unsigned char *map;
};

static bool reader_open(struct worker *w, struct slot_reader *s, unsigned f, unsigned way)
{
	static const int flags[READ_WAYS] = { O_RDONLY, O_RDWR, O_RDONLY | O_DIRECT, O_RDONLY };
	static const char *const how[READ_WAYS] = { "pread", "pread (O_RDWR)", "pread (O_DIRECT)",
						    "load from a mapping of the page cache" };

	*s = (struct slot_reader){ .r = { .f = f, .how = how[way] } };
	s->fd = open_or_die(w, path_in(w, "%s", slot_files[f].name), flags[way]);
	if (s->fd < 0)
		return false;
	/* Before Linux 6.6 the page cache is written before the daemon is asked, and can be dropped between. */
	s->r.one_copy = w->s->mode != NOMMAP;
	if (way != BY_MAP)
		return true;
	s->map = mmap(NULL, slot_file_size(f), PROT_READ, draw(w, 2) ? MAP_SHARED : MAP_PRIVATE,
		      s->fd, 0);
	if (s->map == MAP_FAILED)
		fail(w, "mmap of %s: %s", slot_files[f].name, strerrorname_np(errno));
	if (maps_image(w, s->map))
		s->r.how = "load from a mapping of the image";
	else
		s->r.one_copy = false;
	if (!w->dead && draw(w, 2)) {
		close_file(w, s->fd);
		s->fd = -1;
	}
	return true;
}

static void reader_close(struct worker *w, struct slot_reader *s)
{
	if (s->map)
		munmap(s->map, slot_file_size(s->r.f));
	if (s->fd >= 0)
		close_file(w, s->fd);
}

/* What r says. False: the daemon is dead. */
static bool reader_read(struct worker *w, struct slot_reader *s)
{
	struct reading *r = &s->r;
	size_t n = r->len;

	at(w, "%s of %s, [%llu, +%zu)", r->how, slot_files[r->f].name, (unsigned long long)r->off,
	   r->len);
	bounds_before(w, r);
	if (s->map ? !load_mapped(w, w->out, s->map + r->off, r->len) :
		     !read_at(w, s->fd, w->out, r->len, r->off, &n))
		return false;
	bounds_after(w, r);
	if (n != r->len)
		cut_short(w, n, r->len);
	r->len = n & ~(size_t)7;
	r->bytes = w->out;
	if (r->len)
		check_slots(w, r);
	counted(w, s->map ? COUNT_LOADS : COUNT_READS);
	return !w->dead;
}

static void draw_range(struct worker *w, struct reading *r)
{
	const struct slot_file *f = &slot_files[r->f];
	unsigned i = draw(w, f->n), count = 1, room = IO_ROOM / f->size;

	if (room > f->n - i)
		room = f->n - i;
	if (draw(w, 3) == 0)
		count = 1 + draw(w, room);
	else if (draw(w, 4) == 0)
		count = room;
	r->off = (uint64_t)i * f->size;
	r->len = (size_t)count * f->size;
	if (count == 1 && draw(w, 3) == 0) {
		unsigned skip = draw(w, f->size / 8) * 8;

		r->off += skip;
		r->len = (1 + draw(w, (f->size - skip) / 8)) * 8;
	}
	if (strstr(r->how, "DIRECT")) {
		r->len += r->off % IO_ALIGN;
		r->off -= r->off % IO_ALIGN;
		r->len = (r->len + IO_ALIGN - 1) & ~(size_t)(IO_ALIGN - 1);
	}
}

static void slots_read(struct worker *w)
{
	unsigned f = draw(w, files_used(w)), way = draw(w, READ_WAYS), n = 1 + draw(w, 6);
	struct slot_reader s;

	if (way == BY_DIRECT && !slot_files[f].pages)
		way = BY_PREAD;
	if (!reader_open(w, &s, f, way))
		return;
	while (n-- && going(w)) {
		draw_range(w, &s.r);
		if (!reader_read(w, &s))
			break;
	}
	reader_close(w, &s);
}

/* ---- Writing ---------------------------------------------------------------------------------- */

static unsigned own_first(unsigned f, unsigned number)
{
	return (number * slot_files[f].n + WORKERS - 1) / WORKERS;
}

struct slot_write {
	unsigned f, i, n; /* slots [i, i + n) */
	int fd;
	uint64_t off;
	size_t len;
};

static void write_begin(struct worker *w, const struct slot_write *o)
{
	struct slot *s = w->slots->v[o->f] + o->i;
	uint32_t size = slot_files[o->f].size;

	for (unsigned k = 0; k < o->n; k++)
		slot_fill(w->in + (size_t)k * size, o->f, atomic_load(&s[k].begun) + 1,
			  o->off + (uint64_t)k * size, size);
	for (unsigned k = 0; k < o->n; k++)
		atomic_store(&s[k].begun, atomic_load(&s[k].begun) + 1);
}

static void write_end(struct worker *w, const struct slot_write *o)
{
	struct slot *s = w->slots->v[o->f] + o->i;

	for (unsigned k = 0; k < o->n; k++)
		atomic_store(&s[k].acked, atomic_load(&s[k].begun));
}

static bool write_slots(struct worker *w, const struct slot_write *o)
{
	ssize_t n;

	if (o->n == 1 && writes_zeros(atomic_load(&w->slots->v[o->f][o->i].begun)) && draw(w, 2)) {
		at(w, "punch %s, [%llu, +%zu)", slot_files[o->f].name, (unsigned long long)o->off,
		   o->len);
		if (fallocate(o->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)o->off,
			      (off_t)o->len) < 0)
			return !died(w, "fallocate", slot_files[o->f].name);
		return true;
	}
	at(w, "pwrite to %s, [%llu, +%zu)", slot_files[o->f].name, (unsigned long long)o->off,
	   o->len);
	n = pwrite(o->fd, w->in, o->len, (off_t)o->off);
	if (n < 0)
		return !died(w, "pwrite", slot_files[o->f].name);
	if ((size_t)n != o->len)
		cut_short(w, (size_t)n, o->len);
	return !w->dead;
}

/* Through a mapping of the image, so that it counts at once. False: there is none, nothing was stored. */
static bool store_slots(struct worker *w, const struct slot_write *o)
{
	uint64_t skip = o->off % IO_ALIGN;
	unsigned char *map = mmap(NULL, o->len + skip, PROT_READ | PROT_WRITE, MAP_SHARED, o->fd,
				  (off_t)(o->off - skip));
	bool image;

	if (map == MAP_FAILED)
		fail(w, "mmap of %s: %s", slot_files[o->f].name, strerrorname_np(errno));
	image = maps_image(w, map);
	if (image) {
		at(w, "store to %s, [%llu, +%zu)", slot_files[o->f].name,
		   (unsigned long long)o->off, o->len);
		write_begin(w, o);
		memcpy(map + skip, w->in, o->len);
		write_end(w, o);
		counted(w, COUNT_STORES);
	}
	munmap(map, o->len + skip);
	return image;
}

static bool write_some(struct worker *w, unsigned f, int fd, bool may_map)
{
	unsigned first = own_first(f, w->number), end = own_first(f, w->number + 1);
	unsigned room = IO_ROOM / slot_files[f].size;
	struct slot_write o = { .f = f, .fd = fd, .i = first + draw(w, end - first) };

	if (room > end - o.i)
		room = end - o.i;
	o.n = draw(w, 3) ? 1 : 1 + draw(w, room);
	o.off = (uint64_t)o.i * slot_files[f].size;
	o.len = (size_t)o.n * slot_files[f].size;
	if (may_map && store_slots(w, &o))
		return true;
	if (w->dead)
		return false;
	write_begin(w, &o);
	if (!write_slots(w, &o))
		return false;
	write_end(w, &o);
	counted(w, COUNT_WRITES);
	return true;
}

static void slots_write(struct worker *w)
{
	static const int flags[] = { O_RDWR, O_RDWR, O_WRONLY, O_RDWR | O_DIRECT,
				     O_WRONLY | O_DSYNC };
	unsigned f = draw(w, files_used(w)), way = draw(w, 33), n = 1 + draw(w, 5);
	int how = flags[way < 32 ? way % 4 : 4], fd;
	bool may_map = w->s->mode == PASSTHROUGH && how == O_RDWR && draw(w, 3) == 0;

	if (!slot_files[f].pages)
		how &= ~O_DIRECT;
	fd = open_or_die(w, path_in(w, "%s", slot_files[f].name), how);
	if (fd < 0)
		return;
	while (n-- && going(w) && write_some(w, f, fd, may_map))
		;
	if (!w->dead && draw(w, 40) == 0 && fsync(fd) < 0)
		died(w, "fsync of", slot_files[f].name);
	close_file(w, fd);
}

/* ---- Slots that all write --------------------------------------------------------------------- */

#define BOTH_SHIFT 16 /* of the writer in a stamp */

static bool both_allows(struct both_slot *b, uint64_t word, uint64_t index,
			unsigned long long covered)
{
	unsigned stamp = stamp_of(word), by = stamp >> BOTH_SHIFT;
	unsigned number = stamp & ((1u << BOTH_SHIFT) - 1);

	if (!word)
		return !covered;
	return by >= 1 && by <= WORKERS && word == stamped_word(BOTH_FILE, stamp, index) &&
	       number <= atomic_load(&b->begun[by - 1]) &&
	       history_allows(&b->by[by - 1], number, covered);
}

/* whole: it must be one write's. */
static void check_both(struct worker *w, unsigned i, const unsigned char *bytes,
		       unsigned long long covered, bool whole)
{
	struct both_slot *b = &w->slots->both[i];
	const uint64_t *word = (const uint64_t *)bytes;

	for (size_t k = 0; k < BOTH_SIZE / 8; k++) {
		uint64_t index = (uint64_t)i * BOTH_SIZE / 8 + k;
		unsigned stamp = stamp_of(word[k]);

		if (!both_allows(b, word[k], index, covered))
			fail(w,
			     "file both, offset %llu (slot %u): saw %s (number %u of actor %d), which "
			     "nobody wrote there or which was over",
			     (unsigned long long)index * 8, i, tell_word(BOTH_FILE, word[k], index),
			     stamp & ((1u << BOTH_SHIFT) - 1), (int)(stamp >> BOTH_SHIFT) - 1);
		if (whole && stamp != stamp_of(word[0]))
			fail(w,
			     "file both, offset %llu (slot %u): the slot begins with write %#x and goes on "
			     "with write %#x: two writes were mixed",
			     (unsigned long long)index * 8, i, stamp_of(word[0]), stamp);
	}
}

static void both_read(struct worker *w)
{
	unsigned i = draw(w, BOTH);
	unsigned long long covered;
	size_t n;
	int fd = open_or_die(w, path_in(w, "both"), draw(w, 2) ? O_RDONLY : O_RDWR);

	if (fd < 0)
		return;
	at(w, "pread of slot %u of both", i);
	covered = atomic_load(&w->slots->both[i].covered);
	if (read_at(w, fd, w->out, BOTH_SIZE, (uint64_t)i * BOTH_SIZE, &n)) {
		if (n == BOTH_SIZE)
			check_both(w, i, w->out, covered, false);
		else
			cut_short(w, n, BOTH_SIZE);
		counted(w, COUNT_READS);
	}
	close_file(w, fd);
}

static bool both_write_once(struct worker *w, int fd)
{
	unsigned i = draw(w, BOTH);
	struct both_slot *b = &w->slots->both[i];
	unsigned number = atomic_load(&b->begun[w->number]) + 1;
	unsigned long long begin;
	ssize_t n;

	if (number >> BOTH_SHIFT)
		return false;
	stamp_words(w->in, BOTH_FILE, (w->number + 1) << BOTH_SHIFT | number,
		    (uint64_t)i * BOTH_SIZE, BOTH_SIZE);
	at(w, "pwrite %u to slot %u of both", number, i);
	begin = now_ns();
	history_begin(&b->by[w->number], number);
	atomic_store(&b->begun[w->number], number);
	n = pwrite(fd, w->in, BOTH_SIZE, (off_t)i * BOTH_SIZE);
	if (n < 0)
		return !died(w, "pwrite to", "both");
	if (n != BOTH_SIZE) {
		cut_short(w, (size_t)n, BOTH_SIZE);
		return false;
	}
	history_end(&b->by[w->number], number);
	raise_to(&b->covered, begin);
	counted(w, COUNT_WRITES);
	return true;
}

static void both_write(struct worker *w)
{
	static const int flags[] = { O_RDWR, O_WRONLY, O_RDWR | O_DIRECT };
	int fd = open_or_die(w, path_in(w, "both"), flags[draw(w, 3)]);
	unsigned n = 1 + draw(w, 6);

	if (fd < 0)
		return;
	while (n-- && going(w) && both_write_once(w, fd))
		;
	close_file(w, fd);
}

/* ---- While nobody else is at work ------------------------------------------------------------- */

static void slots_make_file(struct worker *w, unsigned f)
{
	int fd = open_or_die(w, path_in(w, "%s", slot_files[f].name), O_RDWR | O_CREAT | O_EXCL);
	struct slot_write o = { .f = f, .fd = fd, .n = 1, .len = slot_files[f].size };

	if (ftruncate(fd, (off_t)slot_file_size(f)) < 0)
		died(w, "ftruncate", slot_files[f].name);
	/* Every other one begins with a hole. */
	for (o.i = w->s->seed % 2 ? slot_files[f].n / 2 : 0; o.i < slot_files[f].n; o.i++) {
		o.off = (uint64_t)o.i * o.len;
		write_begin(w, &o);
		write_slots(w, &o);
		write_end(w, &o);
	}
	close_file(w, fd);
}

static void slots_make(struct worker *w)
{
	int fd = open_or_die(w, path_in(w, "both"), O_RDWR | O_CREAT | O_EXCL);

	if (ftruncate(fd, BOTH * BOTH_SIZE) < 0)
		died(w, "ftruncate", "both");
	close_file(w, fd);
	for (unsigned f = 0; f < files_used(w); f++)
		slots_make_file(w, f);
}

static void slots_compare_file(struct worker *w, unsigned f, unsigned way)
{
	struct slot_reader s;
	struct stat st;
	size_t step = IO_ROOM / slot_files[f].size * slot_files[f].size;

	at(w, "compare %s", slot_files[f].name);
	if (stat(path_in(w, "%s", slot_files[f].name), &st) < 0)
		fail(w, "stat: %s", strerrorname_np(errno));
	if ((uint64_t)st.st_size != slot_file_size(f))
		fail(w, "size: expected %llu, saw %lld", (unsigned long long)slot_file_size(f),
		     (long long)st.st_size);
	reader_open(w, &s, f, way);
	for (uint64_t off = 0; off < slot_file_size(f); off += step) {
		s.r.off = off;
		s.r.len = slot_file_size(f) - off < step ? slot_file_size(f) - off : step;
		reader_read(w, &s);
	}
	reader_close(w, &s);
}

static void both_compare(struct worker *w)
{
	int fd = open_or_die(w, path_in(w, "both"), O_RDONLY);
	size_t n;

	for (unsigned i = 0; i < BOTH; i++) {
		struct both_slot *b = &w->slots->both[i];
		unsigned long long covered = atomic_load(&b->covered);

		at(w, "compare slot %u of both", i);
		if (!read_at(w, fd, w->out, BOTH_SIZE, (uint64_t)i * BOTH_SIZE, &n) ||
		    n != BOTH_SIZE)
			fail(w, "%zu bytes of %u", n, BOTH_SIZE);
		check_both(w, i, w->out, covered, covered > atomic_load(&b->torn_since));
	}
	close_file(w, fd);
}

static void slots_compare(struct worker *w)
{
	for (unsigned f = 0; f < files_used(w); f++) {
		slots_compare_file(w, f, BY_PREAD);
		slots_compare_file(w, f, BY_MAP);
	}
	both_compare(w);
}

/* The daemon was killed: what somebody saw of a write that did not return is not promised, and a write may
 * have happened in part. */
static void slots_after_kill(struct slots *s)
{
	for (unsigned f = 0; f < OWNED_FILES; f++)
		for (unsigned i = 0; i < SLOTS_MAX; i++)
			atomic_store(&s->v[f][i].seen, 0);
	for (unsigned i = 0; i < BOTH; i++)
		for (unsigned k = 0; k < WORKERS; k++) {
			struct both_slot *b = &s->both[i];
			unsigned number = atomic_load(&b->begun[k]);

			if (!number || atomic_load(&b->by[k].ring[number % RING].end))
				continue;
			history_cut(&b->by[k]);
			atomic_store(&b->torn_since, now_ns());
		}
}

#endif
