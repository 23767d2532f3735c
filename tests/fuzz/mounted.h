/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mounted: a store with all that is above it but the kernel, in a place of its own: a tmpfs that nobody else sees
 * and that is small, so that nothing a fuzzer does takes much memory or stays. Requests are given to the session
 * by hand; replies come back through its own I/O, and what it has to tell the kernel is dropped.
 */
#ifndef FUZZ_MOUNTED_H
#define FUZZ_MOUNTED_H

#include "fs/fs.h"
#include "store/store.h"
#include "tests/fuzz/fuzz.h"

#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 17)
#endif
#include <fuse_lowlevel.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <linux/fuse.h>
#include <mntent.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MIB          (UINT64_C(1) << 20)
#define HOT          (24 * MIB)
#define REQUEST_MAX  (2 * MIB)
#define REPLY_MAX    (2 * MIB)
#define REPLY_WAIT_S 30

static char place[64], store_path[96], run_path[96], outside_path[96];

/* ---- the place ---- */

static inline int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st;
	(void)flag;
	/* Mount points stay. */
	if (ftw->level)
		(void)remove(path);
	return 0;
}

/* All that is in it goes. */
static inline void empty(const char *dir)
{
	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void place_leave(void)
{
	empty(place);
	rmdir(place);
}

/* Mounts of kvfs that this process would keep alive: its copies of them are let go, or their daemons, of tests
 * that run beside, could not end. */
static inline void others_let_go(void)
{
	FILE *f = fopen("/proc/self/mounts", "re");
	char line[4096], point[4096], type[64];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%*s %4095s %63s", point, type) == 2 && !strncmp(type, "fuse", 4))
			(void)umount2(point, MNT_DETACH);
	if (f)
		fclose(f);
}

/* What other tests have mounted would stay in use, for them, as long as this process lives. */
static inline void leave_others(void)
{
	FILE *f = setmntent("/proc/self/mounts", "re");
	struct mntent *m;

	while (f && (m = getmntent(f)))
		if (!strncmp(m->mnt_type, "fuse", 4) || !strcmp(m->mnt_fsname, "kvfs") ||
		    !strncmp(m->mnt_fsname, "/dev/loop", 9))
			umount2(m->mnt_dir, MNT_DETACH);
	if (f)
		endmntent(f);
}

/* Without the right to mount, a folder, which must be removed at the end. */
static inline void place_find(void)
{
	const char *tmp = getenv("TMPDIR");

	if (!unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	    !mount("fuzz", "/dev/shm", "tmpfs", 0, "size=24m")) {
		others_let_go();
		snprintf(place, sizeof(place), "/dev/shm");
		return;
	}
	snprintf(place, sizeof(place), "%.40s/kvfs-fuzz-XXXXXX", tmp ? tmp : "/tmp");
	must(mkdtemp(place));
	atexit(place_leave);
}

/* What the store finds there and leaves there: the journal on huge pages, images not, as clearing 2 MiB for each
 * takes longer than all else. */
static inline void place_mount(void)
{
	static const char *const image[] = { "images", "small" };
	char path[128];

	must(!mount("fuzz", run_path, "tmpfs", 0, "size=160m,mode=0700,huge=always") ||
	     !mount("fuzz", run_path, "tmpfs", 0, "size=160m,mode=0700"));
	for (int k = 0; k < 2; k++) {
		snprintf(path, sizeof(path), "%s/%s", run_path, image[k]);
		must(!mkdir(path, 0700) && !mount("fuzz", path, "tmpfs", 0, "size=48m"));
	}
}

static inline void place_make(void)
{
	place_find();
	snprintf(store_path, sizeof(store_path), "%s/store", place);
	snprintf(run_path, sizeof(run_path), "%s/run", place);
	snprintf(outside_path, sizeof(outside_path), "%s/outside", place);
	must(!mkdir(store_path, 0700) && !mkdir(run_path, 0700) && !mkdir(outside_path, 0700));
	if (!strcmp(place, "/dev/shm"))
		place_mount();
}

/* ---- the kernel's side ---- */

/* Instead of libc's: registers the backing files of a kernel that is not there. */
int ioctl(int fd, unsigned long request, ...)
{
	static atomic_int ids;
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	if ((request >> 8 & 0xff) == 229)
		return (request & 0xff) == 1 ? ++ids : 0;
	return (int)syscall(SYS_ioctl, fd, request, arg);
}

static struct {
	pthread_mutex_t lock;
	pthread_cond_t come;
	uint64_t unique; /* of the request that waits */
	unsigned replies;
	int error;
	size_t len; /* of the reply behind its header */
	uint8_t body[REPLY_MAX];
} answer = { .lock = PTHREAD_MUTEX_INITIALIZER, .come = PTHREAD_COND_INITIALIZER };

static inline size_t copy_body(const struct iovec *iov, int n)
{
	size_t skip = sizeof(struct fuse_out_header), at = 0;

	for (int i = 0; i < n; i++) {
		size_t from = skip < iov[i].iov_len ? skip : iov[i].iov_len;
		size_t len = iov[i].iov_len - from;

		skip -= from;
		must(len <= REPLY_MAX - at);
		memcpy(answer.body + at, (const char *)iov[i].iov_base + from, len);
		at += len;
	}
	return at;
}

static inline ssize_t take_reply(int fd, struct iovec *iov, int n, void *userdata)
{
	struct fuse_out_header h;

	(void)fd;
	(void)userdata;
	must(n > 0 && iov[0].iov_len >= sizeof(h));
	memcpy(&h, iov[0].iov_base, sizeof(h));
	if (!h.unique) /* news for the kernel */
		return h.len;
	pthread_mutex_lock(&answer.lock);
	must(h.unique == answer.unique && !answer.replies);
	must(h.error <= 0 && h.error > -1000);
	answer.len = copy_body(iov, n);
	must(answer.len + sizeof(h) == h.len);
	answer.error = h.error;
	answer.replies++;
	pthread_cond_signal(&answer.come);
	pthread_mutex_unlock(&answer.lock);
	return h.len;
}

static inline ssize_t no_requests(int fd, void *buf, size_t len, void *userdata)
{
	(void)fd;
	(void)buf;
	(void)len;
	(void)userdata;
	return -1;
}

/* ---- mounting ---- */

static struct store *store;
static struct fs *fs;
static struct fuse_session *session;

static inline void no_log(void *arg, int level, const char *line)
{
	(void)arg;
	(void)level;
	must(!strchr(line, '\n'));
	if (getenv("FUZZ_LOG"))
		fprintf(stderr, "%s\n", line);
}

static inline int open_layers(uint32_t test_mask, bool read_only)
{
	struct store_options so = {
		.path = store_path,
		.rundir = run_path,
		.hot_bytes = HOT,
		.warm_bytes = MIB,
		.index_bytes = MIB / 4,
		.idle_s = 3600,
		.codec = CODEC_CHOICE_DENSE,
		.read_only = read_only,
		.hooks = { .arg = &fs,
			   .log = no_log,
			   .changed = fs_hook_changed,
			   .pressure = fs_hook_pressure },
	};
	struct fs_options fo = {
		.mountpoint = "/nonexistent",
		.commit_s = 3600,
		.passthrough = true,
		.read_only = read_only,
		.test_mask = test_mask,
		.log = no_log,
	};
	struct store_error err = { "" };
	int r = store_open(&so, &store, &err);

	if (r == 0) {
		fo.store = store;
		r = fs_new(&fo, &fs, &err);
		if (r)
			store_close(store, false);
	}
	must(r <= 0);
	if (r)
		must(err.text[0] && !strchr(err.text, '\n'));
	if (r && getenv("FUZZ_LOG"))
		fprintf(stderr, "%s\n", err.text);
	return r;
}

static inline bool has_reply(uint32_t op)
{
	return op != FUSE_FORGET && op != FUSE_BATCH_FORGET && op != FUSE_INTERRUPT;
}

static inline void wait_reply(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += REPLY_WAIT_S;
	pthread_mutex_lock(&answer.lock);
	while (!answer.replies)
		must(!pthread_cond_timedwait(&answer.come, &answer.lock, &until));
	pthread_mutex_unlock(&answer.lock);
}

/* One request by somebody; its error, and in answer the rest. */
static inline int ask_as(uint32_t uid, uint32_t op, uint64_t node, const void *arg, size_t len)
{
	static uint8_t buf[REQUEST_MAX + 4096];
	static uint64_t unique;
	struct fuse_in_header h = {
		.len = (uint32_t)(sizeof(h) + len),
		.opcode = op,
		.unique = unique += 2,
		.nodeid = node,
		.uid = uid,
		.gid = uid,
		.pid = (uint32_t)getpid(),
	};
	struct fuse_buf req = { .mem = buf, .size = h.len };

	must(h.len <= REQUEST_MAX);
	memcpy(buf, &h, sizeof(h));
	memcpy(buf + sizeof(h), arg, len);
	/* The kernel ends what it sends; libfuse trusts it in that. */
	memset(buf + h.len, 0, 4096);
	answer.unique = h.unique;
	answer.replies = 0;
	answer.error = 0;
	answer.len = 0;
	fuse_session_process_buf(session, &req);
	if (has_reply(op))
		wait_reply();
	return answer.error;
}

static inline int ask(uint32_t op, uint64_t node, const void *arg, size_t len)
{
	return ask_as(0, op, node, arg, len);
}

static inline void open_session(void)
{
	static const struct fuse_custom_io io = { .read = no_requests, .writev = take_reply };
	static char *name[] = { "kvfs", NULL };
	struct fuse_args args = FUSE_ARGS_INIT(1, name);
	struct fuse_init_in init = { .major = 7,
				     .minor = 40,
				     .max_readahead = 1 << 20,
				     .flags = UINT32_MAX,
				     .flags2 = 0x3f };
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	session = fuse_session_new(&args, fs_ops(), sizeof(*fs_ops()), fs);
	fuse_opt_free_args(&args);
	must(session && fd >= 0);
	must(!fuse_session_custom_io(session, &io, sizeof(io), fd));
	must(!ask(FUSE_INIT, 0, &init, sizeof(init)));
}

/* Negative: the store is refused. */
static inline int mounted_open(uint32_t test_mask, bool read_only)
{
	int r = open_layers(test_mask, read_only);

	if (r)
		return r;
	open_session();
	fs_attach(fs, session);
	must(!store_start(store) && !fs_start(fs));
	return 0;
}

/* What fs_stop() said. */
static inline int mounted_close(void)
{
	int r = fs_stop(fs);

	fuse_session_destroy(session);
	store_close(store, r == 0);
	fs_free(fs);
	fs = NULL;
	return r;
}

/* ---- a store to begin with ---- */

struct saved_file {
	char path[PATH_MAX];
	uint8_t *data;
	size_t len;
};

static struct saved_file template[8];
static size_t n_template;

static inline int save_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	struct saved_file *f = &template[n_template];
	int fd;

	(void)ftw;
	if (flag != FTW_F)
		return 0;
	must(n_template < 8);
	snprintf(f->path, sizeof(f->path), "%s", path);
	f->len = (size_t)st->st_size;
	f->data = malloc(f->len + 1);
	fd = open(path, O_RDONLY);
	must(f->data && fd >= 0 && read(fd, f->data, f->len) == (ssize_t)f->len);
	close(fd);
	n_template++;
	return 0;
}

