/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control: tier, stored, idle_for and load_us to be read; pin, codec, layout, evict and prefetch to be set. On a
 * directory they mean the regular files below it that are the caller's to see, or to set. And gc, of the root.
 */
#include "fs/control.h"

#include "fs/commit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RELEASE_WAIT_MS 200
#define RELEASE_POLL_MS 5
#define EVICT_TRIES     3

const char *control_name(const char *xattr)
{
	size_t len = strlen(XATTR_CONTROL);

	return strncmp(xattr, XATTR_CONTROL, len) ? NULL : xattr + len;
}

/* The object of a held file, or NULL. */
static struct object *object_of(struct fs *fs, struct inode *i)
{
	struct object *o;

	ns_lock(fs);
	if (i->discarded || inode_object_load(fs, i, &o))
		o = NULL;
	ns_unlock(fs);
	return o;
}

/* ---- reading ---- */

struct sum {
	struct fs *fs;
	uint64_t files;
	uint64_t in_tier[TIER_COLD + 1];
	uint64_t stored, load_us;
	double idle; /* of the one used last */
};

static double idle_of(struct fs *fs, struct inode *i)
{
	struct timespec now, then;
	double idle;

	ns_lock(fs);
	if (i->nopen) {
		idle = 0;
	} else if (i->file.opened) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		then = i->file.idle_since;
		idle = difftime(now.tv_sec, then.tv_sec);
	} else {
		/* Not used since it came to memory: what the file itself says. */
		now = clock_wall();
		then = time_after(&i->a.atime, &i->a.mtime) ? i->a.atime : i->a.mtime;
		idle = difftime(now.tv_sec, then.tv_sec);
	}
	ns_unlock(fs);
	return idle > 0 ? idle : 0;
}

static int add_file(void *arg, struct inode *i)
{
	struct sum *s = arg;
	struct object *o = object_of(s->fs, i);
	struct object_stat os;
	double idle;

	if (!o)
		return 0;
	object_stat(o, &os);
	object_unref(o);
	idle = idle_of(s->fs, i);
	if (!s->files || idle < s->idle)
		s->idle = idle;
	s->files++;
	s->in_tier[os.tier]++;
	s->stored += os.stored;
	s->load_us += os.load_us;
	return 0;
}

static const char *tier_word(const struct sum *s)
{
	for (int t = TIER_HOT; t <= TIER_COLD; t++)
		if (s->in_tier[t] == s->files)
			return tier_name((enum object_tier)t);
	return "mixed";
}

static bool is_sum(const char *name)
{
	return !strcmp(name, "tier") || !strcmp(name, "stored") || !strcmp(name, "idle_for") ||
	       !strcmp(name, "load_us");
}

static int print_sum(const struct sum *s, const char *name, char *buf, size_t size)
{
	if (!strcmp(name, "stored"))
		return snprintf(buf, size, "%" PRIu64, s->stored);
	/* The rest says nothing about a directory without files. */
	if (!s->files)
		return -ENODATA;
	if (!strcmp(name, "tier"))
		return snprintf(buf, size, "%s", tier_word(s));
	if (!strcmp(name, "idle_for"))
		return snprintf(buf, size, "%.0f", s->idle);
	return snprintf(buf, size, "%" PRIu64, s->load_us);
}

static bool has_controls(const struct inode *i)
{
	return inode_is_file(i) || inode_is_dir(i);
}

/* Its own choice, else the mount's. */
static int print_codec(struct fs *fs, struct inode *i, char *buf, size_t size)
{
	struct store_status st;
	enum codec_choice choice;

	ns_lock(fs);
	choice = meta_codec_of(i->a.flags);
	ns_unlock(fs);
	if (choice == CODEC_CHOICE_STORE) {
		store_status(fs->store, &st);
		choice = st.codec;
	}
	return snprintf(buf, size, "%s", codec_choice_name(choice));
}

