/* SPDX-License-Identifier: Apache-2.0 */
/*
 * namespace: inodes and names in memory, a cache over meta.db with write-back.
 *
 * State-based: an entry knows what it is now and what meta.db holds, and is dirty while the two
 * differ. Clean entries nobody uses are dropped; a dirty one stays until it is committed. Rows are
 * read when they are asked for, never the whole tree.
 *
 * Everything here is guarded by the namespace lock, fs->lock, unless it says otherwise. Reading
 * rows gives the lock up for a while: functions that may do so are named _load. Under the lock no
 * function of store/ is called that can wait for I/O, except in rare cases that say so.
 *
 * Changes are made by struct nsop alone: it stages after-images, journals them as one group, and
 * only then changes the cache, so there is nothing to undo when the journal refuses.
 */
#ifndef FS_NAMESPACE_H
#define FS_NAMESPACE_H

/* A failed allocation inside uthash leaves hh.tbl NULL instead of ending the process. */
#define HASH_NONFATAL_OOM 1
#include <sys/stat.h>
#include <uthash.h>

#include "fs/list.h"
#include "store/store.h"

struct fs;

#define INO_ROOT    1u
#define INO_KVFS    2u /* the virtual directory .kvfs */
#define INO_STATUS  3u
#define INO_METRICS 4u
#define INO_FIRST   16u /* of real files; what lies between is kept for more virtual ones */

#define DENTRY_FIRST 16u /* the first cookie of a name; "." and ".." come before */
#define NAME_LIMIT   255u
#define XATTR_LIMIT  65536u

/* ---- inodes ---------------------------------------------------------------------------------- */

/* What differs from meta.db. */
enum {
	INODE_ATTR = 1,
	INODE_XATTR = 2,
	INODE_DATA = 4, /* files: settled, or about to be, and not yet named by meta.db */
	INODE_TIMES =
		8, /* only atime, or an mtime set before its content is settled: nobody waits */
};

struct xattr {
	struct xattr *next;
	void *value;
	uint32_t len;
	uint32_t version; /* grows with every change */
	bool present;     /* false: removed, and kept until that is committed */
	bool dirty;
	char name[];
};

/* Of a regular file. The counts of handles and the backing id are guarded by the inode's open
 * lock (open.h), not by the namespace lock. */
struct file_state {
	struct object *o; /* held while the file is open, dirty or pinned; else NULL */
	uint64_t stored;  /* as object_stat() said, good while stored_epoch is that of fs */
	uint64_t stored_epoch;
	bool prefetched; /* and not opened since */
	bool varied;     /* stored was not always so since the kernel was told last */
	bool mappable;   /* was opened O_RDWR since it was clean: a mapping outlives the handle */
	bool orphan;     /* a handle this mount knows nothing of may change it: not to be cached */
	struct timespec settled_mtime;        /* of the content that meta.db may be told of */
	uint32_t settle_started, settle_done; /* numbers of settles; see struct dentry's need */
	uint32_t settling;                    /* settles at work now */
	uint32_t error_seq;                   /* grows with every failed settle */
	int error;                            /* of the last failed one */
	bool committing;                      /* between store_sync_data() and meta_commit() */
	bool pin_held;                        /* a handle of ours keeps the image */
	bool opened;                          /* was open since it came to memory */
	bool fresh;                           /* was made, and not closed for the last time since */
	uint8_t evict_to;                     /* 1 + tier, to be done at the last close; 0: no */
	struct timespec idle_since;           /* last close, CLOCK_MONOTONIC */
	struct list evict_link;               /* on fs->evictions */
	int backing_id;                       /* open lock: 0 none */
	uint32_t n_backed, n_direct;          /* open lock: handles with the backing id, without */
};

struct dir_state {
	struct list dirty_names; /* dentry.child of what is dirty below */
	struct dirlist *list;    /* its names, until one changes; NULL: not kept */
	uint32_t db_nlink;       /* of its row in meta.db */
	int32_t delta;           /* commit's scratch: subdirectories a batch adds to the row */
	bool extra;              /* commit's scratch: its row must be put for that */
	uint64_t largest;        /* a hint: the largest file size seen below */
	uint32_t alike;          /* new files, one after the other, of half of that at least */
};

struct inode {
	UT_hash_handle hh;   /* fs->inodes, by ino */
	uint64_t ino;        /* this and type never change: read without the lock */
	uint32_t type;       /* S_IFMT of the mode */
	struct meta_inode a; /* of files, size and content times are those last heard of */
	uint64_t nlookup;    /* the kernel's references */
	uint32_t nopen;      /* handles, of files and of directories */
	uint32_t refs;       /* operations at work, and cached names below a directory */
	uint32_t version;    /* grows with every change of what goes into its row */
	uint8_t dirty;       /* INODE_* */
	bool in_db;          /* meta.db has a row, or will when a transaction on its way lands */
	bool flight;         /* in that transaction; dirty until it has landed */
	bool xattrs_loaded;
	bool counted;   /* in fs->n_unsettled */
	bool discarded; /* the object was told that the file is gone */
	bool asked;     /* for attributes since it was renamed: the reply may be on its way */
	uint32_t n_dirty_names; /* of names */
	struct list names;      /* dentry.names: what names it now */
	struct list lost;       /* dentry.lost: what names it in meta.db and does not now */
	struct list dirty_link; /* on fs->dirty */
	struct list rest_link;  /* on fs->resting: nobody uses it but the kernel */
	uint64_t dirty_since;   /* fs->dirty_seq when it became dirty, or when the last snapshot was
	                           taken that landed: what meta.db lacks of it is not older */
	uint64_t round;         /* the commit round that has tried it */
	uint64_t mark;          /* the closure that has it */
	uint64_t replaced_by;   /* inode number of who took its name without a gap; 0 */
	struct inode *discard_next;
	struct xattr *xattrs;
	union {
		struct file_state file;
		struct dir_state dir;
	};
};

