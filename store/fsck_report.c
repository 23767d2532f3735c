/* SPDX-License-Identifier: Apache-2.0 */
/* fsck_report: what is found wrong, as the caller is told it. */
#include "store/fsck_impl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PATH_TEXT 4096
#define DEPTH_MAX 256 /* directories of a path that is shown */

const char *fsck_name(const void *name, size_t len, char ret[static FSCK_NAME_TEXT])
{
	const unsigned char *p = name;
	size_t n = 0;

	for (size_t i = 0; i < len && n + 5 < FSCK_NAME_TEXT; i++) {
		if (p[i] >= 0x20 && p[i] != 0x7f && p[i] != '\\')
			ret[n++] = (char)p[i];
		else
			n += (size_t)sprintf(ret + n, "\\%03o", p[i]);
	}
	ret[n] = 0;
	return ret;
}

/* The name that an inode has in the directory of its first name, behind a slash, ahead of what is at the end
 * of the buffer; where it begins now. */
static char *put_name(struct fsck *f, const struct fsck_inode *i, char *buf, char *at)
{
	char name[FSCK_NAME_TEXT] = "?";
	sqlite3_stmt *st;
	size_t len;

	if (!fsck_query(f, "SELECT name FROM dentries WHERE parent = ?1 AND ino = ?2", &st)) {
		sqlite3_bind_int64(st, 1, (int64_t)f->inode[i->parent].ino);
		sqlite3_bind_int64(st, 2, (int64_t)i->ino);
		if (sqlite3_step(st) == SQLITE_ROW && sqlite3_column_blob(st, 0))
			fsck_name(sqlite3_column_blob(st, 0), (size_t)sqlite3_column_bytes(st, 0),
				  name);
		sqlite3_finalize(st);
	}
	len = strlen(name);
	if ((size_t)(at - buf) < len + 1)
		return NULL;
	at -= len;
	memcpy(at, name, len);
	*--at = '/';
	return at;
}

/* NULL where its names do not lead to the root. */
static const char *path_of(struct fsck *f, uint64_t ino, char buf[static PATH_TEXT])
{
	const struct fsck_inode *i = fsck_inode_find(f, ino);
	char *at = buf + PATH_TEXT - 1;

	*at = 0;
	if (ino == 1)
		return "/";
	for (int depth = 0; i && i->ino != 1; depth++) {
		if (i->parent == NO_PARENT || depth == DEPTH_MAX)
			return NULL;
		at = put_name(f, i, buf, at);
		if (!at)
			return NULL;
		i = &f->inode[i->parent];
	}
	return i ? at : NULL;
}

void fsck_found(struct fsck *f, const struct fsck_about *about, const char *fmt, ...)
{
	char what[2048], path[PATH_TEXT];
	struct fsck_finding d = {
		.kind = about->kind,
		.ino = about->ino,
		.off = about->off,
		.len = about->len,
		.what = what,
		.repair = about->repair,
		.remedy = about->remedy,
	};
	va_list ap;

	if (about->remedy == FSCK_MENDED)
		f->ret->mended++;
	else
		f->ret->kept++;
	if (f->quiet)
		return;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	d.path = about->ino ? path_of(f, about->ino, path) : NULL;
	f->opt->found(f->opt->arg, &d);
}
