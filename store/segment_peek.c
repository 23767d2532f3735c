/* SPDX-License-Identifier: Apache-2.0 */
/* segment_peek: headers of a segment without the payloads between them. */
#include "store/segment_impl.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WINDOW ((size_t)16 << 10)

struct segset_peek {
	struct segset *s;
	struct read_file *file;
	uint32_t n;
	uint64_t size;
	uint8_t *buf; /* WINDOW bytes: of the file from off on */
	uint64_t off;
	size_t len;
};

int segset_peek_open(struct segset *s, uint32_t n, struct segset_peek **ret)
{
	struct segset_peek *p = calloc(1, sizeof(*p));
	struct stat st;
	int rc;

	if (!p)
		return -ENOMEM;
	p->s = s;
	p->n = n;
	p->buf = io_buffer_alloc(WINDOW);
	rc = p->buf ? read_file_get(s, n, &p->file) : -ENOMEM;
	if (!rc && fstat(p->file->fd, &st))
		rc = -errno;
	if (rc) {
		segset_peek_close(p);
		return rc;
	}
	p->size = (uint64_t)st.st_size;
	*ret = p;
	return 0;
}

void segset_peek_close(struct segset_peek *p)
{
	if (!p)
		return;
	if (p->file)
		read_file_put(p->s, p->file);
	io_buffer_free(p->buf, WINDOW);
	free(p);
}

uint64_t segset_peek_size(const struct segset_peek *p)
{
	return p->size;
}

/* Points at 64 bytes at off. -EBADMSG: the file ends before; -EIO. */
static int look(struct segset_peek *p, uint64_t off, const uint8_t **ret)
{
	const struct io_ops *io = p->s->io;
	size_t need = sizeof(struct record_header);

	if (off < p->off || off + need > p->off + p->len) {
		ssize_t n;

		p->off = align_down(off);
		p->len = 0;
		do
			n = io->pread(io->arg, p->file->fd, p->buf, WINDOW, p->off);
		while (n == -EINTR);
		if (n < 0)
			return (int)n;
		p->len = (size_t)n;
	}
	if (off + need > p->off + p->len)
		return -EBADMSG;
	*ret = p->buf + (off - p->off);
	return 0;
}

int segset_peek_segment(struct segset_peek *p, char ret_uuid[static 37])
{
	static const uint8_t zeros[sizeof(struct segment_header)];
	struct segment_header h;
	const uint8_t *at;
	int rc = look(p, 0, &at);

	ret_uuid[0] = 0;
	if (rc)
		return rc;
	memcpy(&h, at, sizeof(h));
	memcpy(ret_uuid, h.uuid, 36);
	ret_uuid[36] = 0;
	if (segment_header_ok(at, p->n, p->s->uuid))
		return 0;
	if (!segment_header_ok(at, p->n, ret_uuid))
		ret_uuid[0] = 0;
	return memcmp(at, zeros, sizeof(zeros)) ? -EBADMSG : 1;
}

int segset_peek_record(struct segset_peek *p, uint32_t offset, struct record_info *ret)
{
	struct segment_loc loc = { p->n, offset };
	const uint8_t *at;
	uint64_t sum;
	int rc = look(p, loc_offset(loc), &at);

	return rc ? rc : record_parse(at, loc, ret, &sum);
}
