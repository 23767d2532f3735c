/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal: a redo log in shared memory that outlives the process which writes it.
 *
 * It never calls the kernel to append: a group is on record once its length word is stored. So it
 * must never meet a page that is not there, and the file is allocated in full before it is mapped.
 */
#include "store/journal.h"
#include "store/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define JOURNAL_MAGIC   0x6c6e72756f6a766bull /* "kvjournl" */
#define JOURNAL_VERSION 1u
#define JOURNAL_NAME    "journal"
#define JOURNAL_NEW     "journal.new"

struct journal_header {
	uint64_t magic;
	uint32_t version;
	uint32_t reserved; /* 0 */
	uint64_t epoch;    /* changed in place, with one store */
	char uuid[40];     /* 36 characters, then zeros */
};

struct group_header {
	uint32_t length; /* atomic */
	uint32_t count;
	uint64_t sum;
};

struct record_head {
	uint32_t type;
	uint32_t len;
};

_Static_assert(sizeof(struct journal_header) % 8 == 0, "groups are aligned to 8");
_Static_assert(sizeof(struct group_header) == 16 && sizeof(struct record_head) == 8, "format");

/* One file and where its last group ends. */
struct log {
	int fd;
	uint8_t *map;
	size_t size;
	uint64_t end; /* atomic: journal_used reads it without the lock */
};

struct journal {
	int dirfd;
	size_t want_size;
	char uuid[40];
	uint64_t epoch;
	pthread_mutex_t lock; /* guards what follows */
	struct log log;
	struct log fresh;  /* journal.new; mapped from checkpoint begin to end */
	bool fresh_failed; /* a group did not fit into it */
};

static size_t padded(size_t len)
{
	return (len + 7) & ~(size_t)7;
}

/* ---------------------------------------------------------------------------------------------
 * files
 */

static void log_close(struct log *l)
{
	if (l->map)
		munmap(l->map, l->size);
	if (l->fd >= 0)
		close(l->fd);
	*l = (struct log){ .fd = -1 };
}

static int write_zeros(int fd, off_t from, off_t to)
{
	static const char zeros[65536];

	while (from < to) {
		size_t n = sizeof(zeros) < (size_t)(to - from) ? sizeof(zeros) :
								 (size_t)(to - from);
		ssize_t w = pwrite(fd, zeros, n, from);

		if (w < 0 && errno != EINTR)
			return -errno;
		if (w > 0)
			from += w;
	}
	return 0;
}

/* Gives the file its size and every page of it a place, so that no store can be a SIGBUS. */
static int allocate(int fd, size_t size)
{
	struct stat st;
	int r;

	do
		r = fallocate(fd, 0, 0, (off_t)size);
	while (r < 0 && errno == EINTR);
	if (r == 0)
		return 0;
	if (errno != EOPNOTSUPP)
		return -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	return write_zeros(fd, st.st_size, (off_t)size);
}

/* Opens name, which grows to at least size bytes, and maps it. */
static int log_open(int dirfd, const char *name, int flags, size_t size, struct log *ret)
{
	struct log l = { .fd = -1, .end = sizeof(struct journal_header) };
	struct stat st;
	void *map;
	int r;

	l.fd = openat(dirfd, name, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (l.fd < 0)
		return -errno;
	if (fstat(l.fd, &st) < 0) {
		r = -errno;
		goto fail;
	}
	r = S_ISREG(st.st_mode) ? 0 : -EINVAL;
	l.size = (size_t)st.st_size > size ? (size_t)st.st_size & ~(size_t)7 : size;
	if (r == 0)
		r = allocate(l.fd, l.size);
	if (r < 0)
		goto fail;
	map = mmap(NULL, l.size, PROT_READ | PROT_WRITE, MAP_SHARED, l.fd, 0);
	if (map == MAP_FAILED) {
		r = -errno;
		goto fail;
	}
	l.map = map;
	*ret = l;
	return 0;
fail:
	log_close(&l);
	return r;
}

/* An empty journal.new with its header. */
static int log_create(const struct journal *j, uint64_t epoch, struct log *ret)
{
	struct journal_header *h;
	int r;

	unlinkat(j->dirfd, JOURNAL_NEW, 0);
	r = log_open(j->dirfd, JOURNAL_NEW, O_CREAT | O_EXCL, j->want_size, ret);
	if (r < 0) {
		unlinkat(j->dirfd, JOURNAL_NEW, 0);
		return r;
	}
	h = (struct journal_header *)ret->map;
	h->magic = JOURNAL_MAGIC;
	h->version = JOURNAL_VERSION;
	h->epoch = epoch;
	memcpy(h->uuid, j->uuid, sizeof(h->uuid));
	return 0;
}

/* Makes journal.new the journal. A kill before the rename leaves the old one, after it the new. */
static int log_install(const struct journal *j)
{
	if (renameat(j->dirfd, JOURNAL_NEW, j->dirfd, JOURNAL_NAME) == 0)
		return 0;
	return -errno;
}

/* ---------------------------------------------------------------------------------------------
 * groups
 */

/* Bytes of a group; 0 when that cannot be a length. */
static size_t group_size(const struct journal_record *rec, unsigned n)
{
	uint64_t size = sizeof(struct group_header);

	for (unsigned i = 0; i < n; i++) {
		size += sizeof(struct record_head) + padded(rec[i].len);
		if (size > INT32_MAX)
			return 0;
	}
	return (size_t)size;
}

static void copy_records(uint8_t *to, const struct journal_record *rec, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct record_head head = { .type = rec[i].type, .len = rec[i].len };
		size_t pad = padded(rec[i].len) - rec[i].len;

		memcpy(to, &head, sizeof(head));
		to += sizeof(head);
		if (rec[i].len)
			memcpy(to, rec[i].data, rec[i].len);
		to += rec[i].len;
		memset(to, 0, pad);
		to += pad;
	}
}

