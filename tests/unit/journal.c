/* SPDX-License-Identifier: Apache-2.0 */
/* The journal: what was put is replayed, whole groups in order, after a kill at any moment. */
#include "store/journal.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define UUID      "01234567-89ab-4def-8123-456789abcdef"
#define HEADER    64
#define SMALL     4096u
#define LARGE     (1u << 20)
#define GROUP_SUM 8 /* offset of the sum */

static char dir[64];
static int dirfd;
static struct journal *j;

static void setup(void)
{
	strcpy(dir, "/dev/shm/kvfs-journal-XXXXXX");
	if (!mkdtemp(dir)) {
		strcpy(dir, "/tmp/kvfs-journal-XXXXXX");
		cr_assert(mkdtemp(dir));
	}
	dirfd = open(dir, O_RDONLY | O_DIRECTORY);
	cr_assert_geq(dirfd, 0);
}

static void teardown(void)
{
	journal_close(j);
	j = NULL;
	unlinkat(dirfd, "journal", 0);
	unlinkat(dirfd, "journal.new", 0);
	close(dirfd);
	rmdir(dir);
}

TestSuite(journal, .init = setup, .fini = teardown, .timeout = 60);

/* What a replay handed over, as text: "type:data " a record, "| " a group. */
struct seen {
	char text[8192];
	int stop_at, calls;
};

static int see(void *arg, const struct journal_record *rec)
{
	struct seen *s = arg;
	char *p = s->text + strlen(s->text);

	if (++s->calls == s->stop_at)
		return -EIO;
	if (rec)
		sprintf(p, "%u:%.*s ", rec->type, (int)rec->len, (const char *)rec->data);
	else
		strcpy(p, "| ");
	return 0;
}

static uint64_t open_at(uint64_t epoch, uint64_t now, size_t size, struct seen *s)
{
	uint64_t groups = 99;
	int r;

	journal_close(j);
	j = NULL;
	memset(s, 0, sizeof(*s));
	r = journal_open(dirfd, UUID, epoch, now, size, see, s, &j, &groups);
	cr_assert_eq(r, 0, "%s", strerror(-r));
	return groups;
}

static int put(const char *a, const char *b)
{
	struct journal_record rec[2] = { { 1, (uint32_t)strlen(a), a },
					 { 2, b ? (uint32_t)strlen(b) : 0, b } };

	return journal_put(j, rec, b ? 2 : 1);
}

Test(journal, replay)
{
	struct seen s;

	cr_assert_eq(open_at(1, 2, SMALL, &s), 0);
	cr_assert_eq(journal_used(j), 0);
	cr_assert_eq(journal_size(j), SMALL);
	cr_assert_eq(put("one", NULL), 0);
	cr_assert_eq(put("", "eightish"), 0);
	cr_assert_eq(put("x", "yy"), 0);
	cr_assert_eq(journal_put(j, NULL, 0), -EINVAL);
	cr_assert_eq(journal_used(j), 16 + 16 + 16 + 8 + 16 + 16 + 16 + 16);
	cr_assert_eq(open_at(2, 3, SMALL, &s), 3);
	cr_assert_str_eq(s.text, "1:one | 1: 2:eightish | 1:x 2:yy | ");
	cr_assert_eq(journal_used(j), 120);
	cr_assert_eq(put("more", NULL), 0);
	cr_assert_eq(open_at(3, 4, SMALL, &s), 4);
	cr_assert_str_eq(s.text, "1:one | 1: 2:eightish | 1:x 2:yy | 1:more | ");
}

Test(journal, private_file)
{
	struct seen s;
	struct stat st;

	open_at(1, 2, LARGE, &s);
	cr_assert_eq(fstatat(dirfd, "journal", &st, 0), 0);
	cr_assert_eq(st.st_mode, S_IFREG | 0600);
	cr_assert_eq(st.st_size, LARGE);
	cr_assert_geq(st.st_blocks * 512, LARGE, "every page has its place");
}

