/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them: exact, and nothing accepted that is not a size. */
#include "mount/mount.h"

#include <criterion/criterion.h>
#include <errno.h>

static void check_size(const char *text, uint64_t want)
{
	uint64_t got = 12345;
	int r = size_parse(text, UINT64_C(1) << 30, &got);

	cr_assert_eq(r, 0, "%s: %d", text, r);
	cr_assert_eq(got, want, "%s: %lu, not %lu", text, (unsigned long)got, (unsigned long)want);
}

static void check_refused(const char *text, int want)
{
	uint64_t got = 12345;

	cr_assert_eq(size_parse(text, UINT64_C(1) << 30, &got), want, "'%s'", text);
	cr_assert_eq(got, 12345, "'%s' touched the result", text);
}

Test(size, units)
{
	check_size("0", 0);
	check_size("1", 1);
	check_size("512", 512);
	check_size("1K", 1024);
	check_size("1k", 1024);
	check_size("512M", UINT64_C(512) << 20);
	check_size("1.5G", UINT64_C(3) << 29);
	check_size("1.5GiB", UINT64_C(3) << 29);
	check_size("2Gi", UINT64_C(2) << 30);
	check_size("2GB", UINT64_C(2) << 30);
	check_size("100B", 100);
	check_size("0.5K", 512);
	check_size("15E", UINT64_C(15) << 60);
	check_size("18446744073709551615", UINT64_MAX);
	check_size("0.0000000000000000000000000001G", 0);
}

Test(size, percent)
{
	uint64_t got = 1;

	check_size("10%", (UINT64_C(1) << 30) / 10);
	check_size("0.5%", (UINT64_C(1) << 30) / 200);
	check_size("100%", UINT64_C(1) << 30);
	check_size("0%", 0);
	check_refused("100.1%", -ERANGE);
	check_refused("1000%", -ERANGE);
	check_refused("10%%", -EINVAL);
	check_refused("%", -EINVAL);
	cr_assert_eq(size_parse("10%", 0, &got), -EINVAL, "a share of nothing");
}

Test(size, overflow)
{
	check_refused("18446744073709551616", -ERANGE);
	check_refused("16E", -ERANGE);
	check_refused("99999999999999999999999999G", -ERANGE);
	check_refused("17179869184G", -ERANGE);
}

Test(size, nonsense)
{
	static const char *const bad[] = { "",    " ",    "-1",  "+1",  "G",      "1.5",  "1.G",
					   ".5G", "1GG",  "1 G", "1G ", " 1G",    "0x10", "1e3",
					   "1Z",  "1,5G", "nan", "inf", "1.5.5G", "1Gi%", "1iB" };

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		check_refused(bad[i], -EINVAL);
}

static void check_text(uint64_t bytes, const char *want)
{
	char buf[SIZE_TEXT];

	cr_assert_str_eq(size_format(bytes, buf), want, "%lu: %s, not %s", (unsigned long)bytes,
			 buf, want);
}

Test(size, format)
{
	check_text(0, "0");
	check_text(999, "999");
	check_text(1000, "1.0K");
	check_text(1024, "1.0K");
	check_text(UINT64_C(3) << 29, "1.5G");
	check_text((UINT64_C(10) << 20) - 1, "10M");
	check_text(UINT64_C(23) << 20, "23M");
	check_text(UINT64_C(1023) << 20, "1.0G");
	check_text(UINT64_MAX, "16E");
}

/* What is printed can be read back, and is within the printed precision. */
Test(size, round_trip)
{
	for (unsigned shift = 0; shift < 64; shift++) {
		uint64_t n = UINT64_C(1) << shift, back;
		char buf[SIZE_TEXT];

		cr_assert_eq(size_parse(size_format(n, buf), 0, &back), 0, "%s", buf);
		cr_assert(back > n - n / 10 - 1 && back < n + n / 10 + 1, "%s", buf);
	}
}

Test(number, limits)
{
	uint64_t n = 7;

	cr_assert_eq(number_parse("300", 1, 1000, &n), 0);
	cr_assert_eq(n, 300);
	cr_assert_eq(number_parse("0", 1, 1000, &n), -ERANGE);
	cr_assert_eq(number_parse("1001", 1, 1000, &n), -ERANGE);
	cr_assert_eq(number_parse("-1", 0, 1000, &n), -EINVAL);
	cr_assert_eq(number_parse("1.5", 0, 1000, &n), -EINVAL);
	cr_assert_eq(number_parse("5s", 0, 1000, &n), -EINVAL);
	cr_assert_eq(number_parse("", 0, 1000, &n), -EINVAL);
	cr_assert_eq(n, 300);
}
