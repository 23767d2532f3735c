/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Documents: saved by writing another file and renaming it over the name. Whoever opens the name finds a
 * whole version, of its size, none that was replaced before he opened; what he has open stays that
 * version, mapped or not, while others rename over it and the file moves between the tiers.
 */
#ifndef CONCURRENT_DOCS_H
#define CONCURRENT_DOCS_H

#include <linux/fs.h>

#include "concurrent.h"

#define DOCS     14
#define STILL    8  /* from this one on they are never saved again: they are there to be evicted */
#define DOC_FILE 64 /* of the first, in stamps */

struct doc {
	atomic_uint versions; /* numbers given */
	struct history h;
};

struct docs {
	struct doc v[DOCS];
};

static uint64_t doc_size(unsigned doc, unsigned version)
{
	static const unsigned limits[] = { 64, 5000, 100000, 300000, 3u << 20 };
	uint64_t hash = pattern_word((uint64_t)doc << 32 | version, 1);

	if (doc >= STILL)
		return 8 + (hash >> 8) % (doc % 2 ? 8u << 20 : 2u << 20);
	return 8 + (hash >> 8) % limits[hash % 5];
}

/* Of some versions the second third is zeros, or a hole. */
static uint64_t doc_word(unsigned doc, unsigned version, uint64_t words, uint64_t index)
{
	if (version % 4 == 3 && index > words / 3 && index < words / 3 * 2)
		return 0;
	return stamped_word(DOC_FILE + doc, version, index);
}

/* off is a multiple of 8; len is cut to the end. Returns it. */
static size_t doc_fill(unsigned doc, unsigned version, uint64_t off, size_t len, unsigned char *to)
{
	uint64_t size = doc_size(doc, version), words = size / 8;
	size_t n = off >= size ? 0 : size - off < len ? (size_t)(size - off) : len;

	for (size_t k = 0; k < n; k += 8) {
		uint64_t word = doc_word(doc, version, words, (off + k) / 8);

		memcpy(to + k, &word, n - k < 8 ? n - k : 8);
	}
	return n;
}

/* ---- Saving ----------------------------------------------------------------------------------- */

/* In pieces; what is zeros is left out. */
static bool write_doc(struct worker *w, int fd, unsigned doc, unsigned version)
{
	uint64_t size = doc_size(doc, version);
	size_t piece = draw_piece(w, size), n;

	for (uint64_t off = 0; off < size; off += n) {
		ssize_t r;

		n = doc_fill(doc, version, off, piece, w->in);
		at(w, "write [%llu, +%zu) of version %u of doc.%u", (unsigned long long)off, n,
		   version, doc);
		if (n < size - off && w->in[0] == 0 && !memcmp(w->in, w->in + 1, n - 1))
			continue;
		r = pwrite(fd, w->in, n, (off_t)off);
		if (r < 0)
			return !died(w, "pwrite to", "a document");
		if ((size_t)r != n) {
			cut_short(w, (size_t)r, n);
			return false;
		}
		counted(w, COUNT_WRITES);
	}
	return true;
}

static bool replace_doc(struct worker *w, const char *tmp, unsigned doc, unsigned version)
{
	struct doc *d = &w->docs->v[doc];
	const char *name = path_in(w, "docs/doc.%u", doc);
	bool exchange = version > 1 && draw(w, 8) == 0;

	at(w, "rename%s version %u over doc.%u", exchange ? " (exchange)" : "", version, doc);
	history_begin(&d->h, version);
	if (renameat2(AT_FDCWD, tmp, AT_FDCWD, name, exchange ? RENAME_EXCHANGE : 0) < 0)
		return !died(w, "rename", tmp);
	history_end(&d->h, version);
	if (exchange && unlink(tmp) < 0)
		return !died(w, "unlink", tmp);
	counted(w, COUNT_SAVES);
	return true;
}