static inline void put_file(const char *path, const void *data, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	must(fd >= 0 && write(fd, data, len) == (ssize_t)len);
	close(fd);
}

static inline uint64_t asked_node(void)
{
	struct fuse_entry_out e;

	memcpy(&e, answer.body, sizeof(e));
	return e.nodeid;
}

static inline uint64_t asked_fh(bool create)
{
	struct fuse_open_out o;

	memcpy(&o, answer.body + (create ? sizeof(struct fuse_entry_out) : 0), sizeof(o));
	return o.fh;
}

/* Several arguments in one piece. */
struct message {
	uint8_t data[REQUEST_MAX - 64];
	size_t len;
};

static inline struct message *message_add(struct message *m, const void *p, size_t len)
{
	len = len < sizeof(m->data) - m->len ? len : sizeof(m->data) - m->len;
	memcpy(m->data + m->len, p, len);
	m->len += len;
	return m;
}

static struct message message;

static inline struct message *message_new(void)
{
	message.len = 0;
	return &message;
}

static inline int send_as(uint32_t uid, uint32_t op, uint64_t node, const struct message *m)
{
	return ask_as(uid, op, node, m->data, m->len);
}

static inline uint64_t make_file(uint64_t dir, const char *name, const void *data, size_t len)
{
	struct fuse_create_in c = { .flags = O_RDWR | O_CREAT, .mode = 0644 };
	struct fuse_write_in w = { .size = (uint32_t)len };
	struct fuse_release_in rel = { 0 };
	struct message *m = message_new();
	uint64_t node;

	message_add(message_add(m, &c, sizeof(c)), name, strlen(name) + 1);
	must(!send_as(0, FUSE_CREATE, dir, m));
	node = asked_node();
	rel.fh = w.fh = asked_fh(true);
	m = message_add(message_add(message_new(), &w, sizeof(w)), data, len);
	must(!len || !send_as(0, FUSE_WRITE, node, m));
	must(!ask(FUSE_RELEASE, node, &rel, sizeof(rel)));
	return node;
}

