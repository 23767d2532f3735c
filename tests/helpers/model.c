/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model checker: operations drawn at random are played on a kvfs and on a folder of the file system
 * below, and every result, errno, content and attribute is compared; with evictions, remounts and kills
 * of the daemon in between. A sequence that fails is shrunk and printed.
 *
 *	model FOLDER SEED COUNT SHRINK OPTIONS [LIST]
 *
 * FOLDER is where it works and where the reference is; SEED draws COUNT operations, of which LIST
 * ("3,17,42") plays only some. SHRINK is for how many seconds a failing sequence is shrunk. OPTIONS are
 * mount options. $KVFS is the program.
 */
#include <poll.h>
#include <sys/syscall.h>

#include "model_player.h"

#define HANG_SECONDS 60
#define BUDGETS      3
#define REPLAYS      3
#define TAIL         40 /* operations shown of a sequence that does not fail again */

struct numbers {
	unsigned *v;
	size_t n;
};

struct model {
	const char *folder;
	const char *options;
	uint64_t seed;
	unsigned tries;
	struct note *note;
	char kind[sizeof((struct note *)0)->kind]; /* of the failure that is shrunk */
};

/* ---- One play, in a process of its own -------------------------------------------------------- */

static void *room_or_die(size_t size)
{
	void *p = NULL;

	if (posix_memalign(&p, IO_ALIGN, size))
		abort();
	return memset(p, 0, size);
}

static void side_init(struct side *s, bool is_kvfs, const char *top)
{
	*s = (struct side){ .is_kvfs = is_kvfs };
	snprintf(s->top, sizeof s->top, "%s", top);
	s->out = room_or_die(OUT_ROOM);
	s->in = room_or_die(IO_MAX + IO_ALIGN);
}

static void player_main(const struct model *m, const struct numbers *list)
{
	static const struct op last = { .kind = OP_CHECK };
	struct player p = { .note = m->note,
			    .op = &last,
			    .background = { .mounted = PTHREAD_MUTEX_INITIALIZER } };
	struct daemon *d = &m->note->daemon;

	side_init(&p.kvfs, true, daemon_path(d, "mnt/work"));
	side_init(&p.ref, false, daemon_path(d, "ref"));
	if (mkdir(d->folder, 0755) < 0 || mkdir(daemon_path(d, "mnt"), 0755) < 0 ||
	    !daemon_mount(d) || mkdir(p.kvfs.top, 0755) < 0 || mkdir(p.ref.top, 0755) < 0)
		fail_daemon(&p, "it does not start");
	/* Half of the seeds, whatever their budget. */
	if (m->seed / BUDGETS % 2 && !background_start(&p.background, &p.kvfs, m->seed))
		fail(&p, "it does not start", "no thread");
	for (size_t k = 0; k < list->n; k++) {
		struct op op = op_draw(m->seed, list->v[k]);

		m->note->at = (unsigned)k;
		m->note->beat++;
		play(&p, &op);
	}
	p.op = &last;
	check_all(&p);
	close_all(&p);
	pthread_mutex_lock(&p.background.mounted);
	if (!daemon_umount(d))
		fail_daemon(&p, "it does not end");
	_exit(0);
}

