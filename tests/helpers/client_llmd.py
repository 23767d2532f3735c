# SPDX-License-Identifier: Apache-2.0
"""llm-d: its file system backend, which keeps an LRU in atime (fs), and the evictor beside it
(evictor)."""

import ctypes
import hashlib
import os
import random
import time

from client_lib import (MIB, aligned, between, each, equal, eventually, libc, main, noise, same,
                        same_set, settle_all, store, succeeds, write)

SIZE = 4 * MIB
THREADS = 8
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2


def path_of(d, n):
    name = hashlib.sha256(b"%d" % n).hexdigest()
    return os.path.join(d, "Qwen_Qwen3-7B_0123456789ab_r0", name[:3], name[3:5] + "_g0", name + ".bin")


def put_renamed(path, content):
    """Buffers of 1 MiB into a tmp that is renamed."""
    tmp = path + "_1.tmp"
    store(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
          [content[at:at + MIB] for at in range(0, SIZE, MIB)], 0o664)
    os.rename(tmp, path)


def put_renamed_open(path, content):
    """Unbuffered, and renamed before it is closed."""
    tmp = path + "_2.tmp"
    fd = os.open(tmp, os.O_RDWR | os.O_CREAT, 0o664)
    write(tmp, fd, content)
    os.rename(tmp, path)
    os.close(fd)


def put_linked(path, content):
    """Without a name until it is complete."""
    fd = os.open(os.path.dirname(path), os.O_RDWR | os.O_TMPFILE, 0o664)
    write(path, fd, content)
    succeeds(path, libc.linkat(fd, b"", AT_FDCWD, path.encode(), AT_EMPTY_PATH))
    os.close(fd)


def put(d, n):
    path = path_of(d, n)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # AT_EMPTY_PATH is root's.
    ways = [put_renamed, put_renamed_open] + [put_linked] * (os.geteuid() == 0)
    ways[n % len(ways)](path, noise(n, SIZE))


def get(d, n):
    """Opened at the end, whose last blocks are asked for first; then the whole."""
    path, content = path_of(d, n), noise(n, SIZE)
    fd = os.open(path, os.O_RDONLY)
    equal(f"{path}: its end", os.lseek(fd, 0, os.SEEK_END), SIZE)
    for at in (SIZE - MIB, SIZE - 2 * MIB, 0):
        memory = aligned(SIZE - at)
        os.lseek(fd, at, os.SEEK_SET)
        equal(f"{path}: read() at {at}", os.readv(fd, [memory]), SIZE - at)
        same(f"{path} from {at}", memory[:], content[at:])
    os.close(fd)


def touch(path):
    """atime is now, mtime stays."""
    class Time(ctypes.Structure):
        _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]

    mtime, before = os.stat(path).st_mtime_ns, time.time_ns()
    times = (Time * 2)((0, UTIME_NOW), (0, UTIME_OMIT))
    succeeds(path, libc.utimensat(AT_FDCWD, path.encode(), times, 0))
    st = os.stat(path)
    # The clock of file times ticks every 1 to 10 ms.
    between(f"{path}: atime", st.st_atime_ns, before - 10**7, time.time_ns())
    equal(f"{path}: mtime after utimensat(atime)", st.st_mtime_ns, mtime)


# ---- fs


BLOCKS = range(12)
# The order in which they were used, the last one last.
ORDER = random.Random(1).sample(BLOCKS, len(BLOCKS))
LONG_AGO = 1000000000 * 10**9


def use_all(d):
    for n in ORDER:
        touch(path_of(d, n))
        time.sleep(0.011)


def check_order(d):
    by_atime = sorted(BLOCKS, key=lambda n: os.stat(path_of(d, n)).st_atime_ns)
    equal(f"{d}: blocks by atime", by_atime, ORDER)


def fs_store(d):
    each(THREADS, lambda n: put(d, n), BLOCKS)
    each(THREADS, lambda n: get(d, n), BLOCKS)
    use_all(d)
    check_order(d)


def fs_load(d):
    check_order(d)
    path = path_of(d, ORDER[0])
    os.utime(path, ns=(LONG_AGO, os.stat(path).st_mtime_ns))
    equal(f"{path}: atime that was set", os.stat(path).st_atime_ns, LONG_AGO)
    before = time.time_ns()
    each(THREADS, lambda n: get(d, n), BLOCKS)
    between(f"{path}: atime after a read", os.stat(path).st_atime_ns, before - 10**7, time.time_ns())
    use_all(d)


# ---- evictor: removes what was not used lately until statvfs says that it is enough


FILES = 18


def used(d):
    v = os.statvfs(d)
    return (v.f_blocks - v.f_bfree) * v.f_frsize


def files_of(d):
    """As its crawler finds them: by d_type and name."""
    for rank in os.scandir(d):
        for bucket in os.scandir(rank):
            for group in os.scandir(bucket):
                yield from (e.path for e in os.scandir(group) if e.is_file() and e.name.endswith(".bin"))


def evictor_run(d):
    os.makedirs(d)
    empty = used(d)
    each(THREADS, lambda n: put(d, n), range(FILES))
    settle_all(d)
    full = used(d)
    between(f"{d}: bytes used by {FILES} files of {SIZE}", full - empty,
            FILES * SIZE * 9 // 10, FILES * SIZE * 13 // 10)
    hot = range(0, FILES, 3)
    for n in range(FILES):
        os.utime(path_of(d, n), ns=(LONG_AGO, LONG_AGO))
    for n in hot:
        touch(path_of(d, n))

    target = empty + (full - empty) // 2
    candidates = [path for path in files_of(d) if time.time() - os.stat(path).st_atime > 60]
    same_set(f"{d}: candidates", candidates, (path_of(d, n) for n in range(FILES) if n not in hot))
    while candidates and used(d) > target:
        os.unlink(candidates.pop())
        time.sleep(0.05)
    eventually(f"{d}: half of the bytes used, with {len(candidates)} files to spare",
               lambda: used(d) <= target, True)
    for n in hot:
        get(d, n)


if __name__ == "__main__":
    main(globals())
