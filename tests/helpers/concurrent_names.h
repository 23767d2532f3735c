/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One directory, in which all make, remove, rename, link and exchange names. A name has one owner, so it is
 * known whether it is there, as long as it is not being changed: what was there during a whole listing is
 * listed once, what was not is not, and a look at the name agrees. Some names are everybody's: of those who
 * want to make one at the same time one wins, and he finds what he made.
 */
#ifndef CONCURRENT_NAMES_H
#define CONCURRENT_NAMES_H

#include <dirent.h>
#include <linux/fs.h>
#include <sys/syscall.h>

#include "concurrent.h"

#define OWN        10 /* names of one worker */
#define OWNED      (WORKERS * OWN)
#define STAYING    140 /* names that are always there, so that a listing takes several calls */
#define NAME_HUB   (OWNED + STAYING) /* what links go to */
#define NAME_LEFT  (NAME_HUB + 1)    /* two that change places */
#define NAME_RIGHT (NAME_HUB + 2)
#define NAMES      (NAME_HUB + 3)
#define CONTESTS   3
#define LEAF_ROOM  48

struct name {
	atomic_uint turn;   /* odd: it appears or goes; or a kill came in between */
	atomic_uint change; /* odd: it comes to name something else; it grows with turn too */
	/* Stored by the owner alone, in between. */
	atomic_bool there;
	atomic_uint type; /* DT_* */
	atomic_ullong ino;
};

struct contest {
	atomic_uint holder;       /* a worker + 1 */
	atomic_uint begun, ended; /* tries to make it */
	atomic_uint leaving, left;
};

#define NO_INO  0
#define ANY_INO UINT64_MAX

/* What a worker is just changing: two names, or one twice. A kill leaves them as before or as after. */
struct flight {
	bool on;
	unsigned k[2];
	uint64_t before[2], after[2];
};

struct names {
	struct name v[NAMES];
	struct flight flight[WORKERS];
	struct contest contest[CONTESTS];
	struct tally hub_links, folders;
	atomic_uint exchanged, exchange_begun;
	atomic_ullong left_ino, right_ino; /* at the start */
};

struct name_look {
	unsigned turn, change, type;
	bool there;
	uint64_t ino;
};

static struct name_look name_look(struct name *n)
{
	return (struct name_look){ .turn = atomic_load(&n->turn),
				   .change = atomic_load(&n->change),
				   .type = atomic_load(&n->type),
				   .there = atomic_load(&n->there),
				   .ino = atomic_load(&n->ino) };
}

/* Known and the same all the time between two looks. */
static bool stays(const struct name_look *before, const struct name_look *after)
{
	return before->turn % 2 == 0 && before->turn == after->turn;
}

static bool stays_same(const struct name_look *before, const struct name_look *after)
{
	return stays(before, after) && before->change % 2 == 0 && before->change == after->change;
}

static const char *leaf_of(unsigned k, char leaf[LEAF_ROOM])
{
	if (k < OWNED)
		/* Of different lengths, so that pages of a listing end anywhere. */
		snprintf(leaf, LEAF_ROOM, "n%u.%.*s", k, (int)(k % 23),
			 "abcdefghijklmnopqrstuvwxyz");
	else if (k < NAME_HUB)
		snprintf(leaf, LEAF_ROOM, "stay%u", k);
	else
		snprintf(leaf, LEAF_ROOM, "%s",
			 k == NAME_HUB  ? "hub" :
			 k == NAME_LEFT ? "left" :
					  "right");
	return leaf;
}

/* NAMES: one of no interest. */
static unsigned name_of(const char *leaf)
{
	char want[LEAF_ROOM];
	unsigned k = NAMES;

	if (!strcmp(leaf, "hub"))
		return NAME_HUB;
	if (!strcmp(leaf, "left"))
		return NAME_LEFT;
	if (!strcmp(leaf, "right"))
		return NAME_RIGHT;
	if (sscanf(leaf, "n%u.", &k) != 1 && sscanf(leaf, "stay%u", &k) != 1)
		return NAMES;
	return k < NAMES && !strcmp(leaf, leaf_of(k, want)) ? k : NAMES;
}