static uint64_t group_sum(const struct group_header *g, size_t size)
{
	return sum64_seeded(g + 1, size - sizeof(*g), g->count);
}

/* The word behind a group ends the journal until the next group is whole. */
static void end_at(const struct log *l, uint64_t pos)
{
	__atomic_store_n((uint32_t *)(l->map + pos), 0, __ATOMIC_RELEASE);
}

static int log_put(struct log *l, const struct journal_record *rec, unsigned n)
{
	struct group_header *g = (struct group_header *)(l->map + l->end);
	size_t size = n ? group_size(rec, n) : 0;

	if (n == 0)
		return -EINVAL;
	if (size == 0 || size + sizeof(uint64_t) > l->size - l->end)
		return -ENOSPC;
	end_at(l, l->end + size);
	g->count = n;
	copy_records((uint8_t *)(g + 1), rec, n);
	g->sum = group_sum(g, size);
	__atomic_store_n(&g->length, (uint32_t)size, __ATOMIC_RELEASE);
	__atomic_store_n(&l->end, l->end + size, __ATOMIC_RELEASE);
	return 0;
}

/* ---------------------------------------------------------------------------------------------
 * replay
 */

static bool header_is(const struct log *l, const struct journal *j, uint64_t epoch)
{
	const struct journal_header *h = (const struct journal_header *)l->map;

	return h->magic == JOURNAL_MAGIC && h->version == JOURNAL_VERSION &&
	       !memcmp(h->uuid, j->uuid, sizeof(h->uuid)) &&
	       (h->epoch == epoch || h->epoch == j->epoch);
}

/* True if the records fill the group exactly. */
static bool records_fit(const struct group_header *g, size_t size)
{
	const uint8_t *p = (const uint8_t *)(g + 1);
	size_t left = size - sizeof(*g);

	for (uint32_t i = 0; i < g->count; i++) {
		struct record_head head;

		if (left < sizeof(head))
			return false;
		memcpy(&head, p, sizeof(head));
		if (padded(head.len) > left - sizeof(head))
			return false;
		p += sizeof(head) + padded(head.len);
		left -= sizeof(head) + padded(head.len);
	}
	return left == 0;
}

/* The group at the end of what is known to be good; NULL when there is none or it is torn. */
static const struct group_header *group_next(const struct log *l)
{
	const struct group_header *g = (const struct group_header *)(l->map + l->end);
	size_t left = l->size - l->end;

	if (left < sizeof(*g) || g->length < sizeof(*g) + sizeof(struct record_head) ||
	    g->length % 8 || g->length > left - sizeof(uint64_t))
		return NULL;
	if (g->count == 0 || group_sum(g, g->length) != g->sum || !records_fit(g, g->length))
		return NULL;
	return g;
}

static int replay_group(const struct group_header *g,
			int (*replay)(void *arg, const struct journal_record *rec), void *arg)
{
	const uint8_t *p = (const uint8_t *)(g + 1);

	for (uint32_t i = 0; i < g->count; i++) {
		struct journal_record rec = { .data = p + sizeof(struct record_head) };
		struct record_head head;
		int r;

		memcpy(&head, p, sizeof(head));
		rec.type = head.type;
		rec.len = head.len;
		r = replay(arg, &rec);
		if (r < 0)
			return r;
		p += sizeof(head) + padded(head.len);
	}
	return replay(arg, NULL);
}

static int log_replay(struct log *l, int (*replay)(void *arg, const struct journal_record *rec),
		      void *arg, uint64_t *ret_groups)
{
	const struct group_header *g;
	uint64_t groups = 0;

	while ((g = group_next(l))) {
		int r = replay_group(g, replay, arg);

		if (r < 0)
			return r;
		l->end += g->length;
		groups++;
	}
	*ret_groups = groups;
	return 0;
}

