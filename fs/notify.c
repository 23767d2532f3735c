/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify: telling the kernel that attributes it has cached are not so any more, from a thread of
 * its own: a notification from within a request, or under a lock a request needs, can deadlock, but for
 * one (notify_changed).
 */
#include "fs/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

/* The kernel does not know an inode yet while the reply that shows it is on its way: such a notice is
 * given again and again for so long. */
#define AGAIN_MS       20
#define AGAIN_UP_TO_MS 5000

void notify_init(struct fs *fs)
{
	pthread_mutex_init(&fs->notifier.flushing, NULL);
	pthread_mutex_init(&fs->notifier.lock, NULL);
	cond_init_monotonic(&fs->notifier.wake);
}

static bool push(struct notices *q, struct notice what)
{
	if (q->n == q->cap) {
		size_t cap = q->cap ? q->cap * 2 : 1024;
		struct notice *v = reallocarray(q->v, cap, sizeof(*v));

		if (!v)
			return false;
		q->v = v;
		q->cap = cap;
	}
	q->v[q->n++] = what;
	return true;
}

static void queue(struct fs *fs, struct notice what)
{
	struct notifier *n = &fs->notifier;

	pthread_mutex_lock(&n->lock);
	if (!n->running || !push(&n->queue, what))
		n->overflow = true; /* the kernel keeps what it has, an hour at most */
	pthread_cond_signal(&n->wake);
	pthread_mutex_unlock(&n->lock);
}

void notify_queue(struct fs *fs, uint64_t ino)
{
	queue(fs, (struct notice){ .ino = ino });
}

void notify_stored(struct fs *fs, uint64_t ino)
{
	queue(fs, (struct notice){ .ino = ino, .stored = true });
}

/* Not from the thread, which would be late. It cannot deadlock: of attributes alone the kernel takes note
 * without waiting, and an inode in use is neither on its way in nor out. */
void notify_changed(struct fs *fs, uint64_t ino)
{
	if (fs->se)
		fuse_lowlevel_notify_inval_inode(fs->se, ino, -1, 0);
}

void notify_raise_readahead(struct fs *fs)
{
	pthread_mutex_lock(&fs->notifier.lock);
	fs->notifier.readahead = true;
	pthread_cond_signal(&fs->notifier.wake);
	pthread_mutex_unlock(&fs->notifier.lock);
}

/* ---- read-ahead ---- */

/* Undoes the escapes of mountinfo, in place. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		unsigned c;

		if (s[0] == '\\' && sscanf(s + 1, "%3o", &c) == 1 && s[1] && s[2] && s[3]) {
			*to++ = (char)c;
			s += 3;
		} else {
			*to++ = *s;
		}
	}
	*to = '\0';
}

/* The device of what is mounted at point, without asking the mount itself. */
static bool find_device(const char *point, unsigned *major, unsigned *minor)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char line[8192], path[4096];
	bool found = false;
	unsigned a, b;

	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%*u %*u %u:%u %*s %4095s", &a, &b, path) != 3)
			continue;
		unescape(path);
		if (strcmp(path, point))
			continue;
		/* The last one is on top. */
		*major = a;
		*minor = b;
		found = true;
	}
	fclose(f);
	return found;
}

static void raise_readahead(struct fs *fs)
{
	unsigned major, minor;
	char path[64], kb[16];
	int fd;

	if (!find_device(fs->mountpoint, &major, &minor))
		return;
	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major, minor);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	snprintf(kb, sizeof(kb), "%u", READ_AHEAD >> 10);
	if (write(fd, kb, strlen(kb)) < 0)
		fs_log(fs, LOG_NOTICE, "cannot raise the read-ahead: %s: %m", path);
	close(fd);
}

/* ---- the thread ---- */

/* All that was said since the kernel was told last is what there is: which of several replies it keeps is
 * not known. The lock is held. */
static bool is_as_said(struct inode *i)
{
	struct object_stat os;

	if (!i->file.o || i->discarded) /* the object of what is discarded may be gone */
		return false;
	object_stat(i->file.o, &os);
	i->file.mappable &= os.dirty || os.writer || i->nopen;
	return !i->file.varied && os.stored == i->file.stored && os.size == i->a.size;
}