Test(journal, belongs_to_one_store_and_epoch)
{
	struct seen s;
	uint64_t groups;

	open_at(1, 2, SMALL, &s);
	cr_assert_eq(put("a", NULL), 0);
	cr_assert_eq(open_at(1, 2, SMALL, &s), 1, "killed before the epoch was raised");
	cr_assert_eq(open_at(3, 4, SMALL, &s), 0);
	cr_assert_eq(put("b", NULL), 0);
	journal_close(j);
	j = NULL;
	cr_assert_eq(journal_open(dirfd, "another", 4, 5, SMALL, see, &s, &j, &groups), 0);
	cr_assert_eq(groups, 0);
	cr_assert_eq(open_at(5, 6, SMALL, &s), 0);
	cr_assert_eq(put("c", NULL), 0);
	journal_close(j);
	j = NULL;
	cr_assert_eq(journal_open(dirfd, UUID, 6, 7, SMALL, NULL, NULL, &j, &groups), 0);
	cr_assert_eq(groups, 0);
	cr_assert_eq(journal_used(j), 0);
}

Test(journal, failed_replay_leaves_it_alone)
{
	struct seen s = { .stop_at = 4 };
	struct journal *other = NULL;
	uint64_t groups;

	open_at(1, 2, SMALL, &(struct seen){ 0 });
	cr_assert_eq(put("a", NULL), 0);
	cr_assert_eq(put("b", "c"), 0);
	journal_close(j);
	j = NULL;
	cr_assert_eq(journal_open(dirfd, UUID, 2, 3, SMALL, see, &s, &other, &groups), -EIO);
	cr_assert_null(other);
	cr_assert_eq(open_at(2, 3, SMALL, &s), 2);
	cr_assert_str_eq(s.text, "1:a | 1:b 2:c | ");
}

Test(journal, full)
{
	static char big[SMALL];
	struct journal_record rec = { 1, sizeof(big), big };
	struct seen s;
	uint64_t n = 0, used;

	open_at(1, 2, SMALL, &s);
	cr_assert_eq(journal_put(j, &rec, 1), -ENOSPC);
	rec.len = UINT32_MAX;
	cr_assert_eq(journal_put(j, &rec, 1), -ENOSPC);
	while (put("12345678", NULL) == 0)
		n++;
	cr_assert_eq(n, (SMALL - HEADER - 8) / 32);
	used = journal_used(j);
	cr_assert_eq(put("12345678", NULL), -ENOSPC);
	cr_assert_eq(journal_used(j), used);
	cr_assert_eq(put("", NULL), 0, "a smaller one fits");
	cr_assert_eq(put("", NULL), -ENOSPC);
	cr_assert_eq(open_at(2, 3, SMALL, &s), n + 1);
	cr_assert_eq(put("", NULL), -ENOSPC);
	cr_assert_eq(open_at(3, 4, 2 * SMALL, &s), n + 1, "grows where it is");
	cr_assert_eq(journal_size(j), 2 * SMALL);
	cr_assert_eq(put("12345678", NULL), 0);
	cr_assert_eq(open_at(4, 5, SMALL, &s), n + 2, "never shrinks");
	cr_assert_eq(journal_size(j), 2 * SMALL);
}

Test(journal, no_room)
{
	uint64_t groups;

	cr_assert_eq(journal_open(dirfd, UUID, 1, 2, 8, see, NULL, &j, &groups), -EINVAL);
	cr_assert_eq(journal_open(dirfd, UUID, 1, 2, (size_t)1 << 60, see, NULL, &j, &groups) < 0,
		     1);
	cr_assert_eq(faccessat(dirfd, "journal.new", F_OK, 0), -1);
}

Test(journal, a_link_is_not_followed)
{
	struct seen s;
	struct stat st;

	cr_assert_eq(symlinkat("elsewhere", dirfd, "journal"), 0);
	open_at(1, 2, SMALL, &s);
	cr_assert_eq(fstatat(dirfd, "journal", &st, AT_SYMLINK_NOFOLLOW), 0);
	cr_assert(S_ISREG(st.st_mode));
	cr_assert_eq(faccessat(dirfd, "elsewhere", F_OK, 0), -1);
}

/* ---- torn tails ---- */

static char image[SMALL];
static size_t image_used;
static const size_t border[] = { 0, 32, 32 + 48, 32 + 48 + 40 }; /* of groups, from HEADER on */
static const char *const texts[] = { "", "1:one | ", "1:one | 1:two 2:three | ",
				     "1:one | 1:two 2:three | 1: 2:four | " };

/* A journal of three groups, as bytes. */
static void make_image(void)
{
	struct seen s;
	int fd;

	open_at(1, 2, SMALL, &s);
	cr_assert_eq(put("one", NULL), 0);
	cr_assert_eq(put("two", "three"), 0);
	cr_assert_eq(put("", "four"), 0);
	image_used = HEADER + journal_used(j);
	cr_assert_eq(image_used, HEADER + border[3]);
	fd = openat(dirfd, "journal", O_RDONLY);
	cr_assert_eq(pread(fd, image, SMALL, 0), SMALL);
	close(fd);
}

