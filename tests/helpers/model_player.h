/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays operations on both sides and compares: results, errnos, what was read, attributes, and now and
 * then the whole trees. The first difference ends the process, after it has been written to the note that
 * is shared with the parent. Nothing here goes on after a failure: what follows one means nothing.
 */
#ifndef MODEL_PLAYER_H
#define MODEL_PLAYER_H

#include "model_background.h"
#include "model_daemon.h"
#include "model_data.h"
#include "model_names.h"

#define TAINTED_MAX 64

/* Shared with the parent, which outlives the player and tells a crash or a hang from a difference. */
struct note {
	struct daemon daemon;
	volatile unsigned at;   /* the operation that is being played: its place in the list */
	volatile unsigned beat; /* moves as long as there is progress */
	volatile bool failed;
	char kind[64]; /* what differs, without numbers: a shrunk sequence fails with the same */
	char message[1024];
};

struct player {
	struct note *note;
	struct side kvfs, ref;
	const struct op *op;
	struct background background;
	/* Files whose mtime is nobody's promise, by the reference's inode. */
	ino_t tainted[TAINTED_MAX];
	unsigned ntainted;
};

static void fail(struct player *p, const char *kind, const char *format, ...)
	__attribute__((format(printf, 3, 4), noreturn));

static void fail(struct player *p, const char *kind, const char *format, ...)
{
	struct note *n = p->note;
	bool dead = n->daemon.pid && process_wait(n->daemon.pid, 0);
	va_list ap;

	snprintf(n->kind, sizeof n->kind, "%s", dead ? "the daemon died" : kind);
	va_start(ap, format);
	vsnprintf(n->message, sizeof n->message, format, ap);
	va_end(ap);
	n->failed = true;
	_exit(1);
}

/* ---- Comparing -------------------------------------------------------------------------------- */

static const char *result_text(int64_t r)
{
	static char room[2][32];
	static unsigned turn;
	char *p = room[turn++ % 2];

	if (r == NOTHING)
		return "nothing";
	if (r < 0)
		return strerrorname_np((int)-r);
	snprintf(p, 32, "%lld", (long long)r);
	return p;
}

static void compare_results(struct player *p, const char *what, int64_t kvfs, int64_t ref)
{
	char kind[64];

	if (kvfs == ref)
		return;
	snprintf(kind, sizeof kind, "%s: result", op_types[p->op->kind].name);
	fail(p, kind, "%s: kvfs %s, reference %s", what, result_text(kvfs), result_text(ref));
}

/* What both have read last. */
static void compare_out(struct player *p, const char *kind, const char *what)
{
	const struct side *k = &p->kvfs, *r = &p->ref;
	size_t at = 0, same;

	if (k->out_len != r->out_len)
		fail(p, kind, "%s: kvfs has %zu bytes, reference %zu", what, k->out_len,
		     r->out_len);
	if (!memcmp(k->out, r->out, k->out_len))
		return;
	while (k->out[at] == r->out[at])
		at++;
	for (same = at; same < k->out_len && k->out[same] != r->out[same]; same++)
		;
	fail(p, kind,
	     "%s: of %zu bytes, %zu from %zu on differ: kvfs %02x %02x, reference %02x %02x", what,
	     k->out_len, same - at, at, k->out[at], at + 1 < k->out_len ? k->out[at + 1] : 0,
	     r->out[at], at + 1 < k->out_len ? r->out[at + 1] : 0);
}

static bool mtime_was_set(const struct stat *st)
{
	return st->st_mtim.tv_sec < TIME_SET_MAX;
}

static void compare_mtime(struct player *p, const char *what, const struct stat *k,
			  const struct stat *r)
{
	for (unsigned n = 0; n < p->ntainted; n++)
		if (p->tainted[n] == r->st_ino)
			return;
	if (!mtime_was_set(k) && !mtime_was_set(r))
		return;
	if (k->st_mtim.tv_sec != r->st_mtim.tv_sec || k->st_mtim.tv_nsec != r->st_mtim.tv_nsec)
		fail(p, "attributes: mtime", "%s: mtime: kvfs %lld.%09ld, reference %lld.%09ld",
		     what, (long long)k->st_mtim.tv_sec, k->st_mtim.tv_nsec,
		     (long long)r->st_mtim.tv_sec, r->st_mtim.tv_nsec);
}