static char *name_path(const struct worker *w, unsigned k)
{
	char leaf[LEAF_ROOM];

	return path_in(w, "names/%s", leaf_of(k, leaf));
}

/* ---- Own names -------------------------------------------------------------------------------- */

/* a and b will name what is said. */
static void flight_begin(struct worker *w, unsigned a, unsigned b, uint64_t a_after,
			 uint64_t b_after)
{
	struct name *n = w->names->v;

	/* The checker makes names too, when nobody can be killed. */
	if (w->number < WORKERS)
		w->names->flight[w->number] = (struct flight){
			.on = true,
			.k = { a, b },
			.before = { atomic_load(&n[a].ino), atomic_load(&n[b].ino) },
			.after = { a_after, b_after },
		};
}

static void name_begin(struct name *n, bool appears_or_goes)
{
	if (appears_or_goes)
		atomic_fetch_add(&n->turn, 1);
	atomic_fetch_add(&n->change, 1);
}

/* ino: NO_INO if it is not there. */
static void name_end(struct name *n, bool appears_or_goes, bool there, unsigned type, uint64_t ino)
{
	atomic_store(&n->there, there);
	atomic_store(&n->type, type);
	atomic_store(&n->ino, ino);
	atomic_fetch_add(&n->change, 1);
	if (appears_or_goes)
		atomic_fetch_add(&n->turn, 1);
}

/* What was just made there. */
static bool name_made(struct worker *w, unsigned k, unsigned type)
{
	struct stat st;

	if (lstat(name_path(w, k), &st) < 0)
		return !died(w, "lstat of what was just made:", name_path(w, k));
	if (IFTODT(st.st_mode) != type)
		fail(w, "what was just made as type %u is of type %u", type, IFTODT(st.st_mode));
	name_end(&w->names->v[k], true, true, type, st.st_ino);
	counted(w, COUNT_NAMES);
	return true;
}

static void make_file(struct worker *w, unsigned k)
{
	const char *path = name_path(w, k);
	int fd;

	flight_begin(w, k, k, ANY_INO, ANY_INO);
	name_begin(&w->names->v[k], true);
	fd = open_or_die(w, path, O_WRONLY | O_CREAT | O_EXCL);
	if (fd < 0)
		return;
	if (draw(w, 4) == 0 && write(fd, path, strlen(path)) < 0)
		died(w, "write", path);
	close_file(w, fd);
	if (!w->dead)
		name_made(w, k, DT_REG);
}

static void make_folder(struct worker *w, unsigned k)
{
	struct tally *t = &w->names->folders;

	at(w, "mkdir %s", name_path(w, k));
	flight_begin(w, k, k, ANY_INO, ANY_INO);
	name_begin(&w->names->v[k], true);
	atomic_fetch_add(&t->up_begun, 1);
	if (mkdir(name_path(w, k), 0755) < 0) {
		died(w, "mkdir", name_path(w, k));
		return;
	}
	atomic_fetch_add(&t->up_ended, 1);
	name_made(w, k, DT_DIR);
}

static void make_symlink(struct worker *w, unsigned k)
{
	at(w, "symlink %s", name_path(w, k));
	flight_begin(w, k, k, ANY_INO, ANY_INO);
	name_begin(&w->names->v[k], true);
	if (symlink("nowhere", name_path(w, k)) < 0)
		died(w, "symlink", name_path(w, k));
	else
		name_made(w, k, DT_LNK);
}

static void make_link(struct worker *w, unsigned k)
{
	struct tally *t = &w->names->hub_links;
	uint64_t hub = atomic_load(&w->names->v[NAME_HUB].ino);

	at(w, "link %s to the hub", name_path(w, k));
	flight_begin(w, k, k, hub, hub);
	name_begin(&w->names->v[k], true);
	atomic_fetch_add(&t->up_begun, 1);
	if (link(name_path(w, NAME_HUB), name_path(w, k)) < 0) {
		died(w, "link", name_path(w, k));
		return;
	}
	atomic_fetch_add(&t->up_ended, 1);
	name_made(w, k, DT_REG);
}

