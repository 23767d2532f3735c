/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kvfs under the model checker: a fresh store, run directory and mount point in a folder, mounted,
 * unmounted and killed through the program itself, as a user would.
 */
#ifndef MODEL_DAEMON_H
#define MODEL_DAEMON_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DAEMON_ROOM 1024

struct daemon {
	char folder[DAEMON_ROOM - 128];
	char options[512];
	pid_t pid; /* 0: none */
};

/* Runs it to its end, with what it says in the log, or nowhere; its exit status, or -1. */
static int run_program(const char *log, const char *const argv[])
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		int fd = open(log ? log : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0644);

		if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
			_exit(126);
		execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *daemon_path(const struct daemon *d, const char *name)
{
	static char room[4][DAEMON_ROOM];
	static unsigned turn;
	char *p = room[turn++ % 4];

	snprintf(p, DAEMON_ROOM, "%s/%s", d->folder, name);
	return p;
}

/* What the program said last. */
static void daemon_last_words(const struct daemon *d, char *to, size_t room)
{
	FILE *f = fopen(daemon_path(d, "log"), "r");

	snprintf(to, room, "nothing");
	while (f && fgets(to, (int)room, f))
		to[strcspn(to, "\n")] = '\0';
	if (f)
		fclose(f);
}

/* The pid, from the status file: the program that mounted has long gone. */
static pid_t daemon_ask_pid(const struct daemon *d)
{
	FILE *f = fopen(daemon_path(d, "mnt/.kvfs/status"), "r");
	char line[4096];
	int pid = 0;

	while (f && !pid && fgets(line, sizeof line, f)) {
		const char *at = strstr(line, "\"pid\":");

		if (at)
			pid = atoi(at + strlen("\"pid\":"));
	}
	if (f)
		fclose(f);
	return pid;
}

static bool daemon_mount(struct daemon *d)
{
	char options[sizeof d->options + DAEMON_ROOM];
	const char *argv[] = {
		getenv("KVFS"), "mount", daemon_path(d, "store"), daemon_path(d, "mnt"), "-o",
		options,        NULL
	};

	snprintf(options, sizeof options, "rundir=%s/run,%s", d->folder, d->options);
	if (run_program(daemon_path(d, "log"), argv) != 0)
		return false;
	d->pid = daemon_ask_pid(d);
	return d->pid != 0;
}

/* Gone, or waiting for somebody to take note; its other threads too, for as long as one of them has
 * /dev/fuse open the mount is alive. */
static bool process_gone(pid_t pid)
{
	char path[64], stat_line[512] = "";
	struct stat tasks;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	f = fopen(path, "r");
	if (!f)
		return true;
	if (!fgets(stat_line, sizeof stat_line, f))
		stat_line[0] = '\0';
	fclose(f);
	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	/* A directory for each thread, besides the two links of its own. */
	return !stat_line[0] ||
	       (strstr(stat_line, ") Z ") && (stat(path, &tasks) < 0 || tasks.st_nlink <= 3));
}

static bool process_wait(pid_t pid, int seconds)
{
	struct timespec pause = { .tv_nsec = 1000000 };

	for (int k = 0; k < seconds * 1000 && !process_gone(pid); k++)
		nanosleep(&pause, NULL);
	return process_gone(pid);
}

static bool daemon_umount(struct daemon *d)
{
	const char *argv[] = { getenv("KVFS"), "umount", daemon_path(d, "mnt"), NULL };

	if (run_program(daemon_path(d, "log"), argv) != 0 || !process_wait(d->pid, 30))
		return false;
	d->pid = 0;
	return true;
}

/* The last close is heard of late, and punching the image's tail then moves its mtime for a moment: a kill in that
 * moment takes it for the content's, over one that was set (known, DESIGN.md). Not the model's to find again. */
#define RELEASE_US 50000

static bool daemon_kill(struct daemon *d)
{
	usleep(RELEASE_US);
	if (kill(d->pid, SIGKILL) < 0 || !process_wait(d->pid, 30))
		return false;
	d->pid = 0;
	return true;
}

/* Whatever state it is in: nothing of it is left. */
static void daemon_remove(struct daemon *d)
{
	const char *remove[] = { "rm", "-rf", "--one-file-system", d->folder, NULL };

	if (d->pid && !process_gone(d->pid))
		daemon_kill(d);
	for (const char *const *name = (const char *const[]){ "mnt", "run/small", "run", NULL };
	     *name; name++) {
		const char *path = daemon_path(d, *name);
		const char *umount[] = { "sh", "-c", "umount -l \"$0\"", path, NULL };

		run_program(NULL, umount);
	}
	run_program(NULL, remove);
}

#endif