static void save_doc(struct worker *w, unsigned doc)
{
	static const int flags[] = { O_WRONLY | O_TRUNC, O_WRONLY | O_TRUNC, O_RDWR | O_TRUNC,
				     O_WRONLY | O_EXCL };
	unsigned version = atomic_fetch_add(&w->docs->v[doc].versions, 1) + 1;
	int how = flags[draw(w, 4)];
	const char *tmp = path_in(w, "docs/tmp.%u", w->number);
	bool close_late = draw(w, 4) == 0;
	int fd;

	/* What a kill left. */
	if (how & O_EXCL && unlink(tmp) < 0 && errno != ENOENT) {
		died(w, "unlink", tmp);
		return;
	}
	fd = open_or_die(w, tmp, how | O_CREAT);
	if (fd < 0)
		return;
	if (write_doc(w, fd, doc, version)) {
		if (draw(w, 12) == 0 && fsync(fd) < 0)
			died(w, "fsync", tmp);
		if (!close_late)
			close_file(w, fd);
		if (!w->dead)
			replace_doc(w, tmp, doc, version);
		if (!close_late)
			return;
	}
	close_file(w, fd);
}

static void docs_save(struct worker *w)
{
	save_doc(w, draw(w, STILL));
}

/* ---- Reading ---------------------------------------------------------------------------------- */

static _Noreturn void fail_doc(struct worker *w, const struct held *h, uint64_t off, size_t n,
			       const char *how)
{
	size_t k = 0, end;
	uint64_t word = 0;

	while (k < n && w->out[k] == w->in[k])
		k++;
	for (end = k; end < n && w->out[end] != w->in[end]; end++)
		;
	memcpy(&word, w->out + k / 8 * 8, 8);
	fail(w,
	     "file docs/doc.%u, version %u of %llu bytes, by %s: bytes [%llu, %llu) are wrong; the word "
	     "at %llu is %#llx (of version %u, if of any)",
	     h->doc, h->version, (unsigned long long)doc_size(h->doc, h->version), how,
	     (unsigned long long)off + k, (unsigned long long)off + end,
	     (unsigned long long)off + k / 8 * 8, (unsigned long long)word, stamp_of(word));
}

/* [off, off + len) of what is open, from a mapping if there is one. */
static bool check_piece(struct worker *w, const struct held *h, const unsigned char *map,
			uint64_t off, size_t len)
{
	size_t want = doc_fill(h->doc, h->version, off, len, w->in), n = want;

	at(w, "%s [%llu, +%zu) of doc.%u, version %u", map ? "load" : "pread",
	   (unsigned long long)off, len, h->doc, h->version);
	if (map ? !load_mapped(w, w->out, map + off, want) :
		  !read_at(w, h->fd, w->out, len, off, &n))
		return false;
	if (n < want) {
		cut_short(w, n, want);
		return false;
	}
	if (n > want)
		fail(w, "%zu bytes of version %u of doc.%u, expected %zu", n, h->version, h->doc,
		     want);
	if (memcmp(w->out, w->in, n))
		fail_doc(w, h, off, n, map ? "mmap" : "pread");
	counted(w, map ? COUNT_LOADS : COUNT_READS);
	return true;
}

/* All of it, or pieces here and there. */
static bool check_content(struct worker *w, const struct held *h, const unsigned char *map)
{
	uint64_t size = doc_size(h->doc, h->version);

	if (draw(w, 3) == 0) {
		for (int k = 0; k < 4; k++) {
			uint64_t off = draw(w, (unsigned)(size / 8)) * 8ull;
			size_t len = (1 + draw(w, 30000)) * 8;

			if (!check_piece(w, h, map, off, len))
				return false;
		}
		return true;
	}
	for (uint64_t off = 0; off < size; off += IO_ROOM / 2)
		if (!check_piece(w, h, map, off, IO_ROOM / 2))
			return false;
	return true;
}

static bool check_mapped(struct worker *w, const struct held *h)
{
	uint64_t size = doc_size(h->doc, h->version);
	unsigned char *map =
		mmap(NULL, size, PROT_READ, draw(w, 2) ? MAP_SHARED : MAP_PRIVATE, h->fd, 0);
	bool ok;

	if (map == MAP_FAILED)
		fail(w, "mmap of doc.%u: %s", h->doc, strerrorname_np(errno));
	ok = check_content(w, h, map);
	munmap(map, size);
	return ok;
}