static void compare_stats(struct player *p, const char *what, const struct stat *k,
			  const struct stat *r)
{
	if (k->st_mode != r->st_mode)
		fail(p, "attributes: mode", "%s: mode: kvfs %o, reference %o", what, k->st_mode,
		     r->st_mode);
	if (k->st_nlink != r->st_nlink)
		fail(p, "attributes: nlink", "%s: nlink: kvfs %lu, reference %lu", what,
		     (unsigned long)k->st_nlink, (unsigned long)r->st_nlink);
	if (k->st_uid != r->st_uid || k->st_gid != r->st_gid)
		fail(p, "attributes: owner", "%s: owner: kvfs %u:%u, reference %u:%u", what,
		     k->st_uid, k->st_gid, r->st_uid, r->st_gid);
	if (!S_ISDIR(r->st_mode) && k->st_size != r->st_size)
		fail(p, "attributes: size", "%s: size: kvfs %lld, reference %lld", what,
		     (long long)k->st_size, (long long)r->st_size);
	compare_mtime(p, what, k, r);
}

static void compare_slot_stat(struct player *p, unsigned slot)
{
	struct stat k, r;
	char what[64];

	if (!p->ref.slots[slot].used)
		return;
	snprintf(what, sizeof what, "fstat of slot %u", slot);
	compare_results(p, what, result(fstat(p->kvfs.slots[slot].fd, &k)),
			result(fstat(p->ref.slots[slot].fd, &r)));
	compare_stats(p, what, &k, &r);
}

static void compare_path_stat(struct player *p, unsigned path)
{
	struct stat k, r;
	char what[64];
	int64_t got_k, got_r;

	snprintf(what, sizeof what, "lstat of %s", op_paths[path]);
	got_k = result(lstat(side_path(&p->kvfs, path), &k));
	got_r = result(lstat(side_path(&p->ref, path), &r));
	compare_results(p, what, got_k, got_r);
	if (got_r == 0)
		compare_stats(p, what, &k, &r);
}

/* ---- Whole trees ------------------------------------------------------------------------------ */

static void check_file(struct player *p, const char *const paths[2], const char *what)
{
	struct side *sides[2] = { &p->kvfs, &p->ref };
	int64_t r[2];

	for (int k = 0; k < 2; k++) {
		int fd = open(paths[k], O_RDONLY);

		sides[k]->out_len = 0;
		r[k] = fd < 0 ? -errno : read_whole(sides[k], fd);
		if (fd >= 0)
			close(fd);
	}
	compare_results(p, what, r[0], r[1]);
	compare_out(p, "content", what);
}

static void check_xattrs(struct player *p, const char *const paths[2], const char *what)
{
	int64_t k = list_xattrs(&p->kvfs, paths[0]), r = list_xattrs(&p->ref, paths[1]);

	compare_results(p, what, k, r);
	compare_out(p, "xattrs", what);
}

static void check_symlink(struct player *p, const char *const paths[2], const char *what)
{
	char k[PATH_ROOM] = "", r[PATH_ROOM] = "";

	compare_results(p, what, result(readlink(paths[0], k, sizeof k - 1)),
			result(readlink(paths[1], r, sizeof r - 1)));
	if (strcmp(k, r))
		fail(p, "symlink", "%s: target: kvfs %s, reference %s", what, k, r);
}

static void check_folder(struct player *p, const char *below);

static void check_entry(struct player *p, const char *name)
{
	char room[2][2 * PATH_ROOM];
	const char *const paths[2] = { room[0], room[1] };
	struct stat k, r;

	snprintf(room[0], sizeof room[0], "%s%s", p->kvfs.top, name);
	snprintf(room[1], sizeof room[1], "%s%s", p->ref.top, name);
	compare_results(p, name, result(lstat(paths[0], &k)), result(lstat(paths[1], &r)));
	compare_stats(p, name, &k, &r);
	if (S_ISLNK(r.st_mode)) {
		check_symlink(p, paths, name);
		return;
	}
	check_xattrs(p, paths, name);
	if (S_ISDIR(r.st_mode))
		check_folder(p, name);
	else
		check_file(p, paths, name);
}

