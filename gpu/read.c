/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device reads host memory in place: the proof that a mapped image can be used by a GPU without
 * a copy, and that what it sees there is what the host wrote.
 */
#include "gpu/gpu.h"
#include "gpu/checksum.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#ifndef KVFS_HAVE_CUDA

int gpu_read_mapped(const struct gpu_driver *driver, int device, const void *mem, size_t len,
		    struct gpu_reading *ret, char why[static GPU_WHY])
{
	(void)driver, (void)device, (void)mem, (void)len, (void)ret;
	snprintf(why, GPU_WHY, "kvfs was built without nvcc");
	return -ENOSYS;
}

#else

extern const unsigned char kvfs_fatbin[];

/* CU_MEMHOSTREGISTER_DEVICEMAP and _READ_ONLY of cuda.h. */
#define REGISTER_DEVICEMAP 2u
#define REGISTER_READ_ONLY 8u

#define BLOCK_THREADS 256u
#define GRID_BLOCKS   1024u

struct reader {
	const struct gpu_driver *driver;
	int device;
	void *context, *module, *function;
	bool pushed;
	void *registered;
	uint64_t sum; /* on the device */
	char *why;
};

static int failed(const struct reader *r, const char *what, int result)
{
	snprintf(r->why, GPU_WHY, "%s: CUDA error %d", what, result);
	return -EIO;
}

/* Runs one call of the driver; leaves the function when it fails. */
#define TRY(r, what, call)                                                                         \
	do {                                                                                       \
		int result_ = (r)->driver->call;                                                   \
		if (result_)                                                                       \
			return failed(r, what, result_);                                           \
	} while (0)

static int reader_open(struct reader *r, int ordinal, struct gpu_reading *ret)
{
	TRY(r, "starting the driver", init(0));
	TRY(r, "opening the device", device_get(&r->device, ordinal));
	TRY(r, "naming the device", device_name(ret->device, sizeof(ret->device), r->device));
	TRY(r, "opening a context", context_retain(&r->context, r->device));
	TRY(r, "entering the context", context_push(r->context));
	r->pushed = true;
	TRY(r, "loading the kernels", module_load(&r->module, kvfs_fatbin));
	TRY(r, "finding the kernel", function_get(&r->function, r->module, "gpu_checksum"));
	TRY(r, "allocating on the device", alloc(&r->sum, sizeof(r->sum)));
	return 0;
}

/* Accepts what reader_open() left half done. */
static void reader_done(struct reader *r)
{
	if (r->registered)
		r->driver->host_unregister(r->registered);
	if (r->sum)
		r->driver->free(r->sum);
	if (r->module)
		r->driver->module_unload(r->module);
	if (r->pushed)
		r->driver->context_pop(&(void *){ NULL });
	if (r->context)
		r->driver->context_release(r->device);
}

/* Whole pages, as the driver wants them: the rest of the last page belongs to the mapping too. */
static int reader_register(struct reader *r, const void *mem, size_t len, uint64_t *ret_address)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *start = (void *)mem;

	TRY(r, "registering the memory",
	    host_register(start, (len + page - 1) / page * page,
			  REGISTER_DEVICEMAP | REGISTER_READ_ONLY));
	r->registered = start;
	TRY(r, "mapping the memory", host_address(ret_address, start, 0));
	return 0;
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int reader_sum(struct reader *r, uint64_t address, uint64_t words, struct gpu_reading *ret)
{
	void *params[] = { &address, &words, &r->sum };
	uint64_t sum = 0;
	double start;

	TRY(r, "clearing the sum", copy_in(r->sum, &sum, sizeof(sum)));
	start = now();
	TRY(r, "starting the kernel",
	    launch(r->function, GRID_BLOCKS, 1, 1, BLOCK_THREADS, 1, 1, 0, NULL, params, NULL));
	TRY(r, "running the kernel", synchronize());
	ret->seconds = now() - start;
	TRY(r, "reading the sum", copy_out(&sum, r->sum, sizeof(sum)));
	ret->checksum = sum;
	return 0;
}

int gpu_read_mapped(const struct gpu_driver *driver, int device, const void *mem, size_t len,
		    struct gpu_reading *ret, char why[static GPU_WHY])
{
	struct reader r = { .driver = driver, .why = why };
	struct gpu_reading reading = { 0 };
	uint64_t address = 0;
	int error = reader_open(&r, device, &reading);

	if (error == 0 && len >= 8)
		error = reader_register(&r, mem, len, &address);
	if (error == 0 && len >= 8)
		error = reader_sum(&r, address, len / 8, &reading);
	reader_done(&r);
	if (error < 0)
		return error;
	reading.checksum = checksum_finish(reading.checksum, mem, len);
	*ret = reading;
	return 0;
}

#endif
