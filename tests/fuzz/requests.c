/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handlers of FUSE requests, in any order: of nodes and handles that are there, were there or never were, with
 * any numbers and names. Each request gets one answer, and the daemon's end finds all as it should be.
 */
#include "tests/fuzz/mounted.h"

#define REQUESTS 64 /* of one input */
#define KNOWN    32

static uint64_t node[KNOWN], handle[KNOWN];
static unsigned n_nodes, n_handles;

int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	place_make();
	template_make();
	return 0;
}

static uint64_t take_node(struct input *in)
{
	uint64_t k = take(in, 1);

	return k < 240 && n_nodes ? node[k % n_nodes] : take_number(in);
}

static uint64_t take_handle(struct input *in)
{
	uint64_t k = take(in, 1);

	return k < 240 && n_handles ? handle[k % n_handles] : take_number(in);
}

static void keep(uint64_t *v, unsigned *n, uint64_t what)
{
	v[*n < KNOWN ? (*n)++ : what % KNOWN] = what;
}

/* A name that is there, that may be, that is too long, or any. */
static void add_name(struct message *m, struct input *in)
{
	static const char *const name[] = { "dir",  "sub",   "copy",  "empty",  "noise", "text",
					    "link", "again", ".kvfs", "status", "mixed", "a",
					    "b",    "c",     ".",     "..",     "" };
	uint64_t kind = take(in, 1);
	char text[600];
	size_t len;

	if (kind < 200) {
		const char *s = name[kind % (sizeof(name) / sizeof(name[0]))];

		message_add(m, s, strlen(s) + 1);
		return;
	}
	len = kind < 205 ? 240 + take(in, 1) % 300 : take(in, 1) % 16;
	memset(text, 'n', sizeof(text));
	for (size_t k = 0; k < len && k < 16; k++)
		text[k] = (char)take(in, 1);
	text[len] = '\0';
	message_add(m, text, strlen(text) + 1);
}

static void add_xattr_name(struct message *m, struct input *in)
{
	static const char *const name[] = { "user.a",
					    "user.kvfs.pin",
					    "user.kvfs.tier",
					    "user.kvfs.evict",
					    "user.kvfs.codec",
					    "user.kvfs.layout",
					    "user.kvfs.prefetch",
					    "trusted.a",
					    "security.capability",
					    "user.note",
					    "system.posix_acl_access",
					    "user." };
	uint64_t kind = take(in, 1);

	if (kind < 240) {
		const char *s = name[kind % (sizeof(name) / sizeof(name[0]))];

		message_add(m, s, strlen(s) + 1);
		return;
	}
	message_add(m, "user.", 5);
	add_name(m, in);
}

static void add_value(struct message *m, struct input *in, struct fuse_setxattr_in *x)
{
	static const char *const value[] = { "1",    "0",       "hot",
					     "warm", "cold",    "dense",
					     "none", "slabs=4", "stride=65536,offset=12",
					     "auto", "lz4" };
	uint64_t kind = take(in, 1);
	const char *s = value[kind % (sizeof(value) / sizeof(value[0]))];
	char any[300];

	if (kind < 200) {
		x->size = (uint32_t)strlen(s);
		message_add(m, s, x->size);
		return;
	}
	x->size = kind < 230 ? take(in, 1) : take(in, 2);
	memset(any, 'v', sizeof(any));
	for (size_t k = 0; k < 8; k++)
		any[k] = (char)take(in, 1);
	for (size_t left = x->size; left; left -= left < sizeof(any) ? left : sizeof(any))
		message_add(m, any, left < sizeof(any) ? left : sizeof(any));
}

/* ---- requests by what they carry ---- */