/* below is "" or "/D": relative to the tops. */
static void check_folder(struct player *p, const char *below)
{
	char room[2][2 * PATH_ROOM], name[PATH_ROOM];
	char *names;
	size_t n;
	int64_t k, r;

	snprintf(room[0], sizeof room[0], "%s%s", p->kvfs.top, below);
	snprintf(room[1], sizeof room[1], "%s%s", p->ref.top, below);
	k = list_folder(&p->kvfs, room[0]);
	r = list_folder(&p->ref, room[1]);
	compare_results(p, below, k, r);
	compare_out(p, "listing", below);
	n = p->ref.out_len / LIST_NAME;
	names = malloc(n * LIST_NAME + 1);
	if (!names)
		fail(p, "memory", "no memory");
	memcpy(names, p->ref.out, n * LIST_NAME);
	for (size_t i = 0; i < n; i++) {
		*strstr(names + i * LIST_NAME, " type ") = '\0';
		if (names[i * LIST_NAME] == '.')
			continue;
		snprintf(name, sizeof name, "%s/%s", below, names + i * LIST_NAME);
		check_entry(p, name);
	}
	free(names);
}

/* Open files as well: their names may be gone. */
static void check_slots(struct player *p)
{
	for (unsigned k = 0; k < SLOTS; k++) {
		const struct open_file *f = &p->kvfs.slots[k];
		char what[64];

		compare_slot_stat(p, k);
		if (!f->used || (f->flags & O_ACCMODE) == O_WRONLY || f->flags & O_DIRECT)
			continue;
		snprintf(what, sizeof what, "slot %u", k);
		p->kvfs.out_len = p->ref.out_len = 0;
		compare_results(p, what, read_whole(&p->kvfs, f->fd),
				read_whole(&p->ref, p->ref.slots[k].fd));
		compare_out(p, "content", what);
	}
}

static void check_all(struct player *p)
{
	check_slots(p);
	check_folder(p, "");
}

/* ---- What is done on kvfs alone --------------------------------------------------------------- */

/* What is said to be a hole must read as zeros; where its borders lie is each side's affair. */
static void play_seek_data(struct player *p)
{
	const struct open_file *k = &p->kvfs.slots[p->op->slot], *r = &p->ref.slots[p->op->slot];
	off_t at = 0, data, size;
	struct stat st;

	/* The kernel asks the daemon without telling it first what a mapping of the page cache holds. */
	if (!r->used || (r->flags & O_ACCMODE) == O_WRONLY || p->ref.maps[0].at ||
	    p->ref.maps[1].at || fstat(r->fd, &st) < 0 || !S_ISREG(st.st_mode))
		return;
	p->ref.out_len = 0;
	compare_results(p, "read", 0, read_whole(&p->ref, r->fd));
	size = (off_t)p->ref.out_len;
	while (at < size) {
		data = lseek(k->fd, at, SEEK_DATA);
		if (data < 0 && errno != ENXIO)
			fail(p, "seek_data: result", "SEEK_DATA from %lld: %s", (long long)at,
			     strerror(errno));
		if (data < 0)
			data = size;
		for (; at < data; at++)
			if (at >= size || p->ref.out[at])
				fail(p, "seek_data: holes",
				     "data at %lld of %lld is said to be a hole", (long long)at,
				     (long long)size);
		if (at == size)
			break;
		at = lseek(k->fd, data, SEEK_HOLE);
		if (at <= data || at > size)
			fail(p, "seek_data: holes", "SEEK_HOLE from %lld: %lld of %lld",
			     (long long)data, (long long)at, (long long)size);
	}
	data = lseek(k->fd, size, SEEK_DATA);
	if (data >= 0 || errno != ENXIO)
		fail(p, "seek_data: result", "SEEK_DATA at the end: %lld", (long long)data);
	lseek(k->fd, 0, SEEK_SET);
	lseek(r->fd, 0, SEEK_SET);
}

/* A file that is not there or is busy may refuse; what it holds is compared by others. */
static void play_tier(struct player *p, const char *name, const char *value, const char *path)
{
	if (setxattr(path, name, value, strlen(value), 0) == 0)
		return;
	switch (errno) {
	case EBUSY:
	case ENOENT:
	case ENOTDIR:
	case ELOOP:
	case EPERM:
		return;
	default:
		fail(p, "tier: result", "%s of %s: %s", name, path, strerrorname_np(errno));
	}
}

