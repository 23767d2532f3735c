/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of the model checker on paths of one side: names, directories and attributes.
 */
#ifndef MODEL_NAMES_H
#define MODEL_NAMES_H

#include "model_side.h"

/* ---- Names ------------------------------------------------------------------------------------ */

static int64_t read_whole(struct side *s, int fd)
{
	ssize_t n;

	while (s->out_len < OUT_ROOM) {
		n = pread(fd, s->out + s->out_len, OUT_ROOM - s->out_len, (off_t)s->out_len);
		if (n <= 0)
			return n ? -errno : 0;
		s->out_len += (size_t)n;
	}
	return -EFBIG;
}

static int64_t side_read_all(struct side *s, const struct op *op)
{
	int fd = open(side_path(s, op->path), O_RDONLY);
	int64_t r;

	if (fd < 0)
		return -errno;
	r = read_whole(s, fd);
	return close(fd) < 0 && r == 0 ? -errno : r;
}

/* New content, as a cache writes it: in pieces, through a handle of its own. */
static int64_t side_save(struct side *s, const struct op *op)
{
	int fd = open(side_path(s, op->path), O_WRONLY | O_CREAT | O_TRUNC, 0640);
	size_t done = 0;
	ssize_t n;

	if (fd < 0)
		return -errno;
	op_content(op, s->in, op->len, 0);
	while (done < op->len) {
		n = write(fd, s->in + done, op->len - done < 100000 ? op->len - done : 100000);
		if (n < 0)
			break;
		done += (size_t)n;
	}
	return done < op->len ? (close(fd), -EIO) : result(close(fd));
}

static int64_t copy_content(int from, int to, off64_t in, size_t piece)
{
	int64_t done = 0;
	ssize_t n;

	while ((n = copy_file_range(from, &in, to, NULL, piece, 0)) > 0)
		done += n;
	return n < 0 ? -errno : done;
}

/* As cp does it, whole or from somewhere on, in one piece or in several. */
static int64_t side_copy(struct side *s, const struct op *op)
{
	int from = open(side_path(s, op->path), O_RDONLY), to;
	int64_t r;

	if (from < 0)
		return -errno;
	to = open(side_path(s, op->to), O_WRONLY | O_CREAT | O_TRUNC, 0604);
	if (to < 0)
		return close(from), -errno;
	r = copy_content(from, to, op->data & 1 ? (off64_t)op->off : 0,
			 op->data & 2 ? 400000 : SIZE_MAX_DRAWN * 4);
	close(from);
	return close(to) < 0 && r >= 0 ? -errno : r;
}

static int64_t side_truncate(struct side *s, const struct op *op)
{
	return result(truncate(side_path(s, op->path), (off_t)op->off));
}

