/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line on a terminal that says how far a command is, shown only once it has run for a while.
 */
#include "mount/mount.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_S 2.0
#define REDRAW_S   0.2

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

void progress_begin(struct progress *p, const char *verb, bool quiet)
{
	*p = (struct progress){
		.verb = verb,
		.unit = "files",
		.shown = !quiet && isatty(STDERR_FILENO),
		.started = now(),
	};
}

static void progress_draw(struct progress *p, double t)
{
	char done[SIZE_TEXT], whole[SIZE_TEXT], rate[SIZE_TEXT], bar[BAR_TEXT];

	size_format((uint64_t)((double)p->bytes / (t - p->started)), rate);
	size_format(p->bytes, done);
	/* "\33[K": what the last line had more. */
	if (p->total_files)
		fprintf(stderr, "\r%s %s %lu of %lu %s, %s of %s, %s/s\33[K", p->verb,
			bar_format(p->bytes, p->total_bytes, bar), (unsigned long)p->files,
			(unsigned long)p->total_files, p->unit, done,
			size_format(p->total_bytes, whole), rate);
	else
		fprintf(stderr, "\r%s %lu %s, %s, %s/s\33[K", p->verb, (unsigned long)p->files,
			p->unit, done, rate);
	fflush(stderr);
	p->drawn = true;
	p->last = t;
}

void progress_add(struct progress *p, unsigned files, uint64_t bytes)
{
	double t;

	p->files += files;
	p->bytes += bytes;
	if (!p->shown)
		return;
	t = now();
	if (t - p->started >= PATIENCE_S && t - p->last >= REDRAW_S)
		progress_draw(p, t);
}

void progress_clear(struct progress *p)
{
	if (!p->drawn)
		return;
	fputs("\r\33[K", stderr);
	p->drawn = false;
	p->last = 0;
}

const char *bar_format(uint64_t used, uint64_t whole, char buf[static BAR_TEXT])
{
	const unsigned width = BAR_TEXT - 3;
	unsigned full = 0;

	if (whole)
		full = used >= whole ? width : (unsigned)((unsigned __int128)used * width / whole);
	buf[0] = '[';
	memset(buf + 1, '#', full);
	memset(buf + 1 + full, '.', width - full);
	buf[width + 1] = ']';
	buf[width + 2] = '\0';
	return buf;
}