static bool is_open(const struct player *p, unsigned path)
{
	struct stat st, open;

	if (stat(side_path(&p->ref, path), &st) < 0)
		return false;
	for (unsigned k = 0; k < SLOTS + MAPS; k++) {
		int fd = k < SLOTS ? p->ref.slots[k].fd : p->ref.maps[k - SLOTS].fd;
		bool used = k < SLOTS ? p->ref.slots[k].used : p->ref.maps[k - SLOTS].at != NULL;

		if (used && fstat(fd, &open) == 0 && open.st_ino == st.st_ino)
			return true;
	}
	return false;
}

/* Of an open file it waits for its last close, in vain: seldom. */
static void play_evict(struct player *p)
{
	const struct op *op = p->op;

	if (op->data % 32 < 30 && is_open(p, op->path))
		return;
	play_tier(p, "user.kvfs.evict", op->data % 2 ? "cold" : "warm",
		  side_path(&p->kvfs, op->path));
}

static void play_pause(struct player *p)
{
	struct timespec t = { .tv_nsec = (long)(p->op->data % 300) * 1000000 };

	nanosleep(&t, NULL);
}

static void close_all(struct player *p)
{
	char what[32];

	for (unsigned k = 0; k < SLOTS; k++) {
		struct op op = { .kind = OP_CLOSE, .slot = k };

		snprintf(what, sizeof what, "close of slot %u", k);
		compare_results(p, what, side_close(&p->kvfs, &op), side_close(&p->ref, &op));
	}
	for (unsigned k = 0; k < MAPS; k++) {
		struct op op = { .kind = OP_KEPT_DROP, .map = k };

		compare_results(p, "munmap", side_kept_drop(&p->kvfs, &op),
				side_kept_drop(&p->ref, &op));
	}
}

static void play_evict_all(struct player *p)
{
	close_all(p);
	play_tier(p, "user.kvfs.evict", p->op->data % 2 ? "cold" : "warm", p->kvfs.top);
}

static void fail_daemon(struct player *p, const char *kind)
{
	char words[512];

	daemon_last_words(&p->note->daemon, words, sizeof words);
	fail(p, kind, "kvfs said: %s", words);
}

static void play_remount(struct player *p)
{
	struct daemon *d = &p->note->daemon;

	close_all(p);
	pthread_mutex_lock(&p->background.mounted);
	if (p->op->kind == OP_KILL ? !daemon_kill(d) : !daemon_umount(d))
		fail_daemon(p, "it does not end");
	if (!daemon_mount(d))
		fail_daemon(p, "it does not mount again");
	pthread_mutex_unlock(&p->background.mounted);
	check_all(p);
}

/* ---- Playing ---------------------------------------------------------------------------------- */

/* NULL: what is done on kvfs alone, or by the player. */
static int64_t (*const side_ops[OP_KINDS])(struct side *, const struct op *) = {
	[OP_OPEN] = side_open,
	[OP_TMPFILE] = side_tmpfile,
	[OP_DUP] = side_dup,
	[OP_CLOSE] = side_close,
	[OP_PREAD] = side_pread,
	[OP_PWRITE] = side_pwrite,
	[OP_READ] = side_read,
	[OP_WRITE] = side_write,
	[OP_FTRUNCATE] = side_ftruncate,
	[OP_TRUNCATE] = side_truncate,
	[OP_FALLOCATE] = side_fallocate,
	[OP_COPY_RANGE] = side_copy_range,
	[OP_FSYNC] = side_fsync,
	[OP_MAP_LOAD] = side_map_load,
	[OP_MAP_STORE] = side_map_store,
	[OP_MAP_KEEP] = side_map_keep,
	[OP_KEPT_LOAD] = side_kept_load,
	[OP_KEPT_STORE] = side_kept_store,
	[OP_KEPT_DROP] = side_kept_drop,
	[OP_READ_ALL] = side_read_all,
	[OP_SAVE] = side_save,
	[OP_COPY] = side_copy,
	[OP_STAT] = side_stat,
	[OP_LIST] = side_list,
	[OP_UNLINK] = side_unlink,
	[OP_RENAME] = side_rename,
	[OP_LINK] = side_link,
	[OP_LINK_FD] = side_link_fd,
	[OP_SYMLINK] = side_symlink,
	[OP_READLINK] = side_readlink,
	[OP_MKDIR] = side_mkdir,
	[OP_RMDIR] = side_rmdir,
	[OP_CHMOD] = side_chmod,
	[OP_CHOWN] = side_chown,
	[OP_UTIMENS] = side_utimens,
	[OP_FUTIMENS] = side_futimens,
	[OP_SETXATTR] = side_setxattr,
	[OP_GETXATTR] = side_getxattr,
	[OP_LISTXATTR] = side_listxattr,
	[OP_REMOVEXATTR] = side_removexattr,
};