static void do_setattr(struct input *in, uint32_t uid)
{
	struct fuse_setattr_in a = { .valid = (uint32_t)take(in, 2) };
	uint64_t n = take_node(in);

	a.fh = take_handle(in);
	if (a.valid & FATTR_SIZE)
		a.size = take_number(in);
	if (a.valid & FATTR_MODE)
		a.mode = (uint32_t)take(in, 2);
	if (a.valid & FATTR_UID)
		a.uid = (uint32_t)take_number(in);
	if (a.valid & FATTR_MTIME)
		a.mtime = take_number(in);
	if (a.valid & FATTR_MTIME)
		a.mtimensec = (uint32_t)take(in, 1);
	ask_as(uid, FUSE_SETATTR, n, &a, sizeof(a));
}

static void do_make(struct input *in, uint32_t uid, uint32_t op)
{
	struct message *m = message_new();
	uint64_t parent = take_node(in);
	uint32_t mode = (uint32_t)take(in, 2);
	struct fuse_mknod_in mk = { .mode = mode, .rdev = (uint32_t)take(in, 1) };
	struct fuse_mkdir_in mkd = { .mode = mode };

	if (op == FUSE_MKNOD)
		message_add(m, &mk, sizeof(mk));
	else if (op == FUSE_MKDIR)
		message_add(m, &mkd, sizeof(mkd));
	add_name(m, in);
	if (op == FUSE_SYMLINK)
		add_name(m, in);
	if (!send_as(uid, op, parent, m))
		keep(node, &n_nodes, asked_node());
}

static void do_name(struct input *in, uint32_t uid, uint32_t op)
{
	struct message *m = message_new();
	uint64_t parent = take_node(in);

	add_name(m, in);
	if (!send_as(uid, op, parent, m) && op == FUSE_LOOKUP && asked_node())
		keep(node, &n_nodes, asked_node());
}

static void do_rename(struct input *in, uint32_t uid)
{
	struct message *m = message_new();
	uint64_t parent = take_node(in);
	struct fuse_rename2_in r = { .newdir = take_node(in), .flags = (uint32_t)take(in, 1) };

	r.flags = r.flags < 200 ? r.flags % 3 : r.flags;
	message_add(m, &r, sizeof(r));
	add_name(m, in);
	add_name(m, in);
	send_as(uid, FUSE_RENAME2, parent, m);
}

static void do_link(struct input *in, uint32_t uid)
{
	struct message *m = message_new();
	struct fuse_link_in l = { .oldnodeid = take_node(in) };
	uint64_t parent = take_node(in);

	message_add(m, &l, sizeof(l));
	add_name(m, in);
	send_as(uid, FUSE_LINK, parent, m);
}

static uint32_t take_open_flags(struct input *in)
{
	static const uint32_t bit[] = { O_TRUNC, O_APPEND, O_SYNC, O_DIRECT, O_EXCL, O_DSYNC, 0, 0 };
	uint64_t v = take(in, 1);

	return (uint32_t)(v & 3) | bit[v >> 2 & 7] | bit[v >> 5 & 7];
}

static void do_open(struct input *in, uint32_t uid, uint32_t op)
{
	struct fuse_open_in o = { .flags = take_open_flags(in) };
	uint64_t n = take_node(in);

	if (!ask_as(uid, op, n, &o, sizeof(o)))
		keep(handle, &n_handles, asked_fh(false));
}

static void do_create(struct input *in, uint32_t uid, uint32_t op)
{
	struct fuse_create_in c = { .flags = take_open_flags(in) | O_CREAT,
				    .mode = S_IFREG | (uint32_t)take(in, 2) };
	struct message *m = message_new();
	uint64_t parent = take_node(in);

	message_add(m, &c, sizeof(c));
	add_name(m, in);
	if (send_as(uid, op, parent, m))
		return;
	keep(node, &n_nodes, asked_node());
	keep(handle, &n_handles, asked_fh(true));
}

static void do_read(struct input *in, uint32_t uid, uint32_t op)
{
	struct fuse_read_in r = { .fh = take_handle(in), .offset = take_number(in) };
	uint64_t n = take_node(in), size = take_number(in);

	/* Of directories a kernel asks for a page, or a few. */
	r.size = (uint32_t)(op == FUSE_READ || size < MIB ? size : MIB);
	if (!ask_as(uid, op, n, &r, sizeof(r)))
		must(answer.len <= r.size);
}

