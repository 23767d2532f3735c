/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that all append to. A record says who wrote it, and all else follows from that, so a reader knows
 * whether it is whole; those of one writer stand in their order, none is missing or there twice. Only the
 * end may be a record that is just being written.
 */
#ifndef CONCURRENT_LOGS_H
#define CONCURRENT_LOGS_H

#include "concurrent.h"

#define LOGS       2  /* new ones in each phase */
#define LOGS_MAX   64 /* of all phases */
#define LOG_LIMIT  (20u << 20)
#define LOG_MAGIC  0x676f6c6bu
#define RECORD_MAX (2u << 20)

struct record {
	uint32_t magic, log;
	uint32_t writer, number; /* the writer's first is 1 */
	uint64_t len;            /* with this */
	uint64_t sum;            /* of what is before */
};

struct log {
	atomic_uint begun[WORKERS], acked[WORKERS];
	struct tally bytes;
	/* What it was when it was compared for the first time; nobody writes to it any more. */
	bool kept;
	uint64_t size, sum;
};

struct logs {
	struct log v[LOGS_MAX];
};

static uint64_t record_sum(const struct record *r)
{
	return pattern_mix(pattern_mix(pattern_mix(r->magic ^ (uint64_t)r->log << 32) + r->writer +
				       ((uint64_t)r->number << 32)) +
			   r->len);
}

static struct record record_of(unsigned log, unsigned writer, unsigned number)
{
	static const unsigned limits[] = { 100, 100, 5000, 5000, 70000, 300000 };
	struct record r = { LOG_MAGIC, log, writer, number, 0, 0 };
	uint64_t hash = pattern_word(record_sum(&r) | 1, 0);
	unsigned limit = hash % 64 == 0 ? RECORD_MAX : limits[hash % 6];

	r.len = sizeof r + (hash >> 16) % (limit - sizeof r);
	r.sum = record_sum(&r);
	return r;
}

static void record_fill(unsigned char *to, const struct record *r)
{
	memcpy(to, r, sizeof *r);
	pattern_fill(to + sizeof *r, r->len - sizeof *r, r->sum | 1, 0);
}

/* ---- Reading ---------------------------------------------------------------------------------- */

struct log_reader {
	unsigned log;
	int fd;
	uint64_t off;            /* of the record in file, up to which all is right */
	unsigned next[WORKERS];  /* the record that must be the writer's next */
	unsigned acked[WORKERS]; /* of each writer, before it was read */
	bool after_kill;         /* records that had not returned may have been cut short */
};

static bool is_record(const struct log_reader *l, const struct record *r)
{
	return r->magic == LOG_MAGIC && r->log == l->log && r->writer < WORKERS &&
	       r->sum == record_sum(r);
}

static _Noreturn void fail_log(struct worker *w, const struct log_reader *l, const char *what)
{
	char text[1024];
	size_t n = 0;

	for (unsigned k = 0; k < WORKERS; k++)
		n += (size_t)snprintf(text + n, sizeof text - n, " %u/%u/%u", l->next[k] - 1,
				      atomic_load(&w->logs->v[l->log].acked[k]),
				      atomic_load(&w->logs->v[l->log].begun[k]));
	fail(w, "file log.%u, offset %llu: %s; records read/returned/begun by writer:%s", l->log,
	     (unsigned long long)l->off, what, text);
}

/* How much of the record is there, up to have bytes. */
static size_t record_match(struct worker *w, const struct record *r, const unsigned char *at_,
			   size_t have)
{
	size_t n = 0;

	record_fill(w->in, r);
	if (have > r->len)
		have = r->len;
	if (!memcmp(at_, w->in, have))
		return have;
	while (n < have && at_[n] == w->in[n])
		n++;
	return n;
}

/* At the end of the file, or where a kill has cut: some record that has not returned, as far as it goes.
 * Returns its bytes. */
static size_t partial_record(struct worker *w, struct log_reader *l, const unsigned char *bytes,
			     size_t have)
{
	size_t best = 0;

	for (unsigned k = 0; k < WORKERS; k++) {
		struct record r = record_of(l->log, k, l->next[k]);
		size_t n;

		if (l->next[k] <= l->acked[k] ||
		    l->next[k] > atomic_load(&w->logs->v[l->log].begun[k]))
			continue;
		n = record_match(w, &r, bytes, have);
		best = n > best ? n : best;
	}
	return best;
}