/* The tally that loses one when what the name names goes, or NULL. */
static struct tally *tally_of(struct worker *w, unsigned k)
{
	struct name *n = &w->names->v[k];

	if (atomic_load(&n->type) == DT_DIR)
		return &w->names->folders;
	return atomic_load(&n->ino) == atomic_load(&w->names->v[NAME_HUB].ino) ?
		       &w->names->hub_links :
		       NULL;
}

static void remove_name(struct worker *w, unsigned k)
{
	struct name *n = &w->names->v[k];
	struct tally *t = tally_of(w, k);
	int r;

	at(w, "remove %s", name_path(w, k));
	flight_begin(w, k, k, NO_INO, NO_INO);
	name_begin(n, true);
	if (t)
		atomic_fetch_add(&t->down_begun, 1);
	r = atomic_load(&n->type) == DT_DIR ? rmdir(name_path(w, k)) : unlink(name_path(w, k));
	if (r < 0) {
		died(w, "remove", name_path(w, k));
		return;
	}
	if (t)
		atomic_fetch_add(&t->down_ended, 1);
	name_end(n, true, false, 0, 0);
	counted(w, COUNT_NAMES);
}

/* Both may be directories, or neither; a link over another of the same file would do nothing. */
static bool may_replace(const struct name_look *a, const struct name_look *b)
{
	return !b->there || ((a->type == DT_DIR) == (b->type == DT_DIR) && a->ino != b->ino);
}

static void rename_name(struct worker *w, unsigned from, unsigned to)
{
	struct name *a = &w->names->v[from], *b = &w->names->v[to];
	struct name_look la = name_look(a), lb = name_look(b);
	struct tally *t = lb.there ? tally_of(w, to) : NULL;

	if (!may_replace(&la, &lb))
		return;
	at(w, "rename %s to %s, which is %s", name_path(w, from), name_path(w, to),
	   lb.there ? "there" : "not there");
	flight_begin(w, from, to, NO_INO, la.ino);
	name_begin(a, true);
	name_begin(b, !lb.there);
	if (t)
		atomic_fetch_add(&t->down_begun, 1);
	if (rename(name_path(w, from), name_path(w, to)) < 0) {
		died(w, "rename", name_path(w, from));
		return;
	}
	if (t)
		atomic_fetch_add(&t->down_ended, 1);
	name_end(b, !lb.there, true, la.type, la.ino);
	name_end(a, true, false, 0, 0);
	counted(w, COUNT_NAMES);
}

static void exchange_names(struct worker *w, unsigned from, unsigned to)
{
	struct name *a = &w->names->v[from], *b = &w->names->v[to];
	struct name_look la = name_look(a), lb = name_look(b);

	at(w, "exchange %s and %s", name_path(w, from), name_path(w, to));
	flight_begin(w, from, to, lb.ino, la.ino);
	name_begin(a, false);
	name_begin(b, false);
	if (renameat2(AT_FDCWD, name_path(w, from), AT_FDCWD, name_path(w, to), RENAME_EXCHANGE) <
	    0) {
		died(w, "exchange", name_path(w, from));
		return;
	}
	name_end(a, false, true, lb.type, lb.ino);
	name_end(b, false, true, la.type, la.ino);
	counted(w, COUNT_NAMES);
}

static void make_name(struct worker *w, unsigned k)
{
	switch (draw(w, 6)) {
	case 0:
		make_folder(w, k);
		break;
	case 1:
		make_symlink(w, k);
		break;
	case 2:
	case 3:
		make_link(w, k);
		break;
	default:
		make_file(w, k);
	}
}

