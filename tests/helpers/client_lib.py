# SPDX-License-Identifier: Apache-2.0
"""What the replays of engines (client_ENGINE.py) share: KV content, checks that name the file and say
what was expected, the system and library calls that engines use and Python has no name for, and the
command line.

    client_ENGINE.py CLIENT STEP MOUNTPOINT     calls CLIENT_STEP(directory of the client)
"""

import ctypes
import functools
import json
import mmap
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

PAGE = 4096
KIB, MIB = 1 << 10, 1 << 20

libc = ctypes.CDLL(None, use_errno=True)

BASE = random.Random("kvfs").randbytes(MIB)


class Wrong(Exception):
    """Not what the engine may expect."""


# ---- Content -------------------------------------------------------------------------------------


@functools.cache
def noise(name, size):
    """Bytes that do not compress and are those of this name and place alone: each MiB is the same noise
    under another permutation of the 256 values, which is fast and finds everything that moved."""
    rng = random.Random(f"{name}")
    return b"".join(BASE[:size - at].translate(bytes(rng.sample(range(256), 256)))
                    for at in range(0, size, MIB))


def aligned(content):
    """Memory of whole pages that holds the content, or so many bytes: O_DIRECT wants it aligned."""
    size = content if isinstance(content, int) else len(content)
    memory = mmap.mmap(-1, size)
    if not isinstance(content, int):
        memory[:] = content
    return memory


# ---- Checks --------------------------------------------------------------------------------------


def equal(what, got, expected):
    if got != expected:
        raise Wrong(f"{what}: got {got}, expected {expected}")


def between(what, got, low, high):
    if not low <= got <= high:
        raise Wrong(f"{what}: got {got}, expected {low} to {high}")


def same_set(what, got, expected):
    """In any order, each once."""
    got, expected = list(got), list(expected)
    missing, extra = set(expected) - set(got), set(got) - set(expected)
    if missing or extra or len(got) != len(expected):
        raise Wrong(f"{what}: got {len(got)}, expected {len(expected)}; missing {sorted(missing)[:3]}, "
                    f"not expected {sorted(extra)[:3]}")


def same(name, got, expected):
    """The content of a file is what was written."""
    if got == expected:
        return
    equal(f"{name}: length", len(got), len(expected))
    at = next(i for i in range(0, len(got), PAGE) if got[i:i + PAGE] != expected[i:i + PAGE])
    at = next(i for i in range(at, len(got)) if got[i] != expected[i])
    raise Wrong(f"{name}: byte {at}: got {got[at:at + 16].hex()}, expected {expected[at:at + 16].hex()}")


def fails(error, what, function, *args):
    try:
        got = function(*args)
    except OSError as e:
        equal(f"{what}: errno", e.errno, error)
        return
    raise Wrong(f"{what}: got {got}, expected errno {error} ({os.strerror(error)})")


def eventually(what, function, expected, seconds=20):
    deadline = time.monotonic() + seconds
    while (got := function()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    equal(what, got, expected)


def status(directory):
    """The status of the mount that the directory of a client lies in."""
    with open(os.path.join(os.path.dirname(directory), ".kvfs/status"), encoding="utf-8") as f:
        return json.load(f)


def settle_all(directory):
    """sync MOUNTPOINT."""
    fd = os.open(os.path.dirname(directory), os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


# ---- What engines do -----------------------------------------------------------------------------


def each(threads, function, items):
    """Calls it with each item, so many at a time; raises what one of them raised."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


def write(path, fd, data):
    """One write(2), which engines take for an error when it is short."""
    equal(f"{path}: write()", os.write(fd, data), len(data))


def store(path, flags, writes, mode=0o644):
    fd = os.open(path, flags, mode)
    try:
        for data in writes:
            write(path, fd, data)
    finally:
        os.close(fd)


def load(path, flags, size):
    """A whole file by one read(2) into aligned memory; what came is returned."""
    memory = aligned(size)
    fd = os.open(path, flags)
    try:
        return memory[:os.readv(fd, [memory])]
    finally:
        os.close(fd)


def succeeds(what, result):
    """For functions of the C library that return 0 or set errno."""
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)


def fallocate(path, fd, size):
    """The system call: posix_fallocate() would write where it is not there."""
    succeeds(path, libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(size)))


class Stdio:
    """A FILE of the C library: its buffering decides which system calls a kvfs sees."""

    for name, result in (("fopen", ctypes.c_void_p), ("fread", ctypes.c_size_t),
                         ("fwrite", ctypes.c_size_t)):
        getattr(libc, name).restype = result

    def __init__(self, path, mode):
        self.path = path
        self.file = libc.fopen(path.encode(), mode.encode())
        if not self.file:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        self.file = ctypes.c_void_p(self.file)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        equal(f"{self.path}: fclose()", libc.fclose(self.file), 0)

    def write(self, data):
        equal(f"{self.path}: fwrite()",
              libc.fwrite(data, ctypes.c_size_t(1), ctypes.c_size_t(len(data)), self.file), len(data))

    def read(self, size):
        data = ctypes.create_string_buffer(size)
        got = libc.fread(data, ctypes.c_size_t(1), ctypes.c_size_t(size), self.file)
        return data.raw[:got]

    def seek(self, offset, whence=os.SEEK_SET):
        equal(f"{self.path}: fseek()", libc.fseek(self.file, ctypes.c_long(offset), whence), 0)

    def tell(self):
        return libc.ftell(self.file)

    def flush(self):
        equal(f"{self.path}: fflush()", libc.fflush(self.file), 0)


def main(functions):
    client, step, top = sys.argv[1:]
    try:
        functions[f"{client}_{step}"](os.path.join(top, client))
    except Wrong as e:
        sys.exit(f"FAIL: {client}, {step}: {e}")
