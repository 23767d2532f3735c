/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvfs gpu-check: a GPU reads files through their mappings, in place, and must see what the CPU
 * sees. Works on any file that can be mapped; on a hot file of a mounted kvfs it shows that the
 * image itself is usable by the device.
 */
#include "mount/mount.h"

#include "gpu/checksum.h"
#include "gpu/gpu.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct arguments {
	int device;
	char **paths;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	uint64_t n;

	switch (key) {
	case 'd':
		if (number_parse(arg, 0, 1023, &n) < 0)
			usage_fail(state->name, "--device=%s: not the number of a device", arg);
		a->device = (int)n;
		return 0;
	case ARGP_KEY_ARGS:
		a->paths = state->argv + state->next;
		return 0;
	case ARGP_KEY_NO_ARGS:
		usage_fail(state->name, "no file: give one");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option option_table[] = {
	{ "device", 'd', "NUMBER", 0, "The GPU to use, counted from 0 (the default)", 0 },
	{ 0 },
};

static const struct argp argp = {
	.options = option_table,
	.parser = parse,
	.args_doc = "FILE...",
	.doc = "Maps files, lets a GPU sum them up in place, and compares with the sum of the CPU.",
};

/* Read-only: a check must not make an image dirty. */
static int map_file(const char *path, const void **ret, size_t *ret_len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), r = 0;
	struct stat st;
	void *mem;

	if (fd < 0 || fstat(fd, &st) < 0) {
		r = -errno;
	} else if (!S_ISREG(st.st_mode) || st.st_size == 0) {
		r = -EINVAL;
	} else {
		mem = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
		if (mem == MAP_FAILED) {
			r = -errno;
		} else {
			*ret = mem;
			*ret_len = (size_t)st.st_size;
		}
	}
	if (fd >= 0)
		close(fd);
	if (r < 0)
		complain("%s: %s: give a regular file that is not empty and can be mapped", path,
			 strerror(-r));
	return r;
}

static bool check_file(const struct gpu_driver *driver, int device, const char *path)
{
	struct gpu_reading reading;
	char why[GPU_WHY], size[SIZE_TEXT], rate[SIZE_TEXT];
	const void *mem = NULL;
	size_t len = 0;
	bool equal;
	int r;

	if (map_file(path, &mem, &len) < 0)
		return false;
	r = gpu_read_mapped(driver, device, mem, len, &reading, why);
	equal = r == 0 && reading.checksum == checksum_bytes(mem, len);
	munmap((void *)mem, len);
	if (r < 0)
		complain("%s: the GPU cannot read it in place: %s", path, why);
	else if (!equal)
		complain("%s: %s reads other bytes than the CPU: was the file written meanwhile?",
			 path, reading.device);
	else
		printf("%s: equal: %s read in place by %s at %s/s\n", path, size_format(len, size),
		       reading.device,
		       size_format((uint64_t)((double)len / (reading.seconds + 1e-9)), rate));
	return equal;
}

int cmd_gpu_check(int argc, char **argv)
{
	struct arguments a = { 0 };
	struct gpu_driver driver;
	struct gpu_info info;
	char text[GPU_TEXT];
	bool equal = true;

	arguments_parse(&argp, argc, argv, 0, &a);
	gpu_probe(&info);
	if (!info.built || a.device >= info.devices || gpu_driver_load(&driver, info.why) < 0) {
		complain("gpu-check: no GPU %d to use: %s", a.device, gpu_describe(&info, text));
		return KVFS_EXIT_FAILED;
	}
	for (char **path = a.paths; *path; path++)
		equal &= check_file(&driver, a.device, *path);
	return equal ? KVFS_EXIT_OK : KVFS_EXIT_FAILED;
}
