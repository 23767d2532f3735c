/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault: a scripted workload on a store, over and over: each time one call fails, comes short, is late,
 * is the last one before a kill, or lies; or one allocation fails; or the power goes at some moment. Each
 * run is a child with a time limit, and afterwards the store is opened without faults and compared with
 * what the workload was promised.
 *
 *	fault FOLDER DATA calls|memory|cuts [stride=N] [first=N] [count=N] [seed=N] [only=KIND | only=KIND:N | only=SEED]
 *
 * calls and memory try every stride-th N of each kind, from the first or a random one on; cuts makes count states. What
 * failed is printed with the words that repeat it.
 */
#include "tests/fault/calls.h"
#include "tests/fault/check.h"
#include "tests/fault/cuts.h"
#include "tests/fault/memory.h"
#include "tests/fault/model.h"
#include "tests/fault/trace.h"
#include "tests/fault/workload.h"

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef LIMIT_S
#define LIMIT_S 60 /* a run takes a tenth of a second */
#endif

static struct {
	char folder[256], store[300], run[300], copy[300], copy_run[300];
	uint64_t seed, stride, first, count;
	const char *only;
	unsigned long runs, failures;
} t = { .stride = 1, .count = 200 };

static void *shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return p;
}

static uint64_t draw(uint64_t below)
{
	t.seed = t.seed * 6364136223846793005ull + 1442695040888963407ull;
	return (t.seed >> 33) % below;
}

/* ---- folders ---- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

static void empty(void)
{
	nftw(t.store, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	nftw(t.run, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	nftw(t.copy, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	nftw(t.copy_run, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void copy_store(void)
{
	char command[1024];

	snprintf(command, sizeof(command), "cp -r --sparse=always %s %s", t.store, t.copy);
	if (system(command))
		model_wrong("the store cannot be copied");
}

/* ---- children ---- */

static int in_child(void (*fn)(void *arg), void *arg)
{
	pid_t pid = fork();
	int status;

	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	if (!pid) {
		alarm(LIMIT_S);
		fn(arg);
		_exit(0);
	}
	while (waitpid(pid, &status, 0) < 0)
		;
	return status;
}

/* How a child ended, if not as it should. */
static void judge_end(int status, const char *who)
{
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		model_wrong("%s hangs", who);
	else if (WIFSIGNALED(status))
		model_wrong("%s: %s", who, strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status) && WEXITSTATUS(status) != KILLED)
		model_wrong("%s ended with status %d", who, WEXITSTATUS(status));
}

static void run_workload(void *arg)
{
	(void)arg;
	calls_arm();
	memory_arm(true);
	workload_run(t.store, t.run);
}

static void run_power_check(void *arg)
{
	(void)arg;
	check_power(t.copy, t.copy_run, model->acked, model->attempt);
}

static void run_kill_check(void *arg)
{
	(void)arg;
	check_killed(t.store, t.run);
}

/* ---- one fault ---- */

static void fresh_model(void)
{
	/* Its pages are given back, and are zeros again. */
	madvise(model, sizeof(*model), MADV_REMOVE);
}

static bool takes_bytes_away(enum fault_kind kind)
{
	return kind == FAULT_ROT_WRITE || kind == FAULT_LOST_WRITE;
}

/* at 0: none. */
static void run_one(enum fault_kind kind, uint64_t at)
{
	empty();
	fresh_model();
	memset(calls, 0, sizeof(*calls));
	calls->kind = kind;
	calls->at = at;
	model->damaged = takes_bytes_away(kind);
	judge_end(in_child(run_workload, NULL), "the workload");
	if (!at && !model->finished)
		model_wrong("the workload does not come to its end");
	/* A store that could not even be made. */
	if (!model->wrong && (access(t.store, F_OK) || (!model->acked && !model->finished)))
		goto out;
	if (!model->wrong)
		copy_store();
	if (!model->wrong)
		judge_end(in_child(run_power_check, NULL), "the mount after a power loss");
	if (!model->wrong)
		judge_end(in_child(run_kill_check, NULL), "the mount after a kill");
out:
	t.runs++;
	if (!model->wrong)
		return;
	t.failures++;
	printf("FAIL only=%s:%llu (%s): %s\n", fault_name(kind), (unsigned long long)at,
	       calls->what, model->why);
}

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void run_kind(enum fault_kind kind)
{
	uint64_t total, stride, at = t.first ? t.first : 1 + draw(t.stride), n = 0;
	double began = seconds();

	run_one(kind, 0);
	total = calls->count;
	/* Who is late changes nothing but who comes first: not tried with every call. */
	stride = kind == FAULT_DELAY ? t.stride * 16 : t.stride;
	for (; at <= total; at += stride, n++)
		run_one(kind, at);
	printf("%s: %llu of %llu, %.1f s\n", fault_name(kind), (unsigned long long)n,
	       (unsigned long long)total, seconds() - began);
}