static inline bool inode_is_file(const struct inode *i)
{
	return S_ISREG(i->type);
}

static inline bool inode_is_dir(const struct inode *i)
{
	return S_ISDIR(i->type);
}

/* The cached inode, or NULL; no reference is taken. */
struct inode *inode_find(struct fs *fs, uint64_t ino);
/* The inode behind a node id of the kernel, with a reference; like _load functions. -ESTALE. */
int inode_hold(struct fs *fs, uint64_t ino, struct inode **ret);
/* The inode with a reference, read from meta.db if need be. -ENOENT. */
int inode_load(struct fs *fs, uint64_t ino, struct inode **ret);
/* Enters a row into the cache; takes over a.target. No reference. */
int inode_enter(struct fs *fs, struct meta_inode *a, bool in_db, struct inode **ret);
/* Drops a reference; may drop the inode. */
void inode_put(struct fs *fs, struct inode *i);
/* Drops what nobody needs any more. */
void inode_rest(struct fs *fs, struct inode *i);
/* Lets go of the files that have rested longest, where there are too many: to be called when the lock
 * is about to be given up, as whatever has no reference may go. */
void inode_let_go(struct fs *fs);
bool inode_is_dirty(const struct inode *i);
/* To be called after every change of what inode_is_dirty() looks at. */
void inode_update_dirty(struct fs *fs, struct inode *i);
/* The object of a regular file with a reference; the inode keeps one too while it needs it. */
int inode_object_load(struct fs *fs, struct inode *i, struct object **ret);
/* Takes over size and times from the object; the lock is held, the object is i's. */
void inode_fold(struct inode *i, const struct object_stat *os);
/* Frees it; what refers to it is gone already. For the end. */
void inode_free(struct inode *i);

/* ---- names ----------------------------------------------------------------------------------- */

/*
 * (parent, name) and what it names. A name is committed together with the inode it names and the
 * one it named: see closure.c.
 *
 * gap: since meta.db's state the name was vacant for a while, so that it may be removed from
 * meta.db before its new owner is committed; without gap the new owner has replaced the old one by
 * rename, and a reader after a power cut must see one of them.
 *
 * need: the file's content as it was when this name was given must be settled before the name is
 * committed: a settle with at least this number must have ended, or the object be clean.
 */
struct dentry {
	UT_hash_handle hh;      /* fs->dentries, by parent_ino and name */
	struct inode *parent;   /* with a reference */
	struct inode *inode;    /* now; NULL: vacant */
	struct inode *db_inode; /* in meta.db; NULL: nothing. Same as inode while clean */
	struct list names;      /* on inode->names */
	struct list lost;       /* on db_inode->lost, while inode is another */
	struct list child;      /* on parent->dir.dirty_names while dirty, on fs->vacant while clean
	                           and vacant */
	uint64_t id;            /* the cookie */
	uint64_t dirty_since;   /* as that of inodes; whoever has the name now */
	uint32_t need;
	uint32_t version;
	uint32_t refs; /* operations at work */
	bool dirty;    /* inode is not db_inode, or flight, or another id */
	bool flight;   /* db_inode is what a transaction on its way makes it */
	bool gap;
	uint16_t len;
	/* The key: these two, in one piece. */
	uint64_t parent_ino;
	char name[];
};

struct dentry *dentry_find(struct fs *fs, uint64_t parent, const char *name);
/* The entry, with a reference, read from meta.db if need be; a vacant one is an entry too. The
 * caller holds the parent. */
int dentry_load(struct fs *fs, struct inode *parent, const char *name, struct dentry **ret);
/* Enters what meta.db says about a name that is not cached. No reference. */
int dentry_enter(struct fs *fs, struct inode *parent, const char *name, struct inode *db_inode,
		 uint64_t id, struct dentry **ret);
void dentry_put(struct fs *fs, struct dentry *d);
/* The name is now that inode; NULL: vacant. */
void dentry_change(struct fs *fs, struct dentry *d, struct inode *inode, uint64_t id);
/*
 * A transaction that gives the name to an inode (NULL: removes it) is on its way: what changes from
 * here on changes from there. It lands, unchanged: the name is still what it was at take-off; what it
 * lacks from then on is as old as seq. Or it turns back to what was before.
 */