static void taint(struct player *p, ino_t ino)
{
	for (unsigned k = 0; k < p->ntainted; k++)
		if (p->tainted[k] == ino)
			return;
	p->tainted[p->ntainted % TAINTED_MAX] = ino;
	p->ntainted += p->ntainted < TAINTED_MAX;
}

static void untaint(struct player *p, ino_t ino)
{
	for (unsigned k = 0; k < p->ntainted; k++)
		if (p->tainted[k] == ino)
			p->tainted[k] = p->tainted[--p->ntainted];
}

/* A store through a mapping moves the mtime once, or when it is written back; an fallocate that
 * changes nothing moves it or not. From then on it is not compared, until it is set. */
static void taint_by_op(struct player *p)
{
	const struct op *op = p->op;
	const struct open_file *f = &p->ref.slots[op->slot];
	bool by_path = op->kind == OP_UTIMENS;
	struct stat st;

	if (by_path ? lstat(side_path(&p->ref, op->path), &st) < 0 :
		      !f->used || fstat(f->fd, &st) < 0)
		return;
	switch (op->kind) {
	case OP_MAP_STORE:
	case OP_MAP_KEEP:
	case OP_FALLOCATE:
		taint(p, st.st_ino);
		break;
	case OP_UTIMENS:
	case OP_FUTIMENS:
		/* While one is mapped, who knows which. */
		if (!p->ref.maps[0].at && !p->ref.maps[1].at)
			untaint(p, st.st_ino);
		break;
	default:
		break;
	}
}

static void map_limit(struct player *p)
{
	const struct kept_map *m = &p->ref.maps[p->op->map];
	struct stat st;

	if (m->at && !fstat(m->fd, &st))
		p->kvfs.map_limit = p->ref.map_limit = (size_t)st.st_size;
}

static void play_both(struct player *p)
{
	const struct op *op = p->op;
	const struct op_type *t = &op_types[op->kind];
	char kind[64];
	int64_t k, r;

	map_limit(p);
	p->kvfs.out_len = p->ref.out_len = 0;
	k = side_ops[op->kind](&p->kvfs, op);
	r = side_ops[op->kind](&p->ref, op);
	taint_by_op(p);
	compare_results(p, t->name, k, r);
	snprintf(kind, sizeof kind, "%s: content", t->name);
	compare_out(p, kind, t->name);
	/* Not always: asking renews what the kernel has cached, and so hides what is stale. */
	if (op->number % 2)
		return;
	if (t->fields & F_SLOT)
		compare_slot_stat(p, op->slot);
	if (t->fields & F_PATH)
		compare_path_stat(p, op->path);
	if (t->fields & F_TO)
		compare_path_stat(p, op->to);
}

static void play(struct player *p, const struct op *op)
{
	p->op = op;
	switch (op->kind) {
	case OP_SEEK_DATA:
		play_seek_data(p);
		break;
	case OP_CHECK:
		check_all(p);
		break;
	case OP_EVICT:
		play_evict(p);
		break;
	case OP_EVICT_ALL:
		play_evict_all(p);
		break;
	case OP_PREFETCH:
		play_tier(p, "user.kvfs.prefetch", "1", side_path(&p->kvfs, op->path));
		break;
	case OP_PAUSE:
		play_pause(p);
		break;
	case OP_REMOUNT:
	case OP_KILL:
		play_remount(p);
		break;
	default:
		play_both(p);
	}
}

#endif
