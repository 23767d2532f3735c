/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The signals that end a mount. They are blocked in all threads and taken by one that waits for
 * them, so no code runs in a handler.
 */
#include "mount/server.h"

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 17)
#include <fuse_lowlevel.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

static void signals_set(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGHUP);
}

void signals_block(void)
{
	sigset_t set;

	signals_set(&set);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void wake_up(int sig)
{
	(void)sig;
}

/* The session's loop looks whether it should end only when a call of the kernel is interrupted. */
static void loop_end(struct server *s)
{
	const struct timespec pause = { .tv_nsec = 20000000 };

	while (!atomic_load(&s->looped)) {
		fuse_session_exit(s->se);
		pthread_kill(s->main_thread, SIGUSR1);
		nanosleep(&pause, NULL);
	}
}

void signals_loop_ended(struct server *s)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	atomic_store(&s->looped, true);
}

/* While requests are still served: what is left to settle after the loop, when callers would have
 * to wait in vain, is then next to nothing. */
static void settle_first(const struct server *s)
{
	int fd = open(s->point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return;
	if (fsync(fd) < 0)
		log_line(LOG_ERR, "%s: not everything could be made durable: %s", s->point,
			 strerror(errno));
	close(fd);
}

static void *signal_main(void *arg)
{
	struct server *s = arg;
	sigset_t set;
	int sig;

	signals_set(&set);
	while (sigwait(&set, &sig) == 0) {
		/* The end of the loop is told by one of the signals too. */
		if (atomic_load(&s->looped))
			break;
		log_line(LOG_NOTICE, "%s: signal %d: settling and unmounting", s->point, sig);
		settle_first(s);
		loop_end(s);
	}
	return NULL;
}

int signals_begin(struct server *s)
{
	struct sigaction wake = { .sa_handler = wake_up };
	int r;

	s->main_thread = pthread_self();
	sigaction(SIGUSR1, &wake, NULL);
	r = pthread_create(&s->signal_thread, NULL, signal_main, s);
	s->signal_thread_runs = r == 0;
	return -r;
}

void signals_end(struct server *s)
{
	if (!s->signal_thread_runs)
		return;
	pthread_kill(s->signal_thread, SIGTERM);
	pthread_join(s->signal_thread, NULL);
	s->signal_thread_runs = false;
}
