/* SPDX-License-Identifier: Apache-2.0 */
/*
 * requests: the names under which requests are counted: what the kernel asked for shows in the
 * status, so that a test can tell that passthrough asks for nothing.
 */
#include "fs/state.h"

const char *request_name(enum request r)
{
	static const char *const name[REQ_COUNT] = {
		[REQ_LOOKUP] = "lookup",
		[REQ_FORGET] = "forget",
		[REQ_GETATTR] = "getattr",
		[REQ_SETATTR] = "setattr",
		[REQ_READLINK] = "readlink",
		[REQ_MKNOD] = "mknod",
		[REQ_MKDIR] = "mkdir",
		[REQ_UNLINK] = "unlink",
		[REQ_RMDIR] = "rmdir",
		[REQ_SYMLINK] = "symlink",
		[REQ_RENAME] = "rename",
		[REQ_LINK] = "link",
		[REQ_OPEN] = "open",
		[REQ_READ] = "read",
		[REQ_WRITE] = "write",
		[REQ_FLUSH] = "flush",
		[REQ_RELEASE] = "release",
		[REQ_FSYNC] = "fsync",
		[REQ_OPENDIR] = "opendir",
		[REQ_READDIR] = "readdir",
		[REQ_READDIRPLUS] = "readdirplus",
		[REQ_RELEASEDIR] = "releasedir",
		[REQ_FSYNCDIR] = "fsyncdir",
		[REQ_STATFS] = "statfs",
		[REQ_SETXATTR] = "setxattr",
		[REQ_GETXATTR] = "getxattr",
		[REQ_LISTXATTR] = "listxattr",
		[REQ_REMOVEXATTR] = "removexattr",
		[REQ_CREATE] = "create",
		[REQ_TMPFILE] = "tmpfile",
		[REQ_FALLOCATE] = "fallocate",
		[REQ_LSEEK] = "lseek",
		[REQ_COPY_FILE_RANGE] = "copy_file_range",
	};

	return name[r];
}
