# SPDX-License-Identifier: Apache-2.0
"""LMCache: local_disk (disk), fs and fs_native (fs), and gds without GPUDirect (gds)."""

import errno
import glob
import os
import mmap
import struct

from client_lib import (KIB, MIB, PAGE, aligned, each, equal, fails, load, main, noise, same,
                        same_set, store)

THREADS = 4


def key(n, fmt="vllm"):
    return f"{fmt}@meta-llama-Llama-3.1-8B-Instruct@1@0@{noise(n, 32).hex()}"


# ---- disk: 32 MiB in place, O_DIRECT where the size is a multiple of f_bsize


CHUNK = 32 * MIB
# The last chunk of a prompt is a shorter one.
CHUNKS = [CHUNK, CHUNK, 5 * MIB + 1234]


def disk_path(d, n):
    return os.path.join(d, key(n) + ".pt")


def disk_put(d, n, version=1):
    path, content = disk_path(d, n), noise(f"{n} {version}", CHUNKS[n])
    if CHUNKS[n] % os.statvfs(d).f_bsize:
        with open(path, "wb") as f:
            f.write(content)
    else:
        store(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, [aligned(content)])


def disk_get(d, n, version=1):
    path, memory = disk_path(d, n), aligned(CHUNKS[n])
    if CHUNKS[n] % os.statvfs(d).f_bsize:
        with open(path, "rb") as f:
            got = f.readinto(memory)
    else:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_DIRECT), "rb", buffering=0) as f:
            got = f.readinto(memory)
    equal(f"{path}: readinto()", got, CHUNKS[n])
    same(path, memory[:], noise(f"{n} {version}", CHUNKS[n]))


def disk_store(d):
    os.makedirs(d)
    v = os.statvfs(d)
    equal(f"{d}: f_bsize, f_frsize, f_namemax", (v.f_bsize, v.f_frsize, v.f_namemax), (PAGE, PAGE, 255))
    for n in range(len(CHUNKS)):
        disk_put(d, n)
        disk_get(d, n)


def disk_load(d):
    each(THREADS, lambda n: disk_get(d, n), range(len(CHUNKS)))


def disk_again(d):
    """A chunk that is cold is stored again in place, over what is there, without O_TRUNC."""
    disk_put(d, 0, 2)
    disk_get(d, 0, 2)


# ---- fs: flat; a tmp of fixed name, then rename; found by stat; listed at start


FS_SIZE = MIB
FS_KEYS = range(16)
SMALL = range(1000, 1400)  # so that the directory is one of many


def fs_path(d, n):
    return os.path.join(d, key(n) + ".data")


def fs_tmp(d, n):
    return os.path.splitext(fs_path(d, n))[0] + ".tmp"


def fs_content(n):
    """Metadata of 28 bytes and the data."""
    return noise(f"metadata {n}", 28), noise(f"data {n}", FS_SIZE if n in FS_KEYS else 100)


def fs_put(d, n):
    with open(fs_tmp(d, n), "wb") as f:
        for part in fs_content(n):
            f.write(part)
    os.replace(fs_tmp(d, n), fs_path(d, n))


def fs_get(d, n):
    with open(fs_path(d, n), "rb") as f:
        for part in fs_content(n):
            memory = bytearray(len(part))
            equal(f"{fs_path(d, n)}: readinto()", f.readinto(memory), len(part))
            same(fs_path(d, n), memory, part)
        equal(f"{fs_path(d, n)}: at its end", f.read(), b"")


def fs_list(d):
    keys = (*FS_KEYS, *SMALL)
    same_set(f"{d}: keys listed", glob.glob(os.path.join(glob.escape(d), "*.data")),
             (fs_path(d, n) for n in keys))
    same_set(f"{d}: keys found",
             (n for n in (*keys, *range(-1000, 0)) if os.path.exists(fs_path(d, n))), keys)


