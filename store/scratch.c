/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scratch: large private buffers for windows of fills and settles. Fresh ones cost a page fault and
 * a cleared page each time (8 MiB: about 1 ms), so a few are kept; more than a few would be memory
 * that no budget knows of.
 */
#include "store/store_impl.h"

#include <stdlib.h>

#define KEEP 4

struct scratch {
	pthread_mutex_t lock;
	void *kept[KEEP];
	unsigned n;
};

struct scratch *scratch_new(void)
{
	struct scratch *p = calloc(1, sizeof(*p));

	if (p)
		pthread_mutex_init(&p->lock, NULL);
	return p;
}

void scratch_free(struct scratch *p)
{
	if (!p)
		return;
	while (p->n)
		io_buffer_free(p->kept[--p->n], SCRATCH_SIZE);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

void *scratch_get(struct store *s)
{
	struct scratch *p = s->scratch;
	void *buf = NULL;

	pthread_mutex_lock(&p->lock);
	if (p->n)
		buf = p->kept[--p->n];
	pthread_mutex_unlock(&p->lock);
	return buf ? buf : io_buffer_alloc(SCRATCH_SIZE);
}

void scratch_put(struct store *s, void *buf)
{
	struct scratch *p = s->scratch;

	if (!buf)
		return;
	pthread_mutex_lock(&p->lock);
	if (p->n < KEEP) {
		p->kept[p->n++] = buf;
		buf = NULL;
	}
	pthread_mutex_unlock(&p->lock);
	if (buf)
		io_buffer_free(buf, SCRATCH_SIZE);
}