/* One whole record at the start of bytes. 0: it goes on behind them, or is none. */
static size_t whole_record(struct worker *w, struct log_reader *l, const unsigned char *bytes,
			   size_t have)
{
	struct record r, want;
	char text[256];
	size_t n;

	if (have < sizeof r)
		return 0;
	memcpy(&r, bytes, sizeof r);
	if (!is_record(l, &r))
		return 0;
	want = record_of(l->log, r.writer, r.number);
	if (r.number != l->next[r.writer] || r.len != want.len) {
		snprintf(text, sizeof text,
			 "expected record %u of writer %u of %llu bytes, saw record %u of %llu",
			 l->next[r.writer], r.writer, (unsigned long long)want.len, r.number,
			 (unsigned long long)r.len);
		fail_log(w, l, text);
	}
	if (have < r.len)
		return 0;
	n = record_match(w, &want, bytes, have);
	if (n < r.len && l->after_kill && r.number > l->acked[r.writer])
		return 0;
	if (n < r.len) {
		snprintf(text, sizeof text,
			 "record %u of writer %u, of %llu bytes: byte %zu is %#x, expected %#x",
			 r.number, r.writer, (unsigned long long)r.len, n, bytes[n], w->in[n]);
		fail_log(w, l, text);
	}
	l->next[r.writer]++;
	return r.len;
}

/* Where the next record begins behind a torn one of which n bytes are there: its first bytes may be what the
 * torn one would have had as well. */
static size_t behind_torn(struct log_reader *l, const unsigned char *bytes, size_t n, size_t have)
{
	struct record r;

	for (size_t back = 0; back < sizeof r && back < n; back++) {
		if (have - (n - back) < sizeof r)
			continue;
		memcpy(&r, bytes + n - back, sizeof r);
		if (is_record(l, &r))
			return n - back;
	}
	return n;
}

/* The records in w->out; end: the file has no more. Returns how many bytes it is done with. */
static size_t check_records(struct worker *w, struct log_reader *l, size_t have, bool end)
{
	const unsigned char *bytes = w->out;
	size_t done = 0, n;

	while (done < have) {
		n = whole_record(w, l, bytes + done, have - done);
		if (!n && !end && have - done < RECORD_MAX)
			break;
		if (!n) {
			n = partial_record(w, l, bytes + done, have - done);
			if (n && l->after_kill)
				n = behind_torn(l, bytes + done, n, have - done);
			if (!n || (n < have - done && !l->after_kill))
				fail_log(w, l, "here is no record, nor one that is being written");
			if (!l->after_kill)
				break;
		}
		done += n;
		l->off += n;
	}
	return done;
}

/* From the start to the end of the file as it is then. False: the daemon is dead. */
static bool read_log(struct worker *w, struct log_reader *l)
{
	struct log *log = &w->logs->v[l->log];
	size_t n = 1;

	for (unsigned k = 0; k < WORKERS; k++) {
		l->acked[k] = atomic_load(&log->acked[k]);
		l->next[k] = 1;
	}
	for (l->off = 0; n;) {
		at(w, "pread of log.%u at %llu", l->log, (unsigned long long)l->off);
		if (!read_at(w, l->fd, w->out, IO_ROOM, l->off, &n))
			return false;
		/* It may end there because the daemon did. */
		if (n < IO_ROOM && atomic_load(&w->s->killed))
			return false;
		if (!check_records(w, l, n, n < IO_ROOM) || n < IO_ROOM)
			break;
	}
	for (unsigned k = 0; k < WORKERS; k++)
		if (l->next[k] <= l->acked[k])
			fail_log(w, l, "the file ends before all records that had returned");
	return true;
}

static void log_name(unsigned log, char name[32])
{
	snprintf(name, 32, "log.%u", log);
}

static unsigned some_log(struct worker *w)
{
	return w->s->phase % (LOGS_MAX / LOGS) * LOGS + draw(w, LOGS);
}

static void logs_read(struct worker *w)
{
	struct log_reader l = { .log = some_log(w) };
	char name[32];
	bool made;

	log_name(l.log, name);
	at(w, "open %s to read", name);
	made = atomic_load(&w->logs->v[l.log].bytes.up_ended);
	l.fd = open(path_in(w, "%s", name), O_RDONLY | O_CLOEXEC);
	if (l.fd < 0 && errno == ENOENT && !made)
		return;
	if (l.fd < 0) {
		died(w, "open", name);
		return;
	}
	if (read_log(w, &l))
		counted(w, COUNT_READS);
	close_file(w, l.fd);
}

static void logs_stat(struct worker *w)
{
	unsigned log = some_log(w);
	struct tally *t = &w->logs->v[log].bytes;
	struct tally_before b = tally_look(t);
	unsigned long long lo, hi;
	struct stat st;
	char name[32];

	log_name(log, name);
	at(w, "stat of %s", name);
	if (!b.up)
		return;
	if (stat(path_in(w, "%s", name), &st) < 0)
		died(w, "stat", name);
	else if (!tally_allows(t, &b, (unsigned long long)st.st_size, &lo, &hi))
		fail(w, "size: expected %llu to %llu, saw %lld", lo, hi, (long long)st.st_size);
}

/* ---- Appending -------------------------------------------------------------------------------- */