static void names_change(struct worker *w)
{
	for (unsigned n = 1 + draw(w, 10); n-- && going(w);) {
		unsigned first = w->number * OWN, a = first + draw(w, OWN),
			 b = first + draw(w, OWN);
		struct name_look la = name_look(&w->names->v[a]), lb = name_look(&w->names->v[b]);

		if (!la.there)
			make_name(w, a);
		else if (a == b || draw(w, 3) == 0)
			remove_name(w, a);
		else if (lb.there && la.ino != lb.ino && draw(w, 2))
			exchange_names(w, a, b);
		else
			rename_name(w, a, b);
	}
}

/* All toggle it: in the end only their number counts. */
static void names_exchange(struct worker *w)
{
	at(w, "exchange left and right");
	atomic_fetch_add(&w->names->exchange_begun, 1);
	if (renameat2(AT_FDCWD, name_path(w, NAME_LEFT), AT_FDCWD, name_path(w, NAME_RIGHT),
		      RENAME_EXCHANGE) < 0) {
		died(w, "exchange", "left and right");
		return;
	}
	atomic_fetch_add(&w->names->exchanged, 1);
}

/* ---- Looking ---------------------------------------------------------------------------------- */

static void check_look(struct worker *w, unsigned k, const struct name_look *want, bool there)
{
	if (there != want->there)
		fail(w, "names/%s: it was %sthere all the time, lstat says that it is %s",
		     strrchr(name_path(w, k), '/') + 1, want->there ? "" : "not ",
		     there ? "there" : "not");
}

static void names_look(struct worker *w)
{
	unsigned k = draw(w, NAME_LEFT);
	struct name *n = &w->names->v[k];
	struct name_look before = name_look(n), after;
	struct stat st;
	int r;

	at(w, "lstat %s", name_path(w, k));
	r = lstat(name_path(w, k), &st);
	if (r < 0 && errno != ENOENT) {
		died(w, "lstat", name_path(w, k));
		return;
	}
	after = name_look(n);
	if (stays(&before, &after))
		check_look(w, k, &before, r == 0);
	if (r == 0 && stays_same(&before, &after) &&
	    (st.st_ino != before.ino || IFTODT(st.st_mode) != before.type))
		fail(w, "names/%s: expected inode %llu of type %u all the time, saw %llu of %u",
		     strrchr(name_path(w, k), '/') + 1, (unsigned long long)before.ino, before.type,
		     (unsigned long long)st.st_ino, IFTODT(st.st_mode));
}

static void check_tally(struct worker *w, struct tally *t, const char *path, unsigned more)
{
	struct tally_before b = tally_look(t);
	unsigned long long lo, hi;
	struct stat st;

	at(w, "stat of %s, for its links", path);
	if (stat(path, &st) < 0)
		died(w, "stat", path);
	else if (!tally_allows(t, &b, st.st_nlink - more, &lo, &hi))
		fail(w, "links: expected %llu to %llu, saw %llu", lo + more, hi + more,
		     (unsigned long long)st.st_nlink);
}

static void names_count(struct worker *w)
{
	struct stat st;

	if (draw(w, 2)) {
		check_tally(w, &w->names->hub_links, name_path(w, NAME_HUB), 0);
		return;
	}
	check_tally(w, &w->names->folders, path_in(w, "names"), 2);
	at(w, "stat of left");
	if (!w->dead && stat(name_path(w, NAME_LEFT), &st) < 0)
		died(w, "stat", "left");
	else if (!w->dead && st.st_ino != atomic_load(&w->names->left_ino) &&
		 st.st_ino != atomic_load(&w->names->right_ino))
		fail(w, "it is inode %llu, which is neither of the two that change places",
		     (unsigned long long)st.st_ino);
}

/* ---- Listing ---------------------------------------------------------------------------------- */

struct entry {
	uint64_t ino;
	int64_t off;
	unsigned short len;
	unsigned char type;
	char leaf[];
};

