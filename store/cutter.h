/* SPDX-License-Identifier: Apache-2.0 */
/* cutter: a window of a file becomes holes and chunks, none of which goes over from one slab to the next. */
#ifndef STORE_CUTTER_H
#define STORE_CUTTER_H

#include "store/chunker.h"
#include "store/layout.h"

struct cutter {
	struct chunker chunker; /* of the file's size */
	const struct slabs *slabs;
	const char *window;
	uint64_t off; /* of the window in the file */
	size_t len;
	bool last;        /* the content ends with the window */
	size_t at;        /* done with up to here; 0 at first */
	size_t zero_page; /* its own, as the next; 0 at first */
	size_t slab_end;
};

/*
 * The next chunk: its length, *ret_at where it begins in the window. 0: there is no whole one left up to
 * the window's end; what lies behind at is to be in the next window.
 */
size_t cutter_next(struct cutter *c, size_t *ret_at);

#endif