void dentry_take_off(struct fs *fs, struct dentry *d, struct inode *to);
void dentry_land(struct fs *fs, struct dentry *d, bool unchanged, uint64_t seq);
void dentry_turn_back(struct fs *fs, struct dentry *d, struct inode *db_inode, bool gap);
/* Takes it out of the cache; clean and without references. Its parent may be dropped with it. */
void dentry_drop(struct fs *fs, struct dentry *d);
/* The directory has changed, or goes: its list of names is not kept any more (dirlist.c). */
void dirlist_forget(struct fs *fs, struct inode *dir);
/* A name the inode has, for finding its directory; NULL when none is cached. */
struct dentry *inode_a_name(const struct inode *i);

/* ---- changes --------------------------------------------------------------------------------- */

#define NSOP_INODES 6
#define NSOP_NAMES  2
#define NSOP_XATTRS 3

struct nsop {
	struct fs *fs;
	struct timespec now;
	unsigned n_inodes, n_names, n_xattrs;
	struct {
		struct inode *inode;
		struct meta_inode a;
		uint8_t dirty; /* INODE_* it gains */
	} inodes[NSOP_INODES];
	struct {
		struct dentry *d;
		struct inode *inode;
		uint64_t id;
	} names[NSOP_NAMES];
	struct {
		struct inode *inode;
		struct xattr *x;
		void *value;
		uint32_t len;
		bool present;
	} xattrs[NSOP_XATTRS];
};

void nsop_begin(struct nsop *op, struct fs *fs);
/* The after-image of an inode, to be changed by the caller; starts as what it is. */
struct meta_inode *nsop_inode(struct nsop *op, struct inode *i);
/* The same, and its ctime is now; mtime too with content true. */
struct meta_inode *nsop_touch(struct nsop *op, struct inode *i, bool content);
/* The inode, and that its content must be named by meta.db. */
void nsop_data(struct nsop *op, struct inode *i);
void nsop_name(struct nsop *op, struct dentry *d, struct inode *inode);
/* value is taken over when nsop_run() succeeds; x stands for one change only. */
void nsop_xattr(struct nsop *op, struct inode *i, struct xattr *x, void *value, uint32_t len,
		bool present);
/* Journals it all and makes it so. On failure nothing has changed. */
int nsop_run(struct nsop *op);

/* ---- xattrs of an inode ---------------------------------------------------------------------- */

/* Reads them from meta.db if that was not done; the caller holds the inode. */
int xattrs_load(struct fs *fs, struct inode *i);
struct xattr *xattrs_find(struct inode *i, const char *name); /* present or not */
/* Finds or makes an entry that is not present. */
struct xattr *xattrs_slot(struct inode *i, const char *name);
void xattrs_free(struct inode *i);
/* Those whose name begins so are kvfs's own and in no list. */
#define XATTR_CONTROL "user.kvfs."

/* ---- how the content of an inode is to be stored (choices.c) ---------------------------------- */

/* What the flags say of the layout is in its xattrs, which are read from meta.db if need be. The inode is
 * held. */
int choices_load(struct fs *fs, struct inode *i);
/* Tells the object, after the above. */
void choices_apply(struct inode *i, struct object *o);
/* The layout of a file or directory, after choices_load(). False: it has none. */
bool choices_layout(struct inode *i, struct raw_layout *ret);
/* Stages that as text, or that there is none; what it stages is given to nsop_run(), and to be freed when
 * that fails. -ENOMEM. The xattrs are loaded. */
int choices_stage_layout(struct nsop *op, struct inode *i, const struct raw_layout *l, char **ret);

/* ---- journal records ------------------------------------------------------------------------- */

enum {
	J_INODE = JOURNAL_NAMESPACE,
	J_DENTRY,
	J_XATTR,
};

struct jrec_dentry {
	uint64_t parent, ino, id;
	uint32_t mode;
	bool gap;
	char name[NAME_LIMIT + 1];
};

struct jrec_xattr {
	uint64_t ino;
	bool present;
	uint32_t len;
	const void *value; /* inside the record */
	char name[NAME_LIMIT + 1];
};

size_t jrec_inode_size(const struct meta_inode *a);
size_t jrec_dentry_size(size_t name_len);
size_t jrec_xattr_size(size_t name_len, size_t len);
void jrec_inode_write(void *buf, const struct meta_inode *a);
void jrec_dentry_write(void *buf, const struct jrec_dentry *d);
void jrec_xattr_write(void *buf, uint64_t ino, const char *name, const void *value, size_t len,
		      bool present);
/* -EBADMSG when it cannot be one. a->target is allocated. */
int jrec_inode_read(const void *buf, size_t len, struct meta_inode *a);
int jrec_dentry_read(const void *buf, size_t len, struct jrec_dentry *d);
int jrec_xattr_read(const void *buf, size_t len, struct jrec_xattr *x);

/* Everything dirty as after-images, into a new journal. The lock is held. */
int checkpoint_write(struct fs *fs);
/* What a killed daemon left in the journal, as dirty state. Before any thread. */
int replay_run(struct fs *fs);

#endif