static void write_image(size_t len)
{
	int fd = openat(dirfd, "journal", O_WRONLY | O_CREAT | O_TRUNC, 0600);

	cr_assert_eq(pwrite(fd, image, len, 0), (ssize_t)len);
	close(fd);
}

/* Opens the damaged journal: the groups before the damage come, and what is put then comes next. */
static void check_torn(size_t groups, const char *what, size_t at)
{
	struct seen s;
	char expect[128];

	cr_assert_eq(open_at(2, 3, SMALL, &s), groups, "%s %zu: %s", what, at, s.text);
	cr_assert_str_eq(s.text, texts[groups]);
	cr_assert_eq(put("after", NULL), 0);
	cr_assert_eq(open_at(3, 4, SMALL, &s), groups + 1, "%s %zu: %s", what, at, s.text);
	snprintf(expect, sizeof(expect), "%s1:after | ", texts[groups]);
	cr_assert_str_eq(s.text, expect);
}

static size_t groups_before(size_t offset)
{
	size_t n = 0;

	while (n < 3 && HEADER + border[n + 1] <= offset)
		n++;
	return n;
}

Test(journal, cut_at_every_byte)
{
	make_image();
	for (size_t len = 0; len <= image_used + 8; len++) {
		struct seen s;

		write_image(len);
		if (len >= HEADER) {
			/* A cut through zeros that padded a group takes nothing away. */
			size_t groups = groups_before(len);

			if (groups < 3 && !memcmp(image + len, (char[SMALL]){ 0 },
						  HEADER + border[groups + 1] - len))
				groups++;
			check_torn(groups, "cut", len);
		} else if (len < 28) {
			cr_assert_eq(open_at(2, 3, SMALL, &s), 0, "%zu", len);
		}
	}
}

Test(journal, damage_at_every_byte)
{
	make_image();
	for (size_t at = HEADER; at < image_used; at++) {
		for (int bit = 0; bit < 8; bit++) {
			image[at] ^= (char)(1 << bit);
			write_image(SMALL);
			image[at] ^= (char)(1 << bit);
			check_torn(groups_before(at), "damage", at);
		}
	}
}

Test(journal, damaged_header)
{
	make_image();
	for (size_t at = 0; at < HEADER; at++) {
		struct seen s;

		if (at >= 12 && at < 16) /* reserved */
			continue;
		image[at] ^= 0x40;
		write_image(SMALL);
		image[at] ^= 0x40;
		cr_assert_eq(open_at(2, 3, SMALL, &s), 0, "%zu", at);
		cr_assert_eq(put("after", NULL), 0);
		cr_assert_eq(open_at(3, 4, SMALL, &s), 1);
	}
}

/* Whole groups behind a torn one are not found again, whatever is written over it. */
Test(journal, what_lies_behind_a_torn_group_is_dead)
{
	struct seen s;

	make_image();
	image[HEADER + GROUP_SUM] ^= 1;
	write_image(SMALL);
	cr_assert_eq(open_at(2, 3, SMALL, &s), 0);
	cr_assert_eq(put("abc", NULL), 0); /* as long as the first was */
	cr_assert_eq(open_at(3, 4, SMALL, &s), 1);
	cr_assert_str_eq(s.text, "1:abc | ");
}

/* ---- checkpoints ---- */

static int put_new(const char *text)
{
	struct journal_record rec = { 7, (uint32_t)strlen(text), text };

	return journal_checkpoint_put(j, &rec, 1);
}

Test(journal, checkpoint)
{
	struct seen s;

	open_at(1, 2, SMALL, &s);
	cr_assert_eq(put("old", NULL), 0);
	cr_assert_eq(journal_checkpoint_begin(j), 0);
	cr_assert_eq(put_new("sum"), 0);
	cr_assert_eq(journal_checkpoint_end(j, true), 0);
	cr_assert_eq(journal_used(j), 32);
	cr_assert_eq(put("new", NULL), 0);
	cr_assert_eq(journal_checkpoint_begin(j), 0);
	cr_assert_eq(put_new("dropped"), 0);
	cr_assert_eq(journal_checkpoint_end(j, false), 0);
	cr_assert_eq(faccessat(dirfd, "journal.new", F_OK, 0), -1);
	cr_assert_eq(open_at(2, 3, SMALL, &s), 2);
	cr_assert_str_eq(s.text, "7:sum | 1:new | ");
}

