/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What moves files between the tiers and makes them durable beside all else, at any moment: nobody may see
 * it. A file that is in use stays, and says so.
 */
#ifndef CONCURRENT_MOVERS_H
#define CONCURRENT_MOVERS_H

#include <sys/wait.h>
#include <sys/xattr.h>

#include "concurrent_docs.h"
#include "concurrent_cuts.h"
#include "concurrent_logs.h"
#include "concurrent_slots.h"

static const char *some_path(struct worker *w)
{
	switch (draw(w, 12)) {
	case 0:
		return path_in(w, "docs");
	case 1:
		return path_in(w, "names");
	case 2:
		return path_in(w, "log.%u", w->s->phase % (LOGS_MAX / LOGS) * LOGS + draw(w, LOGS));
	case 3:
		return path_in(w, "cut.%u", draw(w, CUTS));
	case 4:
		return path_in(w, "both");
	case 5:
	case 6:
		return path_in(w, "docs/doc.%u", draw(w, STILL));
	case 7:
	case 8:
		return path_in(w, "docs/doc.%u", STILL + draw(w, DOCS - STILL));
	default:
		return path_in(w, "%s", slot_files[draw(w, files_used(w))].name);
	}
}

static void set_tier(struct worker *w, const char *path, const char *name, const char *value)
{
	at(w, "%s %s of %s", name, value, path);
	if (setxattr(path, name, value, strlen(value), 0) == 0)
		counted(w, COUNT_MOVED);
	else if (errno == EBUSY)
		counted(w, COUNT_BUSY);
	else if (errno != ENOENT)
		died(w, name, path);
}

static void sync_all(struct worker *w)
{
	int fd = open_or_die(w, path_in(w, "."), O_RDONLY | O_DIRECTORY);

	if (fd < 0)
		return;
	at(w, "fsync of the folder of all");
	if (fsync(fd) < 0)
		died(w, "fsync", "of the folder of all");
	close_file(w, fd);
}

/* The program, as an operator would. That a file is in use is no failure. */
static void run_kvfs(struct worker *w)
{
	const char *path = some_path(w), *to = draw(w, 2) ? "warm" : "cold";
	const char *evict[] = { getenv("KVFS"), "evict", "-q", "--to", to, path, NULL };
	const char *prefetch[] = { getenv("KVFS"), "prefetch", "-q", path, NULL };
	char **argv = (char **)(draw(w, 3) ? evict : prefetch);
	int status = 0, null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	pid_t pid;

	at(w, "kvfs %s of %s", argv[1], path);
	pid = vfork();
	if (pid == 0) {
		dup2(null, 1);
		dup2(null, 2);
		execv(argv[0], argv);
		_exit(127);
	}
	close(null);
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		fail(w, "fork: %s", strerrorname_np(errno));
	if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
		fail(w, "ended with status %#x", (unsigned)status);
	counted(w, WEXITSTATUS(status) ? COUNT_BUSY : COUNT_MOVED);
}

static void move_something(struct worker *w)
{
	switch (draw(w, 16)) {
	case 0:
		sync_all(w);
		break;
	case 1:
		run_kvfs(w);
		break;
	case 2:
	case 3:
		set_tier(w, some_path(w), "user.kvfs.prefetch", "1");
		break;
	case 4:
	case 5:
	case 6:
	case 7:
	case 8:
		set_tier(w, some_path(w), "user.kvfs.evict", "warm");
		break;
	default:
		set_tier(w, some_path(w), "user.kvfs.evict", "cold");
	}
	pause_us(draw(w, 5000));
}

#endif
