/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pending: which objects have something to settle or to commit, so that who looks for them does not look
 * at all that is hot. What may be on the list and has nothing is taken off by the next walk; what has
 * something must be on it: whatever makes an object dirty or uncommitted notes it, under its lock.
 */
#include "store/store_impl.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#define WALKERS 4 /* threads that settle, where there are cores */

void pending_note(struct object *o)
{
	struct store *s = o->store;

	pthread_mutex_lock(&s->objects_lock);
	if (!o->in_pending) {
		TAILQ_INSERT_TAIL(&s->pending, o, pending);
		s->pending_count++;
		o->in_pending = true;
	}
	pthread_mutex_unlock(&s->objects_lock);
}

void pending_forget(struct object *o)
{
	if (!o->in_pending)
		return;
	TAILQ_REMOVE(&o->store->pending, o, pending);
	o->store->pending_count--;
	o->in_pending = false;
}

static struct object **list(struct store *s, size_t *ret_n)
{
	struct object **v, *o;
	size_t n = 0;

	pthread_mutex_lock(&s->objects_lock);
	v = calloc(s->pending_count + 1, sizeof(*v));
	if (v)
		TAILQ_FOREACH(o, &s->pending, pending) {
			o->refs++;
			v[n++] = o;
		}
	pthread_mutex_unlock(&s->objects_lock);
	*ret_n = n;
	return v;
}

/* Settled under pressure and named by no transaction yet counts too. mu held. */
static bool has_something(const struct object *o)
{
	return object_dirty_locked(o) || object_uncommitted_locked(o);
}

/* mu held. */
static bool is_due(const struct object *o, int64_t now, unsigned wait_s, unsigned which)
{
	int64_t since = o->writers || o->last_close_ms < o->dirty_since_ms ? o->dirty_since_ms :
									     o->last_close_ms;

	return !o->unlinked && (which & DIRTY_OPEN || !o->writers) &&
	       now - since >= (int64_t)wait_s * 1000 &&
	       (which & DIRTY_PUT_OFF || now >= o->resettle_ms);
}

static bool due(struct object *o, int64_t now, unsigned wait_s, unsigned which)
{
	bool yes;

	pthread_mutex_lock(&o->mu);
	yes = has_something(o);
	if (yes) {
		yes = is_due(o, now, wait_s, which);
	} else {
		pthread_mutex_lock(&o->store->objects_lock);
		pending_forget(o);
		pthread_mutex_unlock(&o->store->objects_lock);
	}
	pthread_mutex_unlock(&o->mu);
	return yes;
}

static int older(const void *a, const void *b)
{
	int64_t x = (*(struct object *const *)a)->last_close_ms;
	int64_t y = (*(struct object *const *)b)->last_close_ms;

	return (x > y) - (x < y);
}

/* One walk, shared by its threads. */
struct walk {
	struct object **v;
	size_t n;
	atomic_size_t next;
	atomic_int result; /* of fn: the first that is not 0 ends the walk */
	int (*fn)(void *arg, struct object *o);
	void *arg;
};

static void *walk_on(void *arg)
{
	struct walk *w = arg;
	size_t i;
	int r;

	while (!atomic_load(&w->result) && (i = atomic_fetch_add(&w->next, 1)) < w->n) {
		r = w->fn(w->arg, w->v[i]);
		if (r)
			atomic_store(&w->result, r);
	}
	return NULL;
}

/* A settle is one core's work and one object's; a session has many. */
static int walk_through(struct store *s, struct walk *w, size_t threads)
{
	pthread_t helper[WALKERS - 1];
	size_t helpers = 0;

	while (helpers + 1 < threads && helpers + 1 < w->n && helpers + 1 < s->processors &&
	       !pthread_create(&helper[helpers], NULL, walk_on, w))
		helpers++;
	walk_on(w);
	while (helpers)
		pthread_join(helper[--helpers], NULL);
	return atomic_load(&w->result);
}

int store_for_dirty(struct store *s, unsigned wait_s, unsigned which,
		    int (*fn)(void *arg, struct object *o), void *arg)
{
	size_t n, due_n = 0;
	struct object **v = list(s, &n);
	struct walk w = { .v = v, .fn = fn, .arg = arg };
	int64_t now = now_ms();
	int r;

	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (due(v[i], now, wait_s, which))
			v[due_n++] = v[i];
		else
			object_unref(v[i]);
	}
	qsort(v, due_n, sizeof(*v), older);
	w.n = due_n;
	r = walk_through(s, &w, which & DIRTY_THREADS ? WALKERS : 1);
	object_list_free(v, due_n);
	return r;
}
