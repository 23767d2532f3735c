/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plainfuse: what FUSE costs a daemon that does nothing but forward to another folder.
 *
 *	plainfuse BACKING MOUNTPOINT -f
 *
 * A rival of the benchmark: descriptors kept per open, splice where the kernel does it, many
 * threads, libfuse's defaults otherwise. Not for any other use: no owner, link or xattr is forwarded.
 */
#define FUSE_USE_VERSION 35
#include <fuse.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int root; /* of the backing folder */

static const char *relative(const char *path)
{
	return path[1] ? path + 1 : ".";
}

static int result(int failed)
{
	return failed ? -errno : 0;
}

static int pf_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
	if (fi)
		return result(fstat((int)fi->fh, st));
	return result(fstatat(root, relative(path), st, AT_SYMLINK_NOFOLLOW));
}

static int pf_readdir(const char *path, void *buf, fuse_fill_dir_t fill, off_t off,
		      struct fuse_file_info *fi, enum fuse_readdir_flags flags)
{
	int fd = openat(root, relative(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	(void)off;
	(void)fi;
	(void)flags;
	if (!d)
		return -errno;
	for (struct dirent *e; (e = readdir(d));) {
		struct stat st = { .st_ino = e->d_ino, .st_mode = (mode_t)e->d_type << 12 };

		if (fill(buf, e->d_name, &st, 0, 0))
			break;
	}
	closedir(d);
	return 0;
}

static int pf_open(const char *path, struct fuse_file_info *fi)
{
	int fd = openat(root, relative(path), fi->flags | O_CLOEXEC);

	fi->fh = (uint64_t)fd;
	return result(fd < 0);
}

static int pf_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
	int fd = openat(root, relative(path), fi->flags | O_CREAT | O_CLOEXEC, mode);

	fi->fh = (uint64_t)fd;
	return result(fd < 0);
}

static int pf_release(const char *path, struct fuse_file_info *fi)
{
	(void)path;
	return result(close((int)fi->fh));
}

static int pf_read_buf(const char *path, struct fuse_bufvec **ret, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	struct fuse_bufvec *v = malloc(sizeof(*v));

	(void)path;
	if (!v)
		return -ENOMEM;
	*v = FUSE_BUFVEC_INIT(size);
	v->buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	v->buf[0].fd = (int)fi->fh;
	v->buf[0].pos = off;
	*ret = v;
	return 0;
}

static int pf_write_buf(const char *path, struct fuse_bufvec *in, off_t off,
			struct fuse_file_info *fi)
{
	struct fuse_bufvec out = FUSE_BUFVEC_INIT(fuse_buf_size(in));

	(void)path;
	out.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	out.buf[0].fd = (int)fi->fh;
	out.buf[0].pos = off;
	return (int)fuse_buf_copy(&out, in, FUSE_BUF_SPLICE_NONBLOCK);
}

static int pf_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
	int fd = fi ? (int)fi->fh : openat(root, relative(path), O_WRONLY | O_CLOEXEC);
	int err = result(fd < 0 || ftruncate(fd, size));

	if (!fi && fd >= 0)
		close(fd);
	return err;
}

static int pf_fsync(const char *path, int datasync, struct fuse_file_info *fi)
{
	(void)path;
	return result(datasync ? fdatasync((int)fi->fh) : fsync((int)fi->fh));
}

static int pf_mkdir(const char *path, mode_t mode)
{
	return result(mkdirat(root, relative(path), mode));
}

static int pf_unlink(const char *path)
{
	return result(unlinkat(root, relative(path), 0));
}

static int pf_rmdir(const char *path)
{
	return result(unlinkat(root, relative(path), AT_REMOVEDIR));
}

static int pf_rename(const char *from, const char *to, unsigned int flags)
{
	return flags ? -EINVAL : result(renameat(root, relative(from), root, relative(to)));
}

static const struct fuse_operations operations = {
	.getattr = pf_getattr,
	.readdir = pf_readdir,
	.open = pf_open,
	.create = pf_create,
	.release = pf_release,
	.read_buf = pf_read_buf,
	.write_buf = pf_write_buf,
	.truncate = pf_truncate,
	.fsync = pf_fsync,
	.mkdir = pf_mkdir,
	.unlink = pf_unlink,
	.rmdir = pf_rmdir,
	.rename = pf_rename,
};

int main(int argc, char **argv)
{
	if (argc < 3)
		return fputs("usage: plainfuse BACKING MOUNTPOINT [-f]\n", stderr), 2;
	root = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return perror(argv[1]), 1;
	argv[1] = argv[0];
	return fuse_main(argc - 1, argv + 1, &operations, NULL);
}