static void run_only(void)
{
	const char *colon = strchr(t.only, ':');

	size_t len = colon ? (size_t)(colon - t.only) : strlen(t.only);

	for (int k = FAULT_NONE; k < FAULT_KINDS; k++) {
		if (strlen(fault_name(k)) != len || strncmp(t.only, fault_name(k), len))
			continue;
		if (colon)
			run_one(k, strtoull(colon + 1, NULL, 10));
		else
			run_kind(k);
	}
}

/* The names of libc that are taken over are those that kvfs and SQLite call. */
static void see_that_calls_count(void)
{
	run_one(FAULT_NONE, 0);
	printf("calls: %llu on segments, %llu on meta.db, %llu in the run directory, %llu others\n",
	       (unsigned long long)calls->seen[0], (unsigned long long)calls->seen[1],
	       (unsigned long long)calls->seen[2], (unsigned long long)calls->seen[3]);
	if (t.failures || !calls->seen[0] || !calls->seen[1] || !calls->seen[2])
		exit(1);
}

static void run_kinds(int first, int last)
{
	if (t.only) {
		run_only();
		return;
	}
	see_that_calls_count();
	for (int k = first; k <= last; k++)
		run_kind(k);
}

/* ---- power cuts ---- */

static struct cut_range range;

static void run_cut_check(void *arg)
{
	(void)arg;
	trace = NULL;
	check_power(t.store, t.run, range.first, range.last);
}

static void run_cut(uint64_t seed)
{
	empty();
	model->wrong = false;
	if (cut_make(t.folder, seed, &range))
		model_wrong("the state cannot be written");
	if (!model->wrong && access(t.store, F_OK) && !range.first)
		goto out; /* it was not made yet */
	if (!model->wrong)
		judge_end(in_child(run_cut_check, NULL), "the mount");
out:
	t.runs++;
	if (!model->wrong)
		return;
	t.failures++;
	printf("FAIL only=%llu (step %llu of %zu, %s): %s\n", (unsigned long long)seed,
	       (unsigned long long)range.step, trace->n, range.how, model->why);
}

/* The trace is of one run; threads make the next one a little different. */
static void run_cuts(void)
{
	uint64_t first = t.only ? strtoull(t.only, NULL, 10) : draw(1u << 30);

	trace = shared(sizeof(*trace));
	run_one(FAULT_NONE, 0);
	t.runs = 0;
	if (t.failures)
		return;
	if (trace->overflow) {
		printf("FAIL: the trace has no room\n");
		t.failures++;
		return;
	}
	for (uint64_t i = 0; i < (t.only ? 1 : t.count); i++)
		run_cut(first + i);
	printf("power cuts: %lu states, of %zu steps\n", t.runs, trace->n);
}

/* ---- the program ---- */

static bool option(const char *arg, const char *name, uint64_t *ret)
{
	size_t n = strlen(name);

	if (strncmp(arg, name, n) || arg[n] != '=')
		return false;
	*ret = strtoull(arg + n + 1, NULL, 10);
	return true;
}

static void set_up(const char *folder)
{
	char *real = realpath(folder, NULL);

	if (!real || strlen(real) >= sizeof(t.folder)) {
		perror(folder);
		exit(2);
	}
	snprintf(t.folder, sizeof(t.folder), "%s", real);
	snprintf(t.store, sizeof(t.store), "%s/store", real);
	snprintf(t.run, sizeof(t.run), "%s/run", real);
	snprintf(t.copy, sizeof(t.copy), "%s/copy", real);
	snprintf(t.copy_run, sizeof(t.copy_run), "%s/copyrun", real);
	free(real);
	calls = shared(sizeof(*calls));
	model = shared(sizeof(*model));
	calls_init(t.folder);
	/* Of the buffers of a store a run touches little: most of its time were zeros for huge pages. */
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	memory_init();
}

int main(int argc, char **argv)
{
	double began = seconds();

	if (argc < 4)
		return 2;
	t.seed = (uint64_t)time(NULL) * 1000003 + (uint64_t)getpid();
	for (int i = 4; i < argc; i++) {
		if (!strncmp(argv[i], "only=", 5))
			t.only = argv[i] + 5;
		else if (!option(argv[i], "stride", &t.stride) &&
			 !option(argv[i], "first", &t.first) &&
			 !option(argv[i], "count", &t.count) && !option(argv[i], "seed", &t.seed))
			return 2;
	}
	set_up(argv[1]);
	if (!workload_init(argv[2]) || !t.stride)
		return 2;
	setlinebuf(stdout);
	printf("seed=%llu\n", (unsigned long long)t.seed);
	if (!strcmp(argv[3], "calls"))
		run_kinds(FAULT_EIO, FAULT_LOST_WRITE);
	else if (!strcmp(argv[3], "memory"))
		run_kinds(FAULT_MALLOC, FAULT_MALLOC_SOME);
	else if (!strcmp(argv[3], "cuts"))
		run_cuts();
	else
		return 2;
	empty();
	printf("%lu runs, %lu failed, %.1f s\n", t.runs, t.failures, seconds() - began);
	return t.failures != 0;
}
