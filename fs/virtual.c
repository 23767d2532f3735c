/* SPDX-License-Identifier: Apache-2.0 */
/*
 * virtual: the directory .kvfs in the root with the files status and metrics. It is found by name
 * and never listed, so cp, du and rsync pass it by. A file's text is made when it is opened.
 */
#include "fs/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static const struct node {
	uint64_t ino, parent;
	const char *name;
	char *(*text)(struct fs *fs);
} nodes[] = {
	{ INO_KVFS, INO_ROOT, ".kvfs", NULL },
	{ INO_STATUS, INO_KVFS, "status", fs_status_json },
	{ INO_METRICS, INO_KVFS, "metrics", fs_metrics_text },
};
#define NODES (sizeof(nodes) / sizeof(nodes[0]))

static const struct node *node_of(uint64_t ino)
{
	for (size_t k = 0; k < NODES; k++)
		if (nodes[k].ino == ino)
			return &nodes[k];
	return NULL;
}

void virtual_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = { .entry_timeout = ENTRY_TIMEOUT };

	for (size_t k = 0; k < NODES; k++) {
		if (nodes[k].parent != parent || strcmp(nodes[k].name, name))
			continue;
		e.ino = nodes[k].ino;
		e.generation = 1;
		e.attr_timeout = ENTRY_TIMEOUT;
		attr_stat_virtual(req_fs(req), e.ino, &e.attr);
	}
	fuse_reply_entry(req, &e);
}

void virtual_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	const struct node *n = node_of(ino);
	struct fs *fs = req_fs(req);
	struct handle *h;
	int r = -ENOMEM;

	if (!n || !n->text) {
		fuse_reply_err(req, n ? EISDIR : ESTALE);
		return;
	}
	if ((fi->flags & O_ACCMODE) != O_RDONLY) {
		fuse_reply_err(req, EPERM);
		return;
	}
	h = handle_new(HANDLE_TEXT, NULL);
	if (h) {
		h->text = n->text(fs);
		h->text_len = h->text ? strlen(h->text) : 0;
		if (h->text)
			r = handle_add(&fs->handles, h, &fi->fh);
	}
	if (r) {
		open_end(fs, h);
		fuse_reply_err(req, -r);
		return;
	}
	fi->direct_io = 1;
	fi->noflush = 1;
	if (fuse_reply_open(req, fi) != 0)
		open_end(fs, handle_take(&fs->handles, fi->fh));
}

/* Of readdirplus without node ids, so that the listing counts as no lookup. */
static size_t add_entry(fuse_req_t req, char *buf, size_t room, bool plus, const char *name,
			uint64_t ino, mode_t mode, off_t next)
{
	struct fuse_entry_param e = { .attr = { .st_ino = ino, .st_mode = mode } };

	return plus ? fuse_add_direntry_plus(req, buf, room, name, &e, next) :
		      fuse_add_direntry(req, buf, room, name, &e.attr, next);
}

void virtual_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
	char buf[1024];
	size_t used = 0, room = size < sizeof(buf) ? size : sizeof(buf);

	for (size_t k = off > 0 ? (size_t)off : 0; k < NODES; k++) {
		size_t need;

		if (nodes[k].parent != ino)
			continue;
		need = add_entry(req, buf + used, room - used, plus, nodes[k].name, nodes[k].ino,
				 S_IFREG, (off_t)k + 1);
		if (need > room - used)
			break;
		used += need;
	}
	fuse_reply_buf(req, buf, used);
}
