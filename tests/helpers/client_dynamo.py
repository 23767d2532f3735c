# SPDX-License-Identifier: Apache-2.0
"""Dynamo KVBM: a temporary file, preallocated and unlinked while open (temp), and the same at a
path that stays (path)."""

import errno
import fcntl
import os
import random
import tempfile

from client_lib import (KIB, MIB, PAGE, Wrong, aligned, between, each, equal, eventually, fails,
                        fallocate, main, noise, same, settle_all, status)

FILE = 256 * MIB
BLOCK = 512 * KIB
THREADS = 8
BLOCKS = random.Random(3).sample(range(FILE // BLOCK), 40)
EMPTY, USED = BLOCKS[:8], BLOCKS[8:]


def put(fd, n, version):
    content = aligned(noise(f"{n} {version}", BLOCK))
    equal(f"block {n}: pwrite()", os.pwrite(fd, content, n * BLOCK), BLOCK)


def get(fd, n, version):
    memory = aligned(BLOCK)
    equal(f"block {n}: pread()", os.preadv(fd, [memory], n * BLOCK), BLOCK)
    same(f"block {n}", memory[:], noise(f"{n} {version}", BLOCK) if version else bytes(BLOCK))


def put_all(fd, version):
    each(THREADS, lambda n: put(fd, n, version), USED)


def get_all(fd, version):
    equal("size", os.fstat(fd).st_size, FILE)
    each(THREADS, lambda n: get(fd, n, version), USED)
    each(THREADS, lambda n: get(fd, n, 0), EMPTY)


def held(d):
    now = status(d)
    return now["tiers"]["hot"]["bytes"], now["logical_bytes"]


def temp_store(d):
    os.makedirs(d)
    settle_all(d)
    empty = held(d)
    fd, path = tempfile.mkstemp(prefix="dynamo-kvbm-disk-cache-", dir=d)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
    equal(f"{path}: F_GETFL", fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT, os.O_DIRECT)
    fallocate(path, fd, FILE)
    put_all(fd, 1)
    get_all(fd, 1)
    settle_all(d)
    fails(errno.EBUSY, f"{path}: evict of an open file", os.setxattr, path, "user.kvfs.evict", b"cold")
    get_all(fd, 1)
    os.unlink(path)
    equal(f"{path}: links", os.fstat(fd).st_nlink, 0)
    equal(f"{d}: names", os.listdir(d), [])
    get_all(fd, 1)
    put_all(fd, 2)
    settle_all(d)
    get_all(fd, 2)
    os.close(fd)
    # The kernel tells of a close after it.
    eventually("hot and logical bytes after the last close", lambda: held(d), empty)


def temp_outgrow(d):
    """The engine never closes the file. It becomes larger than the hot tier; the store has room."""
    os.makedirs(d)
    budget, free = status(d)["tiers"]["hot"]["budget"], os.statvfs(d).f_bavail * PAGE
    # In a sparse file of huge pages each block takes one.
    count = budget // (2 * MIB) * 5 // 4
    between(f"{d}: free space for {count} blocks", free, 4 * count * BLOCK, 1 << 60)
    fd, path = tempfile.mkstemp(prefix="dynamo-kvbm-disk-cache-", dir=d)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    fallocate(path, fd, 8 * count * BLOCK)
    os.unlink(path)
    blocks = random.Random(4).sample(range(8 * count), count)
    for i, n in enumerate(blocks):
        try:
            put(fd, n, 1)
        except OSError as e:
            raise Wrong(f"{path}: block {i} of {count}: got {e}, expected success: {free} bytes are free") from e
    for n in blocks:
        get(fd, n, 1)
    os.close(fd)


def temp_load(d):
    equal(f"{d}: names", os.listdir(d), [])


def path_store(d):
    os.makedirs(d)
    path = os.path.join(d, "remote-disk")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_DIRECT, 0o644)
    fallocate(path, fd, FILE)
    put_all(fd, 1)
    get_all(fd, 1)
    os.close(fd)


def path_load(d):
    fd = os.open(os.path.join(d, "remote-disk"), os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
    get_all(fd, 1)
    put_all(fd, 2)
    get_all(fd, 2)
    put_all(fd, 1)
    os.close(fd)


if __name__ == "__main__":
    main(globals())