static void do_write(struct input *in, uint32_t uid)
{
	struct fuse_write_in w = { .fh = take_handle(in),
				   .offset = take_number(in),
				   .size = (uint32_t)take(in, 3),
				   .flags = take_open_flags(in) };
	struct message *m = message_new();
	uint64_t n = take_node(in);
	static char data[65536];

	w.size %= MIB + 1;
	w.write_flags = (uint32_t)take(in, 1) & 7;
	message_add(m, &w, sizeof(w));
	memset(data, (int)take(in, 1), sizeof(data));
	for (size_t left = w.size; left; left -= left < sizeof(data) ? left : sizeof(data))
		message_add(m, data, left < sizeof(data) ? left : sizeof(data));
	if (!send_as(uid, FUSE_WRITE, n, m))
		must(((struct fuse_write_out *)answer.body)->size <= w.size);
}

static void do_handle(struct input *in, uint32_t uid, uint32_t op)
{
	uint64_t n = take_node(in), fh = take_handle(in);
	struct fuse_release_in r = { .fh = fh };
	struct fuse_fsync_in s = { .fh = fh, .fsync_flags = (uint32_t)take(in, 1) & 1 };
	struct fuse_flush_in f = { .fh = fh };

	if (op == FUSE_FLUSH)
		ask_as(uid, op, n, &f, sizeof(f));
	else if (op == FUSE_RELEASE || op == FUSE_RELEASEDIR)
		ask_as(uid, op, n, &r, sizeof(r));
	else
		ask_as(uid, op, n, &s, sizeof(s));
}

static void do_setxattr(struct input *in, uint32_t uid)
{
	struct fuse_setxattr_in x = { .flags = (uint32_t)take(in, 1) % 4 };
	struct message *m = message_new();
	uint64_t n = take_node(in);

	message_add(m, &x, FUSE_COMPAT_SETXATTR_IN_SIZE);
	add_xattr_name(m, in);
	add_value(m, in, &x);
	memcpy(m->data, &x, FUSE_COMPAT_SETXATTR_IN_SIZE);
	send_as(uid, FUSE_SETXATTR, n, m);
}

static void do_getxattr(struct input *in, uint32_t uid, uint32_t op)
{
	struct fuse_getxattr_in x = { .size = (uint32_t)take_number(in) };
	struct message *m = message_new();
	uint64_t n = take_node(in);

	if (op != FUSE_REMOVEXATTR)
		message_add(m, &x, sizeof(x));
	if (op != FUSE_LISTXATTR)
		add_xattr_name(m, in);
	send_as(uid, op, n, m);
}

static void do_forget(struct input *in, uint32_t uid, uint32_t op)
{
	struct fuse_forget_in one = { .nlookup = take_number(in) };
	struct fuse_batch_forget_in many = { .count = 2 };
	struct fuse_forget_one of[2] = { { take_node(in), one.nlookup }, { take_node(in), 1 } };
	struct message *m = message_new();

	if (op == FUSE_FORGET)
		message_add(m, &one, sizeof(one));
	else
		message_add(message_add(m, &many, sizeof(many)), of, sizeof(of));
	send_as(uid, op, op == FUSE_FORGET ? of[0].nodeid : 0, m);
}

static void do_ranges(struct input *in, uint32_t uid, uint32_t op)
{
	uint64_t n = take_node(in), fh = take_handle(in), off = take_number(in);
	uint64_t len = take_number(in);
	struct fuse_fallocate_in f = { fh, off, len, (uint32_t)take(in, 1) & 0x7f, 0 };
	struct fuse_lseek_in l = { fh, off, 3 + ((uint32_t)len & 1), 0 };
	struct fuse_copy_file_range_in c = { .fh_in = fh, .off_in = off, .len = len };

	if (op == FUSE_FALLOCATE) {
		ask_as(uid, op, n, &f, sizeof(f));
	} else if (op == FUSE_LSEEK) {
		ask_as(uid, op, n, &l, sizeof(l));
	} else {
		c.nodeid_out = take_node(in);
		c.fh_out = take_handle(in);
		c.off_out = take_number(in);
		ask_as(uid, op, n, &c, sizeof(c));
	}
}

