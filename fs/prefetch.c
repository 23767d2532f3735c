/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch: a reader that walks the layers of a session opens one file after the other. When it had
 * to wait for one, or finds one filled ahead, the next few in the order of their names are filled behind it.
 */
#include "fs/files.h"

#include <stdio.h>
#include <string.h>

#define NEXT 4
/* In a flat directory of very many files the next name says little, and looking costs much. */
#define DIRECTORY_LIMIT 10000

void prefetch_init(struct fs *fs)
{
	pthread_mutex_init(&fs->prefetcher.lock, NULL);
	cond_init_monotonic(&fs->prefetcher.wake);
}

void prefetch_after(struct fs *fs, uint64_t dir, const char *name)
{
	struct prefetcher *p = &fs->prefetcher;

	pthread_mutex_lock(&p->lock);
	if (p->n < PREFETCH_QUEUE) {
		struct prefetch_task *t = &p->task[(p->head + p->n++) % PREFETCH_QUEUE];

		t->dir = dir;
		snprintf(t->name, sizeof(t->name), "%s", name);
		pthread_cond_signal(&p->wake);
	}
	pthread_mutex_unlock(&p->lock);
}

static void prefetch_file(struct fs *fs, uint64_t ino)
{
	struct object *o = NULL;
	struct object_stat os;
	struct inode *i;

	ns_lock(fs);
	if (inode_load(fs, ino, &i) == 0) {
		if (!i->discarded && inode_object_load(fs, i, &o))
			o = NULL;
		inode_put(fs, i);
	}
	ns_unlock(fs);
	if (!o)
		return;
	if (object_stat(o, &os) == 0 && os.size && (os.tier != TIER_HOT || os.partial)) {
		ns_lock(fs);
		i = inode_find(fs, ino);
		if (i && S_ISREG(i->a.mode))
			i->file.prefetched = true;
		ns_unlock(fs);
		object_prefetch(o);
	}
	object_unref(o);
}

/* Keeps next sorted: the smallest names above the given one. Numbers in names count as numbers. */
static unsigned insert(const struct dirlist *l, size_t *next, unsigned n, size_t k)
{
	unsigned at = n;

	while (at > 0 && strverscmp(dirlist_name(l, k), dirlist_name(l, next[at - 1])) < 0)
		at--;
	if (at == NEXT)
		return n;
	if (n == NEXT)
		n--;
	memmove(next + at + 1, next + at, (n - at) * sizeof(*next));
	next[at] = k;
	return n + 1;
}

static void run(struct fs *fs, const struct prefetch_task *t)
{
	size_t next[NEXT];
	struct dirlist *l;
	unsigned n = 0;

	if (dirlist_get(fs, t->dir, &l))
		return;
	for (size_t k = 0; k < l->n && l->n <= DIRECTORY_LIMIT; k++)
		if (S_ISREG(l->v[k].mode) && strverscmp(dirlist_name(l, k), t->name) > 0)
			n = insert(l, next, n, k);
	for (unsigned k = 0; k < n; k++)
		prefetch_file(fs, l->v[next[k]].ino);
	dirlist_put(l);
}

static void *prefetcher(void *arg)
{
	struct fs *fs = arg;
	struct prefetcher *p = &fs->prefetcher;

	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		struct prefetch_task t;

		if (!p->n) {
			pthread_cond_wait(&p->wake, &p->lock);
			continue;
		}
		t = p->task[p->head];
		p->head = (p->head + 1) % PREFETCH_QUEUE;
		p->n--;
		pthread_mutex_unlock(&p->lock);
		run(fs, &t);
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

int prefetch_start(struct fs *fs)
{
	int r = -pthread_create(&fs->prefetcher.thread, NULL, prefetcher, fs);

	fs->prefetcher.running = r == 0;
	return r;
}

void prefetch_stop(struct fs *fs)
{
	struct prefetcher *p = &fs->prefetcher;

	if (!p->running)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	p->running = false;
}