static inline uint64_t make_dir(uint64_t parent, const char *name)
{
	struct fuse_mkdir_in d = { .mode = 0755 };
	struct message *m = message_new();

	message_add(message_add(m, &d, sizeof(d)), name, strlen(name) + 1);
	must(!send_as(0, FUSE_MKDIR, parent, m));
	return asked_node();
}

static inline void make_xattr(uint64_t node, const char *name, const char *value)
{
	struct fuse_setxattr_in x = { .size = (uint32_t)strlen(value) };
	struct message *m = message_new();

	/* As of a kernel that does not know FUSE_SETXATTR_EXT being used. */
	message_add(message_add(m, &x, FUSE_COMPAT_SETXATTR_IN_SIZE), name, strlen(name) + 1);
	message_add(m, value, x.size);
	must(!send_as(0, FUSE_SETXATTR, node, m));
}

#define TEMPLATE_FILES 4
static uint8_t template_data[TEMPLATE_FILES][90000];
static const size_t template_len[TEMPLATE_FILES] = { 700, 5000, 90000, 20000 };
static const char *const template_name[TEMPLATE_FILES] = { "noise", "text", "floats", "mixed" };

static inline void make_data(void)
{
	uint32_t x = 1;

	for (size_t k = 0; k < sizeof(template_data[0]); k++) {
		x = x * 1664525 + 1013904223;
		template_data[0][k] = (uint8_t)(x >> 24);
		template_data[1][k] = (uint8_t)("layer "[k % 6] + (k / 600) % 7);
		template_data[2][k] = k & 1 ? (uint8_t)(0x3e + (x >> 30)) : (uint8_t)(x >> 16);
		template_data[3][k] = k < 8192 ? (uint8_t)(x >> 24) : 0;
	}
	memcpy(template_data[3] + 17000, "the end", 8);
}

