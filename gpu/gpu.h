/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu: what kvfs knows of GPUs. Finds the driver at run time, so that one binary starts on every
 * machine, and knows nothing of files.
 *
 * The kernels of gpu/ *.cu travel in the program as one fat binary when it was built with nvcc; each
 * has a twin for the CPU that gives the same result.
 */
#ifndef KVFS_GPU_H
#define KVFS_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPU_WHY 160

/*
 * The CUDA driver API as far as kvfs uses it: the seam for tests, and the reason that no header or
 * library of CUDA is needed to build or to start. Types are those of cuda.h: results, devices and
 * flags are ints, handles pointers, device addresses 64-bit numbers.
 */
#define GPU_DRIVER_CALLS(X)                                                                        \
	X(init, "cuInit", (unsigned flags))                                                        \
	X(version, "cuDriverGetVersion", (int *ret))                                               \
	X(device_count, "cuDeviceGetCount", (int *ret))                                            \
	X(device_get, "cuDeviceGet", (int *ret, int ordinal))                                      \
	X(device_name, "cuDeviceGetName", (char *ret, int len, int device))                        \
	X(context_retain, "cuDevicePrimaryCtxRetain", (void **ret, int device))                    \
	X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                           \
	X(context_push, "cuCtxPushCurrent_v2", (void *context))                                    \
	X(context_pop, "cuCtxPopCurrent_v2", (void **ret))                                         \
	X(synchronize, "cuCtxSynchronize", (void))                                                 \
	X(module_load, "cuModuleLoadData", (void **ret, const void *image))                        \
	X(module_unload, "cuModuleUnload", (void *module))                                         \
	X(function_get, "cuModuleGetFunction", (void **ret, void *module, const char *name))       \
	X(host_register, "cuMemHostRegister_v2", (void *mem, size_t len, unsigned flags))          \
	X(host_unregister, "cuMemHostUnregister", (void *mem))                                     \
	X(host_address, "cuMemHostGetDevicePointer_v2",                                            \
	  (uint64_t * ret, void *mem, unsigned flags))                                             \
	X(alloc, "cuMemAlloc_v2", (uint64_t * ret, size_t len))                                    \
	X(free, "cuMemFree_v2", (uint64_t address))                                                \
	X(copy_in, "cuMemcpyHtoD_v2", (uint64_t to, const void *from, size_t len))                 \
	X(copy_out, "cuMemcpyDtoH_v2", (void *to, uint64_t from, size_t len))                      \
	X(launch, "cuLaunchKernel",                                                                \
	  (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,    \
	   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **params, \
	   void **extra))

struct gpu_driver {
#define GPU_DRIVER_FIELD(field, symbol, args) int(*field) args;
	GPU_DRIVER_CALLS(GPU_DRIVER_FIELD)
#undef GPU_DRIVER_FIELD
};

struct gpu_info {
	bool built;               /* with nvcc: there are kernels */
	const char *cuda_version; /* of nvcc, "13.0"; NULL when not built */
	bool driver;              /* libcuda.so.1 is there and answers */
	int driver_version;       /* the CUDA version it knows: 1000 * major + 10 * minor */
	int devices;
	char why[GPU_WHY]; /* when there is no driver or no device: why. Else "" */
};

/* Loads the driver library, which stays loaded. -ENOENT, -ENOSYS with a reason. */
int gpu_driver_load(struct gpu_driver *ret, char why[static GPU_WHY]);

/* Never fails, opens no context. */
void gpu_probe(struct gpu_info *ret);
void gpu_probe_driver(const struct gpu_driver *driver, struct gpu_info *ret);

/* "built with CUDA 13.0, driver 13.0, 1 device". buf is returned. */
#define GPU_TEXT 320
const char *gpu_describe(const struct gpu_info *info, char buf[static GPU_TEXT]);

struct gpu_reading {
	char device[64];   /* its name */
	uint64_t checksum; /* what checksum_bytes() of gpu/checksum.h gives for the same bytes */
	double seconds;    /* of reading alone, without registering the memory */
};

/*
 * Lets a device read len bytes of host memory in place and sum them up: mem, which begins at a page
 * (a mapped image), is registered, read through its device address and let go. Read-only mappings
 * are fine. -ENOSYS: not built. -ENODEV, -EIO: why says which call failed and how. Calls come from one
 * thread at a time.
 */
int gpu_read_mapped(const struct gpu_driver *driver, int device, const void *mem, size_t len,
		    struct gpu_reading *ret, char why[static GPU_WHY]);

#endif
