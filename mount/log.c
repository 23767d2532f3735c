/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where lines of diagnosis go: to stderr while a terminal or a service manager is there, to
 * syslog(3) in the daemon. Must never print file content, and never block on a lock that a signal
 * handler could hold: handlers do not log.
 */
#include "mount/mount.h"

#include <argp.h>

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 17)
#include <fuse_log.h>

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#define LINE_MAX_TEXT 1024

static atomic_int target = LOG_TO_TERMINAL;

/* Written by the one thread that mounts, before there are others. */
static bool held;
static char held_line[LINE_MAX_TEXT];

static const char *const level_names[] = { "emergency", "alert",  "critical", "error",
					   "warning",   "notice", "info",     "debug" };

static void log_vline(int level, const char *fmt, va_list ap)
{
	char line[LINE_MAX_TEXT];
	int to = atomic_load(&target);
	size_t len;

	vsnprintf(line, sizeof(line), fmt, ap);
	len = strlen(line);
	while (len > 0 && line[len - 1] == '\n')
		line[--len] = '\0';
	level &= LOG_PRIMASK;
	if (to == LOG_TO_SYSLOG)
		syslog(level, "%s", line);
	else if (level <= (to == LOG_TO_TERMINAL ? LOG_NOTICE : LOG_INFO))
		fprintf(stderr, "kvfs: %s: %s\n", level_names[level], line);
}

void log_line(int level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	log_vline(level, fmt, ap);
	va_end(ap);
}

void log_hook(void *arg, int level, const char *line)
{
	(void)arg;
	log_line(level, "%s", line);
}

/* The levels of libfuse are those of syslog. */
static void log_fuse(enum fuse_log_level level, const char *fmt, va_list ap)
{
	if (!held) {
		log_vline((int)level, fmt, ap);
		return;
	}
	vsnprintf(held_line, sizeof(held_line), fmt, ap);
	held_line[strcspn(held_line, "\n")] = '\0';
}

void log_open(enum log_target to)
{
	if (to == LOG_TO_SYSLOG)
		openlog("kvfs", LOG_PID, LOG_DAEMON);
	atomic_store(&target, to);
	fuse_set_log_func(log_fuse);
}

void log_hold_fuse(bool hold)
{
	held = hold;
	if (hold)
		held_line[0] = '\0';
}

const char *log_held_line(void)
{
	return held_line;
}

/* A path may hold anything, and a message is one line. */
static void put_line(const char *program, const char *fmt, va_list ap)
{
	char line[2 * PATH_MAX];

	vsnprintf(line, sizeof(line), fmt, ap);
	for (char *p = line; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	fprintf(stderr, "%s: %s\n", program, line);
}

void complain(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_line("kvfs", fmt, ap);
	va_end(ap);
}

void usage_fail(const char *program, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_line(program, fmt, ap);
	va_end(ap);
	exit(argp_err_exit_status);
}