/* Which version it is, and that it may be that one. covered: before it was opened. */
static bool find_version(struct worker *w, struct held *h, unsigned long long covered)
{
	struct doc *d = &w->docs->v[h->doc];
	unsigned given = atomic_load(&d->versions);
	struct stat st;
	uint64_t word = 0;
	size_t n;

	at(w, "pread of the first word of doc.%u", h->doc);
	if (!read_at(w, h->fd, w->out, IO_ALIGN, 0, &n))
		return false;
	if (n < 8) {
		cut_short(w, n, 8);
		return false;
	}
	memcpy(&word, w->out, 8);
	h->version = stamp_of(word);
	if (!h->version || h->version > given ||
	    word != stamped_word(DOC_FILE + h->doc, h->version, 0))
		fail(w, "file docs/doc.%u, offset 0: %#llx is of no version; %u were made", h->doc,
		     (unsigned long long)word, given);
	if (!history_allows(&d->h, h->version, covered))
		fail(w,
		     "file docs/doc.%u: opened version %u, which had been replaced before; %u were made",
		     h->doc, h->version, given);
	if (fstat(h->fd, &st) < 0)
		return !died(w, "fstat", "a document");
	if ((uint64_t)st.st_size != doc_size(h->doc, h->version))
		fail(w, "size of version %u of doc.%u: expected %llu, saw %lld", h->version, h->doc,
		     (unsigned long long)doc_size(h->doc, h->version), (long long)st.st_size);
	history_seen(&d->h, h->version);
	return true;
}

static bool open_doc(struct worker *w, struct held *h, unsigned doc, int flags)
{
	unsigned long long covered = atomic_load(&w->docs->v[doc].h.covered);

	*h = (struct held){ .doc = doc };
	h->fd = open_or_die(w, path_in(w, "docs/doc.%u", doc), flags);
	if (h->fd < 0)
		return false;
	counted(w, COUNT_OPENS);
	if (find_version(w, h, covered))
		return true;
	close_file(w, h->fd);
	return false;
}

static void docs_read(struct worker *w)
{
	static const int flags[] = { O_RDONLY, O_RDONLY, O_RDONLY, O_RDWR };
	struct held *keep = &w->held[draw(w, HELD)], h;

	if (!open_doc(w, &h, draw(w, DOCS), flags[draw(w, 4)]))
		return;
	if (draw(w, 3) == 0 ? check_mapped(w, &h) : check_content(w, &h, NULL)) {
		if (!keep->used && draw(w, 3) == 0) {
			*keep = h;
			keep->used = true;
			return;
		}
	}
	close_file(w, h.fd);
}

/* What was opened earlier is still that version. */
static void docs_held(struct worker *w)
{
	struct held *h = &w->held[draw(w, HELD)];

	if (!h->used)
		return;
	if (draw(w, 3) == 0)
		check_mapped(w, h);
	else
		check_content(w, h, NULL);
	if (w->dead || draw(w, 2)) {
		h->used = false;
		close_file(w, h->fd);
	}
}

static void docs_let_go(struct worker *w)
{
	for (struct held *h = w->held; h < w->held + HELD; h++) {
		if (h->used && check_content(w, h, NULL))
			check_mapped(w, h);
		if (h->used)
			close_file(w, h->fd);
		h->used = false;
	}
}

/* ---- While nobody else is at work ------------------------------------------------------------- */

static void docs_make(struct worker *w)
{
	if (mkdir(path_in(w, "docs"), 0755) < 0)
		died(w, "mkdir", "docs");
	for (unsigned doc = 0; doc < DOCS; doc++)
		save_doc(w, doc);
}

static void docs_compare(struct worker *w)
{
	for (unsigned doc = 0; doc < DOCS; doc++) {
		struct held h;
		uint64_t size;

		open_doc(w, &h, doc, O_RDONLY);
		size = doc_size(doc, h.version);
		for (uint64_t off = 0; off < size; off += IO_ROOM / 2)
			check_piece(w, &h, NULL, off, IO_ROOM / 2);
		check_mapped(w, &h);
		close_file(w, h.fd);
	}
}

static void docs_after_kill(struct docs *d)
{
	for (unsigned doc = 0; doc < DOCS; doc++)
		history_cut(&d->v[doc].h);
}

#endif