def fs_store(d):
    os.makedirs(d)
    each(THREADS, lambda n: fs_put(d, n), SMALL)
    # An engine that died half way has left its tmp, larger than what comes.
    with open(fs_tmp(d, 0), "wb") as f:
        f.write(noise("left", 2 * FS_SIZE))
    each(THREADS, lambda n: fs_put(d, n), FS_KEYS)
    each(THREADS, lambda n: fs_get(d, n), FS_KEYS)
    fs_list(d)
    fails(errno.ENOENT, fs_tmp(d, 0), os.stat, fs_tmp(d, 0))


def fs_load(d):
    fs_list(d)
    each(THREADS, lambda n: fs_get(d, n), (*FS_KEYS, *SMALL))
    # Over one that is there, and read by somebody.
    with open(fs_path(d, 1), "rb") as f:
        fs_put(d, 1)
        same(f"{fs_path(d, 1)}, replaced while open", f.read(), b"".join(fs_content(1)))
    fs_get(d, 1)


# ---- gds: by ftruncate and a shared writable mapping, read by MAP_POPULATE; 4 KiB that describe it


GDS_SIZE = 4 * MIB
GDS_KEYS = range(6)


def gds_path(d, n):
    name = noise(n, 32).hex()
    return os.path.join(d, name[:2], name[2:4],
                        key(n).replace("@", "%40") + ".kvcache.safetensors")


def gds_metadata(n):
    header = b'{"kvcache":{"dtype":"BF16","shape":[2,%d],"data_offsets":[0,%d]}}' % (n, GDS_SIZE)
    return (struct.pack("<Q", PAGE - 8) + header).ljust(PAGE)


def gds_put(d, n):
    path, content = gds_path(d, n), noise(f"gds {n}", GDS_SIZE)
    tmp = f"{path}.tmp{n}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(tmp, "wb") as f:
        f.write(gds_metadata(n))
    fd = os.open(tmp, os.O_RDWR)
    os.ftruncate(fd, PAGE + GDS_SIZE)
    m = mmap.mmap(fd, PAGE + GDS_SIZE, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE)
    os.close(fd)
    m[PAGE:] = content
    m.close()
    os.rename(tmp, path)
    store(f"{path}.metadata.tmp{n}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, [gds_metadata(n)])
    os.rename(f"{path}.metadata.tmp{n}", path + ".metadata")


def gds_get(d, n):
    path = gds_path(d, n)
    fd = os.open(path, os.O_RDONLY)
    equal(f"{path}: size", os.fstat(fd).st_size, PAGE + GDS_SIZE)
    flags = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
    m = mmap.mmap(fd, PAGE + GDS_SIZE, flags=flags, prot=mmap.PROT_READ)
    os.close(fd)
    same(f"{path}: metadata", m[:PAGE], gds_metadata(n))
    same(path, m[PAGE:], noise(f"gds {n}", GDS_SIZE))
    m.close()


def gds_scan(d):
    """At start: the metadata of all that is there, without a trace of having been read."""
    found = []
    for one in os.scandir(d):
        for two in os.scandir(one):
            for e in os.scandir(two):
                equal(f"{e.path}: is a file", e.is_file(), True)
                if e.name.endswith(".metadata"):
                    found.append(e.path.removesuffix(".metadata"))
    same_set(f"{d}: keys scanned", found, (gds_path(d, n) for n in GDS_KEYS))
    for n in GDS_KEYS:
        path = gds_path(d, n) + ".metadata"
        atime = os.stat(path).st_atime_ns
        same(path, load(path, os.O_RDONLY | os.O_NOATIME, 64 * KIB), gds_metadata(n))
        equal(f"{path}: atime after O_NOATIME", os.stat(path).st_atime_ns, atime)


def gds_store(d):
    os.makedirs(d)
    each(THREADS, lambda n: gds_put(d, n), GDS_KEYS)
    each(THREADS, lambda n: gds_get(d, n), GDS_KEYS)


def gds_load(d):
    gds_scan(d)
    each(THREADS, lambda n: gds_get(d, n), GDS_KEYS)


if __name__ == "__main__":
    main(globals())
