/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock: the namespace lock, waiting, clocks. Giving the lock up is also the moment when the store
 * is told of the files that went away under it.
 */
#include "fs/state.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

void ns_lock(struct fs *fs)
{
	pthread_mutex_lock(&fs->lock);
}

/* The file has no name, no handle and no user in the kernel. */
static void discard(struct fs *fs, struct inode *i)
{
	struct object *o = i->file.o;

	if (!o && object_get(fs->store, i->ino, i->a.uid, &o))
		return; /* committed as deleted already, and not in memory */
	if (i->file.pin_held)
		object_handle_end(o, false, false);
	object_discard(o);
	object_unref(o);
}

void ns_unlock(struct fs *fs)
{
	struct inode *chain;

	inode_let_go(fs);
	chain = fs->discards;
	fs->discards = NULL;
	pthread_mutex_unlock(&fs->lock);
	if (!chain)
		return;
	for (struct inode *i = chain; i; i = i->discard_next)
		discard(fs, i);
	ns_lock(fs);
	while (chain) {
		struct inode *i = chain;

		chain = i->discard_next;
		i->file.o = NULL;
		i->file.pin_held = false;
		inode_put(fs, i);
	}
	ns_unlock(fs);
}

bool ns_wait(struct fs *fs, pthread_cond_t *cond, int timeout_ms)
{
	if (timeout_ms >= 0)
		return cond_wait_ms(cond, &fs->lock, timeout_ms);
	pthread_cond_wait(cond, &fs->lock);
	return true;
}

bool cond_wait_ms(pthread_cond_t *cond, pthread_mutex_t *lock, int timeout_ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += timeout_ms / 1000;
	t.tv_nsec += timeout_ms % 1000 * 1000000L;
	if (t.tv_nsec >= 1000000000) {
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	return pthread_cond_timedwait(cond, lock, &t) != ETIMEDOUT;
}

void cond_init_monotonic(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

int64_t clock_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

struct timespec clock_wall(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME_COARSE, &t);
	return t;
}

void fs_log(struct fs *fs, int level, const char *fmt, ...)
{
	char line[512];
	va_list ap;

	if (!fs->opt.log)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	fs->opt.log(fs->opt.log_arg, level, line);
}
