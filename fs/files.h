/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files: attributes, directory listings, open files, and the handlers of requests.
 */
#ifndef FS_FILES_H
#define FS_FILES_H

#include "fs/state.h"

/* ---- attr.c ---------------------------------------------------------------------------------- */

/* What attributes are for. The kernel drops a reply if it was told otherwise while that was on its way,
 * but not one to LINK, nor before Linux 6.16 one to SETATTR. */
enum attr_use {
	ATTR_ASKED,     /* GETATTR, LOOKUP, READDIRPLUS: beside changes of the inode */
	ATTR_MADE,      /* of an inode that nobody else can ask for yet */
	ATTR_UNORDERED, /* LINK and SETATTR */
};
/* What stat(2) shows, and for how many seconds the kernel may keep it; the inode is held, the lock is
 * not. */
int attr_stat(struct fs *fs, struct inode *i, enum attr_use use, struct stat *st,
	      double *ret_timeout);
/* Attributes of a node of .kvfs. */
void attr_stat_virtual(struct fs *fs, uint64_t ino, struct stat *st);
/* The entry the kernel gets for an inode. */
int attr_entry(struct fs *fs, struct inode *i, enum attr_use use, struct fuse_entry_param *e);
/* Stages what a write or truncation takes away: suid, sgid, security.capability. True if that is
 * anything. The lock is held and the xattrs are loaded. */
bool attr_kill_privileges(struct nsop *op, struct inode *i);
/* Whether the file carries any of them; likewise. */
bool attr_has_privileges(struct inode *i);

/* ---- namei.c --------------------------------------------------------------------------------- */

struct make {
	const struct fuse_ctx *ctx;
	mode_t mode;
	dev_t rdev;
	const char *target; /* symlinks */
};
/* Makes an inode and, unless name is NULL, its name. *ret is held and known to the kernel once.
 * -EEXIST: the name is taken. */
int namei_make(struct fs *fs, const struct make *mk, uint64_t parent, const char *name,
	       struct inode **ret);
/* The entry of a name, lock held; -ENOTDIR, -ENOENT (the directory is deleted), -ENAMETOOLONG.
 * Both are to be put. */
int namei_load(struct fs *fs, uint64_t parent, const char *name, struct inode **ret_parent,
	       struct dentry **ret);
bool namei_is_kvfs(uint64_t parent, const char *name);
/* Replies with the entry of a held inode that the kernel got one more lookup of, and puts it. */
void namei_reply_entry(fuse_req_t req, struct inode *i, enum attr_use use);
/* The kernel did not take a lookup, or forgot some. The lock is held. */
void namei_unlookup(struct fs *fs, struct inode *i, uint64_t n);
/* No name in it. Reads rows under the lock: only directories that are about to be removed. */
int namei_dir_is_empty(struct fs *fs, struct inode *dir);

/* ---- acls.c ---------------------------------------------------------------------------------- */

/* Values staged and not journaled yet, to be freed if they never are. */
struct acl_values {
	void *v[2];
	unsigned n;
};
void acl_values_free(struct acl_values *values);
/* All with the lock held and the xattrs loaded. Whether the ACL of what is made there, and not the umask, says
 * what may be done with it. */
bool acls_has_default(struct inode *dir);
/* Stages what a new inode has from the directory: its ACLs, and the mode that goes with them. -ENOMEM. */
int acls_stage_inherited(struct nsop *op, struct inode *dir, struct inode *i,
			 struct acl_values *values);
/* Stages the access ACL that goes with the mode that was staged. -ENOMEM. */
int acls_stage_chmod(struct nsop *op, struct inode *i, struct acl_values *values);

/* ---- dirlist.c ------------------------------------------------------------------------------- */

struct dirlist_entry {
	uint64_t id, ino;
	uint32_t mode;
	uint32_t name; /* offset into names */
};

/* Constant once it was got. */
struct dirlist {
	struct dirlist_entry *v;
	size_t n, cap;
	char *names;
	size_t names_len, names_cap;
	atomic_uint refs;
	struct list kept;    /* on fs->dirlists, the one asked for last at the end; fs->lock */
	struct inode *owner; /* whose dir.list it is while it is kept */
};
/* The names of a directory at one moment, in order of id, with a reference; the lock is not held. */
int dirlist_get(struct fs *fs, uint64_t dir, struct dirlist **ret);
void dirlist_put(struct dirlist *l); /* NULL is fine */
static inline const char *dirlist_name(const struct dirlist *l, size_t k)
{
	return l->names + l->v[k].name;
}
/* The first entry with an id above after; n when there is none. */
size_t dirlist_after(const struct dirlist *l, uint64_t after);

