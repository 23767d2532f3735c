/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify: telling the kernel that attributes it has cached are not so any more, from a thread of
 * its own: a notification from within a request, or under a lock a request needs, can deadlock.
 */
#include "fs/state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

void notify_init(struct fs *fs)
{
	pthread_mutex_init(&fs->notifier.lock, NULL);
	cond_init_monotonic(&fs->notifier.wake);
}

void notify_queue(struct fs *fs, uint64_t ino)
{
	struct notifier *n = &fs->notifier;

	pthread_mutex_lock(&n->lock);
	if (n->n == n->cap && n->running) {
		size_t cap = n->cap ? n->cap * 2 : 1024;
		uint64_t *v = reallocarray(n->ino, cap, sizeof(*v));

		if (v) {
			n->ino = v;
			n->cap = cap;
		}
	}
	if (n->n < n->cap)
		n->ino[n->n++] = ino;
	else
		n->overflow = true; /* or nobody listens */
	pthread_cond_signal(&n->wake);
	pthread_mutex_unlock(&n->lock);
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

/* The cached stored size is not to be trusted; true if the kernel may have one too. */
static bool forget_stored(struct fs *fs, uint64_t ino)
{
	struct known_file f;
	struct inode *i;
	bool known;

	ns_lock(fs);
	i = inode_find(fs, ino);
	known = !i && known_find(&fs->known, ino, &f);
	if (i && inode_is_file(i)) {
		i->file.stored_epoch = 0;
		known = i->nlookup > 0;
	}
	ns_unlock(fs);
	return known;
}

static void tell(struct fs *fs, uint64_t ino)
{
	if (forget_stored(fs, ino) && fs->se)
		fuse_lowlevel_notify_inval_inode(fs->se, ino, -1, 0);
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
	uint64_t *ino = n->ino;
	size_t count = n->n;

	if (!readahead && !overflow && !count)
		return false;
	n->readahead = n->overflow = false;
	n->ino = NULL;
	n->n = n->cap = 0;
	pthread_mutex_unlock(&n->lock);
	if (readahead)
		raise_readahead(fs);
	if (overflow)
		forget_all_stored(fs);
	for (size_t k = 0; k < count; k++)
		tell(fs, ino[k]);
	free(ino);
	pthread_mutex_lock(&n->lock);
	return true;
}

static void *notifier(void *arg)
{
	struct fs *fs = arg;
	struct notifier *n = &fs->notifier;

	pthread_mutex_lock(&n->lock);
	while (!n->stop)
		if (!work(fs))
			pthread_cond_wait(&n->wake, &n->lock);
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
	free(n->ino);
	n->ino = NULL;
	n->n = n->cap = 0;
	pthread_mutex_unlock(&n->lock);
}
