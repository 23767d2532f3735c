/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta: meta.db as a whole: opening, closing, its identity, its epoch and its totals. Rows are read
 * in meta_read.c and written in meta_txn.c.
 */
#include "store/meta_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "file:" and the path, with what a URI reserves written as %XX. */
char *meta_uri(const char *path, const char *query)
{
	char *uri = malloc(5 + 3 * strlen(path) + strlen(query) + 1);
	char *p = uri;

	if (!uri)
		return NULL;
	p = stpcpy(p, "file:");
	for (const unsigned char *s = (const unsigned char *)path; *s; s++)
		if (*s == '%' || *s == '?' || *s == '#')
			p += sprintf(p, "%%%02X", *s);
		else
			*p++ = (char)*s;
	strcpy(p, query);
	return uri;
}

int64_t meta_wal_size(const struct meta *m)
{
	struct stat st;
	char *name;
	int r;

	if (asprintf(&name, "%s-wal", m->path) < 0)
		return -1;
	r = stat(name, &st);
	free(name);
	return r < 0 ? -1 : st.st_size;
}

/* Makes the empty file, private and durably named: SQLite would follow the umask, and gives its
 * other files the mode of this one. */
static int create_file(const struct meta *m, const char *dir, struct store_error *err)
{
	int dirfd, fd, r = 0;

	if (meta_wal_size(m) > 0)
		return meta_fail(err, -EUCLEAN,
				 "%s: missing, but %s-wal is there: put it back from where it went,"
				 " or restore both from a copy",
				 m->path, m->path);
	dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dirfd < 0)
		return meta_fail(err, -errno, "%s: %s", dir, strerror(errno));
	fd = openat(dirfd, "meta.db", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || fsync(dirfd) < 0)
		r = meta_fail(err, -errno, "%s: cannot be created: %s", m->path, strerror(errno));
	if (fd >= 0)
		close(fd);
	close(dirfd);
	return r;
}

/* immutable=1 keeps SQLite from making -wal and -shm files and from taking locks. It is right only
 * while nobody writes; whoever has the database open for writing keeps a -wal file there. */
static int locate(struct meta *m, const char *dir, struct store_error *err)
{
	struct stat st;
	char *real = realpath(dir, NULL);

	if (!real)
		return meta_fail(err, -errno, "%s: %s", dir, strerror(errno));
	if (asprintf(&m->path, "%s/meta.db", strcmp(real, "/") ? real : "") < 0)
		m->path = NULL;
	free(real);
	if (!m->path)
		return meta_fail(err, -ENOMEM, "%s: out of memory", dir);
	m->uri = meta_uri(m->path, m->read_only && meta_wal_size(m) < 0 ? "?immutable=1" : "");
	if (!m->uri)
		return meta_fail(err, -ENOMEM, "%s: out of memory", dir);
	/* A link would lead out of the store, a FIFO be waited for. */
	if (lstat(m->path, &st) == 0)
		return S_ISREG(st.st_mode) ?
			       0 :
			       meta_fail(err, -EMEDIUMTYPE,
					 "%s: not a regular file: put the database itself there",
					 m->path);
	if (errno != ENOENT)
		return meta_fail(err, -errno, "%s: %s", m->path, strerror(errno));
	if (m->read_only)
		return meta_fail(err, -ENOENT, "%s: missing: this is no kvfs store", m->path);
	return create_file(m, dir, err);
}

/* A new inode must not get the number of one that is there, whatever the counter says. */
static int find_highest(struct meta *m)
{
	int64_t highest = 0;
	int r = meta_conn_number(&m->writer, "SELECT coalesce(max(ino), 1) FROM inodes", &highest);

	if (r == 0 && highest > (int64_t)META_NUMBER_MAX)
		r = -EUCLEAN;
	if (r == 0 && highest > m->committed.max_ino)
		m->committed.max_ino = highest;
	return r;
}