Test(journal, checkpoint_that_fails)
{
	struct seen s;

	open_at(1, 2, SMALL, &s);
	cr_assert_eq(put("kept", NULL), 0);
	cr_assert_eq(journal_checkpoint_begin(j), 0);
	while (put_new("12345678") == 0)
		;
	cr_assert_eq(unlinkat(dirfd, "journal.new", 0), 0);
	cr_assert_eq(journal_checkpoint_end(j, true), -ENOENT);
	cr_assert_eq(mkdirat(dirfd, "journal.new", 0700), 0);
	cr_assert_lt(journal_checkpoint_begin(j), 0);
	cr_assert_eq(unlinkat(dirfd, "journal.new", AT_REMOVEDIR), 0);
	cr_assert_eq(put("on", NULL), 0, "the lock is free");
	cr_assert_eq(open_at(2, 3, SMALL, &s), 2);
	cr_assert_str_eq(s.text, "1:kept | 1:on | ");
}

Test(journal, killed_in_a_checkpoint)
{
	struct seen s;
	int fd;

	open_at(1, 2, SMALL, &s);
	cr_assert_eq(put("kept", NULL), 0);
	fd = openat(dirfd, "journal.new", O_WRONLY | O_CREAT, 0600);
	cr_assert_eq(write(fd, "half", 4), 4);
	close(fd);
	cr_assert_eq(open_at(2, 3, SMALL, &s), 1);
	cr_assert_eq(journal_checkpoint_begin(j), 0);
	cr_assert_eq(put_new("sum"), 0);
	cr_assert_eq(journal_checkpoint_end(j, true), 0);
	cr_assert_eq(open_at(3, 4, SMALL, &s), 1);
	cr_assert_str_eq(s.text, "7:sum | ");
}

/* ---- puts during checkpoints ---- */

#define KEYS   3
#define ROUNDS 30
#define STEP   60 /* puts a key while a checkpoint is on */

enum { SUM = 80, PUT = 81 };

/* State as store/ and fs/ have it: a put and its effect are one under a lock, which whoever writes
 * the checkpoint takes too. */
static struct {
	pthread_mutex_t lock;
	uint32_t value;
} key[KEYS];
static uint32_t goal; /* values the writers count up to */
static bool enough;

static int put_key(uint32_t type, uint32_t k, uint32_t value,
		   int (*how)(struct journal *, const struct journal_record *, unsigned))
{
	uint32_t data[2] = { k, value };
	struct journal_record rec[2] = { { type, sizeof(data), data },
					 { type, sizeof(data), data } };

	return how(j, rec, 2);
}

static uint32_t value_of(uint32_t k)
{
	return __atomic_load_n(&key[k].value, __ATOMIC_ACQUIRE);
}

static void *count_up(void *arg)
{
	uint32_t k = (uint32_t)(uintptr_t)arg;

	while (!__atomic_load_n(&enough, __ATOMIC_ACQUIRE)) {
		if (value_of(k) == __atomic_load_n(&goal, __ATOMIC_ACQUIRE)) {
			usleep(10);
			continue;
		}
		pthread_mutex_lock(&key[k].lock);
		if (put_key(PUT, k, key[k].value + 1, journal_put) == 0)
			__atomic_store_n(&key[k].value, key[k].value + 1, __ATOMIC_RELEASE);
		pthread_mutex_unlock(&key[k].lock);
	}
	return NULL;
}

static void wait_for_values(uint32_t at_least)
{
	for (uint32_t k = 0; k < KEYS; k++)
		while (value_of(k) < at_least)
			usleep(10);
}

/* What a journal says of each key; 0: nothing yet. */
struct values {
	uint32_t last[KEYS];
	unsigned records;
};

static int take_value(void *arg, const struct journal_record *rec)
{
	struct values *v = arg;
	uint32_t data[2], *last;

	if (!rec) {
		cr_assert_eq(v->records % 2, 0, "half a group");
		return 0;
	}
	memcpy(data, rec->data, sizeof(data));
	last = &v->last[data[0]];
	if (v->records++ % 2 == 0 && *last)
		cr_assert_eq(data[1], rec->type == SUM ? *last : *last + 1, "key %u: %u after %u",
			     data[0], data[1], *last);
	*last = data[1];
	return 0;
}