/* Its attributes follow, as after any operation on a path. */
static int64_t side_stat(struct side *s, const struct op *op)
{
	struct stat st;

	return result(stat(side_path(s, op->path), &st));
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* Sorted, with types; each takes LIST_NAME bytes of out. */
#define LIST_NAME 32
static int64_t list_folder(struct side *s, const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	size_t n = 0;

	if (!d)
		return -errno;
	for (errno = 0; (e = readdir(d)); n++) {
		memset(s->out + n * LIST_NAME, 0, LIST_NAME);
		snprintf((char *)s->out + n * LIST_NAME, LIST_NAME, "%.20s type %d", e->d_name,
			 e->d_type);
	}
	if (errno)
		return closedir(d), -EIO;
	closedir(d);
	qsort(s->out, n, LIST_NAME, compare_names);
	s->out_len = n * LIST_NAME;
	return (int64_t)n;
}

static int64_t side_list(struct side *s, const struct op *op)
{
	return list_folder(s, side_path(s, op->path));
}

static int64_t side_unlink(struct side *s, const struct op *op)
{
	return result(unlink(side_path(s, op->path)));
}

static int64_t side_rename(struct side *s, const struct op *op)
{
	return result(renameat2(AT_FDCWD, side_path(s, op->path), AT_FDCWD, side_path(s, op->to),
				op->flags));
}

static int64_t side_link(struct side *s, const struct op *op)
{
	return result(link(side_path(s, op->path), side_path(s, op->to)));
}

static int64_t side_link_fd(struct side *s, const struct op *op)
{
	char proc[64];

	if (!s->slots[op->slot].used)
		return NOTHING;
	snprintf(proc, sizeof proc, "/proc/self/fd/%d", s->slots[op->slot].fd);
	return result(linkat(AT_FDCWD, proc, AT_FDCWD, side_path(s, op->to), AT_SYMLINK_FOLLOW));
}

/* None leaves the folder: outside of it the sides are not alike. */
static int64_t side_symlink(struct side *s, const struct op *op)
{
	static const char *const targets[] = { "a", "b", "D/a", "E", "l", "nowhere", "F/b" };

	return result(symlink(targets[op->data % 7], side_path(s, op->path)));
}

static int64_t side_readlink(struct side *s, const struct op *op)
{
	ssize_t n = readlink(side_path(s, op->path), (char *)s->out, PATH_ROOM);

	s->out_len = n > 0 ? (size_t)n : 0;
	return result(n);
}

static int64_t side_mkdir(struct side *s, const struct op *op)
{
	return result(mkdir(side_path(s, op->path), op->flags));
}

static int64_t side_rmdir(struct side *s, const struct op *op)
{
	return result(rmdir(side_path(s, op->path)));
}

/* ---- Attributes ------------------------------------------------------------------------------- */

static int64_t side_chmod(struct side *s, const struct op *op)
{
	return result(chmod(side_path(s, op->path), op->flags));
}

static int64_t side_chown(struct side *s, const struct op *op)
{
	static const unsigned owners[] = { 0, 0, 1, 65534, UINT32_MAX };

	return result(
		lchown(side_path(s, op->path), owners[op->data % 5], owners[op->data / 5 % 5]));
}

static void drawn_times(const struct op *op, struct timespec times[2])
{
	times[0] = (struct timespec){ 0, UTIME_OMIT };
	times[1] = (struct timespec){ (time_t)(op->data % TIME_SET_MAX),
				      (long)(op->data % 1000000000) };
	if (op->data % 10 == 0)
		times[1].tv_nsec = UTIME_NOW;
	if (op->data % 10 == 1)
		times[0] = times[1];
}

static int64_t side_utimens(struct side *s, const struct op *op)
{
	struct timespec times[2];

	drawn_times(op, times);
	return result(utimensat(AT_FDCWD, side_path(s, op->path), times, AT_SYMLINK_NOFOLLOW));
}

static int64_t side_futimens(struct side *s, const struct op *op)
{
	struct timespec times[2];

	drawn_times(op, times);
	return s->slots[op->slot].used ? result(futimens(s->slots[op->slot].fd, times)) : NOTHING;
}

static const char *xattr_name(const struct op *op)
{
	static const char *const names[] = { "user.a", "user.b", "user.model.c", "user.d" };

	return names[op->data % 4];
}

static int64_t side_setxattr(struct side *s, const struct op *op)
{
	size_t len = op->data / 4 % 300;

	op_content(op, s->in, len, 0);
	return result(
		lsetxattr(side_path(s, op->path), xattr_name(op), s->in, len, (int)op->flags));
}

static int64_t side_getxattr(struct side *s, const struct op *op)
{
	ssize_t n = lgetxattr(side_path(s, op->path), xattr_name(op), s->out, op->data / 4 % 300);

	s->out_len = n > 0 && op->data / 4 % 300 ? (size_t)n : 0;
	return result(n);
}

static int64_t side_removexattr(struct side *s, const struct op *op)
{
	return result(lremovexattr(side_path(s, op->path), xattr_name(op)));
}

/* The names and values of user.*, sorted, without kvfs's own. */
#define XATTR_ROOM 512
static int64_t list_xattrs(struct side *s, const char *path)
{
	char names[4096];
	ssize_t n = llistxattr(path, names, sizeof names), len;
	size_t count = 0;

	if (n < 0)
		return -errno;
	for (char *p = names; p < names + n; p += strlen(p) + 1) {
		char *to = (char *)s->out + count * XATTR_ROOM;

		if (strncmp(p, "user.", 5) || !strncmp(p, "user.kvfs.", 10))
			continue;
		memset(to, 0, XATTR_ROOM);
		snprintf(to, 32, "%.31s", p);
		len = lgetxattr(path, p, to + 32, XATTR_ROOM - 32);
		if (len < 0)
			return -errno;
		count++;
	}
	qsort(s->out, count, XATTR_ROOM, compare_names);
	s->out_len = count * XATTR_ROOM;
	return (int64_t)count;
}

static int64_t side_listxattr(struct side *s, const struct op *op)
{
	return list_xattrs(s, side_path(s, op->path));
}

#endif
