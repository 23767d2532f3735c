/* SPDX-License-Identifier: Apache-2.0 */
/* fsck_names: inodes, dentries and xattrs: is every row possible, and are they a tree. */
#include "store/fsck_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define ROOT 1u
#define SQL_INODES                                                                                 \
	"SELECT mode, uid, gid, nlink, rdev, flags, size, atime_ns, mtime_ns, ctime_ns, btime_ns," \
	" target, ino FROM inodes ORDER BY ino"
#define SQL_DENTRIES "SELECT parent, id, name, ino, mode FROM dentries ORDER BY parent, id"
#define SQL_XATTRS   "SELECT ino, name, length(value) FROM xattrs ORDER BY ino"
#define FLAGS_KNOWN  (META_PIN | META_CODEC_MASK | META_LAYOUT)

enum walk { WALK_UNKNOWN, WALK_HERE, WALK_DONE };

struct fsck_inode *fsck_inode_find(const struct fsck *f, uint64_t ino)
{
	size_t lo = 0, hi = f->inodes;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (f->inode[mid].ino < ino)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < f->inodes && f->inode[lo].ino == ino ? &f->inode[lo] : NULL;
}

/* ---- inodes ---- */

static bool type_ok(uint32_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
	case S_IFDIR:
	case S_IFLNK:
	case S_IFIFO:
	case S_IFCHR:
	case S_IFBLK:
	case S_IFSOCK:
		return !(mode & ~(uint32_t)(S_IFMT | 07777));
	default:
		return false;
	}
}

static bool size_ok(const struct meta_inode *i)
{
	if (S_ISREG(i->mode))
		return i->size <= OBJECT_MAX;
	if (S_ISLNK(i->mode))
		return i->target && i->size == strlen(i->target);
	return !S_ISDIR(i->mode) || i->size == 0;
}

/* What is wrong with a row by itself. A number that cannot be is no row of kvfs: what has its name loses it. */
static int check_inode(struct fsck *f, sqlite3_stmt *st, const struct meta_inode *i, int r)
{
	struct fsck_about about = { .kind = "inode", .ino = i->ino };

	if (r == -EUCLEAN || !type_ok(i->mode) || S_ISLNK(i->mode) != (i->target != NULL)) {
		about.repair = "it is removed, with its names";
		fsck_found(f, &about, "the row of the inode holds what cannot be (mode %o)",
			   (unsigned)sqlite3_column_int64(st, 0));
		r = fsck_mend(f, "DELETE FROM inodes WHERE ino = ?1", sqlite3_column_int64(st, 12),
			      0, 0, NULL, 0);
		return r ? r : 1;
	}
	if (r)
		return r;
	if (!size_ok(i)) {
		about.repair = "the size is set to what it can be";
		fsck_found(f, &about, "size %" PRIu64 " cannot be", i->size);
		r = fsck_mend(f, "UPDATE inodes SET size = ?2 WHERE ino = ?1", (int64_t)i->ino,
			      i->target ? (int64_t)strlen(i->target) : 0, 0, NULL, 0);
	}
	if (!r && i->flags & ~FLAGS_KNOWN) {
		about.repair = "those nobody knows are taken away";
		fsck_found(f, &about, "flags %" PRIu32, i->flags);
		r = fsck_mend(f, "UPDATE inodes SET flags = flags & ?2 WHERE ino = ?1",
			      (int64_t)i->ino, FLAGS_KNOWN, 0, NULL, 0);
	}
	return r;
}

static int load_inode(struct fsck *f, sqlite3_stmt *st)
{
	int64_t ino = sqlite3_column_int64(st, 12);
	struct meta_inode i = { .ino = (uint64_t)ino };
	int r = ino > 0 ? meta_column_inode(st, (uint64_t)ino, &i) : -EUCLEAN;

	r = check_inode(f, st, &i, r);
	if (!r)
		r = fsck_room((void **)&f->inode, f->inodes, &f->inodes_cap, sizeof(*f->inode));
	if (!r)
		f->inode[f->inodes++] = (struct fsck_inode){
			.ino = i.ino,
			.size = i.size,
			.mode = i.mode,
			.nlink = i.nlink,
			.parent = NO_PARENT,
		};
	meta_inode_done(&i);
	return r < 0 ? r : 0;
}