/* What was appended lies before the file position. */
static bool check_own(struct worker *w, int fd, const struct record *r)
{
	off_t end = lseek(fd, 0, SEEK_CUR);
	size_t n;

	at(w, "pread of own record %u at %lld of log.%u", r->number,
	   (long long)end - (long long)r->len, r->log);
	if (!read_at(w, fd, w->out, r->len, (uint64_t)end - r->len, &n))
		return false;
	if (n == r->len && !memcmp(w->out, w->in, n))
		return true;
	if (n < r->len)
		cut_short(w, n, r->len);
	else
		fail(w, "what was just appended is not what is read back there");
	return false;
}

static bool append_one(struct worker *w, unsigned k, int fd, bool check)
{
	struct log *log = &w->logs->v[k];
	unsigned number = atomic_load(&log->begun[w->number]) + 1;
	struct record r = record_of(k, w->number, number);
	ssize_t n;

	record_fill(w->in, &r);
	at(w, "append record %u of %llu bytes to log.%u", number, (unsigned long long)r.len, k);
	atomic_fetch_add(&log->bytes.up_begun, r.len);
	atomic_store(&log->begun[w->number], number);
	n = write(fd, w->in, r.len);
	if (n < 0)
		return !died(w, "append to", "a log");
	if ((uint64_t)n != r.len) {
		cut_short(w, (size_t)n, r.len);
		return false;
	}
	atomic_store(&log->acked[w->number], number);
	atomic_fetch_add(&log->bytes.up_ended, r.len);
	counted(w, COUNT_RECORDS);
	return !check || check_own(w, fd, &r);
}

static void logs_append(struct worker *w)
{
	static const int flags[] = { O_WRONLY, O_RDWR, O_WRONLY, O_RDWR | O_SYNC };
	unsigned k = some_log(w), way = draw(w, 33), n = 1 + draw(w, 8);
	int how = flags[way < 32 ? way % 3 : 3], fd;
	char name[32];

	/* One that a kill cut short is the last of its writer. */
	if (atomic_load(&w->logs->v[k].bytes.up_begun) > LOG_LIMIT ||
	    atomic_load(&w->logs->v[k].begun[w->number]) !=
		    atomic_load(&w->logs->v[k].acked[w->number]))
		return;
	log_name(k, name);
	fd = open_or_die(w, path_in(w, "%s", name), how | O_CREAT | O_APPEND);
	if (fd < 0)
		return;
	while (n-- && going(w) && append_one(w, k, fd, (how & O_ACCMODE) == O_RDWR))
		;
	close_file(w, fd);
}

/* ---- While nobody else is at work ------------------------------------------------------------- */

static uint64_t log_sum(struct worker *w, int fd, uint64_t *ret_size)
{
	uint64_t sum = 1;
	size_t n = 1;

	for (*ret_size = 0; n; *ret_size += n) {
		if (!read_at(w, fd, w->out, IO_ROOM, *ret_size, &n))
			return 0;
		for (size_t k = 0; k < n; k++)
			sum = (sum ^ w->out[k]) * 0x100000001b3u;
	}
	return sum;
}

/* Its records the first time, from then on that it stays what it was. */
static void log_compare(struct worker *w, unsigned k, bool after_kill)
{
	struct log *log = &w->logs->v[k];
	struct log_reader l = { .log = k, .after_kill = after_kill };
	uint64_t size, sum;
	struct stat st;

	if (!atomic_load(&log->bytes.up_ended))
		return;
	l.fd = open_or_die(w, path_in(w, "log.%u", k), O_RDONLY);
	if (!log->kept && read_log(w, &l) && !after_kill)
		for (unsigned i = 0; i < WORKERS; i++)
			if (l.next[i] <= atomic_load(&log->begun[i]))
				fail_log(w, &l, "the file ends before the last record");
	at(w, "compare log.%u with what it was", k);
	sum = log_sum(w, l.fd, &size);
	if (fstat(l.fd, &st) < 0 || (uint64_t)st.st_size != size)
		fail(w, "size: expected %llu, as was read, saw %lld", (unsigned long long)size,
		     (long long)st.st_size);
	if (log->kept && (size != log->size || sum != log->sum))
		fail(w, "expected %llu bytes with sum %llx, saw %llu with %llx",
		     (unsigned long long)log->size, (unsigned long long)log->sum,
		     (unsigned long long)size, (unsigned long long)sum);
	log->kept = true;
	log->size = size;
	log->sum = sum;
	close_file(w, l.fd);
}

static void logs_compare(struct worker *w, bool after_kill)
{
	unsigned k = w->s->phase % (LOGS_MAX / LOGS) * LOGS;

	for (unsigned i = 0; i < LOGS_MAX; i++)
		log_compare(w, i, after_kill && i >= k && i < k + LOGS);
}

#endif
