/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics: the status in the text format of Prometheus.
 */
#include "fs/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void head(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP kvfs_%s %s\n# TYPE kvfs_%s %s\n", name, help, name, type);
}

static void gauge(FILE *f, const char *name, const char *help, uint64_t value)
{
	head(f, name, "gauge", help);
	fprintf(f, "kvfs_%s %" PRIu64 "\n", name, value);
}

static void counter(FILE *f, const char *name, const char *help, uint64_t value)
{
	head(f, name, "counter", help);
	fprintf(f, "kvfs_%s %" PRIu64 "\n", name, value);
}

static void ratio(FILE *f, const char *name, const char *help, double value)
{
	head(f, name, "gauge", help);
	fprintf(f, "kvfs_%s %.6f\n", name, value);
}

static void tiers(FILE *f, const struct store_status *s)
{
	const struct store_tier *t[] = { &s->hot, &s->warm, &s->cold };

	head(f, "tier_bytes", "gauge", "Bytes in the tier.");
	for (int k = 0; k < 3; k++)
		fprintf(f, "kvfs_tier_bytes{tier=\"%s\"} %" PRIu64 "\n",
			tier_name((enum object_tier)k), t[k]->bytes);
	head(f, "tier_budget_bytes", "gauge", "Bytes the tier may take; 0: no limit.");
	for (int k = 0; k < 3; k++)
		fprintf(f, "kvfs_tier_budget_bytes{tier=\"%s\"} %" PRIu64 "\n",
			tier_name((enum object_tier)k), t[k]->budget);
	gauge(f, "hot_files", "Images in the hot tier.", s->hot.files);
}

static void sizes(FILE *f, const struct fs_status *st)
{
	const struct store_status *s = &st->store;

	gauge(f, "logical_bytes", "Bytes of all committed files, holes not counted.",
	      s->logical_bytes);
	gauge(f, "unique_bytes", "Raw bytes of distinct chunks.", s->unique_bytes);
	gauge(f, "stored_bytes", "Encoded bytes of distinct chunks.", s->stored_bytes);
	ratio(f, "dedup_ratio", "Logical over unique bytes.",
	      status_ratio(s->logical_bytes, s->unique_bytes));
	ratio(f, "compression_ratio", "Unique over stored bytes.",
	      status_ratio(s->unique_bytes, s->stored_bytes));
	gauge(f, "dirty_bytes", "Bytes in images that are not in a segment.", s->dirty_bytes);
	gauge(f, "unsettled_bytes", "0: a power cut loses nothing.", st->unsettled_bytes);
	gauge(f, "unsettled_files", "Files a power cut would set back.", st->unsettled_files);
	gauge(f, "pinned_bytes", "Bytes of images that openers or mappings hold.", s->pinned_bytes);
	gauge(f, "chunks", "Distinct chunks.", s->chunks);
	gauge(f, "chunks_loaded", "0: more chunks are still being read from meta.db.", s->loaded);
	gauge(f, "segments", "Segment files.", s->segments);
	gauge(f, "dead_bytes", "Bytes that segments occupy and nothing uses.", s->gc.dead_bytes);
	gauge(f, "index_bytes", "Memory of the dedup index.", s->index.bytes);
	gauge(f, "index_budget_bytes", "Memory it may take.", s->index.budget);
	gauge(f, "index_entries", "Chunks that dedup finds.", s->index.entries);
}

static void counters(FILE *f, const struct fs_status *st)
{
	const struct store_status *s = &st->store;

	counter(f, "settled_bytes_total", "Bytes settled since mount.", s->settled_bytes_total);
	counter(f, "filled_bytes_total", "Bytes filled into images since mount.",
		s->filled_bytes_total);
	counter(f, "dedup_bytes_total", "Bytes found to be stored already since mount.",
		s->dedup_bytes_total);
	counter(f, "index_replaced_total",
		"Entries of the dedup index that were replaced since mount, as it was full.",
		s->index.replaced);
	counter(f, "damaged_reads_total", "Reads answered EIO for damage since mount.",
		s->damaged_reads_total);
	counter(f, "evicted_files_total", "Files evicted since mount.", s->evicted_files_total);
	counter(f, "gc_moved_bytes_total", "Bytes copied by compaction since mount.",
		s->gc.moved_bytes_total);
	counter(f, "gc_freed_bytes_total",
		"Bytes of segments removed by compaction since mount, those copied among them.",
		s->gc.freed_bytes_total);
	counter(f, "gc_segments_total", "Segments compacted since mount.", s->gc.segments_total);
	head(f, "requests_total", "counter", "Requests of the kernel by operation.");
	for (int k = 0; k < REQ_COUNT; k++)
		fprintf(f, "kvfs_requests_total{op=\"%s\"} %" PRIu64 "\n",
			request_name((enum request)k), st->requests[k]);
}

static void scrub(FILE *f, const struct scrub_status *s)
{
	gauge(f, "scrub_rate_bytes", "Bytes a second that the scrub may read; 0: off.", s->rate);
	ratio(f, "scrub_progress_ratio", "Part of the scrub's pass that is done; 1: none runs.",
	      status_scrubbed(s));
	gauge(f, "scrub_pass_began_seconds", "When the last pass began, since 1970; 0: never.",
	      (uint64_t)s->began);
	gauge(f, "scrub_pass_ended_seconds", "When the last whole pass ended, likewise.",
	      (uint64_t)s->ended);
	counter(f, "scrub_bytes_total", "Bytes the scrub has read since mount.", s->bytes_total);
	counter(f, "scrub_chunks_total", "Chunks likewise.", s->chunks_total);
	counter(f, "scrub_damaged_total", "Damaged chunks the scrub has found since mount.",
		s->damaged_total);
}

static void state(FILE *f, const struct fs_status *st)
{
	gauge(f, "uptime_seconds", "Time since mount.", st->uptime_s);
	gauge(f, "passthrough", "1: the kernel serves hot files itself.", st->passthrough);
	gauge(f, "inodes", "Committed inodes.", st->inodes);
	gauge(f, "cached_inodes", "Inodes in memory.", st->cached_inodes);
	gauge(f, "open_handles", "Open files and directories.", st->open_handles);
	gauge(f, "commit_failing", "1: the last commit to meta.db failed.", st->commit_error != 0);
}

char *fs_metrics_text(struct fs *fs)
{
	struct fs_status st;
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		return NULL;
	status_take(fs, &st);
	head(f, "info", "gauge", "What runs.");
	fprintf(f, "kvfs_info{version=\"%s\",uuid=\"%s\"} 1\n", KVFS_VERSION, st.store.uuid);
	state(f, &st);
	tiers(f, &st.store);
	sizes(f, &st);
	scrub(f, &st.store.scrub);
	counters(f, &st);
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}
