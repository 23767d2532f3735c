/* SPDX-License-Identifier: Apache-2.0 */
/* trace: see trace.h. */
#include "tests/fault/trace.h"

#include <stdio.h>
#include <string.h>

struct trace *trace;

static struct {
	char folder[TRACE_PATH];
	struct {
		char path[TRACE_PATH];
		int file;
	} name[TRACE_FILES]; /* what has one */
	int n;
} names;

void trace_init(const char *folder)
{
	snprintf(names.folder, sizeof(names.folder), "%s", folder);
}

static struct step *add_step(enum step_type type, int file)
{
	struct step *s = &trace->step[trace->n];

	if (trace->n == TRACE_STEPS) {
		trace->overflow = true;
		return NULL;
	}
	trace->n++;
	*s = (struct step){ .type = type, .file = file };
	return s;
}

static int find(const char *path)
{
	for (int i = 0; i < names.n; i++)
		if (!strcmp(names.name[i].path, path))
			return i;
	return -1;
}

static int number_of(const char *path)
{
	int i = find(path);

	return i >= 0 ? names.name[i].file : strcmp(path, names.folder) ? -1 : 0;
}

/* Says where the name is. */
static void set_name(struct step *s, const char *path)
{
	const char *slash = strrchr(path, '/');
	char dir[TRACE_PATH];

	snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
	s->dir = number_of(dir);
	snprintf(s->name, sizeof(s->name), "%.23s", slash + 1);
}

int trace_open(const char *path, bool folder)
{
	int n = number_of(path);
	struct step *s;

	if (n >= 0)
		return n;
	if (trace->files + 1 == TRACE_FILES || names.n == TRACE_FILES) {
		trace->overflow = true;
		return -1;
	}
	s = add_step(STEP_MAKE, trace->files + 1);
	if (!s)
		return -1;
	set_name(s, path);
	s->folder = folder;
	snprintf(names.name[names.n].path, TRACE_PATH, "%s", path);
	names.name[names.n++].file = ++trace->files;
	return trace->files;
}

void trace_remove(const char *path)
{
	int i = find(path);
	struct step *s = i < 0 ? NULL : add_step(STEP_REMOVE, names.name[i].file);

	if (!s)
		return;
	set_name(s, path);
	names.name[i] = names.name[--names.n];
}

void trace_step(enum step_type type, int file, uint64_t off, uint64_t len, const void *data)
{
	struct step *s;

	if (data && trace->used + len > TRACE_DATA) {
		trace->overflow = true;
		return;
	}
	s = add_step(type, file);
	if (!s)
		return;
	s->off = off;
	s->len = len;
	s->data = trace->used;
	if (data) {
		memcpy(trace->data + trace->used, data, len);
		trace->used += len;
	}
}