/* Without a root its names are still there. */
static int make_root(struct fsck *f)
{
	int r = fsck_room((void **)&f->inode, f->inodes, &f->inodes_cap, sizeof(*f->inode));

	if (r)
		return r;
	if (!f->inodes || f->inode[0].ino != ROOT)
		memmove(f->inode + 1, f->inode, f->inodes++ * sizeof(*f->inode));
	f->inode[0] = (struct fsck_inode){
		.ino = ROOT, .mode = S_IFDIR | 0700, .nlink = 2, .parent = NO_PARENT
	};
	fsck_found(f,
		   &(struct fsck_about){ "root", .repair = "one is made, which is root's alone" },
		   "there is no root directory");
	r = fsck_mend(f, "DELETE FROM inodes WHERE ino = 1", 0, 0, 0, NULL, 0);
	return r ? r :
		   fsck_mend(
			   f,
			   "INSERT INTO inodes VALUES(1, 16832, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, NULL)",
			   0, 0, 0, NULL, 0);
}

int fsck_inodes_load(struct fsck *f)
{
	sqlite3_stmt *st;
	int r = fsck_query(f, SQL_INODES, &st);

	while (!r && (r = fsck_step(f, st)) == 1)
		r = load_inode(f, st);
	sqlite3_finalize(st);
	if (!r && (!f->inodes || f->inode[0].ino != ROOT || !S_ISDIR(f->inode[0].mode)))
		r = make_root(f);
	if (!r && f->inodes >= NO_PARENT)
		r = -EFBIG;
	f->ret->inodes = f->inodes;
	return r;
}

/* ---- names ---- */

struct name {
	uint64_t parent, id, ino;
	uint32_t mode;
	const void *text;
	size_t len;
};

static bool name_ok(const struct name *n)
{
	const char *p = n->text;

	if (!n->len || n->len > META_NAME_MAX || memchr(p, 0, n->len) || memchr(p, '/', n->len))
		return false;
	return !(p[0] == '.' && (n->len == 1 || (n->len == 2 && p[1] == '.')));
}

static int drop_name(struct fsck *f, const struct name *n, const char *kind, const char *why)
{
	struct fsck_about about = { .kind = kind, .ino = n->ino, .repair = "the name is removed" };
	char text[FSCK_NAME_TEXT];

	fsck_found(f, &about, "name '%s' in directory inode %" PRIu64 ": %s",
		   fsck_name(n->text, n->len, text), n->parent, why);
	return fsck_mend(f, "DELETE FROM dentries WHERE parent = ?1 AND id = ?2",
			 (int64_t)n->parent, (int64_t)n->id, 0, NULL, 0);
}

static int check_name(struct fsck *f, const struct name *n)
{
	struct fsck_inode *p = fsck_inode_find(f, n->parent), *i = fsck_inode_find(f, n->ino);

	if (!name_ok(n))
		return drop_name(f, n, "name", "no name of a file");
	if (!p)
		return drop_name(f, n, "parent", "there is no such directory");
	if (!S_ISDIR(p->mode))
		return drop_name(f, n, "parent", "that is no directory");
	if (!i)
		return drop_name(f, n, "dangling", "there is no such inode");
	if (i->ino == ROOT || (S_ISDIR(i->mode) && i->names))
		return drop_name(f, n, "directory", "a directory has one name, the root none");
	i->names++;
	if (i->parent == NO_PARENT)
		i->parent = (uint32_t)(p - f->inode);
	p->dirs += S_ISDIR(i->mode);
	f->ret->names++;
	if (n->mode == (i->mode & S_IFMT))
		return 0;
	fsck_found(f, &(struct fsck_about){ "type", i->ino, .repair = "it is set" },
		   "the name's type is %o, the inode's %o", n->mode, i->mode & S_IFMT);
	return fsck_mend(f, "UPDATE dentries SET mode = ?3 WHERE parent = ?1 AND id = ?2",
			 (int64_t)n->parent, (int64_t)n->id, i->mode & S_IFMT, NULL, 0);
}

