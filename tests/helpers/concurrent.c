/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The concurrency checker: processes and threads read and write the same files of a kvfs, append to them,
 * map, cut, replace, rename, list and count them, while files move between the tiers, and each sees only
 * what a model allows that knows what had returned before and what had begun after. When all is quiet, all
 * is compared with the model, and again after a remount, or after a kill of the daemon at full load.
 *
 *	concurrent FOLDER SEED SECONDS OPTIONS
 *
 * FOLDER is where it works, OPTIONS are mount options, SECONDS is for how long there is load, in phases of
 * a few seconds. SEED says who does what, but not when. $KVFS is the program; with $KEEP set the store and
 * the log of a run that failed stay.
 */
#include <pthread.h>
#include <sys/prctl.h>

#include "concurrent_names.h"
#include "concurrent_movers.h"
#include "model_daemon.h"

#define PHASE_SECONDS 5
#define PHASES_MAX    (LOGS_MAX / LOGS)
#define HANG_SECONDS  60
#define LATE_US       200000 /* from the kill until all stop: what is passed through goes on */

struct everything {
	struct shared s;
	struct slots slots;
	struct logs logs;
	struct docs docs;
	struct cuts cuts;
	struct names names;
};

struct run {
	struct everything *all;
	struct daemon daemon;
	uint64_t state; /* of the draws that make phases */
};

/* ---- Actors ----------------------------------------------------------------------------------- */

static void worker_init(struct worker *w, struct everything *all, unsigned number)
{
	*w = (struct worker){
		.s = &all->s,
		.slots = &all->slots,
		.logs = &all->logs,
		.docs = &all->docs,
		.cuts = &all->cuts,
		.names = &all->names,
		.number = number,
		.state = pattern_word(all->s.seed * 1000 + all->s.phase + 1, number),
		.bounds = calloc(SLOTS_MAX, sizeof *w->bounds),
	};
	if (!w->bounds || posix_memalign((void **)&w->in, IO_ALIGN, IO_ROOM + IO_ALIGN) ||
	    posix_memalign((void **)&w->out, IO_ALIGN, IO_ROOM + IO_ALIGN))
		abort();
}

static void act(struct worker *w)
{
	static void (*const acts[])(struct worker *) = {
		slots_read,    slots_read,     slots_read,  slots_write, slots_write,  slots_write,
		both_read,     both_write,     logs_append, logs_append, logs_read,    logs_stat,
		docs_save,     docs_save,      docs_read,   docs_read,   docs_read,    docs_held,
		docs_held,     cuts_change,    cuts_change, cuts_read,   names_change, names_change,
		names_change,  names_exchange, names_look,  names_count, names_list,   names_list,
		names_contend, names_contend,  cuts_read,
	};

	acts[draw(w, sizeof acts / sizeof acts[0])](w);
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;

	self = w;
	while (going(w))
		act(w);
	docs_let_go(w);
	at(w, "nothing any more");
	return NULL;
}

static void *mover_main(void *arg)
{
	struct worker *w = arg;

	self = w;
	while (going(w))
		move_something(w);
	at(w, "nothing any more");
	return NULL;
}

/* Threads [first, first + n) in this process, which ends with them. */
static _Noreturn void actors_main(struct everything *all, unsigned first, unsigned n,
				  void *(*run)(void *))
{
	struct worker *w = calloc(n, sizeof *w);
	pthread_t *thread = calloc(n, sizeof *thread);

	if (!w || !thread)
		abort();
	for (unsigned k = 0; k < n; k++) {
		worker_init(&w[k], all, first + k);
		if (pthread_create(&thread[k], NULL, run, &w[k]))
			abort();
	}
	for (unsigned k = 0; k < n; k++)
		pthread_join(thread[k], NULL);
	_exit(0);
}

/* ---- The checker ------------------------------------------------------------------------------ */

enum task { MAKE, COMPARE, COMPARE_KILLED };

static _Noreturn void checker_main(struct everything *all, enum task task)
{
	struct worker w;

	worker_init(&w, all, CHECKER);
	self = &w;
	if (task == MAKE) {
		if (mkdir(all->s.top, 0755) < 0)
			died(&w, "mkdir", all->s.top);
		slots_make(&w);
		docs_make(&w);
		cuts_make(&w);
		names_make(&w);
	}
	if (task == COMPARE_KILLED)
		names_after_kill(&w);
	slots_compare(&w);
	logs_compare(&w, task == COMPARE_KILLED);
	docs_compare(&w);
	cuts_compare(&w);
	names_compare(&w);
	_exit(0);
}