/* -ENODATA: there is no journal of this store and epoch. */
static int open_old(struct journal *j, uint64_t epoch,
		    int (*replay)(void *arg, const struct journal_record *rec), void *arg,
		    uint64_t *ret_replayed)
{
	struct log l;
	int r = log_open(j->dirfd, JOURNAL_NAME, 0, j->want_size, &l);

	if (r < 0)
		return r == -ENOENT || r == -ELOOP || r == -EINVAL ? -ENODATA : r;
	r = header_is(&l, j, epoch) ? log_replay(&l, replay, arg, ret_replayed) : -ENODATA;
	if (r < 0) {
		log_close(&l);
		return r;
	}
	if (l.size - l.end >= sizeof(uint64_t))
		end_at(&l, l.end);
	__atomic_store_n(&((struct journal_header *)l.map)->epoch, j->epoch, __ATOMIC_RELEASE);
	j->log = l;
	return 0;
}

static int open_fresh(struct journal *j)
{
	int r = log_create(j, j->epoch, &j->log);

	if (r == 0)
		r = log_install(j);
	return r;
}

int journal_open(int rundir_fd, const char *uuid, uint64_t epoch, uint64_t epoch_now, size_t size,
		 int (*replay)(void *arg, const struct journal_record *rec), void *arg,
		 struct journal **ret, uint64_t *ret_replayed)
{
	struct journal *j = calloc(1, sizeof(*j));
	uint64_t replayed = 0;
	int r = -ENODATA;

	if (!j)
		return -ENOMEM;
	pthread_mutex_init(&j->lock, NULL);
	j->log.fd = j->fresh.fd = -1;
	j->epoch = epoch_now;
	j->want_size = padded(size);
	memcpy(j->uuid, uuid, strnlen(uuid, sizeof(j->uuid) - 1));
	j->dirfd = fcntl(rundir_fd, F_DUPFD_CLOEXEC, 0);
	if (j->dirfd < 0)
		r = -errno;
	else if (size < sizeof(struct journal_header) + sizeof(uint64_t))
		r = -EINVAL;
	else if (replay)
		r = open_old(j, epoch, replay, arg, &replayed);
	if (r == -ENODATA)
		r = open_fresh(j);
	if (r < 0) {
		journal_close(j);
		return r;
	}
	*ret = j;
	*ret_replayed = replayed;
	return 0;
}

void journal_close(struct journal *j)
{
	if (!j)
		return;
	log_close(&j->log);
	log_close(&j->fresh);
	if (j->dirfd >= 0)
		close(j->dirfd);
	pthread_mutex_destroy(&j->lock);
	free(j);
}

/* During a checkpoint a group goes to both: whoever writes the checkpoint has looked at the state
 * either before or after it, and after-images in order are right either way. */
int journal_put(struct journal *j, const struct journal_record *rec, unsigned n)
{
	int r;

	pthread_mutex_lock(&j->lock);
	r = log_put(&j->log, rec, n);
	if (r == 0 && j->fresh.map && log_put(&j->fresh, rec, n))
		j->fresh_failed = true;
	pthread_mutex_unlock(&j->lock);
	return r;
}

uint64_t journal_used(const struct journal *j)
{
	return __atomic_load_n(&j->log.end, __ATOMIC_ACQUIRE) - sizeof(struct journal_header);
}

size_t journal_size(const struct journal *j)
{
	return __atomic_load_n(&j->log.size, __ATOMIC_ACQUIRE);
}

int journal_checkpoint_begin(struct journal *j)
{
	int r;

	pthread_mutex_lock(&j->lock);
	r = j->fresh.map ? -EBUSY : log_create(j, j->epoch, &j->fresh);
	j->fresh_failed = false;
	pthread_mutex_unlock(&j->lock);
	return r;
}

int journal_checkpoint_put(struct journal *j, const struct journal_record *rec, unsigned n)
{
	int r;

	pthread_mutex_lock(&j->lock);
	r = log_put(&j->fresh, rec, n);
	pthread_mutex_unlock(&j->lock);
	return r;
}

/* The lengths are read without the lock, and so stored one by one. */
static void adopt(struct journal *j)
{
	struct log old = j->log;

	j->log.fd = j->fresh.fd;
	j->log.map = j->fresh.map;
	__atomic_store_n(&j->log.size, j->fresh.size, __ATOMIC_RELEASE);
	__atomic_store_n(&j->log.end, j->fresh.end, __ATOMIC_RELEASE);
	j->fresh = (struct log){ .fd = -1 };
	log_close(&old);
}

int journal_checkpoint_end(struct journal *j, bool commit)
{
	int r = 0;

	pthread_mutex_lock(&j->lock);
	if (commit) {
		r = j->fresh_failed ? -ENOSPC : log_install(j);
		if (r == 0)
			adopt(j);
	}
	if (!commit || r < 0) {
		unlinkat(j->dirfd, JOURNAL_NEW, 0);
		log_close(&j->fresh);
	}
	pthread_mutex_unlock(&j->lock);
	return r;
}
