/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backing: which way the bytes of an open file go, and the id under which the kernel knows its
 * image.
 *
 * Rules of the kernel: one backing id for an inode from its first open to its last close; a handle
 * without it beside handles with it is EIO, and the other way round, so an inode with such handles
 * stays without until the last of them is closed.
 */
#include "fs/files.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <syslog.h>
#include <unistd.h>

/* From linux/fuse.h of 6.9, which the headers at hand may be older than. Called directly, as an id
 * must be given back also when there is no request at hand, which libfuse asks for. */
struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};
#define BACKING_OPEN  _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

static void give_up(struct fs *fs, const char *why)
{
	if (!atomic_exchange(&fs->passthrough, false))
		return;
	atomic_store(&fs->passthrough_why, why);
	fs_log(fs, LOG_WARNING, "no passthrough: %s; files are served by the daemon", why);
}

/* Registration failed: for ever, or only now? */
static void judge(struct fs *fs, int error)
{
	switch (error) {
	case EPERM:
	case EACCES:
		give_up(fs, "not permitted: needs CAP_SYS_ADMIN in the initial user namespace");
		break;
	case ENOTTY:
	case ENOSYS:
	case EOPNOTSUPP:
		give_up(fs, "the kernel does not support it");
		break;
	case ELOOP:
		give_up(fs, "the run directory is on a stacked file system");
		break;
	default:
		fs_log(fs, LOG_NOTICE, "a file goes without passthrough: registration failed: %s",
		       strerror(error));
	}
}

static int register_image(struct fs *fs, struct object *o)
{
	struct backing_map map = { .fd = object_image_open(o) };
	int id, error;

	if (map.fd < 0)
		return 0;
	id = ioctl(fuse_session_fd(fs->se), BACKING_OPEN, &map);
	error = errno;
	close(map.fd);
	if (id > 0)
		return id;
	object_image_close(o);
	judge(fs, error);
	return 0;
}

enum handle_mode backing_choose(struct fs *fs, struct inode *i, struct object *o,
				const struct backing_want *want)
{
	struct file_state *f = &i->file;

	if (!f->backing_id && !f->n_direct && want->image && atomic_load(&fs->passthrough) &&
	    (want->held || !store_backed_much(fs->store)))
		f->backing_id = register_image(fs, o);
	if (f->backing_id) {
		f->n_backed++;
		return !want->write || want->plain ? HANDLE_PASSTHROUGH : HANDLE_BACKED;
	}
	f->n_direct++;
	return atomic_load(&fs->cached_mode) ? HANDLE_CACHED : HANDLE_DIRECT;
}

void backing_end(struct fs *fs, struct inode *i, enum handle_mode mode)
{
	struct file_state *f = &i->file;

	if (mode == HANDLE_DIRECT || mode == HANDLE_CACHED) {
		f->n_direct--;
		return;
	}
	if (--f->n_backed)
		return;
	/* When the connection is gone, so is the id. */
	ioctl(fuse_session_fd(fs->se), BACKING_CLOSE, &f->backing_id);
	f->backing_id = 0;
	object_image_close(f->o);
}
