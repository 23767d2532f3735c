/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout: where the slabs of a file begin, as far as its header says so. A slab is a run of bytes that
 * comes back in other files at other offsets, such as the keys of a layer.
 *
 * A layout decides where chunks end and nothing else: a header that lies costs sharing, never content.
 * What is odd in any way is no layout.
 */
#ifndef STORE_LAYOUT_H
#define STORE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define LAYOUT_SLABS    65536u /* at most; what follows is cut by content alone */
#define LAYOUT_SLAB_MIN 1024u  /* bytes: slabs that begin sooner after another are one with it */
#define LAYOUT_HEAD     (1u << 20) /* the most bytes of JSON that are looked at */

/* The starts of slabs, ascending, none twice, all within the file. All zero: none. */
struct slabs {
	uint64_t size;   /* of the file they are for */
	uint64_t head;   /* while its first so many bytes stay, so do they */
	size_t n, cap;   /* number, and what there is room for */
	uint64_t *start; /* owned */
};
void slabs_done(struct slabs *s); /* frees and empties */
/* The first start behind off; UINT64_MAX: there is none. */
uint64_t slabs_next(const struct slabs *s, uint64_t off);

/* The bytes of a file. read: all of them or a negative errno, never asked for what lies behind size. They
 * may change between two reads. */
struct layout_source {
	int (*read)(void *arg, void *buf, size_t len, uint64_t off);
	void *arg;
	uint64_t size;
};

/* Looks for the header of a safetensors file or of a slot file of llama.cpp. 0 also where there is none;
 * else -ENOMEM or what read returned, with *ret untouched. *ret is the caller's, for slabs_done(). */
int layout_find(const struct layout_source *src, struct slabs *ret);

/* The slabs of a file of so many bytes, as said; head is 0. Without any if it has no room for them or, with
 * slabs, cannot be parted so. -ENOMEM, with *ret untouched. */
struct raw_layout;
int layout_raw(const struct raw_layout *l, uint64_t size, struct slabs *ret);

#endif
