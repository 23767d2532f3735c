/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory: allocations that fail at the Nth. Those of kvfs come here as the program is linked with
 * --wrap, those of SQLite through its own table; what other libraries ask for is given.
 */
#include "tests/fault/memory.h"
#include "tests/fault/calls.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_bool armed;
static sqlite3_mem_methods of_sqlite;

static bool refused(bool sqlite)
{
	if (!atomic_load(&armed) || (calls->kind == FAULT_SQLITE) != sqlite ||
	    (calls->kind != FAULT_MALLOC && calls->kind != FAULT_MALLOC_SOME && !sqlite) ||
	    !calls_is_it())
		return false;
	calls_note("an allocation", sqlite ? "of SQLite" : "");
	errno = ENOMEM;
	return true;
}

void memory_arm(bool on)
{
	atomic_store(&armed, on);
}

/* ---- kvfs ---- */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_reallocarray(void *p, size_t n, size_t size);
char *__real_strdup(const char *s);
void *__real_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t off);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
char *__wrap_strdup(const char *s);
int __wrap_asprintf(char **ret, const char *fmt, ...);
void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t off);

void *__wrap_malloc(size_t n)
{
	return refused(false) ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return refused(false) ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	return refused(false) ? NULL : __real_realloc(p, n);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
	return refused(false) ? NULL : __real_reallocarray(p, n, size);
}

char *__wrap_strdup(const char *s)
{
	return refused(false) ? NULL : __real_strdup(s);
}

int __wrap_asprintf(char **ret, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (refused(false))
		return -1;
	va_start(ap, fmt);
	n = vasprintf(ret, fmt, ap);
	va_end(ap);
	return n;
}

void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t off)
{
	return refused(false) ? MAP_FAILED : __real_mmap64(at, len, prot, flags, fd, off);
}

/* ---- SQLite ---- */

static void *sqlite_malloc(int n)
{
	return refused(true) ? NULL : of_sqlite.xMalloc(n);
}

static void *sqlite_realloc(void *p, int n)
{
	return refused(true) ? NULL : of_sqlite.xRealloc(p, n);
}

void memory_init(void)
{
	sqlite3_mem_methods m;

	if (sqlite3_config(SQLITE_CONFIG_GETMALLOC, &of_sqlite) != SQLITE_OK)
		abort();
	m = of_sqlite;
	m.xMalloc = sqlite_malloc;
	m.xRealloc = sqlite_realloc;
	if (sqlite3_config(SQLITE_CONFIG_MALLOC, &m) != SQLITE_OK)
		abort();
}