struct listing {
	struct name_look before[NAMES];
	unsigned char seen[NAMES], type[NAMES];
	uint64_t ino[NAMES];
	unsigned dots, calls, entries, room;
};

static void list_entry(struct worker *w, struct listing *l, const struct entry *e)
{
	unsigned k = name_of(e->leaf);

	l->entries++;
	if (!strcmp(e->leaf, ".") || !strcmp(e->leaf, "..")) {
		l->dots++;
	} else if (k < NAMES) {
		l->seen[k]++;
		l->ino[k] = e->ino;
		l->type[k] = e->type;
	} else if (e->leaf[0] != 'c' && e->leaf[0] != 't') {
		fail(w, "listing of names: %s, which nobody made", e->leaf);
	}
}

/* From the start to the end, in calls of room bytes. False: the daemon is dead. */
static bool list_all(struct worker *w, struct listing *l, int fd)
{
	long n;

	while ((n = syscall(SYS_getdents64, fd, w->out, l->room)) > 0) {
		l->calls++;
		for (long off = 0; off < n;) {
			const struct entry *e = (const struct entry *)(w->out + off);

			list_entry(w, l, e);
			off += e->len;
		}
		if (draw(w, 4) == 0)
			pause_us(draw(w, 300));
	}
	return n == 0 || !died(w, "getdents", "names");
}

static void check_listed(struct worker *w, const struct listing *l, unsigned k,
			 const struct name_look *after)
{
	const struct name_look *before = &l->before[k];
	char leaf[LEAF_ROOM];

	if (stays(before, after) && l->seen[k] != before->there)
		fail(w,
		     "names/%s: it was %sthere all the time (inode %llu%s), and is listed %u times; %u "
		     "entries in %u calls of %u bytes",
		     leaf_of(k, leaf), before->there ? "" : "not ", (unsigned long long)before->ino,
		     before->change == after->change ? "" : ", which changed", l->seen[k],
		     l->entries, l->calls, l->room);
	if (l->seen[k] && stays_same(before, after) &&
	    (l->ino[k] != before->ino || l->type[k] != before->type))
		fail(w,
		     "names/%s: expected inode %llu of type %u all the time, listed as %llu of %u",
		     leaf_of(k, leaf), (unsigned long long)before->ino, before->type,
		     (unsigned long long)l->ino[k], l->type[k]);
}

/* fd: of the directory, at its start. */
static bool list_and_check(struct worker *w, int fd)
{
	static const unsigned rooms[] = { 300, 1000, 4096, 32768, 32768 };
	struct listing *l = (struct listing *)w->in;

	memset(l, 0, sizeof *l);
	l->room = rooms[draw(w, 5)];
	for (unsigned k = 0; k < NAMES; k++)
		l->before[k] = name_look(&w->names->v[k]);
	if (fd < 0)
		return false;
	at(w, "list names in calls of %u bytes", l->room);
	if (lseek(fd, 0, SEEK_SET) < 0)
		return !died(w, "rewind", "names");
	if (!list_all(w, l, fd))
		return false;
	if (l->dots != 2)
		fail(w, "listing of names: . and .. are %u entries", l->dots);
	for (unsigned k = 0; k < NAMES; k++) {
		struct name_look after = name_look(&w->names->v[k]);

		check_listed(w, l, k, &after);
	}
	counted(w, COUNT_LISTS);
	return true;
}

static void names_list(struct worker *w)
{
	int fd = open_or_die(w, path_in(w, "names"), O_RDONLY | O_DIRECTORY);
	unsigned n = 1 + draw(w, 3);

	if (fd < 0)
		return;
	while (n-- && list_and_check(w, fd))
		;
	close_file(w, fd);
}

/* ---- Names that all want ---------------------------------------------------------------------- */

enum { WIN_CREATE, WIN_MKDIR, WIN_SYMLINK, WIN_LINK, WIN_RENAME, WIN_WAYS };

static const char *const win_names[WIN_WAYS] = { "O_EXCL", "mkdir", "symlink", "link",
						 "RENAME_NOREPLACE" };

