/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU layer over a driver that is not there, broken, or made of the CPU. */
#include "gpu/gpu.h"
#include "gpu/checksum.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A driver whose device is this CPU: addresses are pointers, the kernel is its twin. The call
 * number fail_at fails; held counts what must be given back. */
static struct {
	int calls, fail_at, held, devices;
} fake;

static int call(void)
{
	return ++fake.calls == fake.fail_at ? 999 : 0;
}

static int take(void)
{
	int r = call();

	fake.held += !r;
	return r;
}

static int give(void)
{
	fake.held--;
	return 0;
}

static int fake_init(unsigned flags)
{
	(void)flags;
	return call();
}

static int fake_version(int *ret)
{
	*ret = 13010;
	return call();
}

static int fake_device_count(int *ret)
{
	*ret = fake.devices;
	return call();
}

static int fake_device_get(int *ret, int ordinal)
{
	*ret = ordinal;
	return call();
}

static int fake_device_name(char *ret, int len, int device)
{
	(void)device;
	strncpy(ret, "the CPU", (size_t)len);
	return call();
}

static int fake_context_retain(void **ret, int device)
{
	int r = take();

	(void)device;
	if (r == 0)
		*ret = &fake;
	return r;
}

static int fake_context_release(int device)
{
	(void)device;
	return give();
}

static int fake_context_push(void *context)
{
	cr_assert_eq(context, &fake);
	return take();
}

static int fake_context_pop(void **ret)
{
	*ret = &fake;
	return give();
}

static int fake_synchronize(void)
{
	return call();
}

static int fake_module_load(void **ret, const void *image)
{
	/* The magic number of a fat binary. */
	static const unsigned char magic[] = { 0x50, 0xed, 0x55, 0xba };
	int r = take();

	cr_assert_eq(memcmp(image, magic, sizeof(magic)), 0);
	if (r == 0)
		*ret = &fake;
	return r;
}

static int fake_module_unload(void *module)
{
	(void)module;
	return give();
}

static int fake_function_get(void **ret, void *module, const char *name)
{
	(void)module;
	cr_assert_str_eq(name, "gpu_checksum");
	*ret = &fake;
	return call();
}

static int fake_host_register(void *mem, size_t len, unsigned flags)
{
	cr_assert_eq((uintptr_t)mem % 4096, 0);
	cr_assert_eq(len % 4096, 0);
	cr_assert_eq(flags, 2u | 8u);
	return take();
}

static int fake_host_unregister(void *mem)
{
	(void)mem;
	return give();
}

static int fake_host_address(uint64_t *ret, void *mem, unsigned flags)
{
	(void)flags;
	*ret = (uintptr_t)mem;
	return call();
}

static int fake_alloc(uint64_t *ret, size_t len)
{
	int r = take();

	if (r == 0)
		*ret = (uintptr_t)malloc(len);
	return r;
}

static int fake_free(uint64_t address)
{
	free((void *)(uintptr_t)address);
	return give();
}

static int fake_copy_in(uint64_t to, const void *from, size_t len)
{
	memcpy((void *)(uintptr_t)to, from, len);
	return call();
}

static int fake_copy_out(void *to, uint64_t from, size_t len)
{
	memcpy(to, (void *)(uintptr_t)from, len);
	return call();
}

static int fake_launch(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
		       unsigned by, unsigned bz, unsigned shared_bytes, void *stream, void **params,
		       void **extra)
{
	const uint64_t *words = *(const uint64_t **)params[0];
	uint64_t count = *(uint64_t *)params[1], *sum = *(uint64_t **)params[2];

	(void)function, (void)shared_bytes, (void)stream, (void)extra;
	cr_assert(gx && gy == 1 && gz == 1 && bx % 32 == 0 && by == 1 && bz == 1);
	/* Backwards: a device has no order. */
	for (uint64_t i = count; i-- > 0;)
		*sum += checksum_word(words[i], i);
	return call();
}

static const struct gpu_driver driver = {
#define FAKE(field, symbol, args) .field = fake_##field,
	GPU_DRIVER_CALLS(FAKE)
};

/* ---- Probing ---------------------------------------------------------------------------------- */

Test(gpu, probe_never_fails)
{
	struct gpu_info info;
	char text[GPU_TEXT];

	gpu_probe(&info);
	cr_assert(info.devices >= 0);
	cr_assert(info.devices > 0 || info.why[0]);
	cr_assert_eq(info.built, info.cuda_version != NULL);
	cr_assert(strstr(gpu_describe(&info, text), info.built ? "built with CUDA" : "not built"));
}

