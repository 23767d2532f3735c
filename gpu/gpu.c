/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the CUDA driver and saying what is there. Must never fail a program that can do without,
 * and never open a context: that costs a device hundreds of megabytes.
 */
#include "gpu/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define DRIVER_LIBRARY "libcuda.so.1"

static const struct {
	const char *symbol;
	size_t offset;
} calls[] = {
#define GPU_DRIVER_ENTRY(field, symbol, args) { symbol, offsetof(struct gpu_driver, field) },
	GPU_DRIVER_CALLS(GPU_DRIVER_ENTRY)
#undef GPU_DRIVER_ENTRY
};

int gpu_driver_load(struct gpu_driver *ret, char why[static GPU_WHY])
{
	void *lib = dlopen(DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	struct gpu_driver d;

	if (!lib) {
		snprintf(why, GPU_WHY, "%s not found", DRIVER_LIBRARY);
		return -ENOENT;
	}
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		void *f = dlsym(lib, calls[i].symbol);

		if (!f) {
			snprintf(why, GPU_WHY, "%s lacks %s: the driver is too old", DRIVER_LIBRARY,
				 calls[i].symbol);
			dlclose(lib);
			return -ENOSYS;
		}
		memcpy((char *)&d + calls[i].offset, &f, sizeof(f));
	}
	*ret = d;
	return 0;
}

static void probe_build(struct gpu_info *info)
{
	*info = (struct gpu_info){ 0 };
#ifdef KVFS_HAVE_CUDA
	info->built = true;
	info->cuda_version = KVFS_CUDA_VERSION;
#endif
}

void gpu_probe_driver(const struct gpu_driver *driver, struct gpu_info *ret)
{
	int r;

	probe_build(ret);
	r = driver->init(0);
	if (r == 0)
		r = driver->version(&ret->driver_version);
	if (r) {
		ret->driver_version = 0;
		snprintf(ret->why, GPU_WHY, "the driver does not start: CUDA error %d", r);
		return;
	}
	ret->driver = true;
	r = driver->device_count(&ret->devices);
	if (r || ret->devices < 0)
		ret->devices = 0;
	if (r)
		snprintf(ret->why, GPU_WHY, "the driver counts no devices: CUDA error %d", r);
	else if (!ret->devices)
		snprintf(ret->why, GPU_WHY, "the driver sees no device");
}

void gpu_probe(struct gpu_info *ret)
{
	struct gpu_driver driver;
	char why[GPU_WHY];

	if (gpu_driver_load(&driver, why) == 0) {
		gpu_probe_driver(&driver, ret);
		return;
	}
	probe_build(ret);
	memcpy(ret->why, why, GPU_WHY);
}

const char *gpu_describe(const struct gpu_info *info, char buf[static GPU_TEXT])
{
	char build[64] = "not built: no nvcc", driver[64] = "";

	if (info->built)
		snprintf(build, sizeof(build), "built with CUDA %s", info->cuda_version);
	if (info->driver)
		snprintf(driver, sizeof(driver), "driver %d.%d, ", info->driver_version / 1000,
			 info->driver_version % 1000 / 10);
	snprintf(buf, GPU_TEXT, "%s; %s%d device%s%s%s", build, driver, info->devices,
		 info->devices == 1 ? "" : "s", *info->why ? ": " : "", info->why);
	return buf;
}