/* 0, or -1 with errno. */
static int try_to_win(struct worker *w, unsigned way, const char *path, const char *own)
{
	int fd;

	switch (way) {
	case WIN_CREATE:
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
		if (fd >= 0)
			close_file(w, fd);
		return fd < 0 ? -1 : 0;
	case WIN_MKDIR:
		return mkdir(path, 0755);
	case WIN_SYMLINK:
		return symlink("nowhere", path);
	case WIN_LINK:
		return link(own, path);
	default:
		return renameat2(AT_FDCWD, own, AT_FDCWD, path, RENAME_NOREPLACE);
	}
}

/* What it made is what is there now. */
static bool check_won(struct worker *w, unsigned way, const char *path, uint64_t own)
{
	static const unsigned types[WIN_WAYS] = { DT_REG, DT_DIR, DT_LNK, DT_REG, DT_REG };
	struct stat st;

	if (lstat(path, &st) < 0)
		return !died(w, "lstat of what was won:", path);
	if (IFTODT(st.st_mode) != types[way])
		fail(w, "won by %s, but it is of type %u", win_names[way], IFTODT(st.st_mode));
	if (way >= WIN_LINK && st.st_ino != own)
		fail(w, "won by %s of inode %llu, but it is inode %llu", win_names[way],
		     (unsigned long long)own, (unsigned long long)st.st_ino);
	return true;
}

static bool give_up_won(struct worker *w, struct contest *c, unsigned way, const char *path,
			const char *own)
{
	int r;

	at(w, "remove %s, won by %s", path, win_names[way]);
	atomic_fetch_add(&c->leaving, 1);
	/* From here on another may win. */
	atomic_store(&c->holder, 0);
	if (way == WIN_MKDIR) {
		atomic_fetch_add(&w->names->folders.down_begun, 1);
		r = rmdir(path);
	} else if (way == WIN_CREATE && draw(w, 2)) {
		r = rename(path, own);
	} else {
		r = unlink(path);
	}
	if (r < 0)
		return !died(w, "remove", path);
	if (way == WIN_MKDIR)
		atomic_fetch_add(&w->names->folders.down_ended, 1);
	atomic_fetch_add(&c->left, 1);
	return true;
}

/* Nobody else tried or left while this one tried, and it was nobody's. */
struct alone {
	unsigned begun, ended, leaving, left, holder;
};

static struct alone look_alone(struct contest *c)
{
	return (struct alone){ .begun = atomic_load(&c->begun),
			       .ended = atomic_load(&c->ended),
			       .leaving = atomic_load(&c->leaving),
			       .left = atomic_load(&c->left),
			       .holder = atomic_load(&c->holder) };
}

static void lost(struct worker *w, const struct alone *b, const struct alone *a, const char *path)
{
	if (b->begun == b->ended + 1 && a->begun == b->begun && b->leaving == b->left &&
	    a->leaving == b->leaving && !b->holder && !a->holder)
		fail(w, "%s: EEXIST, but nobody had it and nobody else tried", path);
	counted(w, COUNT_LOST);
}

static void contend(struct worker *w, struct contest *c, unsigned way, const char *path,
		    const char *own, uint64_t ino)
{
	struct alone before, after;
	unsigned holder;
	int r;

	at(w, "try to win %s by %s", path, win_names[way]);
	if (way == WIN_MKDIR)
		atomic_fetch_add(&w->names->folders.up_begun, 1);
	atomic_fetch_add(&c->begun, 1);
	before = look_alone(c);
	r = try_to_win(w, way, path, own);
	after = look_alone(c);
	if (r < 0 && errno != EEXIST) {
		died(w, win_names[way], path);
		return;
	}
	holder = r ? 0 : atomic_exchange(&c->holder, w->number + 1);
	if (holder)
		fail(w, "%s: won by %s, while actor %u has it", path, win_names[way], holder - 1);
	atomic_fetch_add(&c->ended, 1);
	if (r) {
		/* As if it had been there for a moment: that is within bounds. */
		if (way == WIN_MKDIR) {
			atomic_fetch_add(&w->names->folders.up_ended, 1);
			atomic_fetch_add(&w->names->folders.down_begun, 1);
			atomic_fetch_add(&w->names->folders.down_ended, 1);
		}
		lost(w, &before, &after, path);
		return;
	}
	if (way == WIN_MKDIR)
		atomic_fetch_add(&w->names->folders.up_ended, 1);
	counted(w, COUNT_WON);
	if (check_won(w, way, path, ino)) {
		if (draw(w, 2))
			pause_us(draw(w, 500));
		give_up_won(w, c, way, path, own);
	}
}