Test(gpu, probe_device)
{
	struct gpu_info info;
	char text[GPU_TEXT];

	fake.devices = 1;
	gpu_probe_driver(&driver, &info);
	cr_assert(info.driver);
	cr_assert_eq(info.driver_version, 13010);
	cr_assert_eq(info.devices, 1);
	cr_assert_str_empty(info.why);
	cr_assert(strstr(gpu_describe(&info, text), "; driver 13.1, 1 device"), "%s", text);
	cr_assert_eq(fake.held, 0);
}

Test(gpu, probe_no_device)
{
	struct gpu_info info;

	gpu_probe_driver(&driver, &info);
	cr_assert(info.driver && info.devices == 0 && info.why[0]);
}

Test(gpu, probe_broken)
{
	for (int i = 1; i <= 3; i++) {
		struct gpu_info info;

		fake.calls = 0, fake.fail_at = i, fake.devices = 4;
		gpu_probe_driver(&driver, &info);
		cr_assert_eq(info.devices, 0);
		cr_assert_eq(info.driver, i == 3);
		cr_assert(strstr(info.why, "999"), "%s", info.why);
	}
}

/* ---- The checksum ----------------------------------------------------------------------------- */

static unsigned char *bytes_new(size_t len)
{
	unsigned char *b = aligned_alloc(4096, (len / 4096 + 1) * 4096);
	uint32_t x = 1;

	cr_assert(b);
	for (size_t i = 0; i < len; i++)
		b[i] = (unsigned char)((x = x * 1664525 + 1013904223) >> 24);
	return b;
}

/* Fixed values: the sum must not change between versions or compilers. */
Test(gpu, checksum_values)
{
	cr_assert_eq(checksum_bytes("", 0), checksum_word(0, ~0ULL));
	cr_assert_eq(checksum_word(0, 0), 0);
	cr_assert_eq(checksum_word(1, 0), UINT64_C(0xd6e8feb8b0b1032b));
	cr_assert_eq(checksum_bytes("kvfs reads what the host wrote", 30),
		     UINT64_C(0x4f08390a3aba4f9));
}

Test(gpu, checksum_sees_everything)
{
	enum { LEN = 1003 };
	unsigned char *b = bytes_new(LEN), word[8];
	uint64_t sum = checksum_bytes(b, LEN);

	for (size_t i = 0; i < LEN; i++) {
		b[i] ^= 1u << (i % 8);
		cr_assert_neq(checksum_bytes(b, LEN), sum, "byte %zu", i);
		b[i] ^= 1u << (i % 8);
	}
	cr_assert_eq(checksum_bytes(b, LEN), sum);
	cr_assert_neq(checksum_bytes(b, LEN - 1), sum);
	memcpy(word, b, 8);
	memmove(b, b + 8, 8);
	memcpy(b + 8, word, 8);
	cr_assert_neq(checksum_bytes(b, LEN), sum, "two words that changed places");
	free(b);
}

Test(gpu, checksum_zeros_count)
{
	static const unsigned char zeros[64];

	for (size_t i = 0; i < sizeof(zeros); i++)
		cr_assert_neq(checksum_bytes(zeros, i), checksum_bytes(zeros, i + 1));
}

/* ---- Reading through the device --------------------------------------------------------------- */

Test(gpu, read_mapped)
{
	static const size_t lens[] = { 0, 1, 7, 8, 9, 4096, 4097, 1u << 20, (1u << 20) + 3 };
	struct gpu_reading reading;
	struct gpu_info info;
	char why[GPU_WHY] = "";

	gpu_probe_driver(&driver, &info);
	for (size_t i = 0; i < sizeof(lens) / sizeof(*lens); i++) {
		unsigned char *b = bytes_new(lens[i]);
		int r = gpu_read_mapped(&driver, 0, b, lens[i], &reading, why);

		if (info.built) {
			cr_assert_eq(r, 0, "%zu: %s", lens[i], why);
			cr_assert_eq(reading.checksum, checksum_bytes(b, lens[i]), "%zu", lens[i]);
			cr_assert_str_eq(reading.device, "the CPU");
		} else {
			cr_assert_eq(r, -ENOSYS);
		}
		cr_assert_eq(fake.held, 0);
		free(b);
	}
}

/* Every call may fail; nothing is left behind and the reason is given. */
Test(gpu, read_fails)
{
	unsigned char *b = bytes_new(10000);
	struct gpu_reading reading;
	struct gpu_info info;
	int r, n = 0;

	gpu_probe_driver(&driver, &info);
	do {
		char why[GPU_WHY] = "";

		fake.calls = 0, fake.fail_at = ++n;
		r = gpu_read_mapped(&driver, 0, b, 10000, &reading, why);
		cr_assert_eq(fake.held, 0, "call %d left something", n);
		cr_assert(r == 0 || why[0]);
		cr_assert(r == 0 || !info.built || strstr(why, "999"));
	} while (r < 0 && n < 100 && info.built);
	cr_assert(!info.built || n > 10);
	free(b);
}