/* ---- Processes and the daemon ----------------------------------------------------------------- */

#define CHILDREN (PROCESSES + 1)

struct children {
	pid_t pid[CHILDREN];
	unsigned n;
};

static bool child_begin(struct children *c)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		abort();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGBUS, caught_sigbus);
		return true;
	}
	c->pid[c->n++] = pid;
	return false;
}

/* Takes note of those that ended. */
static void children_reap(struct run *r, struct children *c)
{
	struct shared *s = &r->all->s;
	int status;

	for (unsigned k = 0; k < c->n;) {
		if (waitpid(c->pid[k], &status, WNOHANG) <= 0) {
			k++;
			continue;
		}
		c->pid[k] = c->pid[--c->n];
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			continue;
		/* One that has failed has said why. */
		if (!atomic_exchange(&s->failed, true))
			snprintf(s->message, sizeof s->message,
				 "an actor's process ended with status %#x", (unsigned)status);
		atomic_store(&s->stop, true);
	}
}

/* What the threads of the daemon wait for. */
static void tell_daemon(pid_t pid)
{
	char command[256];

	snprintf(command, sizeof command,
		 "for t in /proc/%d/task/*; do echo \"$t $(cat $t/comm) waits in $(cat $t/wchan)\"; "
		 "cat $t/stack; done",
		 (int)pid);
	fflush(stdout);
	if (system(command) < 0)
		printf("cannot tell what the daemon does\n");
}

static void tell_hang(struct run *r, struct children *c)
{
	struct shared *s = &r->all->s;

	atomic_store(&s->failed, true);
	snprintf(s->message, sizeof s->message,
		 "no progress for %d s; the last each did:", HANG_SECONDS);
	for (unsigned k = 0; k < ACTORS; k++)
		printf("  actor %u: %s\n", k, s->beats[k].now);
	if (r->daemon.pid)
		tell_daemon(r->daemon.pid);
	for (unsigned k = 0; k < c->n; k++)
		kill(c->pid[k], SIGKILL);
	/* Whoever waits for its answer gets an error. */
	if (r->daemon.pid)
		kill(r->daemon.pid, SIGKILL);
}

static unsigned beats_of(const struct shared *s)
{
	unsigned sum = 0;

	for (unsigned k = 0; k < ACTORS; k++)
		sum += atomic_load(&s->beats[k].count);
	return sum;
}

/* Until they have ended, or until that time, or one has failed. */
static void children_wait(struct run *r, struct children *c, uint64_t until)
{
	struct shared *s = &r->all->s;
	unsigned beats = beats_of(s);
	uint64_t heard = now_ns();

	while (c->n && now_ns() < until && !(until != UINT64_MAX && atomic_load(&s->failed))) {
		pause_us(5000);
		children_reap(r, c);
		if (beats_of(s) != beats) {
			beats = beats_of(s);
			heard = now_ns();
		} else if (now_ns() - heard > HANG_SECONDS * 1000000000ull) {
			tell_hang(r, c);
			heard = UINT64_MAX / 2;
		}
	}
}

/* True as long as nothing has failed. */
static bool check(struct run *r, enum task task)
{
	struct children c = { .n = 0 };

	if (child_begin(&c))
		checker_main(r->all, task);
	children_wait(r, &c, UINT64_MAX);
	return !atomic_load(&r->all->s.failed);
}

static bool fail_daemon(struct run *r, const char *what)
{
	char words[512];

	daemon_last_words(&r->daemon, words, sizeof words);
	if (!atomic_exchange(&r->all->s.failed, true))
		snprintf(r->all->s.message, sizeof r->all->s.message, "%s; kvfs said: %s", what,
			 words);
	return false;
}

static bool remount(struct run *r)
{
	if (r->daemon.pid && !daemon_umount(&r->daemon))
		return fail_daemon(r, "it does not unmount");
	return daemon_mount(&r->daemon) || fail_daemon(r, "it does not mount");
}

/* The daemon is gone when this returns. */
static void kill_daemon(struct run *r)
{
	atomic_store(&r->all->s.killed, true);
	kill(r->daemon.pid, SIGKILL);
	if (!process_wait(r->daemon.pid, 30))
		fail_daemon(r, "it survives SIGKILL");
	r->daemon.pid = 0;
}

/* ---- Phases ----------------------------------------------------------------------------------- */