/* Just a node, a few bytes, or cut off. */
static void do_plain(struct input *in, uint32_t uid, uint32_t op)
{
	uint64_t n = take_node(in);
	uint8_t any[64] = { 0 };
	size_t len = take(in, 1) % sizeof(any);

	for (size_t k = 0; k < len; k++)
		any[k] = (uint8_t)take(in, 1);
	ask_as(uid, op, n, any, len);
}

static void request(struct input *in)
{
	static const uint8_t op[] = {
		FUSE_LOOKUP,    FUSE_FORGET,       FUSE_GETATTR,  FUSE_SETATTR,
		FUSE_READLINK,  FUSE_SYMLINK,      FUSE_MKNOD,    FUSE_MKDIR,
		FUSE_UNLINK,    FUSE_RMDIR,        FUSE_RENAME2,  FUSE_LINK,
		FUSE_OPEN,      FUSE_READ,         FUSE_WRITE,    FUSE_STATFS,
		FUSE_RELEASE,   FUSE_FSYNC,        FUSE_SETXATTR, FUSE_GETXATTR,
		FUSE_LISTXATTR, FUSE_REMOVEXATTR,  FUSE_FLUSH,    FUSE_OPENDIR,
		FUSE_READDIR,   FUSE_RELEASEDIR,   FUSE_FSYNCDIR, FUSE_CREATE,
		FUSE_FALLOCATE, FUSE_READDIRPLUS,  FUSE_LSEEK,    FUSE_COPY_FILE_RANGE,
		FUSE_TMPFILE,   FUSE_BATCH_FORGET, FUSE_ACCESS,   FUSE_IOCTL,
		FUSE_GETLK,     FUSE_BMAP,
	};
	uint32_t uid = take(in, 1) & 1 ? 1000 : 0, what = op[take(in, 1) % sizeof(op)];

	switch (what) {
	case FUSE_SETATTR:
		return do_setattr(in, uid);
	case FUSE_SYMLINK:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
		return do_make(in, uid, what);
	case FUSE_LOOKUP:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
		return do_name(in, uid, what);
	case FUSE_RENAME2:
		return do_rename(in, uid);
	case FUSE_LINK:
		return do_link(in, uid);
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		return do_open(in, uid, what);
	case FUSE_CREATE:
	case FUSE_TMPFILE:
		return do_create(in, uid, what);
	case FUSE_READ:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		return do_read(in, uid, what);
	case FUSE_WRITE:
		return do_write(in, uid);
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_FLUSH:
	case FUSE_FSYNC:
	case FUSE_FSYNCDIR:
		return do_handle(in, uid, what);
	case FUSE_SETXATTR:
		return do_setxattr(in, uid);
	case FUSE_GETXATTR:
	case FUSE_LISTXATTR:
	case FUSE_REMOVEXATTR:
		return do_getxattr(in, uid, what);
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		return do_forget(in, uid, what);
	case FUSE_FALLOCATE:
	case FUSE_LSEEK:
	case FUSE_COPY_FILE_RANGE:
		return do_ranges(in, uid, what);
	default:
		return do_plain(in, uid, what);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct input in = { data, len };
	uint64_t mode;

	if (len < 4)
		return 0;
	mode = take(&in, 1);
	template_put();
	must(!mounted_open((uint32_t)mode & 3, (mode & 0xf0) == 0xf0));
	n_handles = 0;
	n_nodes = 1;
	node[0] = FUSE_ROOT_ID;
	for (unsigned k = 0; k < REQUESTS && in.left; k++)
		request(&in);
	mounted_close();
	return 0;
}