static int start(struct meta *m)
{
	int r = 0;

	if (!m->read_only)
		r = meta_conn_start(m->uri, true, &m->writer);
	if (r == 0 && !m->read_only)
		r = meta_conn_prepare_all(&m->writer);
	if (r == 0)
		r = meta_load(m);
	if (r == 0 && !m->read_only)
		r = find_highest(m);
	if (r == 0 && !m->read_only)
		r = meta_wal_start(m);
	return r;
}

int meta_open(const char *dir, bool read_only, struct meta **ret, struct store_error *err)
{
	struct meta *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return meta_fail(err, -ENOMEM, "%s: out of memory", dir);
	pthread_mutex_init(&m->write_lock, NULL);
	pthread_mutex_init(&m->state_lock, NULL);
	pthread_cond_init(&m->wake, NULL);
	pthread_cond_init(&m->emptied, NULL);
	m->read_only = read_only;
	r = locate(m, dir, err);
	if (r == 0)
		r = meta_schema_check(m, err);
	if (r < 0)
		goto fail;
	r = start(m);
	if (r < 0) {
		meta_fail(err, r, "%s: %s%s", m->path, strerror(-r),
			  r == -EUCLEAN ?
				  ": damaged: try 'kvfs fsck --repair', or restore it from a copy" :
				  "");
		goto fail;
	}
	*ret = m;
	return 0;
fail:
	meta_close(m);
	return r;
}

/* The last connection to close moves the WAL into meta.db and removes it, unless the database is
 * broken: then what is in memory must not reach the file. */
void meta_close(struct meta *m)
{
	bool keep_wal;

	if (!m)
		return;
	meta_wal_stop(m);
	keep_wal = m->broken < 0;
	meta_readers_close(m, keep_wal);
	meta_conn_close(&m->writer, keep_wal);
	pthread_cond_destroy(&m->wake);
	pthread_cond_destroy(&m->emptied);
	pthread_mutex_destroy(&m->state_lock);
	pthread_mutex_destroy(&m->write_lock);
	free(m->uri);
	free(m->path);
	free(m);
}

const char *meta_uuid(const struct meta *m)
{
	return m->uuid;
}

static struct meta_counters counters(struct meta *m)
{
	struct meta_counters c;

	pthread_mutex_lock(&m->state_lock);
	c = m->committed;
	pthread_mutex_unlock(&m->state_lock);
	return c;
}

int meta_totals(struct meta *m, uint64_t *ret_logical_bytes, uint64_t *ret_files)
{
	struct meta_counters c = counters(m);

	*ret_logical_bytes = (uint64_t)c.logical_bytes;
	*ret_files = (uint64_t)c.files;
	return 0;
}

uint64_t meta_row_max_ino(struct meta *m)
{
	return (uint64_t)counters(m).max_ino;
}

uint64_t meta_row_max_dentry_id(struct meta *m)
{
	return (uint64_t)counters(m).max_dentry_id;
}

uint64_t meta_row_count_inodes(struct meta *m)
{
	return (uint64_t)counters(m).inodes;
}

uint64_t meta_max_ino(struct store *s)
{
	return meta_row_max_ino(store_meta(s));
}

uint64_t meta_max_dentry_id(struct store *s)
{
	return meta_row_max_dentry_id(store_meta(s));
}

uint64_t meta_count_inodes(struct store *s)
{
	return meta_row_count_inodes(store_meta(s));
}

uint64_t meta_epoch(const struct meta *m)
{
	return __atomic_load_n(&m->epoch, __ATOMIC_ACQUIRE);
}

int meta_bump_epoch(struct meta *m)
{
	struct meta_txn *t;
	int r = meta_txn_begin(m, NULL, &t);

	if (r < 0)
		return r;
	r = meta_conn_run(&m->writer, m->writer.stmt[SQL_BUMP_EPOCH]);
	if (r < 0) {
		meta_txn_abort(t);
		return r;
	}
	r = meta_txn_commit(t, true);
	if (r == 0)
		__atomic_add_fetch(&m->epoch, 1, __ATOMIC_RELEASE);
	return r;
}