/* ---- handle.c -------------------------------------------------------------------------------- */

enum handle_mode {
	HANDLE_PASSTHROUGH, /* the kernel moves the bytes */
	HANDLE_BACKED,      /* requests for read and write, mmap of the image */
	HANDLE_DIRECT,      /* requests for everything */
	HANDLE_CACHED,      /* requests of the page cache */
	HANDLE_DIR,
	HANDLE_TEXT, /* a file of .kvfs */
};

struct handle {
	enum handle_mode mode;
	bool sync;          /* O_SYNC or O_DSYNC: requests other than WRITE do not carry it */
	bool write, hidden; /* as object_handle_begin() was told */
	uint64_t granted;   /* by store_grant(); 0: nothing */
	pid_t copier;       /* who opened it and may be about to copy it; 0 */
	atomic_bool lazy; /* a cold file: filled, and the next ones with it, from its first read on */
	struct inode *inode; /* kept by nopen; NULL for text */
	struct object *o;    /* files, with a reference */
	uint32_t error_seen; /* of inode->file.error_seq; fs->lock */
	pthread_mutex_t list_lock;
	struct dirlist *list; /* list_lock */
	char *text;
	size_t text_len;
};

int handles_init(struct handles *t);
void handles_done(struct handles *t);
/* Puts a handle into the table; *ret_fh is its number. */
int handle_add(struct handles *t, struct handle *h, uint64_t *ret_fh);
/* Valid until its RELEASE; NULL for a number that is none. */
struct handle *handle_get(struct handles *t, uint64_t fh);
struct handle *handle_take(struct handles *t, uint64_t fh);
/* Any handle left in the table, taken out; NULL when there is none. */
struct handle *handle_take_any(struct handles *t);
uint32_t handles_used(struct handles *t);
struct handle *handle_new(enum handle_mode mode, struct inode *i);
void handle_free(struct handle *h);

/* ---- open.c ---------------------------------------------------------------------------------- */

/* Opens a regular file; the inode is held and stays so. fresh: just created. On success fi is
 * filled for the reply. */
int open_file(fuse_req_t req, struct inode *i, struct fuse_file_info *fi, bool fresh);
/* Undoes it, at RELEASE or when the reply was not taken; the handle is out of the table. NULL is
 * fine. */
void open_end(struct fs *fs, struct handle *h);

/* The first read of a lazy handle has come. */
void open_first_read(struct fs *fs, struct handle *h, pid_t pid);

/* backing.c: which way the bytes of an open file go. */
struct backing_want {
	bool write;
	bool plain; /* the kernel may write unseen: new content, admitted */
	bool image; /* an image may be registered for it */
	bool held;  /* it is in memory in any case, and others than this mount may write it */
};
/* The open lock is held; counts the handle in the inode. */
enum handle_mode backing_choose(struct fs *fs, struct inode *i, struct object *o,
				const struct backing_want *want);
/* The open lock is held. */
void backing_end(struct fs *fs, struct inode *i, enum handle_mode mode);

/* ---- file.c ---------------------------------------------------------------------------------- */

/* A buffer of MAX_IO bytes of this thread, aligned to pages. NULL when memory is short. */
void *file_buffer(struct fs *fs);
/* What a write takes away: suid, sgid and capabilities. */
int file_kill_privileges(struct fs *fs, struct inode *i);

/* ---- handlers of requests -------------------------------------------------------------------- */

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup);
void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi);
void op_readlink(fuse_req_t req, fuse_ino_t ino);
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
	       const char *newname, unsigned int flags);
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname);
void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi);
void op_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
	      struct fuse_file_info *fi);
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);
void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
			struct fuse_file_info *fi_out, size_t len, int flags);
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi);
void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void op_statfs(fuse_req_t req, fuse_ino_t ino);
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
		 int flags);
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

/* virtual.c: the nodes of .kvfs; each handler hands over what is for one of them. */
void virtual_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void virtual_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void virtual_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus);

#endif