/* The cached stored size is not to be trusted; true if the kernel may have one that is not so. */
static bool forget_stored(struct fs *fs, struct notice what)
{
	struct known_file f;
	struct inode *i;
	bool wrong;

	ns_lock(fs);
	i = inode_find(fs, what.ino);
	wrong = i ? i->nlookup > 0 : known_find(&fs->known, what.ino, &f);
	if (i && inode_is_file(i)) {
		if (is_as_said(i) && what.stored)
			wrong = false;
		i->file.stored_epoch = 0;
		i->file.varied &= !wrong;
	}
	ns_unlock(fs);
	return wrong;
}

/* Without a lock. */
static void tell(struct fs *fs, struct notice what)
{
	if (!forget_stored(fs, what) || !fs->se ||
	    fuse_lowlevel_notify_inval_inode(fs->se, what.ino, -1, 0) != -ENOENT)
		return;
	what.stored = false;
	if (!what.until_ms)
		what.until_ms = clock_ms() + AGAIN_UP_TO_MS;
	if (clock_ms() < what.until_ms)
		push(&fs->notifier.again, what);
}

static void tell_all(struct fs *fs, struct notices all)
{
	for (size_t k = 0; k < all.n; k++)
		tell(fs, all.v[k]);
	free(all.v);
}

static void tell_again(struct fs *fs)
{
	struct notices all = fs->notifier.again;

	fs->notifier.again = (struct notices){ 0 };
	tell_all(fs, all);
}

static void forget_all_stored(struct fs *fs)
{
	ns_lock(fs);
	fs->stored_epoch++;
	ns_unlock(fs);
}

/* What there is to do; lock is held and given up for it. False when there is nothing. */
static bool work(struct fs *fs)
{
	struct notifier *n = &fs->notifier;
	bool readahead = n->readahead, overflow = n->overflow;
	struct notices all = n->queue;

	if (!readahead && !overflow && !all.n)
		return false;
	n->readahead = n->overflow = false;
	n->queue = (struct notices){ 0 };
	pthread_mutex_unlock(&n->lock);
	if (readahead)
		raise_readahead(fs);
	if (overflow)
		forget_all_stored(fs);
	tell_all(fs, all);
	pthread_mutex_lock(&n->lock);
	return true;
}

static void *notifier(void *arg)
{
	struct fs *fs = arg;
	struct notifier *n = &fs->notifier;
	int64_t due = 0;

	pthread_mutex_lock(&n->lock);
	while (!n->stop) {
		if (n->again.n && clock_ms() >= due) {
			pthread_mutex_unlock(&n->lock);
			tell_again(fs);
			pthread_mutex_lock(&n->lock);
			due = clock_ms() + AGAIN_MS;
		}
		if (work(fs) || n->stop)
			continue;
		if (n->again.n)
			cond_wait_ms(&n->wake, &n->lock, AGAIN_MS);
		else
			pthread_cond_wait(&n->wake, &n->lock);
	}
	pthread_mutex_unlock(&n->lock);
	return NULL;
}

int notify_start(struct fs *fs)
{
	struct notifier *n = &fs->notifier;
	int r = -pthread_create(&n->thread, NULL, notifier, fs);

	pthread_mutex_lock(&n->lock);
	n->running = r == 0;
	pthread_mutex_unlock(&n->lock);
	return r;
}

void notify_stop(struct fs *fs)
{
	struct notifier *n = &fs->notifier;
	bool running;

	pthread_mutex_lock(&n->lock);
	running = n->running;
	n->stop = true;
	n->running = false;
	pthread_cond_signal(&n->wake);
	pthread_mutex_unlock(&n->lock);
	if (running)
		pthread_join(n->thread, NULL);
	pthread_mutex_lock(&n->lock);
	free(n->queue.v);
	free(n->again.v);
	n->queue = n->again = (struct notices){ 0 };
	pthread_mutex_unlock(&n->lock);
}
