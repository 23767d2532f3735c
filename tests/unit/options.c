/* SPDX-License-Identifier: Apache-2.0 */
/* Mount options: what is accepted, what is refused and what the refusal says. */
#include "mount/mount.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#define MEMORY (UINT64_C(16) << 30)

static struct mount_options opt;
static char err[OPTIONS_ERROR];

static void setup(void)
{
	options_init(&opt, MEMORY);
	err[0] = '\0';
}

static void teardown(void)
{
	options_done(&opt);
}

TestSuite(options, .init = setup, .fini = teardown);

static void accept(const char *list)
{
	cr_assert_eq(options_parse(&opt, list, err), 0, "%s: %s", list, err);
}

/* The line names the thing and tells a remedy after it. */
static void refuse(const char *list, const char *thing)
{
	struct mount_options o;

	options_init(&o, MEMORY);
	err[0] = '\0';
	cr_assert_eq(options_parse(&o, list, err), -EINVAL, "%s", list);
	cr_assert(strstr(err, thing), "'%s' does not name '%s'", err, thing);
	cr_assert(strchr(err, ':'), "'%s' has no remedy", err);
	cr_assert_null(strchr(err, '\n'));
	options_done(&o);
}

Test(options, defaults)
{
	accept("");
	cr_assert_eq(opt.hot, 0);
	cr_assert_eq(opt.warm, 0);
	cr_assert_eq(opt.index, 0);
	cr_assert_eq(opt.idle_s, 300);
	cr_assert_eq(opt.commit_s, 5);
	cr_assert_eq(opt.open_wait_ms, 500);
	cr_assert_eq(opt.scrub, UINT64_C(50) << 20);
	cr_assert_eq(opt.codec, CODEC_CHOICE_STORE);
	cr_assert_not(opt.read_only || opt.allow_other || opt.nopassthrough || opt.nodev);
}

Test(options, own)
{
	accept("hot=1.5G,warm=25%,index=64M,idle=60,commit=1,open_wait=0,codec=dense,dedup=store,nopassthrough,allow_other,ro,"
	       "rundir=/run/kv");
	cr_assert_eq(opt.hot, UINT64_C(3) << 29);
	cr_assert_eq(opt.warm, MEMORY / 4);
	cr_assert_eq(opt.index, UINT64_C(64) << 20);
	cr_assert_eq(opt.idle_s, 60);
	cr_assert_eq(opt.commit_s, 1);
	cr_assert_eq(opt.open_wait_ms, 0);
	cr_assert_eq(opt.codec, CODEC_CHOICE_DENSE);
	cr_assert_eq(opt.dedup, DEDUP_STORE);
	cr_assert(opt.nopassthrough && opt.allow_other && opt.read_only);
	cr_assert_str_eq(opt.rundir, "/run/kv");
}

Test(options, scrub)
{
	accept("scrub=64K");
	cr_assert_eq(opt.scrub, 65536);
	/* A rate has nothing to do with the memory of the machine. */
	accept("scrub=100G");
	cr_assert_eq(opt.scrub, UINT64_C(100) << 30);
	accept("scrub=off");
	cr_assert_eq(opt.scrub, 0);
	accept("scrub=1M,scrub=0");
	cr_assert_eq(opt.scrub, 0);
	refuse("scrub=1", "scrub=1");
	refuse("scrub=50%", "scrub=50%");
	refuse("scrub=fast", "scrub=fast");
	refuse("scrub", "scrub");
}

/* The last word counts, as everywhere in mount(8). */
Test(options, last_wins)
{
	accept("ro,hot=1G,rundir=/a");
	accept("rw,hot=2G,rundir=/b,nodev,dev");
	cr_assert_not(opt.read_only || opt.nodev);
	cr_assert_eq(opt.hot, UINT64_C(2) << 30);
	cr_assert_str_eq(opt.rundir, "/b");
}

Test(options, of_mount)
{
	accept("defaults,nodev,nosuid,noexec,relatime,atime,noatime,auto,noauto,nofail,_netdev,user,"
	       "x-systemd.automount,x-initrd.mount=1,X-mount.mkdir,comment=hello,,");
	cr_assert(opt.nodev && opt.nosuid && opt.noexec && opt.noatime);
}

Test(options, testmask)
{
	accept("testmask=no-passthrough");
	cr_assert_eq(opt.testmask, TESTMASK_NO_PASSTHROUGH);
	accept("testmask=no-passthrough+no-direct-mmap");
	cr_assert_eq(opt.testmask, TESTMASK_NO_PASSTHROUGH | TESTMASK_NO_DIRECT_MMAP);
	accept("testmask=same-hash");
	cr_assert(opt.testmask & TESTMASK_SAME_HASH);
	refuse("testmask=no-such", "no-such");
}

Test(options, refused)
{
	refuse("hott=1G", "hott");
	refuse("hot", "hot");
	refuse("hot=", "hot");
	refuse("hot=-1", "hot=-1");
	refuse("hot=lots", "hot=lots");
	refuse("hot=0", "hot=0");
	refuse("hot=1M", "hot=1M");
	refuse("hot=17G", "hot=17G");
	refuse("hot=99999999999T", "hot=99999999999T");
	refuse("hot=101%", "hot=101%");
	refuse("warm=0", "warm=0");
	refuse("index=0", "index=0");
	refuse("index=512K", "index=512K");
	refuse("index", "index");
	refuse("idle=0", "idle=0");
	refuse("idle=1.5", "idle=1.5");
	refuse("commit=9999", "commit=9999");
	refuse("open_wait=-3", "open_wait=-3");
	refuse("codec=zip", "codec=zip");
	refuse("dedup=all", "dedup=all");
	refuse("codec=store", "codec=store");
	refuse("codec=", "codec");
	refuse("ro=yes", "ro=yes");
	refuse("rundir=run", "rundir=run");
	refuse("sync", "sync");
	refuse("remount,ro", "remount");
}

Test(options, sloppy)
{
	opt.sloppy = true;
	accept("hott=1G,ro");
	cr_assert(opt.read_only);
	cr_assert_eq(options_parse(&opt, "hot=x", err), -EINVAL);
}

Test(options, together)
{
	cr_assert_eq(options_check(&opt, err), 0);
	accept("hot=10G,warm=10G");
	cr_assert_eq(options_check(&opt, err), -EINVAL);
	cr_assert(strstr(err, "10G"));
	accept("hot=10G,warm=6G");
	cr_assert_eq(options_check(&opt, err), 0);
	accept("hot=9G,index=2G");
	cr_assert_eq(options_check(&opt, err), -EINVAL);
	cr_assert(strstr(err, "index=2"));
	accept("index=1G");
	cr_assert_eq(options_check(&opt, err), 0);
	accept("hot=100%,warm=1M");
	cr_assert_eq(options_check(&opt, err), -EINVAL);
}

Test(options, long_words)
{
	char list[4096];

	memset(list, 'a', sizeof(list) - 1);
	list[sizeof(list) - 1] = '\0';
	refuse(list, "aaaa");
	memcpy(list, "hot=", 4);
	refuse(list, "hot=aaaa");
}
