# SPDX-License-Identifier: Apache-2.0
"""vLLM: the ExampleConnector (example), the fs tier of the offloading connector (fs) and its disk
backend (disk)."""

import errno
import glob
import hashlib
import json
import mmap
import os
import random
import struct
import threading

from client_lib import (KIB, MIB, PAGE, Wrong, aligned, between, each, equal, fails, load, main, noise,
                        same, status, store, write)

# ---- example: <hash of tokens>/<layer>.safetensors in place, by mmap; a hit: the folder exists


LAYERS = [f"model.layers.{n}.self_attn.attn.safetensors" for n in range(6)]
TENSOR = 3 * 512 * KIB
# Of the session that an engine is killed in, so many layers are whole; of the next there is the header.
WHOLE = 2


def safetensors(name):
    """Header and tensor, as they are written."""
    header = json.dumps({"kv_cache": {"dtype": "BF16", "shape": [2, TENSOR // 4],
                                      "data_offsets": [0, TENSOR]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header, noise(name, TENSOR)


def example_save(session):
    """Yields between the writes of a session, so that a reader can come there."""
    os.makedirs(session, exist_ok=True)
    for layer in LAYERS:
        path = os.path.join(session, layer)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            for part in safetensors(path):
                write(path, fd, part)
                yield
        finally:
            os.close(fd)


def example_layer(path):
    """What is there of the tensor. The header is read by a shared mapping, the tensor by a private
    writable one."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as m:
            start = 8 + struct.unpack("<Q", m[:8])[0]
            header = json.loads(m[8:start])
            equal(f"{path}: size of the tensor", header["kv_cache"]["data_offsets"][1], TENSOR)
        with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as m:
            tensor = m[start:]
            # The engine's own copy.
            m[start - 1:start] = b"!"
        return tensor
    finally:
        os.close(fd)


def example_check(session, whole=len(LAYERS), headers=0):
    """So many layers are whole, of the next so many there is but the header, of the others nothing."""
    equal(f"{session}: a hit", os.path.isdir(session), True)
    for n, layer in enumerate(LAYERS):
        path = os.path.join(session, layer)
        if n < whole:
            same(path, example_layer(path), safetensors(path)[1])
        elif n < whole + headers:
            same(path, example_layer(path), b"")
        else:
            fails(errno.ENOENT, path, os.open, path, os.O_RDONLY)


def example_store(d):
    session, half = (os.path.join(d, "%064x" % n) for n in (1, 2))
    equal(f"{session}: a hit", os.path.isdir(session), False)
    for n, _ in enumerate(example_save(session)):
        example_check(session, whole=(n + 1) // 2, headers=(n + 1) % 2)
    example_check(session)
    for n, _ in enumerate(example_save(half)):
        if n == 2 * WHOLE:
            break
    example_check(half, whole=WHOLE, headers=1)


def example_load(d):
    example_check(os.path.join(d, "%064x" % 1))
    example_check(os.path.join(d, "%064x" % 2), whole=WHOLE, headers=1)


# ---- fs: a block a file, O_DIRECT, tmp and rename, 16 threads that store and 16 that load


BLOCK = 480 * PAGE
THREADS = 16


def fs_path(d, block):
    name = hashlib.sha256(block.encode()).hexdigest()
    return os.path.join(d, "meta-llama_Llama-3.1-8B_0123456789ab_r0", name[:3], name[3:5] + "_g0",
                        name + ".bin")


BLOCKS = [f"block {n}" for n in range(32)]
MISSING = [f"missing {n}" for n in range(10000)]


def fs_probe(d):
    path = os.path.join(d, ".o_direct_probe_1.tmp")
    store(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_DIRECT, [aligned(PAGE)])
    os.remove(path)
    fails(errno.ENOENT, path, os.stat, path)


def fs_lookup(d, blocks):
    return sum(os.access(fs_path(d, block), os.F_OK) for block in blocks)


def fs_save(d, block):
    path = fs_path(d, block)
    if os.path.exists(path):
        return
    tmp = f"{path}_{threading.get_ident()}.tmp"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    store(tmp, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC | os.O_DIRECT,
          [aligned(noise(block, BLOCK))])
    os.replace(tmp, path)


def fs_get(d, block):
    """False, and the file is gone, if it cannot be read whole."""
    path = fs_path(d, block)
    try:
        got = load(path, os.O_RDONLY | os.O_DIRECT, BLOCK)
    except OSError as e:
        equal(f"{path}: errno", e.errno, errno.EIO)
        got = b""
    same(path, got, noise(block, BLOCK)[:len(got)])
    if len(got) < BLOCK:
        os.remove(path)
    return len(got) == BLOCK


def fs_get_all(d):
    equal("blocks found", fs_lookup(d, BLOCKS + MISSING[:1000]), len(BLOCKS))
    equal("blocks loaded", sum(each(THREADS, lambda block: fs_get(d, block), BLOCKS)), len(BLOCKS))


def fs_replace(d, block, why):
    """A file that cannot be read whole is removed by its reader and stored again by the next request."""
    equal(f"{block}, {why}: loaded", fs_get(d, block), False)
    equal(f"{block}, {why}, removed: found", fs_lookup(d, [block]), 0)
    fs_save(d, block)
    equal(f"{block}, stored again: loaded", fs_get(d, block), True)


def fs_store(d):
    os.makedirs(d)
    fs_probe(d)
    equal("blocks found before any is stored", fs_lookup(d, BLOCKS + MISSING), 0)
    half = len(BLOCKS) // 2
    each(THREADS, lambda block: fs_save(d, block), BLOCKS[:half])
    # The second half is stored while the first is loaded.
    jobs = [job for old, new in zip(BLOCKS[:half], BLOCKS[half:])
            for job in ((fs_get, old), (fs_save, new))]
    equal("blocks not loaded", each(2 * THREADS, lambda job: job[0](d, job[1]), jobs).count(False), 0)
    fs_get_all(d)
    equal("blocks found that are not stored", fs_lookup(d, MISSING), 0)
    equal("temporary files left", glob.glob(os.path.join(d, "**/*.tmp"), recursive=True), [])


def fs_load(d):
    fs_get_all(d)
    os.truncate(fs_path(d, BLOCKS[0]), BLOCK // 2)
    fs_replace(d, BLOCKS[0], "cut short")


def fs_damage(d):
    """All is cold; a bit of one block flips on the disk. What is stored in its place must not share
    with it."""
    block = noise(BLOCKS[1], BLOCK)
    at = 100000
    for path in glob.glob(os.path.join(status(d)["store"], "segments/*.seg")):
        with open(path, "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
            place = m.find(block[at:at + 64])
            if place >= 0:
                m[place] ^= 1
                m.flush()
                break
    else:
        raise Wrong("the block is not in a segment: this test could not fail")
    equal("other blocks not loaded", each(THREADS, lambda b: fs_get(d, b), BLOCKS[2:]).count(False), 0)
    fs_replace(d, BLOCKS[1], "damaged")


# ---- disk: a sparse file of a TiB, slots of one block at random


SLOT = 64 * PAGE
TIB = 1 << 40
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_DIRECT
THE_SLOTS = random.Random(1).sample(range(TIB // SLOT), 56)
# Never used, used again and again, used.
FREE, REUSED, SLOTS = THE_SLOTS[:8], THE_SLOTS[8:16], THE_SLOTS[8:]


def parts(content):
    """A block in memory is its layers, not one piece."""
    quarter = SLOT // 4
    return [aligned(content[at:at + quarter]) for at in range(0, SLOT, quarter)]


def disk_put(fd, slot, version=1):
    content = parts(noise(f"slot {slot} {version}", SLOT))
    equal(f"slot {slot}: pwritev()", os.pwritev(fd, content, slot * SLOT), SLOT)


def disk_get(fd, slot, version=1):
    """Version 0 was never written."""
    memory = parts(bytes(SLOT))
    equal(f"slot {slot}: preadv()", os.preadv(fd, memory, slot * SLOT), SLOT)
    same(f"slot {slot}", b"".join(m[:] for m in memory),
         noise(f"slot {slot} {version}", SLOT) if version else bytes(SLOT))


def disk_check(fd):
    equal("size", os.fstat(fd).st_size, TIB)
    each(THREADS, lambda slot: disk_get(fd, slot), SLOTS)
    each(THREADS, lambda slot: disk_get(fd, slot, 0), FREE)


def disk_store(d):
    os.makedirs(d)
    path = os.path.join(d, "kv_rank0.bin")
    fd = os.open(path, NEW, 0o600)
    os.ftruncate(fd, TIB)
    each(THREADS, lambda slot: disk_put(fd, slot), SLOTS)
    disk_check(fd)
    fails(errno.EEXIST, path, os.open, path, NEW)
    os.close(fd)


def disk_load(d):
    path = os.path.join(d, "kv_rank0.bin")
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_DIRECT)
    disk_check(fd)
    for version in 2, 1:
        each(THREADS, lambda slot, v=version: disk_put(fd, slot, v), REUSED)
        each(THREADS, lambda slot, v=version: disk_get(fd, slot, v), REUSED)
    disk_check(fd)
    os.close(fd)


def disk_outgrow(d):
    """The engine never closes the file. It becomes larger than the hot tier; the store has room."""
    os.makedirs(d)
    budget, free = status(d)["tiers"]["hot"]["budget"], os.statvfs(d).f_bavail * PAGE
    # In a sparse file of huge pages each slot takes one.
    slots = random.Random(2).sample(range(TIB // SLOT), budget // (2 * MIB) * 5 // 4)
    between(f"{d}: free space for {len(slots)} slots", free, 4 * len(slots) * SLOT, 1 << 60)
    fd = os.open(os.path.join(d, "kv_rank0.bin"), NEW, 0o600)
    os.ftruncate(fd, TIB)
    for n, slot in enumerate(slots):
        try:
            disk_put(fd, slot)
        except OSError as e:
            raise Wrong(f"{d}: slot {n} of {len(slots)}: got {e}, expected success: {free} bytes are free") from e
    for slot in slots:
        disk_get(fd, slot)
    os.close(fd)


if __name__ == "__main__":
    main(globals())
