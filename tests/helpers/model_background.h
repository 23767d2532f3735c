/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes on beside the operations of the model checker, in a thread: files move between the tiers and
 * everything is made durable, at any moment. None of it may change what anybody sees, so it is not
 * compared, and whether it succeeds is not asked. What fails with it is found again by luck only.
 */
#ifndef MODEL_BACKGROUND_H
#define MODEL_BACKGROUND_H

#include <pthread.h>

#include "model_side.h"

struct background {
	pthread_mutex_t mounted; /* held by who needs the mount to stay, or to go */
	const struct side *kvfs;
	uint64_t state;
};

static void background_act(struct background *b)
{
	char path[PATH_ROOM];
	int fd;

	snprintf(path, sizeof path, "%s/%s", b->kvfs->top, op_paths[draw(&b->state, PATHS)]);
	switch (draw(&b->state, 8)) {
	case 0:
		fd = open(b->kvfs->top, O_RDONLY | O_DIRECTORY);
		if (fd >= 0) {
			fsync(fd);
			close(fd);
		}
		break;
	case 1:
		setxattr(path, "user.kvfs.prefetch", "1", 1, 0);
		break;
	case 2:
	case 3:
	case 4:
		setxattr(path, "user.kvfs.evict", "warm", 4, 0);
		break;
	default:
		setxattr(path, "user.kvfs.evict", "cold", 4, 0);
	}
}

static void *background_main(void *arg)
{
	struct background *b = arg;

	for (;;) {
		struct timespec pause = { .tv_nsec = (long)draw(&b->state, 5000000) };

		nanosleep(&pause, NULL);
		pthread_mutex_lock(&b->mounted);
		background_act(b);
		pthread_mutex_unlock(&b->mounted);
	}
	return NULL;
}

/* It ends with the process. */
static bool background_start(struct background *b, const struct side *kvfs, uint64_t seed)
{
	pthread_t thread;

	b->kvfs = kvfs;
	b->state = seed;
	return pthread_create(&thread, NULL, background_main, b) == 0;
}

#endif
