/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team: threads that prepare, start together, and are timed until the last is done.
 *
 * The function of a thread gets ready and calls team_start(); the clock starts when all have. It is
 * read by the first of them that goes on: the thread that waits for them may get a core last.
 */
#ifndef BENCH_TEAM_H
#define BENCH_TEAM_H

#include "tests/bench/worker.h"

#include <pthread.h>

#define TEAM_MAX 64u

struct team {
	pthread_t thread[TEAM_MAX];
	pthread_barrier_t barrier;
	pthread_mutex_t lock;
	double begin; /* 0 until the first has started; guarded by lock */
};

static inline void team_start(struct team *t)
{
	pthread_barrier_wait(&t->barrier);
	pthread_mutex_lock(&t->lock);
	if (!t->begin)
		t->begin = now();
	pthread_mutex_unlock(&t->lock);
}

/* Runs fn(arg) in n threads and waits for them; returns when the clock started. */
static inline double team_run(struct team *t, unsigned n, void *(*fn)(void *arg), void *arg)
{
	if (n > TEAM_MAX) {
		errno = EINVAL;
		die("%u threads", n);
	}
	t->begin = 0;
	pthread_mutex_init(&t->lock, NULL);
	pthread_barrier_init(&t->barrier, NULL, n);
	for (unsigned i = 0; i < n; i++) {
		errno = pthread_create(&t->thread[i], NULL, fn, arg);
		if (errno)
			die("thread");
	}
	for (unsigned i = 0; i < n; i++)
		pthread_join(t->thread[i], NULL);
	pthread_barrier_destroy(&t->barrier);
	pthread_mutex_destroy(&t->lock);
	return t->begin;
}

#endif