/* Replays a copy of the file as the next daemon would. */
static struct values replay_copy(const char *name)
{
	static char copy[LARGE];
	struct journal *other = NULL;
	struct values v = { 0 };
	uint64_t groups;
	int fd = openat(dirfd, name, O_RDONLY), sub;

	cr_assert_eq(pread(fd, copy, LARGE, 0), LARGE);
	close(fd);
	cr_assert_eq(mkdirat(dirfd, "copy", 0700), 0);
	sub = openat(dirfd, "copy", O_RDONLY | O_DIRECTORY);
	fd = openat(sub, "journal", O_WRONLY | O_CREAT, 0600);
	cr_assert_eq(pwrite(fd, copy, LARGE, 0), LARGE);
	close(fd);
	cr_assert_eq(journal_open(sub, UUID, 2, 3, LARGE, take_value, &v, &other, &groups), 0);
	journal_close(other);
	unlinkat(sub, "journal", 0);
	close(sub);
	unlinkat(dirfd, "copy", AT_REMOVEDIR);
	return v;
}

static void write_sums(void)
{
	for (uint32_t k = 0; k < KEYS; k++) {
		pthread_mutex_lock(&key[k].lock);
		cr_assert_eq(put_key(SUM, k, key[k].value, journal_checkpoint_put), 0);
		pthread_mutex_unlock(&key[k].lock);
	}
}

/* One checkpoint with puts before, between and after its records, and at its end. A kill at any
 * moment leaves the old journal or the new one: each must hold all that was put by then. */
static void checkpoint_round(bool commit)
{
	uint32_t before[KEYS];
	struct values v;

	cr_assert_eq(journal_checkpoint_begin(j), 0);
	__atomic_store_n(&goal, goal + STEP, __ATOMIC_RELEASE);
	wait_for_values(goal - STEP + 1);
	write_sums();
	wait_for_values(goal - STEP / 2);
	for (uint32_t k = 0; k < KEYS; k++)
		before[k] = value_of(k);
	v = replay_copy("journal");
	for (uint32_t k = 0; k < KEYS; k++)
		cr_assert_geq(v.last[k], before[k], "killed before the end");
	cr_assert_eq(linkat(dirfd, "journal", dirfd, "old", 0), 0);
	for (uint32_t k = 0; k < KEYS; k++)
		before[k] = value_of(k);
	cr_assert_eq(journal_checkpoint_end(j, commit), 0);
	wait_for_values(goal);
	v = replay_copy("old");
	for (uint32_t k = 0; k < KEYS; k++)
		cr_assert_geq(v.last[k], before[k], "the old journal lacks a put");
	v = replay_copy("journal");
	for (uint32_t k = 0; k < KEYS; k++)
		cr_assert_eq(v.last[k], goal, "key %u is %u", k, v.last[k]);
	unlinkat(dirfd, "old", 0);
}

Test(journal, puts_during_a_checkpoint)
{
	pthread_t threads[KEYS];
	struct seen s;

	open_at(1, 2, LARGE, &s);
	for (uintptr_t k = 0; k < KEYS; k++) {
		pthread_mutex_init(&key[k].lock, NULL);
		cr_assert_eq(pthread_create(&threads[k], NULL, count_up, (void *)k), 0);
	}
	__atomic_store_n(&goal, STEP, __ATOMIC_RELEASE);
	wait_for_values(goal);
	for (int i = 0; i < ROUNDS; i++)
		checkpoint_round(i % 3 != 0);
	__atomic_store_n(&enough, true, __ATOMIC_RELEASE);
	for (int k = 0; k < KEYS; k++)
		pthread_join(threads[k], NULL);
	cr_assert_lt(journal_used(j), 2 * KEYS * 64 * STEP, "it was never rewritten");
}

/* A put that has room in the old journal only is on record all the same, and the new one is not
 * taken, for it lacks that. */
Test(journal, put_without_room_in_the_new_journal)
{
	struct seen s;

	open_at(1, 2, SMALL, &s);
	cr_assert_eq(put("old", NULL), 0);
	cr_assert_eq(journal_checkpoint_begin(j), 0);
	while (put_new("12345678") == 0)
		;
	cr_assert_eq(put("during", "checkpoint"), 0);
	cr_assert_eq(journal_checkpoint_end(j, true), -ENOSPC);
	cr_assert_eq(put("after", NULL), 0);
	cr_assert_eq(faccessat(dirfd, "journal.new", F_OK, 0), -1);
	cr_assert_eq(open_at(2, 3, SMALL, &s), 3);
	cr_assert_str_eq(s.text, "1:old | 1:during 2:checkpoint | 1:after | ");
	cr_assert_eq(journal_checkpoint_begin(j), 0, "the failure is forgotten");
	cr_assert_eq(journal_checkpoint_end(j, true), 0);
}