static void load_all(struct run *r, double seconds, bool end_by_kill)
{
	struct shared *s = &r->all->s;
	struct children c = { .n = 0 };

	atomic_store(&s->stop, false);
	atomic_store(&s->killed, false);
	for (unsigned k = 0; k < PROCESSES; k++)
		if (child_begin(&c))
			actors_main(r->all, k * THREADS, THREADS, worker_main);
	if (child_begin(&c))
		actors_main(r->all, WORKERS, MOVERS, mover_main);
	children_wait(r, &c, now_ns() + (uint64_t)(seconds * 1e9));
	if (end_by_kill && !atomic_load(&s->failed)) {
		kill_daemon(r);
		children_wait(r, &c, now_ns() + LATE_US * 1000ull);
	}
	atomic_store(&s->stop, true);
	children_wait(r, &c, UINT64_MAX);
}

static bool phase(struct run *r, double seconds, bool end_by_kill)
{
	struct shared *s = &r->all->s;

	load_all(r, seconds, end_by_kill);
	if (atomic_load(&s->failed))
		return false;
	if (!end_by_kill && !check(r, COMPARE))
		return false;
	if (!remount(r))
		return false;
	atomic_store(&s->killed, false);
	if (end_by_kill) {
		slots_after_kill(&r->all->slots);
		docs_after_kill(&r->all->docs);
	}
	return check(r, end_by_kill ? COMPARE_KILLED : COMPARE);
}

/* The first ends in good order, the second by a kill, so that there is one of each. */
static bool run_phases(struct run *r, double seconds)
{
	struct shared *s = &r->all->s;
	unsigned n = (unsigned)(seconds / PHASE_SECONDS) + 1;

	n = n < 2 ? 2 : n > PHASES_MAX ? PHASES_MAX : n;
	if (!daemon_mount(&r->daemon))
		return fail_daemon(r, "it does not mount");
	if (!check(r, MAKE))
		return false;
	for (s->phase = 0; s->phase < n; s->phase++) {
		r->state += 0x9e3779b97f4a7c15u;
		if (!phase(r, seconds / n,
			   s->phase < 2 ? s->phase == 1 : pattern_mix(r->state) % 2 == 0))
			return false;
	}
	/* What a kill left, out of the store alone. */
	return remount(r) && check(r, COMPARE);
}

static void tell(const struct run *r, double seconds)
{
	const struct shared *s = &r->all->s;

	printf("seed %llu: %u phases in %.1f s:", (unsigned long long)s->seed, s->phase, seconds);
	for (unsigned k = 0; k < COUNTS; k++)
		printf("%s %lu %s", k ? "," : "", atomic_load(&s->counts[k]), count_names[k]);
	printf("\n");
}

static void run_init(struct run *r, const char *folder, uint64_t seed, const char *options)
{
	struct shared *s = &r->all->s;
	struct daemon *d = &r->daemon;

	s->seed = seed;
	s->small_pool = seed % 2;
	s->mode = strstr(options, "no-direct-mmap") ? NOMMAP : *options ? FALLBACK : PASSTHROUGH;
	r->state = seed;
	snprintf(d->folder, sizeof d->folder, "%s/concurrent.%llu", folder,
		 (unsigned long long)seed);
	snprintf(d->options, sizeof d->options, "%s,commit=1,idle=1%s%s",
		 s->small_pool ? "hot=64M,warm=8M" : "hot=3G,warm=64M", *options ? "," : "",
		 options);
	snprintf(s->top, sizeof s->top, "%s", daemon_path(d, "mnt/all"));
	if (mkdir(d->folder, 0755) < 0 || mkdir(daemon_path(d, "mnt"), 0755) < 0) {
		fprintf(stderr, "concurrent: %s: %s\n", d->folder, strerror(errno));
		exit(2);
	}
}

int main(int argc, char **argv)
{
	struct run r = { .all = mmap(NULL, sizeof *r.all, PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0) };
	uint64_t started = now_ns();
	bool ok;

	if (argc != 5 || !getenv("KVFS") || r.all == MAP_FAILED) {
		fprintf(stderr, "usage: concurrent FOLDER SEED SECONDS OPTIONS, with $KVFS\n");
		return 2;
	}
	run_init(&r, argv[1], strtoull(argv[2], NULL, 10), argv[4]);
	ok = run_phases(&r, strtod(argv[3], NULL));
	if (ok && !daemon_umount(&r.daemon))
		ok = fail_daemon(&r, "it does not unmount");
	tell(&r, (double)(now_ns() - started) / 1e9);
	if (!ok)
		printf("FAIL: seed %llu, mount -o %s\n  %s\n", (unsigned long long)r.all->s.seed,
		       r.daemon.options, r.all->s.message);
	if (ok || !getenv("KEEP"))
		daemon_remove(&r.daemon);
	return !ok;
}