/* Until it ends; a player that makes no progress waits for a daemon that does not answer. */
static void player_watch(struct note *n, pid_t pid)
{
	struct pollfd ended = { .fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN };
	unsigned beat = n->beat, idle = 0;
	int status;

	while (poll(&ended, 1, 1000) == 0) {
		idle = n->beat == beat ? idle + 1 : 0;
		beat = n->beat;
		if (idle < HANG_SECONDS)
			continue;
		snprintf(n->kind, sizeof n->kind, "hang");
		snprintf(n->message, sizeof n->message, "no progress for %d s", HANG_SECONDS);
		n->failed = true;
		kill(pid, SIGKILL);
		if (n->daemon.pid)
			kill(n->daemon.pid, SIGKILL);
		break;
	}
	waitpid(pid, &status, 0);
	close(ended.fd);
	if (n->failed || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
		return;
	n->failed = true;
	snprintf(n->kind, sizeof n->kind, "signal %d", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	snprintf(n->message, sizeof n->message, "the player ended with status %#x", status);
}

/* Each in folders of its own. Returns whether it failed, and how, in m->note. */
static bool model_play(struct model *m, const struct numbers *list)
{
	static const char *const budgets[BUDGETS] = { "hot=2G,warm=64M", "hot=2G,warm=64M",
						      "hot=48M,warm=4M" };
	struct note *n = m->note;
	pid_t pid;

	memset(n, 0, sizeof *n);
	snprintf(n->daemon.folder, sizeof n->daemon.folder, "%s/model.%u", m->folder, m->tries++);
	snprintf(n->daemon.options, sizeof n->daemon.options, "%s,commit=1,idle=2%s%s",
		 budgets[m->seed % BUDGETS], *m->options ? "," : "", m->options);
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		abort();
	if (pid == 0)
		player_main(m, list);
	player_watch(n, pid);
	daemon_remove(&n->daemon);
	return n->failed;
}

/* ---- Shrinking -------------------------------------------------------------------------------- */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void numbers_copy(struct numbers *to, const struct numbers *from)
{
	to->n = from->n;
	memcpy(to->v, from->v, from->n * sizeof *from->v);
}

/* What follows the failing operation has no part in it. */
static void numbers_cut(struct numbers *list, const struct note *n)
{
	if (n->at + 1 < list->n)
		list->n = n->at + 1;
}

/* Plays less, and takes it for the list when it fails as the first did. */
static bool model_try(struct model *m, struct numbers *list, const struct numbers *less)
{
	if (less->n == list->n || !model_play(m, less) || strcmp(m->note->kind, m->kind))
		return false;
	numbers_copy(list, less);
	numbers_cut(list, m->note);
	return true;
}

/* Leaves out all operations of a few kinds at a time. */
static void leave_out_kinds(struct model *m, struct numbers *list, struct numbers *less,
			    unsigned group, double until)
{
	for (unsigned from = 0; from < OP_KINDS && now() < until; from += group) {
		less->n = 0;
		for (size_t k = 0; k < list->n; k++) {
			unsigned kind = op_draw(m->seed, list->v[k]).kind;

			if (kind < from || kind >= from + group)
				less->v[less->n++] = list->v[k];
		}
		model_try(m, list, less);
	}
}

/* From the front on: what made it fail mostly happened late. */
static bool leave_out_chunks(struct model *m, struct numbers *list, struct numbers *less,
			     size_t chunk, double until)
{
	bool any = false;

	for (size_t from = 0; from < list->n && now() < until;) {
		size_t end = from + chunk < list->n ? from + chunk : list->n;

		numbers_copy(less, list);
		memmove(less->v + from, less->v + end, (list->n - end) * sizeof *less->v);
		less->n -= end - from;
		if (model_try(m, list, less))
			any = true;
		else
			from = end;
	}
	return any;
}

/* Leaves out kinds, then chunks, smaller and smaller, as long as what is left fails alike. */
static void model_shrink(struct model *m, struct numbers *list, double until)
{
	struct numbers less = { .v = calloc(list->n + 1, sizeof *list->v) };
	size_t chunk;

	if (!less.v)
		return;
	for (unsigned group = 8; group; group /= 2)
		leave_out_kinds(m, list, &less, group, until);
	for (chunk = (list->n + 1) / 2; chunk > 1; chunk /= 2)
		leave_out_chunks(m, list, &less, chunk, until);
	while (now() < until && leave_out_chunks(m, list, &less, 1, until))
		;
	free(less.v);
}

static void print_sequence(const struct model *m, const struct numbers *list)
{
	for (size_t k = 0; k < list->n; k++) {
		struct op op = op_draw(m->seed, list->v[k]);

		printf("  ");
		op_tell(stdout, &op);
		printf("\n");
	}
	printf("again: SEED=%llu LIST=", (unsigned long long)m->seed);
	for (size_t k = 0; k < list->n; k++)
		printf("%s%u", k ? "," : "", list->v[k]);
	printf("\n");
}

/* Whether it is a matter of timing. */
static bool fails_again(struct model *m, const struct numbers *list)
{
	for (int k = 0; k < REPLAYS; k++)
		if (model_play(m, list) && !strcmp(m->note->kind, m->kind))
			return true;
	return false;
}

static void model_report(struct model *m, struct numbers *list, double seconds)
{
	struct op op = op_draw(m->seed, list->v[m->note->at]);
	size_t before;

	memcpy(m->kind, m->note->kind, sizeof m->kind);
	printf("FAIL: seed %llu, operation ", (unsigned long long)m->seed);
	op_tell(stdout, &op);
	printf("\n  %s: %s\n", m->kind, m->note->message);
	numbers_cut(list, m->note);
	before = list->n;
	if (!fails_again(m, list)) {
		printf("played again %d times it does not fail: a matter of timing; the end of it was:\n",
		       REPLAYS);
		list->v += before > TAIL ? before - TAIL : 0;
		list->n -= before > TAIL ? before - TAIL : 0;
		print_sequence(m, list);
		return;
	}
	model_shrink(m, list, now() + seconds);
	printf("shrunk from %zu operations to %zu:\n", before, list->n);
	print_sequence(m, list);
	if (model_play(m, list))
		printf("  %s: %s\n", m->note->kind, m->note->message);
}

/* ---- The command line ------------------------------------------------------------------------- */

static struct numbers parse_list(const char *text, size_t count)
{
	struct numbers list = { .v = calloc(count + 1, sizeof *list.v) };
	char *end;

	if (!list.v)
		abort();
	for (; !text && list.n < count; list.n++)
		list.v[list.n] = (unsigned)list.n;
	for (; text && *text && list.n < count; text = *end ? end + 1 : end)
		list.v[list.n++] = (unsigned)strtoul(text, &end, 10);
	return list;
}

int main(int argc, char **argv)
{
	struct model m = { .note = mmap(NULL, sizeof *m.note, PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0) };
	struct numbers list;
	unsigned *numbers; /* the report moves list.v on */
	double started = now();
	bool failed;

	if (argc < 6 || argc > 7 || !strtoul(argv[3], NULL, 10) || !getenv("KVFS") ||
	    m.note == MAP_FAILED) {
		fprintf(stderr,
			"usage: model FOLDER SEED COUNT SHRINK OPTIONS [LIST], with $KVFS\n");
		return 2;
	}
	m.folder = argv[1];
	m.seed = strtoull(argv[2], NULL, 10);
	m.options = argv[5];
	list = parse_list(argc > 6 ? argv[6] : NULL, strtoul(argv[3], NULL, 10));
	numbers = list.v;
	failed = model_play(&m, &list);
	if (failed)
		model_report(&m, &list, strtod(argv[4], NULL));
	else
		printf("seed %llu: %zu operations in %.1f s\n", (unsigned long long)m.seed, list.n,
		       now() - started);
	free(numbers);
	return failed;
}
