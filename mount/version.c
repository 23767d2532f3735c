/* SPDX-License-Identifier: Apache-2.0 */
/* kvfs --version: what a report of a bug needs. */
#include "mount/mount.h"

#include "gpu/gpu.h"

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 17)
#include <fuse_lowlevel.h>
#include <liburing.h>
#include <lz4.h>
#include <sqlite3.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <stdio.h>

/* liburing says its version only from 2.4 on. */
static void print_liburing(void)
{
#ifdef IO_URING_VERSION_MAJOR
	printf("liburing %d.%d\n", io_uring_major_version(), io_uring_minor_version());
#else
	puts("liburing older than 2.4");
#endif
}

void version_print(void)
{
	unsigned xxh = XXH_versionNumber();
	struct gpu_info info;
	char text[GPU_TEXT];

	gpu_probe(&info);
	printf("kvfs %s\n", KVFS_VERSION);
	printf("libfuse %s\n", fuse_pkgversion());
	printf("SQLite %s\n", sqlite3_libversion());
	printf("lz4 %s\n", LZ4_versionString());
	printf("xxHash %u.%u.%u\n", xxh / 10000, xxh / 100 % 100, xxh % 100);
	print_liburing();
	if (!privileges_has_filter())
		puts("no seccomp filter in this build");
	printf("gpu: %s\n", gpu_describe(&info, text));
}