static int check_names(struct fsck *f)
{
	sqlite3_stmt *st;
	int r = fsck_query(f, SQL_DENTRIES, &st);

	while (!r && (r = fsck_step(f, st)) == 1) {
		struct name n = {
			.parent = (uint64_t)sqlite3_column_int64(st, 0),
			.id = (uint64_t)sqlite3_column_int64(st, 1),
			.text = sqlite3_column_blob(st, 2),
			.len = (size_t)sqlite3_column_bytes(st, 2),
			.ino = (uint64_t)sqlite3_column_int64(st, 3),
			.mode = (uint32_t)sqlite3_column_int64(st, 4),
		};

		if (n.id > f->max_dentry_id && n.id <= INT64_MAX)
			f->max_dentry_id = n.id;
		r = check_name(f, &n);
	}
	sqlite3_finalize(st);
	return r;
}

/* ---- the tree ---- */

/* i is in a circle of directories, of which one name must go. */
static int cut_circle(struct fsck *f, struct fsck_inode *i)
{
	struct fsck_inode *p = &f->inode[i->parent];

	i->names = 0;
	i->parent = NO_PARENT;
	p->dirs--;
	fsck_found(f, &(struct fsck_about){ "loop", i->ino, .repair = "it goes to /lost+found" },
		   "the directory lies in itself, and so nowhere");
	return fsck_mend(f, "DELETE FROM dentries WHERE parent = ?1 AND ino = ?2", (int64_t)p->ino,
			 (int64_t)i->ino, 0, NULL, 0);
}

/* Up from i to what is known, to an end, or to where this walk has been. */
static int walk_up(struct fsck *f, struct fsck_inode *i)
{
	struct fsck_inode *at = i, *end;

	while (at->walk == WALK_UNKNOWN) {
		at->walk = WALK_HERE;
		if (at->parent == NO_PARENT)
			break;
		at = &f->inode[at->parent];
	}
	end = at->walk == WALK_HERE && at->parent != NO_PARENT ? at : NULL;
	for (at = i; at->walk == WALK_HERE; at = &f->inode[at->parent]) {
		at->walk = WALK_DONE;
		if (at->parent == NO_PARENT)
			break;
	}
	return end ? cut_circle(f, end) : 0;
}

/* The directory /lost+found, made if it is not there. */
static int find_lost(struct fsck *f, uint64_t *ret)
{
	int64_t ino, max = f->inodes ? (int64_t)f->inode[f->inodes - 1].ino : ROOT, known;
	const struct fsck_inode *i;
	int r = fsck_number(
		f,
		"SELECT ino FROM dentries WHERE parent = 1 AND name = CAST('lost+found' AS BLOB)",
		&ino);

	if (!r && (i = fsck_inode_find(f, (uint64_t)ino)) && S_ISDIR(i->mode)) {
		*ret = (uint64_t)ino;
		return 0;
	}
	if (r && r != -ENOENT)
		return r;
	r = fsck_number(f, "SELECT value FROM meta WHERE key = 'max_ino'", &known);
	if (r && r != -ENOENT)
		return r;
	if (!r && known > max && known < INT64_MAX)
		max = known;
	*ret = (uint64_t)max + 1;
	r = fsck_mend(
		f,
		"INSERT INTO inodes SELECT ?1, 16832, uid, gid, 2, 0, 0, 0, mtime_ns, mtime_ns,"
		" mtime_ns, mtime_ns, NULL FROM inodes WHERE ino = 1",
		max + 1, 0, 0, NULL, 0);
	if (!r)
		r = fsck_mend(f,
			      "INSERT OR REPLACE INTO dentries(parent, id, name, ino, mode)"
			      " VALUES(1, ?1, CAST('lost+found' AS BLOB), ?2, 16384)",
			      (int64_t)++f->max_dentry_id, max + 1, 0, NULL, 0);
	return r;
}

