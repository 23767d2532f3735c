/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memcg: pages of an image are charged to the memory cgroup of whoever touches them first. An
 * opener that would be killed or slowed down for pages of kvfs must not be let in to write unseen:
 * one in a cgroup with a limit that does not bind the daemon too. Most cgroups have none.
 */
#include "fs/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEEP_MS 1000
/* Limits of cgroup v1 from here on are none: it rounds "no limit" down to pages. */
#define NO_LIMIT (1ull << 62)

struct hierarchy {
	const char *top;
	const char *const *limit; /* files, NULL after the last */
};

static const char *const limits_v1[] = { "memory.limit_in_bytes", NULL };
static const char *const limits_v2[] = { "memory.max", "memory.high", NULL };
static const struct hierarchy v1 = { "/sys/fs/cgroup/memory", limits_v1 };
static const struct hierarchy v2 = { "/sys/fs/cgroup", limits_v2 };

/* The memory cgroup: the line of that controller, or that of the unified hierarchy. */
static bool read_cgroup(const char *path, char *ret, size_t size)
{
	char line[MEMCG_PATH];
	FILE *f = fopen(path, "re");

	if (!f)
		return false;
	ret[0] = '\0';
	while (fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');

		line[strcspn(line, "\n")] = '\0';
		if (!colon || !strchr(colon + 1, ':'))
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

/* Where there is no such file, nothing can be limited there. */
static bool has_limit(const struct hierarchy *h, const char *path)
{
	char name[MEMCG_PATH + 64], value[32];

	for (int k = 0; h->limit[k]; k++) {
		FILE *f;

		snprintf(name, sizeof(name), "%s%s/%s", h->top, path, h->limit[k]);
		f = fopen(name, "re");
		if (!f && errno == ENOENT)
			continue;
		value[0] = '\0';
		if (f && !fgets(value, sizeof(value), f))
			value[0] = '\0';
		if (f)
			fclose(f);
		if (!value[0] || (strncmp(value, "max", 3) && strtoull(value, NULL, 10) < NO_LIMIT))
			return true;
	}
	return false;
}

static bool is_there(const struct hierarchy *h, const char *path)
{
	char name[MEMCG_PATH + 64];

	snprintf(name, sizeof(name), "%s%s/cgroup.procs", h->top, path);
	return access(name, F_OK) == 0;
}

/* The cgroup is the other one or above it. */
static bool holds(const char *path, const char *other)
{
	size_t len = strlen(path);

	return !strncmp(path, other, len) && (!other[len] || other[len] == '/');
}

/* No cgroup from this one up to the first that has the daemon too is limited. A line names one by its
 * place below our own namespace's top; what lies elsewhere nobody can tell. */
static bool is_free(const char *own, const char *line)
{
	const struct hierarchy *h = strncmp(line, "0::", 3) ? &v1 : &v2;
	const char *mine = strchr(strchr(own, ':') + 1, ':') + 1;
	char path[MEMCG_PATH];

	snprintf(path, sizeof(path), "%s", strchr(strchr(line, ':') + 1, ':') + 1);
	if (!strcmp(path, mine))
		return true;
	if (path[0] != '/' || strstr(path, "/..") || !is_there(h, path))
		return false;
	if (!strcmp(path, "/"))
		path[0] = '\0';
	while (!holds(path, mine)) {
		if (has_limit(h, path))
			return false;
		*strrchr(path, '/') = '\0';
	}
	return true;
}

/* Remembered for a while, so that an open does not read the files of a whole path. */
static bool is_free_cached(struct fs *fs, const char *line)
{
	struct memcg *m = &fs->memcg;
	int64_t now = clock_ms();
	unsigned hash = 5381;
	struct memcg_path *p;
	bool known, is;

	for (const char *c = line; *c; c++)
		hash = hash * 33 + (unsigned char)*c;
	p = &m->path[hash % MEMCG_PATHS];
	pthread_mutex_lock(&m->lock);
	known = now < p->until_ms && !strcmp(p->line, line);
	is = known && p->is_free;
	pthread_mutex_unlock(&m->lock);
	if (known)
		return is;
	is = is_free(m->own, line);
	pthread_mutex_lock(&m->lock);
	snprintf(p->line, sizeof(p->line), "%s", line);
	p->is_free = is;
	p->until_ms = now + KEEP_MS;
	pthread_mutex_unlock(&m->lock);
	return is;
}

static bool judge(struct fs *fs, pid_t pid)
{
	char path[64], its[MEMCG_PATH];

	/* A kernel without cgroups charges nobody. */
	if (!fs->memcg.own[0])
		return true;
	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
	return read_cgroup(path, its, sizeof(its)) && is_free_cached(fs, its);
}

bool memcg_is_ours(struct fs *fs, pid_t pid)
{
	struct memcg *m = &fs->memcg;
	unsigned k = (unsigned)pid % MEMCG_CACHE;
	int64_t now = clock_ms();
	bool known, ours = false;

	/* A process of another pid namespace has no number here. */
	if (pid <= 0)
		return false;
	pthread_mutex_lock(&m->lock);
	known = m->cache[k].pid == pid && now < m->cache[k].until_ms;
	if (known)
		ours = m->cache[k].ours;
	pthread_mutex_unlock(&m->lock);
	if (known)
		return ours;
	ours = judge(fs, pid);
	pthread_mutex_lock(&m->lock);
	m->cache[k].pid = pid;
	m->cache[k].ours = ours;
	m->cache[k].until_ms = now + KEEP_MS;
	pthread_mutex_unlock(&m->lock);
	return ours;
}
