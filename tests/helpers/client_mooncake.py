# SPDX-License-Identifier: Apache-2.0
"""Mooncake: buckets of many objects with their .meta (bucket), and one preallocated file (offset)."""

import json
import os
import random

from client_lib import (KIB, MIB, PAGE, aligned, between, each, equal, fallocate, main, noise, same,
                        settle_all, store)

THREADS = 8


def blocks(path):
    """What it counts a file as."""
    return os.stat(path).st_blocks * 512


def direct_read(path, offset, size):
    """preadv with O_DIRECT of the pages that hold the range."""
    start = offset // PAGE * PAGE
    memory = aligned(-(-(offset + size - start) // PAGE) * PAGE)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    got = os.preadv(fd, [memory], start)
    os.close(fd)
    between(f"{path}: preadv() of {len(memory)} at {start}", got, offset + size - start, len(memory))
    return memory[offset - start:offset - start + size]


# ---- bucket


OBJECT = MIB - 24  # keys lie between the values, so that none begins at a page
BUCKETS = {"100": 48, "101": 5, "102": 2}
LARGEST = 256
ALL = [(bucket, n) for bucket, count in BUCKETS.items() for n in range(count)]


def bucket_object(bucket, n):
    return noise(f"{bucket} {n}", OBJECT)


def bucket_path(d, bucket):
    return os.path.join(d, bucket + ".bucket")


def bucket_size(bucket):
    return BUCKETS[bucket] * OBJECT


def bucket_meta(bucket):
    keys = [f"key {n}" for n in range(BUCKETS[bucket])]
    return json.dumps({"data_size": bucket_size(bucket), "keys": keys}).encode()


def bucket_write(path, objects):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    equal(f"{path}: pwritev()", os.pwritev(fd, objects, 0), len(objects) * OBJECT)
    os.close(fd)


def bucket_put(d, bucket):
    bucket_write(bucket_path(d, bucket), [bucket_object(bucket, n) for n in range(BUCKETS[bucket])])
    meta = os.path.join(d, bucket + ".meta")
    store(meta, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, [bucket_meta(bucket)])


def bucket_get(d, bucket, n):
    path = bucket_path(d, bucket)
    same(f"{path}: object {n}", direct_read(path, n * OBJECT, OBJECT), bucket_object(bucket, n))


def bucket_capacity(d):
    """The capacity used is the sum of what the buckets take: noise is stored as it is, in records."""
    for bucket in BUCKETS:
        path, size = bucket_path(d, bucket), bucket_size(bucket)
        between(f"{path}: st_blocks * 512 of {size} bytes of noise", blocks(path),
                size, size * 103 // 100 + 4 * KIB)


def bucket_check(d):
    for bucket in BUCKETS:
        with open(os.path.join(d, bucket + ".meta"), "rb") as f:
            same(f.name, f.read(), bucket_meta(bucket))
    each(THREADS, lambda which: bucket_get(d, *which), ALL)


def bucket_largest(d):
    """As large as they become; of few different objects, to be made fast, and not kept."""
    path = bucket_path(d, "99")
    objects = [bucket_object("99", n % 17) for n in range(LARGEST)]
    bucket_write(path, objects)
    each(THREADS, lambda n: same(f"{path}: object {n}", direct_read(path, n * OBJECT, OBJECT), objects[n]),
         range(LARGEST))
    os.unlink(path)


def bucket_store(d):
    os.makedirs(d)
    bucket_largest(d)
    for bucket in BUCKETS:
        bucket_put(d, bucket)
    bucket_check(d)
    bucket_capacity(d)


def bucket_load(d):
    bucket_check(d)
    settle_all(d)
    bucket_capacity(d)


def bucket_replace(d):
    """One is evicted, and the next takes its place; all is durable."""
    for suffix in ".bucket", ".meta":
        os.unlink(os.path.join(d, "101" + suffix))
    bucket_put(d, "101")
    settle_all(d)
    bucket_capacity(d)


# ---- offset


FILE = 512 * MIB
SPAN = 256 * KIB
SPANS = random.Random(2).sample(range(FILE // SPAN), 50)
USED, FREE = SPANS[:40], SPANS[40:]


def offset_path(d):
    return os.path.join(d, "kv_cache.data")


def offset_put(path, fd, n):
    content = aligned(noise(n, SPAN))
    equal(f"{path}: pwritev() of span {n}", os.pwritev(fd, [content], n * SPAN), SPAN)


def offset_get(path, n, content):
    same(f"{path}: span {n}", direct_read(path, n * SPAN, SPAN), content)


def offset_open(d):
    path = offset_path(d)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o644)
    fallocate(path, fd, FILE)
    each(THREADS, lambda n: offset_put(path, fd, n), USED)
    return fd


def offset_blocks(path):
    """fallocate reserves nothing in the store, so the blocks are those of what was written."""
    between(f"{path}: st_blocks of {len(USED)} spans of {SPAN}", blocks(path), len(USED) * SPAN,
            len(USED) * (SPAN + 64 * KIB))


def offset_check(path):
    equal(f"{path}: size", os.stat(path).st_size, FILE)
    each(THREADS, lambda n: offset_get(path, n, noise(n, SPAN)), USED)
    each(THREADS, lambda n: offset_get(path, n, bytes(SPAN)), FREE)


def offset_store(d):
    os.makedirs(d)
    fd = offset_open(d)
    offset_check(offset_path(d))
    os.close(fd)


def offset_load(d):
    offset_check(offset_path(d))
    settle_all(d)
    offset_blocks(offset_path(d))


def offset_while_open(d):
    """Capacity is counted while the engine has its file open, which is always."""
    fd = offset_open(d)
    offset_blocks(offset_path(d))
    settle_all(d)
    offset_blocks(offset_path(d))
    os.close(fd)


if __name__ == "__main__":
    main(globals())