static void names_contend(struct worker *w)
{
	unsigned k = draw(w, CONTESTS), way = draw(w, WIN_WAYS);
	const char *path = path_in(w, "names/c%u", k), *own = path_in(w, "names/t%u", w->number);
	struct stat st = { 0 };
	int fd;

	if (way == WIN_LINK || way == WIN_RENAME) {
		fd = open_or_die(w, own, O_WRONLY | O_CREAT);
		if (fd < 0)
			return;
		if (fstat(fd, &st) < 0)
			died(w, "fstat", own);
		close_file(w, fd);
	}
	if (!w->dead)
		contend(w, &w->names->contest[k], way, path, own, st.st_ino);
}

/* ---- While nobody else is at work ------------------------------------------------------------- */

static void names_make(struct worker *w)
{
	struct names *n = w->names;

	if (mkdir(path_in(w, "names"), 0755) < 0)
		died(w, "mkdir", "names");
	for (unsigned k = OWNED; k < NAMES; k++)
		make_file(w, k);
	tally_set(&n->hub_links, 1);
	/* Nobody knows which is which. */
	atomic_fetch_add(&n->v[NAME_LEFT].change, 1);
	atomic_fetch_add(&n->v[NAME_RIGHT].change, 1);
	atomic_store(&n->left_ino, atomic_load(&n->v[NAME_LEFT].ino));
	atomic_store(&n->right_ino, atomic_load(&n->v[NAME_RIGHT].ino));
}

static uint64_t ino_at(struct worker *w, unsigned k)
{
	struct stat st;

	at(w, "lstat %s after the kill", name_path(w, k));
	if (lstat(name_path(w, k), &st) == 0)
		return st.st_ino;
	if (errno != ENOENT)
		died(w, "lstat", name_path(w, k));
	return NO_INO;
}

/* All of it has happened, or nothing. */
static void flight_check(struct worker *w, struct flight *f)
{
	uint64_t ino[2];
	bool before = true, after = true;

	if (!f->on || atomic_load(&w->names->v[f->k[0]].change) % 2 == 0)
		return;
	for (int i = 0; i < 2; i++) {
		ino[i] = ino_at(w, f->k[i]);
		before &= ino[i] == f->before[i];
		after &= f->after[i] == ANY_INO ? ino[i] != NO_INO : ino[i] == f->after[i];
	}
	if (!before && !after)
		fail(w,
		     "a change cut short by the kill: %s and %s were inodes %llu and %llu, were to become "
		     "%llu and %llu, and are %llu and %llu",
		     name_path(w, f->k[0]), name_path(w, f->k[1]), (unsigned long long)f->before[0],
		     (unsigned long long)f->before[1], (unsigned long long)f->after[0],
		     (unsigned long long)f->after[1], (unsigned long long)ino[0],
		     (unsigned long long)ino[1]);
}

/* What a kill left half way is taken as it is. */
static void name_adopt(struct worker *w, unsigned k)
{
	struct name *n = &w->names->v[k];
	struct stat st;
	bool there = lstat(name_path(w, k), &st) == 0;

	if (!there && errno != ENOENT)
		died(w, "lstat", name_path(w, k));
	if (!there && atomic_load(&n->turn) % 2 == 0)
		fail(w, "names/%s: it is gone, though only what it names was being changed",
		     strrchr(name_path(w, k), '/') + 1);
	name_end(n, atomic_load(&n->turn) % 2, there, there ? IFTODT(st.st_mode) : 0,
		 there ? st.st_ino : 0);
}

