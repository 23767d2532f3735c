/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle: the table of open files and directories. What the kernel holds is a number, an index into
 * the table plus one.
 */
#include "fs/files.h"

#include <errno.h>
#include <stdlib.h>

int handles_init(struct handles *t)
{
	pthread_mutex_init(&t->lock, NULL);
	return 0;
}

void handles_done(struct handles *t)
{
	free(t->slot);
	free(t->next_free);
	t->slot = NULL;
	t->next_free = NULL;
	t->size = t->used = t->free_head = 0;
	pthread_mutex_destroy(&t->lock);
}

static int grow(struct handles *t)
{
	uint32_t size = t->size ? t->size * 2 : 256;
	struct handle **slot = realloc(t->slot, size * sizeof(*slot));
	uint32_t *next;

	if (!slot)
		return -ENOMEM;
	t->slot = slot;
	next = realloc(t->next_free, size * sizeof(*next));
	if (!next)
		return -ENOMEM;
	t->next_free = next;
	for (uint32_t k = size; k-- > t->size;) {
		slot[k] = NULL;
		next[k] = t->free_head;
		t->free_head = k + 1;
	}
	t->size = size;
	return 0;
}

int handle_add(struct handles *t, struct handle *h, uint64_t *ret_fh)
{
	int r = 0;

	pthread_mutex_lock(&t->lock);
	if (!t->free_head)
		r = grow(t);
	if (r == 0) {
		uint32_t k = t->free_head - 1;

		t->free_head = t->next_free[k];
		t->slot[k] = h;
		t->used++;
		*ret_fh = k + 1u;
	}
	pthread_mutex_unlock(&t->lock);
	return r;
}

struct handle *handle_get(struct handles *t, uint64_t fh)
{
	struct handle *h = NULL;

	pthread_mutex_lock(&t->lock);
	if (fh && fh <= t->size)
		h = t->slot[fh - 1];
	pthread_mutex_unlock(&t->lock);
	return h;
}

/* The lock is held; slot k is in use. */
static struct handle *take(struct handles *t, uint32_t k)
{
	struct handle *h = t->slot[k];

	t->slot[k] = NULL;
	t->next_free[k] = t->free_head;
	t->free_head = k + 1;
	t->used--;
	return h;
}

struct handle *handle_take(struct handles *t, uint64_t fh)
{
	struct handle *h = NULL;

	pthread_mutex_lock(&t->lock);
	if (fh && fh <= t->size && t->slot[fh - 1])
		h = take(t, (uint32_t)fh - 1);
	pthread_mutex_unlock(&t->lock);
	return h;
}

struct handle *handle_take_any(struct handles *t)
{
	struct handle *h = NULL;

	pthread_mutex_lock(&t->lock);
	for (uint32_t k = 0; t->used && k < t->size && !h; k++)
		if (t->slot[k])
			h = take(t, k);
	pthread_mutex_unlock(&t->lock);
	return h;
}

uint32_t handles_used(struct handles *t)
{
	uint32_t n;

	pthread_mutex_lock(&t->lock);
	n = t->used;
	pthread_mutex_unlock(&t->lock);
	return n;
}

struct handle *handle_new(enum handle_mode mode, struct inode *i)
{
	struct handle *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->mode = mode;
	h->inode = i;
	pthread_mutex_init(&h->list_lock, NULL);
	return h;
}

void handle_free(struct handle *h)
{
	dirlist_put(h->list);
	free(h->text);
	object_unref(h->o);
	pthread_mutex_destroy(&h->list_lock);
	free(h);
}
