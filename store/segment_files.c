/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_files: segments kept open for readers, as a restore comes back to the same few. A
 * descriptor in use outlives the removal of its segment.
 */
#include "store/segment_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

/* All of this with pool_lock held. */

static struct read_file *find(struct segset *s, uint32_t n)
{
	struct read_file *f = s->files;

	while (f && (f->n != n || f->removed))
		f = f->next;
	return f;
}

static void drop(struct segset *s, struct read_file *f)
{
	struct read_file **link = &s->files;

	while (*link != f)
		link = &(*link)->next;
	*link = f->next;
	s->n_files--;
	s->io->close(s->io->arg, f->fd);
	free(f);
}

/* Closes the file that nobody reads and nobody has read for longest. */
static void drop_oldest(struct segset *s)
{
	struct read_file *oldest = NULL;

	for (struct read_file *f = s->files; f; f = f->next) {
		if (!f->refs && (!oldest || f->tick < oldest->tick))
			oldest = f;
	}
	if (oldest)
		drop(s, oldest);
}

static int add(struct segset *s, uint32_t n, struct read_file **ret)
{
	struct read_file *f = calloc(1, sizeof(*f));
	int fd;

	if (!f)
		return -ENOMEM;
	fd = segment_open(s, n, O_RDONLY);
	if (fd < 0) {
		free(f);
		return fd;
	}
	if (s->n_files >= OPEN_FILES)
		drop_oldest(s);
	f->n = n;
	f->fd = fd;
	f->next = s->files;
	s->files = f;
	s->n_files++;
	*ret = f;
	return 0;
}

/* ---- The calls. ---- */

int read_file_get(struct segset *s, uint32_t n, struct read_file **ret)
{
	struct read_file *f;
	int rc = 0;

	pthread_mutex_lock(&s->pool_lock);
	f = find(s, n);
	if (!f)
		rc = add(s, n, &f);
	if (!rc) {
		f->refs++;
		f->tick = ++s->tick;
		*ret = f;
	}
	pthread_mutex_unlock(&s->pool_lock);
	return rc;
}

void read_file_put(struct segset *s, struct read_file *f)
{
	pthread_mutex_lock(&s->pool_lock);
	f->refs--;
	if (!f->refs && (f->removed || s->n_files > OPEN_FILES))
		drop(s, f);
	pthread_mutex_unlock(&s->pool_lock);
}

void read_file_forget(struct segset *s, uint32_t n)
{
	struct read_file *f;

	pthread_mutex_lock(&s->pool_lock);
	f = find(s, n);
	if (f && f->refs)
		f->removed = true;
	else if (f)
		drop(s, f);
	pthread_mutex_unlock(&s->pool_lock);
}

void read_files_close(struct segset *s)
{
	while (s->files)
		drop(s, s->files);
}