static int print_layout(struct fs *fs, struct inode *i, char *buf, size_t size)
{
	char text[RAW_LAYOUT_TEXT];
	struct raw_layout l;
	int r;

	ns_lock(fs);
	r = choices_load(fs, i);
	if (r == 0 && !choices_layout(i, &l))
		r = -ENODATA;
	ns_unlock(fs);
	if (r)
		return r;
	raw_layout_format(&l, text);
	return snprintf(buf, size, "%s", text);
}

ssize_t control_get(struct caller *c, struct inode *i, const char *name, char *buf, size_t size)
{
	struct fs *fs = req_fs(c->req);
	struct sum s = { .fs = fs };
	int r;

	if (!has_controls(i))
		return -ENODATA;
	if (!strcmp(name, "pin")) {
		ns_lock(fs);
		r = snprintf(buf, size, "%d", !!(i->a.flags & META_PIN));
		ns_unlock(fs);
		return r;
	}
	if (!strcmp(name, "codec"))
		return print_codec(fs, i, buf, size);
	if (!strcmp(name, "layout"))
		return print_layout(fs, i, buf, size);
	if (!is_sum(name))
		return -ENODATA;
	r = walk_files(c, i, false, add_file, &s);
	return r < 0 ? r : print_sum(&s, name, buf, size);
}

/* ---- evict ---- */

static bool is_open(struct fs *fs, struct inode *i)
{
	bool open;

	ns_lock(fs);
	open = i->nopen > 0;
	ns_unlock(fs);
	return open;
}

/* close(2) returns before its RELEASE is here. */
static void wait_for_release(struct fs *fs, struct inode *i, int wait_ms)
{
	struct timespec t = { .tv_nsec = RELEASE_POLL_MS * 1000000L };

	for (; wait_ms > 0 && is_open(fs, i); wait_ms -= RELEASE_POLL_MS)
		nanosleep(&t, NULL);
}

static void set_evict(struct fs *fs, struct inode *i, uint8_t evict_to)
{
	ns_lock(fs);
	i->file.evict_to = evict_to;
	ns_unlock(fs);
}

static bool is_there_already(struct object *o, enum object_tier to)
{
	struct object_stat os;

	object_stat(o, &os);
	return !object_is_dirty(o) && os.tier >= to && !os.partial;
}

int control_evict_file(struct fs *fs, struct inode *i, enum object_tier to, int wait_ms)
{
	struct object *o = object_of(fs, i);
	int r = -EAGAIN;

	if (!o)
		return 0;
	if (is_there_already(o, to)) {
		object_unref(o);
		return 0;
	}
	for (int tries = 0; tries < EVICT_TRIES && r == -EAGAIN; tries++) {
		wait_for_release(fs, i, wait_ms);
		r = commit_file(fs, i, NULL);
		if (r == 0)
			r = object_evict(o, to);
	}
	object_unref(o);
	if (r == -EAGAIN)
		r = -EBUSY;
	set_evict(fs, i, r == -EBUSY ? (uint8_t)(1 + to) : 0);
	return r;
}

struct eviction {
	struct fs *fs;
	enum object_tier to;
	struct inode **v; /* held: settled, to be committed together */
	size_t n, cap;
	bool busy;
	int error;
};