/* ---- kills ---- */

#define WRITERS 2
#define KILLS   40

enum { COUNT = 70, BASE = 71 };

struct mark {
	uint32_t writer;
	uint64_t n;
	char bulk[200];
} __attribute__((packed));

static uint64_t *counted; /* shared: groups put by each writer */

/* Two records a group, so that half a group would show. */
static void *write_marks(void *arg)
{
	uint32_t w = (uint32_t)(uintptr_t)arg;

	for (uint64_t n = counted[w] + 1;; n++) {
		struct mark mark = { .writer = w, .n = n };
		struct journal_record rec[2] = { { COUNT, sizeof(mark), &mark },
						 { COUNT, 12 + (uint32_t)(n % 100), &mark } };
		int r = journal_put(j, rec, 2);

		if (r < 0) { /* full: the checkpointing thread makes room */
			usleep(10);
			n--;
			continue;
		}
		__atomic_store_n(&counted[w], n, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* A checkpoint holds the counts; what a writer put but has not counted yet would be lost, so the
 * counts come from the old journal itself. */
static uint64_t last_of[WRITERS];
static bool half;

static int follow(void *arg, const struct journal_record *rec)
{
	struct mark mark;

	(void)arg;
	if (!rec) {
		cr_assert_not(half, "half a group");
		return 0;
	}
	memcpy(&mark, rec->data, 12);
	cr_assert_lt(mark.writer, WRITERS);
	if (rec->type == BASE) {
		last_of[mark.writer] = mark.n;
		return 0;
	}
	if (half)
		cr_assert_eq(last_of[mark.writer], mark.n);
	else
		cr_assert_eq(last_of[mark.writer] + 1, mark.n, "out of order");
	last_of[mark.writer] = mark.n;
	half = !half;
	return 0;
}

/* The child of one life: replays, compacts, then writes until it is killed. */
static void live(uint64_t epoch)
{
	pthread_t threads[WRITERS];
	uint64_t groups;

	if (journal_open(dirfd, UUID, epoch, epoch + 1, LARGE, follow, NULL, &j, &groups) < 0)
		_exit(1);
	if (journal_checkpoint_begin(j) < 0)
		_exit(2);
	for (uint32_t w = 0; w < WRITERS; w++) {
		struct mark mark = { .writer = w, .n = last_of[w] };
		struct journal_record rec = { BASE, 12, &mark };

		if (journal_checkpoint_put(j, &rec, 1) < 0)
			_exit(3);
		counted[w] = last_of[w];
	}
	if (journal_checkpoint_end(j, true) < 0)
		_exit(4);
	for (uintptr_t w = 0; w < WRITERS; w++)
		pthread_create(&threads[w], NULL, write_marks, (void *)w);
	pause();
}

Test(journal, killed_at_any_moment)
{
	uint64_t lost_at_most = 0, groups;

	counted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(counted, MAP_FAILED);
	for (uint64_t epoch = 1; epoch <= KILLS; epoch++) {
		pid_t pid = fork();
		int status;

		if (pid == 0)
			live(epoch);
		usleep((useconds_t)(rand() % 8000));
		kill(pid, SIGKILL);
		cr_assert_eq(waitpid(pid, &status, 0), pid);
		cr_assert(WIFSIGNALED(status), "exit %d", WEXITSTATUS(status));
		half = false;
		memset(last_of, 0, sizeof(last_of));
		/* A child killed early leaves the journal of the epoch before, or none. */
		cr_assert_eq(journal_open(dirfd, UUID, epoch, epoch + 1, LARGE, follow, NULL, &j,
					  &groups),
			     0);
		for (int w = 0; w < WRITERS; w++) {
			cr_assert_geq(last_of[w], counted[w], "lost");
			cr_assert_leq(last_of[w], counted[w] + 1, "invented");
			lost_at_most += last_of[w];
		}
		journal_close(j);
		j = NULL;
	}
	cr_assert_gt(lost_at_most, 1000, "nothing was written");
}