/* It gets the name #INO; another has that one only if somebody gave it. */
static int name_lost(struct fsck *f, const struct fsck_inode *i, uint64_t *lost)
{
	char name[64];
	int len, r = 0;

	if (!*lost && f->opt->repair)
		r = find_lost(f, lost);
	len = snprintf(name, sizeof(name), "#%" PRIu64, i->ino);
	fsck_found(f, &(struct fsck_about){ "orphan", i->ino, .repair = "it goes to /lost+found" },
		   "%s has no name", S_ISDIR(i->mode) ? "the directory" : "the inode");
	if (!r)
		r = fsck_mend(f, "DELETE FROM dentries WHERE parent = ?1 AND name = ?4",
			      (int64_t)*lost, 0, 0, name, (size_t)len);
	if (!r)
		r = fsck_mend(f,
			      "INSERT INTO dentries(parent, id, name, ino, mode)"
			      " SELECT ?1, ?2, ?4, ino, mode & 61440 FROM inodes WHERE ino = ?3",
			      (int64_t)*lost, (int64_t)++f->max_dentry_id, (int64_t)i->ino, name,
			      (size_t)len);
	return r;
}

static int check_links(struct fsck *f, const struct fsck_inode *i, uint64_t *lost)
{
	uint32_t want = S_ISDIR(i->mode) ? 2 + i->dirs : i->names;

	if (!i->names && i->ino != ROOT)
		return name_lost(f, i, lost);
	if (i->nlink == want)
		return 0;
	fsck_found(f, &(struct fsck_about){ "nlink", i->ino, .repair = "it is set" },
		   "link count %" PRIu32 ", but %" PRIu32 "%s", i->nlink, want,
		   S_ISDIR(i->mode) ? " by its directories" : " names");
	return fsck_mend(f, "UPDATE inodes SET nlink = ?2 WHERE ino = ?1", (int64_t)i->ino, want, 0,
			 NULL, 0);
}

/* ---- xattrs ---- */

static int check_xattr(struct fsck *f, sqlite3_stmt *st)
{
	uint64_t ino = (uint64_t)sqlite3_column_int64(st, 0);
	const void *name = sqlite3_column_blob(st, 1);
	size_t len = (size_t)sqlite3_column_bytes(st, 1);
	bool inode = fsck_inode_find(f, ino) != NULL;
	char text[FSCK_NAME_TEXT];

	f->ret->xattrs++;
	if (inode && name && len && len <= META_NAME_MAX && !memchr(name, 0, len) &&
	    sqlite3_column_int64(st, 2) <= META_VALUE_MAX)
		return 0;
	fsck_found(f, &(struct fsck_about){ "xattr", ino, .repair = "it is removed" },
		   "attribute '%s' %s", fsck_name(name, len, text),
		   inode ? "cannot be" : "of an inode that is not there");
	return fsck_mend(f, "DELETE FROM xattrs WHERE ino = ?1 AND name = ?4", (int64_t)ino, 0, 0,
			 name, len);
}

static int check_xattrs(struct fsck *f)
{
	sqlite3_stmt *st;
	int r = fsck_query(f, SQL_XATTRS, &st);

	while (!r && (r = fsck_step(f, st)) == 1)
		r = check_xattr(f, st);
	sqlite3_finalize(st);
	return r;
}

int fsck_names_check(struct fsck *f)
{
	uint64_t lost = 0;
	int r = check_names(f);

	for (size_t k = 0; k < f->inodes && !r; k++)
		if (S_ISDIR(f->inode[k].mode))
			r = walk_up(f, &f->inode[k]);
	for (size_t k = 0; k < f->inodes && !r; k++) {
		f->ret->files += S_ISREG(f->inode[k].mode);
		f->ret->directories += S_ISDIR(f->inode[k].mode);
		r = check_links(f, &f->inode[k], &lost);
	}
	return r ? r : check_xattrs(f);
}