/* First pass: what there is to settle, so that one commit does for all. */
static int settle_file(void *arg, struct inode *i)
{
	struct eviction *e = arg;

	if (e->n == e->cap) {
		size_t cap = e->cap ? e->cap * 2 : 64;
		struct inode **v = realloc(e->v, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		e->v = v;
		e->cap = cap;
	}
	ns_lock(e->fs);
	i->refs++;
	ns_unlock(e->fs);
	e->v[e->n++] = i;
	return writeback_settle(e->fs, i);
}

static void evict_one(struct eviction *e, struct inode *i)
{
	int r = control_evict_file(e->fs, i, e->to, RELEASE_WAIT_MS);

	if (r == -EBUSY)
		e->busy = true;
	else if (r && !e->error)
		e->error = r;
}

static int evict(struct caller *c, struct inode *i, enum object_tier to)
{
	struct fs *fs = req_fs(c->req);
	struct eviction e = { .fs = fs, .to = to };
	int r = walk_files(c, i, true, settle_file, &e);

	if (r == 0)
		r = commit_inodes(fs, e.v, e.n);
	for (size_t k = 0; k < e.n; k++) {
		if (r == 0)
			evict_one(&e, e.v[k]);
		ns_lock(fs);
		inode_put(fs, e.v[k]);
		ns_unlock(fs);
	}
	free(e.v);
	if (r)
		return r;
	return e.error ? e.error : e.busy ? -EBUSY : 0;
}

/* ---- prefetch and pin ---- */

static int prefetch_file(void *arg, struct inode *i)
{
	struct object *o = object_of(arg, i);
	int r = o ? object_prefetch(o) : 0;

	object_unref(o);
	return r;
}

/* Flags of the inode: those of mask become what flags says. */
static int set_flags(struct fs *fs, struct inode *i, uint32_t mask, uint32_t flags)
{
	struct nsop op;
	int r = 0;

	ns_lock(fs);
	flags |= i->a.flags & ~mask;
	if (flags != i->a.flags) {
		nsop_begin(&op, fs);
		nsop_inode(&op, i)->flags = flags;
		r = nsop_run(&op);
	}
	ns_unlock(fs);
	return r;
}

struct pinning {
	struct fs *fs;
	bool pin;
};

/* A handle of ours keeps the image while the file is pinned. */
static int hold_image(struct fs *fs, struct inode *i, struct object *o, bool pin)
{
	bool change;
	int r;

	ns_lock(fs);
	change = i->file.pin_held != pin && !i->discarded;
	if (change)
		i->file.pin_held = pin;
	ns_unlock(fs);
	if (!change)
		return 0;
	if (!pin) {
		object_handle_end(o, false, false);
		return 0;
	}
	r = object_handle_begin(o, false, false);
	if (r) {
		ns_lock(fs);
		i->file.pin_held = false;
		ns_unlock(fs);
	}
	return r;
}

static int pin_file(void *arg, struct inode *i)
{
	struct pinning *p = arg;
	struct object *o = object_of(p->fs, i);
	int r;

	if (!o)
		return 0;
	r = set_flags(p->fs, i, META_PIN, p->pin ? META_PIN : 0);
	if (r == 0)
		r = hold_image(p->fs, i, o, p->pin);
	if (r == 0 && p->pin)
		r = object_prefetch(o);
	object_unref(o);
	return r;
}

/* What new files of a directory are to be, everybody's, is its owner's to say. */
static bool owns(const struct caller *c, const struct inode *i)
{
	return c->uid == 0 || c->uid == i->a.uid;
}

static int pin(struct caller *c, struct inode *i, bool on)
{
	struct fs *fs = req_fs(c->req);
	struct pinning p = { fs, on };
	int r = 0;

	if (inode_is_dir(i) && owns(c, i))
		r = set_flags(fs, i, META_PIN, on ? META_PIN : 0);
	return r ? r : walk_files(c, i, true, pin_file, &p);
}

/* ---- codec ---- */

struct choosing {
	struct fs *fs;
	enum codec_choice choice;
};

static int choose_codec(void *arg, struct inode *i)
{
	struct choosing *h = arg;
	int r = set_flags(h->fs, i, META_CODEC_MASK, META_CODEC(h->choice));

	/* One that is not in memory gets it when it is loaded. */
	ns_lock(h->fs);
	if (i->file.o && !i->discarded)
		object_set_codec(i->file.o, meta_codec_of(i->a.flags));
	ns_unlock(h->fs);
	return r;
}

static int set_codec(struct caller *c, struct inode *i, enum codec_choice choice)
{
	struct choosing h = { req_fs(c->req), choice };
	int r = 0;

	if (inode_is_dir(i) && owns(c, i))
		r = set_flags(h.fs, i, META_CODEC_MASK, META_CODEC(choice));
	return r ? r : walk_files(c, i, true, choose_codec, &h);
}

/* ---- layout ---- */

struct laying {
	struct fs *fs;
	struct raw_layout layout; /* all zero: none */
};

/* The lock is held and the xattrs are loaded. */
static int change_layout(struct fs *fs, struct inode *i, const struct raw_layout *l)
{
	struct nsop op;
	char *text;
	int r;

	if (!l->slabs && !l->stride && !(i->a.flags & META_LAYOUT))
		return 0;
	nsop_begin(&op, fs);
	r = choices_stage_layout(&op, i, l, &text);
	if (r == 0)
		r = nsop_run(&op);
	if (r)
		free(text);
	return r;
}

static int choose_layout(void *arg, struct inode *i)
{
	struct laying *y = arg;
	int r;

	ns_lock(y->fs);
	r = xattrs_load(y->fs, i);
	if (r == 0)
		r = change_layout(y->fs, i, &y->layout);
	if (r == 0 && inode_is_file(i) && i->file.o && !i->discarded)
		choices_apply(i, i->file.o);
	ns_unlock(y->fs);
	return r;
}

static int set_layout(struct caller *c, struct inode *i, const struct raw_layout *l)
{
	struct laying y = { req_fs(c->req), *l };
	int r = 0;

	if (inode_is_dir(i) && owns(c, i))
		r = choose_layout(&y, i);
	return r ? r : walk_files(c, i, true, choose_layout, &y);
}

/* Who may write a file may not say how much memory it takes. A directory is no more than a way to what
 * in it is the caller's. A prefetch does what a read would. */
static bool may_set(const struct caller *c, const struct inode *i, const char *name)
{
	return has_controls(i) && (inode_is_dir(i) || owns(c, i) || !strcmp(name, "prefetch"));
}

int control_remove(struct caller *c, struct inode *i, const char *name)
{
	static const struct raw_layout none;

	if (!may_set(c, i, name))
		return -EPERM;
	if (!strcmp(name, "pin"))
		return pin(c, i, false);
	if (!strcmp(name, "codec"))
		return set_codec(c, i, CODEC_CHOICE_STORE);
	return strcmp(name, "layout") ? -EPERM : set_layout(c, i, &none);
}

/* ---- gc ---- */

/* Of the root alone, for it is the whole store. */
static int gc(struct caller *c, struct inode *i)
{
	return i->ino == INO_ROOT && owns(c, i) ? store_gc(req_fs(c->req)->store) : -EPERM;
}

/* ---- setting ---- */

/* A shell may add a newline, a program a NUL. */
static size_t trimmed(const char *value, size_t len)
{
	while (len && (value[len - 1] == '\n' || value[len - 1] == '\0'))
		len--;
	return len;
}

static bool is_word(const char *value, size_t len, const char *word)
{
	len = trimmed(value, len);
	return len == strlen(word) && !memcmp(value, word, len);
}

static int parse_layout(struct caller *c, struct inode *i, const char *value, size_t len)
{
	struct raw_layout l;
	int r = raw_layout_parse(value, trimmed(value, len), &l);

	return r ? r : set_layout(c, i, &l);
}

int control_set(struct caller *c, struct inode *i, const char *name, const char *value, size_t len)
{
	if (!may_set(c, i, name) || is_sum(name))
		return -EPERM;
	if (!strcmp(name, "evict")) {
		if (is_word(value, len, "cold"))
			return evict(c, i, TIER_COLD);
		return is_word(value, len, "warm") ? evict(c, i, TIER_WARM) : -EINVAL;
	}
	if (!strcmp(name, "prefetch"))
		return is_word(value, len, "1") ?
			       walk_files(c, i, true, prefetch_file, req_fs(c->req)) :
			       -EINVAL;
	if (!strcmp(name, "pin")) {
		if (is_word(value, len, "1"))
			return pin(c, i, true);
		return is_word(value, len, "0") ? pin(c, i, false) : -EINVAL;
	}
	if (!strcmp(name, "layout"))
		return parse_layout(c, i, value, len);
	if (!strcmp(name, "gc"))
		return is_word(value, len, "1") ? gc(c, i) : -EINVAL;
	if (!strcmp(name, "codec"))
		for (unsigned k = 0; k < CODEC_CHOICES; k++)
			if (is_word(value, len, codec_choice_name(k)))
				return set_codec(c, i, k);
	return -EINVAL;
}