/* Files of every form, in directories, two of them sharing content; a link of either kind, attributes. */
static inline void make_tree(void)
{
	struct fuse_fsync_in sync = { 0 };
	struct fuse_open_in open = { 0 };
	struct fuse_link_in link = { 0 };
	uint64_t dir, sub;

	dir = make_dir(FUSE_ROOT_ID, "dir");
	sub = make_dir(dir, "sub");
	for (unsigned k = 0; k < TEMPLATE_FILES; k++)
		link.oldnodeid = make_file(k & 1 ? sub : dir, template_name[k], template_data[k],
					   template_len[k]);
	make_file(FUSE_ROOT_ID, "copy", template_data[2], template_len[2]);
	make_file(FUSE_ROOT_ID, "empty", "", 0);
	make_xattr(dir, "user.kvfs.layout", "slabs=2");
	make_xattr(link.oldnodeid, "user.note", "something");
	must(!ask(FUSE_SYMLINK, dir, "link\0../copy", 13));
	must(!send_as(0, FUSE_LINK, sub,
		      message_add(message_add(message_new(), &link, sizeof(link)), "again", 6)));
	must(!ask(FUSE_OPENDIR, FUSE_ROOT_ID, &open, sizeof(open)));
	sync.fh = asked_fh(false);
	must(!ask(FUSE_FSYNCDIR, FUSE_ROOT_ID, &sync, sizeof(sync)));
}

/* Mounted once more, so that what was allocated ahead is given back. */
static inline void template_make(void)
{
	make_data();
	must(!mounted_open(0, false));
	make_tree();
	must(!mounted_close());
	must(!mounted_open(0, false) && !mounted_close());
	nftw(store_path, save_one, 16, FTW_PHYS);
	must(n_template >= 2);
}

static inline void template_put(void)
{
	char segments[128];

	empty(store_path);
	empty(run_path);
	snprintf(segments, sizeof(segments), "%s/segments", store_path);
	must(!mkdir(segments, 0700));
	for (size_t k = 0; k < n_template; k++)
		put_file(template[k].path, template[k].data, template[k].len);
}

/* ---- input ---- */

struct input {
	const uint8_t *p;
	size_t left;
};

/* The next n bytes as a number, zeros behind the end. */
static inline uint64_t take(struct input *in, size_t n)
{
	uint64_t v = 0;

	for (size_t k = 0; k < n && in->left; k++, in->p++, in->left--)
		v |= (uint64_t)*in->p << 8 * k;
	return v;
}

/* Numbers at which things go wrong, others near them, and any. */
static inline uint64_t take_number(struct input *in)
{
	static const uint64_t edge[] = { 0,
					 4096,
					 65536,
					 MIB,
					 UINT32_MAX,
					 UINT64_C(1) << 32,
					 UINT64_C(16) << 40,
					 INT64_MAX,
					 UINT64_MAX,
					 UINT64_C(1) << 62 };
	uint64_t kind = take(in, 1);

	if (kind < 128)
		return kind;
	if (kind < 192)
		return edge[kind % (sizeof(edge) / sizeof(edge[0]))] +
		       (uint64_t)(int8_t)take(in, 1);
	return take(in, kind % 8 + 1);
}

#endif
