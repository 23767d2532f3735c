/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memcg: pages of an image are charged to the memory cgroup of whoever touches them first. An
 * opener in another cgroup than the daemon must not be let in to write unseen: its limit would
 * count pages of kvfs, and it would be killed for them.
 */
#include "fs/state.h"

#include <stdio.h>
#include <string.h>

#define KEEP_MS 1000

/* The memory cgroup: the line of that controller, or that of the unified hierarchy. */
static bool read_cgroup(const char *path, char *ret, size_t size)
{
	char line[512];
	FILE *f = fopen(path, "re");

	if (!f)
		return false;
	ret[0] = '\0';
	while (fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');

		if (!colon)
			continue;
		if (strstr(colon, "memory") && strstr(colon, "memory") < strchr(colon + 1, ':')) {
			snprintf(ret, size, "%s", line);
			break;
		}
		if (!strncmp(line, "0::", 3))
			snprintf(ret, size, "%s", line);
	}
	fclose(f);
	return ret[0] != '\0';
}

void memcg_init(struct fs *fs)
{
	pthread_mutex_init(&fs->memcg.lock, NULL);
	if (!read_cgroup("/proc/self/cgroup", fs->memcg.own, sizeof(fs->memcg.own)))
		fs->memcg.own[0] = '\0';
}

static bool compare(struct fs *fs, pid_t pid)
{
	char path[64], its[512];

	/* A kernel without cgroups charges nobody. */
	if (!fs->memcg.own[0])
		return true;
	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
	return read_cgroup(path, its, sizeof(its)) && !strcmp(its, fs->memcg.own);
}

bool memcg_is_ours(struct fs *fs, pid_t pid)
{
	struct memcg *m = &fs->memcg;
	unsigned k = (unsigned)pid % MEMCG_CACHE;
	int64_t now = clock_ms();
	bool known, same = false;

	/* A process of another pid namespace has no number here. */
	if (pid <= 0)
		return false;
	pthread_mutex_lock(&m->lock);
	known = m->cache[k].pid == pid && now < m->cache[k].until_ms;
	if (known)
		same = m->cache[k].same;
	pthread_mutex_unlock(&m->lock);
	if (known)
		return same;
	same = compare(fs, pid);
	pthread_mutex_lock(&m->lock);
	m->cache[k].pid = pid;
	m->cache[k].same = same;
	m->cache[k].until_ms = now + KEEP_MS;
	pthread_mutex_unlock(&m->lock);
	return same;
}
