"""What is measured: groups of measurements that share files and mounts.

A group sets its places up, then lets kvfs and its rivals do the same work in turn, round after
round. A worker times itself; all here are rates, more is better, so a ratio above 1 means that kvfs
is faster than the rival.
"""

import contextlib
import os
import shutil

from workplace import (
    GIB, MIB, CannotRun, command, drop_caches, make_huge_pages_likely, memory,
)

GROUPS = []  # (names, function)

KVFS = "kvfs"
HUGE = "tmpfs huge"
TMPFS = "tmpfs"
EXT4 = "ext4"
BTRFS = "btrfs lzo"
PLAIN = "plain FUSE"
RAW = "raw device"
RAW_NEW = "raw device, new space"
RAW_LOAD = "raw device, into memory"
ENCODE = "one core's encode"
DECODE = "decode"
LIMIT = "the limit"

RANDOM_READS = 500  # in each file of the session
FILES = 32  # of a session


def group(*names):
    def add(function):
        GROUPS.append((names, function))
        return function

    return add


def sizes(quick, free_disk):
    """Sizes that fit this machine: the session is the largest thing, and several exist at once."""
    session = (1 if quick else 4) * GIB
    room = min(memory("MemAvailable") // 5, free_disk // 12)
    while session > room and session > 256 * MIB:
        session //= 2
    return {
        "session": session,
        "file": min(session // 2 if quick else session // 4, GIB),
        "names": 20_000 if quick else 200_000,
        "blocks": 64 if quick else 256,
        "small": 256 if quick else 1024,
        "files": 100_000 if quick else 1_000_000,
    }


@contextlib.contextmanager
def places(bench, *labels, **options):
    """A folder for each label, kvfs first: {label: folder}, and the kvfs mount."""
    session = bench.sizes["session"]
    options = {"hot": session * 3 // 2 + 2 * GIB, "warm": session * 3 // 2, "idle": 3600, **options}
    make = {
        HUGE: lambda: bench.place.tmpfs("tmpfs-huge", huge=True),
        TMPFS: lambda: bench.place.tmpfs("tmpfs", huge=False),
        EXT4: lambda: bench.place.disk("ext4", bench.sizes["session"] * 2),
        BTRFS: lambda: bench.place.disk("btrfs", bench.sizes["session"] * 2, "compress=lzo"),
        PLAIN: lambda: bench.place.plain_fuse("plain-fuse"),
    }
    make_huge_pages_likely()
    with contextlib.ExitStack() as stack:
        mount = stack.enter_context(bench.place.kvfs(**options))
        folders = {KVFS: mount.dir}
        for label in labels:
            if bench.quick and label in (BTRFS, PLAIN):
                continue
            try:
                folders[label] = stack.enter_context(make[label]())
            except (CannotRun, OSError) as e:
                bench.failed(label, e)
        yield folders, mount


def same_work(folders, worker, *args):
    """The same worker in each folder; args may be functions of the folder."""

    def one(folder):
        return lambda: worker(*(a(folder) if callable(a) else a for a in args))

    return {label: one(folder) for label, folder in folders.items()}


def warmed(bench, size, work):
    """The work with so much free memory made present before each. A virtual machine may give free
    memory back to its host within seconds, and its first use then costs ten times a copy: who comes
    first would pay for all."""

    def one(function):
        return lambda: bench.warm(size, function)

    return {label: one(function) for label, function in work.items()}


# ---- Hot files -----------------------------------------------------------------------------------


@group("hot-seq-read", "hot-mmap-read", "hot-rand-read-4k")
def hot_reads(bench):
    """One file, settled and hot, read by one reader."""

    def file(folder):
        return os.path.join(folder, "file")

    rate = bench.place.workers.rate
    with places(bench, HUGE, TMPFS, EXT4, PLAIN) as (folders, mount):
        for folder in folders.values():
            rate("file", "fill", file(folder), bench.sizes["file"])
        mount.settle()
        os.sync()
        bench.compare("hot-seq-read", "GB/s", same_work(folders, rate, "file", "read", file, "1M"),
                      goal=(HUGE, 0.90))
        bench.compare("hot-mmap-read", "GB/s", same_work(folders, rate, "file", "mmap", file),
                      goal=(HUGE, 0.90))
        bench.compare("hot-rand-read-4k", "kop/s",
                      same_work(folders, rate, "file", "rand", file, "4K"), goal=(HUGE, 0.55))


@group("new-write-1m", "new-write-4k")
def new_writes(bench):
    """New content at memory speed. The file is removed before its settling is due."""

    def file(folder):
        return os.path.join(folder, "new")

    rate = bench.place.workers.rate
    size = bench.sizes["file"]
    with places(bench, HUGE, TMPFS, EXT4, PLAIN) as (folders, _):
        bench.compare("new-write-1m", "GB/s",
                      warmed(bench, 2 * size,
                             same_work(folders, rate, "file", "write", file, size, "1M")),
                      goal=(HUGE, 0.80))
        bench.compare("new-write-4k", "GB/s",
                      warmed(bench, 2 * size,
                             same_work(folders, rate, "file", "write", file, size, "4K")),
                      goal=(HUGE, 0.40))


@group("save-4k")
def save_small_writes(bench):
    """A session saved with 4 KiB writes, a file a layer."""

    def save(folder):
        session = os.path.join(folder, "session")
        try:
            return bench.place.workers.rate("session", "save", session, FILES,
                                            bench.sizes["file"] // FILES, "4K", "normal", 1)
        finally:
            shutil.rmtree(session)

    with places(bench, HUGE, TMPFS, EXT4) as (folders, _):
        bench.compare("save-4k", "GB/s", warmed(bench, 2 * bench.sizes["file"],
                                                same_work(folders, save, lambda folder: folder)))


def fallback_reads(bench, prefix, **options):

    def file(folder):
        return os.path.join(folder, "file")

    rate = bench.place.workers.rate
    with places(bench, TMPFS, PLAIN, **options) as (folders, mount):
        for folder in folders.values():
            rate("file", "fill", file(folder), bench.sizes["file"])
        mount.settle()
        bench.compare(prefix + "-seq-read", "GB/s",
                      same_work(folders, rate, "file", "read", file, "1M"), goal=(TMPFS, 0.40))
        bench.compare(prefix + "-mmap-read", "GB/s",
                      same_work(folders, rate, "file", "mmap", file), goal=(TMPFS, 0.25))


@group("fallback-seq-read", "fallback-mmap-read")
def direct_reads(bench):
    """A hot file where the kernel has no passthrough: the daemon moves the bytes."""
    fallback_reads(bench, "fallback", nopassthrough=True)


@group("cached-seq-read", "cached-mmap-read")
def cached_reads(bench):
    """The same on kernels before 6.6, where a mapping needs the page cache: the second pass on comes
    from there."""
    fallback_reads(bench, "cached", testmask="no-passthrough+no-direct-mmap")


# ---- Names and small things ----------------------------------------------------------------------


@group("create", "stat", "access", "stat-missing", "access-missing", "readdir", "unlink")
def names(bench):
    """A flat directory of empty files, made and removed in every round. stat, access and access-missing
    are of what the kernel has cached; stat-missing asks for each name for the first time."""
    n = bench.sizes["names"]
    goals = {"stat": (EXT4, 0.9), "access": (EXT4, 0.9), "access-missing": (EXT4, 0.9),
             "readdir": (EXT4, 0.5)}
    least = {"create": 8e3, "unlink": 8e3, "stat-missing": 20e3}

    def one(folder):
        def work():
            path = os.path.join(folder, "names")
            rate = bench.place.workers.rate
            return {
                "create": rate("names", "create", path, n),
                "stat": rate("names", "stat", path, n),
                "access": rate("names", "access", path, n),
                "stat-missing": rate("names", "missing", path, n),
                "access-missing": rate("names", "missing-again", path, n),
                "readdir": rate("names", "readdir", path, n),
                "unlink": rate("names", "unlink", path, n),
            }

        return work

    with places(bench, EXT4, HUGE, PLAIN) as (folders, _):
        work = {label: one(f) for label, f in folders.items()}
        work[LIMIT] = lambda: least
        # A round takes minutes, most of them ext4's.
        bench.compare_all("kop/s", work, {**goals, **{k: (LIMIT, 1.0) for k in least}}, warm=False,
                          most=3)


@group("block-store", "block-load")
def blocks(bench):
    """Files of 2 MiB, one write or read each, O_DIRECT, 16 threads: vLLM's fs tier."""
    work = (bench.sizes["blocks"], "2M", 16)
    seed = iter(range(1, 1000))

    def one(folder):
        def round_of_work():
            path = os.path.join(folder, "blocks")
            rate = bench.place.workers.rate
            got = {
                "block-store": rate("blocks", "store", path, *work, next(seed)),
                "block-load": rate("blocks", "load", path, *work),
            }
            rate("blocks", "drop", path, *work)
            return got

        return round_of_work

    with places(bench, HUGE, EXT4, PLAIN) as (folders, _):
        work_of = {label: one(f) for label, f in folders.items()}
        bench.compare_all("GB/s", warmed(bench, GIB, work_of), {"block-store": (HUGE, 0.6)},
                          warm=False)


# ---- The store -----------------------------------------------------------------------------------


def raw_work(bench, direction, size):
    """O_DIRECT on a file of the store's own file system, at the depth and size that do best."""
    if direction not in bench.raw:
        probe = min(size, GIB)
        rates = {
            (block, depth): bench.place.workers.rate("raw", direction, bench.raw_file(), probe,
                                                     block, depth)
            for block, depth in (("1M", 1), ("1M", 8), ("2M", 8))
        }
        bench.raw[direction] = max(rates, key=rates.get)
        bench.machine[f"raw_{direction}_gb_s"] = {
            f"{depth} x {block}": round(r / 1e9, 2) for (block, depth), r in rates.items()
        }
    block, depth = bench.raw[direction]
    return bench.place.workers.rate("raw", direction, bench.raw_file(), size, block, depth)


def raw_new(bench, size):
    """As raw_work() writing, into space just preallocated: new data pays for new space on any file
    system, as its extents become written ones only with the data."""
    raw_work(bench, "write", min(size, GIB))
    block, depth = bench.raw["write"]
    return bench.place.workers.rate("raw", "new", bench.raw_file() + ".new", size, block, depth)


@group("settle")
def settle(bench):
    """Fresh noise, already in hot images; timed is the fsync of the root that makes it durable.
    Nothing is settled in the background before, as commit is far away."""
    size = bench.sizes["session"]
    rate = bench.place.workers.rate
    seed = iter(range(100, 1000))

    with places(bench, commit=3600) as (_, mount):
        session = os.path.join(mount.dir, "session")

        def kvfs():
            shutil.rmtree(session, ignore_errors=True)
            mount.settle()
            bench.warm_memory(size * 5 // 4)
            rate("session", "save", session, FILES, size // FILES, "1M", "random", next(seed))
            waiting = mount.number("unsettled_bytes")
            if waiting < size * 0.9:
                raise CannotRun(f"only {waiting} of {size} bytes were left to settle")
            return size / mount.settle()

        bench.compare("settle", "GB/s", {
            KVFS: kvfs,
            RAW_NEW: lambda: raw_new(bench, size),
            RAW: lambda: raw_work(bench, "write", size),
            ENCODE: lambda: rate("limits", "encode", "random"),
        }, goal=((RAW_NEW, ENCODE), 0.70), warm=False)


@group("durable-save")
def durable_save(bench):
    """A session saved file by file, each with an fsync before its close."""
    size = bench.sizes["file"]
    rate = bench.place.workers.rate
    seed = iter(range(2000, 9000))

    def save(folder):
        session = os.path.join(folder, "session")
        try:
            return rate("session", "save", session, FILES, size // FILES, "1M", "normal",
                        next(seed), "fsync")
        finally:
            shutil.rmtree(session)

    with places(bench, EXT4, BTRFS) as (folders, _):
        work = warmed(bench, 2 * size, same_work(folders, save, lambda folder: folder))
        work[RAW] = lambda: raw_work(bench, "write", size)
        bench.compare("durable-save", "GB/s", work, warm=False)


@group("warm-read", "cold-restore", "warm-mmap-read", "cold-mmap-read", "warm-rand-read-4k",
       "cold-rand-read-4k")
def restores(bench):
    """A session of bf16 values, 32 files, evicted, then read in order, 1 MiB a read. Not a large one,
    so that the memory made present for it is there to its end."""
    size = bench.sizes["file"]
    rate = bench.place.workers.rate
    cores = os.cpu_count()

    def warm(work, prepare):
        return bench.warm(size * 5 // 4, work, prepare)

    def session(folder):
        return os.path.join(folder, "session")

    def cold_kvfs(mount, how="restore", *args):
        def forget():
            mount.evict("cold", session(mount.dir))
            drop_caches()

        return lambda: warm(lambda: rate("session", how, session(mount.dir), *args), forget)

    def cold_rival(folder, how="restore", *args):
        return lambda: warm(lambda: rate("session", how, session(folder), *args), drop_caches)

    def warm_kvfs(mount, how="restore", *args):
        return lambda: warm(lambda: rate("session", how, session(mount.dir), *args),
                            lambda: mount.evict("warm", session(mount.dir)))

    def decode():
        return rate("limits", "decode", "normal", cores)

    with places(bench, EXT4, BTRFS) as (folders, mount):
        for folder in folders.values():
            rate("session", "save", session(folder), FILES, size // FILES, "1M", "normal", 42)
        mount.settle()
        os.sync()
        stored = int(os.getxattr(session(mount.dir), "user.kvfs.stored"))
        if stored < size // 10:
            raise CannotRun(f"user.kvfs.stored of the session says {stored} of {size} bytes")

        def raw(direction):
            # As the bytes of the session: what its stored bytes take at the rate of the device. It
            # needs no free memory, but the host is as busy with what was freed before.
            def work():
                return raw_work(bench, direction, stored) * size / stored

            raw_work(bench, direction, stored)
            return lambda: warm(work, drop_caches)

        work = {KVFS: cold_kvfs(mount), RAW_LOAD: raw("load"), RAW: raw("read"),
                DECODE: decode}
        work.update({label: cold_rival(f) for label, f in folders.items() if label != KVFS})
        bench.compare("cold-restore", "GB/s", work, goal=((RAW_LOAD, DECODE), 0.85))
        bench.compare("warm-read", "GB/s", {KVFS: warm_kvfs(mount), DECODE: decode}, warm=False)
        for name, unit, how in (("mmap-read", "GB/s", ("map",)), ("rand-read-4k", "kop/s",
                                                                   ("rand", RANDOM_READS))):
            rivals = {l: cold_rival(folders[l], *how) for l in (EXT4,) if l in folders}
            bench.compare("cold-" + name, unit, {KVFS: cold_kvfs(mount, *how), **rivals},
                          warm=False)
            bench.compare("warm-" + name, unit, {KVFS: warm_kvfs(mount, *how), **rivals},
                          warm=False)
        rate("session", "verify", session(mount.dir), "normal", 42)


@group("daemon-memory")
def daemon_memory(bench):
    """What the daemon holds besides the tiers, with many files and many chunks, all cold."""
    n, small = bench.sizes["names"], bench.sizes["small"]
    run = bench.place.workers.run

    def cold(mount):
        mount.settle()
        mount.evict("cold", *subfolders(mount.dir))
        return mount.own_memory()

    with places(bench) as (_, mount):
        before = mount.own_memory()
        run("names", "create", os.path.join(mount.dir, "names"), n)
        files = cold(mount)
        run("session", "save", os.path.join(mount.dir, "chunks"), small, MIB, "1M", "random", 77)
        own = cold(mount)
        chunks = mount.number("chunks")
        limit = 64 * MIB + 256 * chunks + 1024 * (n + small)
        bench.say(f"daemon: {before / MIB:.0f} MiB empty; {(files - before) / n:.0f} B more a file "
                  f"({n} files); {(own - files) / max(chunks, 1):.0f} B more a chunk "
                  f"({chunks} chunks)")
        bench.add("daemon-memory", "MiB", LIMIT, [(own / MIB, limit / MIB)], goal=1.0, less=True)




@group("mount", "mount-large", "walk-memory")
def metadata(bench):
    """Stores that were made in the database, a chunk a file: seconds until a mount answers, and what the
    daemon holds after two walks that look at every file."""
    n = bench.sizes["files"]

    def remounts(mount, name, goal):
        times = [mount.remount() for _ in range(bench.rounds)]
        bench.add(name, "s", LIMIT, [(t, goal) for t in times], goal=1.0, less=True)

    with bench.place.kvfs(files=n) as mount:
        remounts(mount, "mount", 2 * n / 1e6)
        for _ in range(2):
            command("find", mount.dir, "-size", "+1M", limit=600)
        bench.add("walk-memory", "MiB", LIMIT, [(mount.own_memory() / MIB, 300e6 / MIB)], goal=1.0,
                  less=True)
    if bench.wants("mount-large") and not bench.quick:
        with bench.place.kvfs(files=10 * n) as mount:
            remounts(mount, "mount-large", 5)


def subfolders(folder):
    return [e.path for e in os.scandir(folder) if e.is_dir()]