static void contest_adopt(struct worker *w, unsigned k)
{
	struct contest *c = &w->names->contest[k];
	const char *path = path_in(w, "names/c%u", k);
	struct alone a = look_alone(c);
	struct stat st;
	bool there = lstat(path, &st) == 0;

	at(w, "lstat %s after the kill", path);
	if (!there && errno != ENOENT)
		died(w, "lstat", path);
	if (a.begun == a.ended && a.leaving == a.left && there != (a.holder != 0))
		fail(w, "%s: actor %d had it, and it is %s", path, (int)a.holder - 1,
		     there ? "there" : "gone");
	if (there && (S_ISDIR(st.st_mode) ? rmdir(path) : unlink(path)) < 0)
		died(w, "remove", path);
	*c = (struct contest){ 0 };
}

/* What the names say: their owners know no better after a kill. */
static void names_recount(struct worker *w)
{
	struct names *n = w->names;
	unsigned folders = 0, links = 0;

	for (unsigned k = 0; k < NAMES; k++) {
		folders += atomic_load(&n->v[k].there) && atomic_load(&n->v[k].type) == DT_DIR;
		links += atomic_load(&n->v[k].there) &&
			 atomic_load(&n->v[k].ino) == atomic_load(&n->v[NAME_HUB].ino);
	}
	tally_set(&n->folders, folders);
	tally_set(&n->hub_links, links);
}

static void names_after_kill(struct worker *w)
{
	struct names *n = w->names;
	struct stat st;

	for (unsigned k = 0; k < WORKERS; k++)
		flight_check(w, &n->flight[k]);
	for (unsigned k = 0; k < NAME_LEFT; k++)
		if (atomic_load(&n->v[k].change) % 2)
			name_adopt(w, k);
	for (unsigned k = 0; k < CONTESTS; k++)
		contest_adopt(w, k);
	names_recount(w);
	at(w, "lstat left after the kill");
	if (atomic_load(&n->exchange_begun) != atomic_load(&n->exchanged)) {
		if (lstat(name_path(w, NAME_LEFT), &st) < 0)
			died(w, "lstat", "left");
		atomic_store(&n->exchanged, st.st_ino != atomic_load(&n->left_ino));
		atomic_store(&n->exchange_begun, atomic_load(&n->exchanged));
	}
}

static void names_compare(struct worker *w)
{
	struct names *n = w->names;
	bool toggled = atomic_load(&n->exchanged) % 2;

	atomic_store(&n->v[NAME_LEFT].ino, atomic_load(toggled ? &n->right_ino : &n->left_ino));
	atomic_store(&n->v[NAME_RIGHT].ino, atomic_load(toggled ? &n->left_ino : &n->right_ino));
	for (unsigned k = 0; k < NAMES; k++) {
		struct name_look want = name_look(&n->v[k]);
		struct stat st;
		bool there;

		at(w, "compare %s", name_path(w, k));
		there = lstat(name_path(w, k), &st) == 0;
		check_look(w, k, &want, there);
		if (there && (st.st_ino != want.ino || IFTODT(st.st_mode) != want.type))
			fail(w, "expected inode %llu of type %u, saw %llu of %u",
			     (unsigned long long)want.ino, want.type, (unsigned long long)st.st_ino,
			     IFTODT(st.st_mode));
	}
	names_list(w);
	check_tally(w, &n->hub_links, name_path(w, NAME_HUB), 0);
	check_tally(w, &n->folders, path_in(w, "names"), 2);
	for (unsigned k = 0; k < CONTESTS; k++)
		if (access(path_in(w, "names/c%u", k), F_OK) == 0)
			fail(w, "names/c%u is there, though all who had it have removed it", k);
}

#endif
