# SPDX-License-Identifier: Apache-2.0
"""SGLang: HiCacheFile (hicache) and NIXL's POSIX backend (nixl), which client_aio.c is."""

import ctypes
import hashlib
import os
import stat
import subprocess
import threading
import uuid

from client_lib import MIB, aligned, between, each, equal, libc, main, noise, same, same_set, status

# ---- hicache


PAGES = range(20)
# Pages of other prompts, in the same directory.
OTHERS = range(1000, 11000)
SIZE = MIB
THREADS = 8


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_uint16),
                ("type", ctypes.c_uint8), ("name", ctypes.c_char * 256)]


libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.POINTER(Dirent)


def name_of(n):
    return hashlib.sha256(b"%d" % n).hexdigest() + "_Qwen-Qwen3-8B_0_1.bin"


def put(d, n):
    path = os.path.join(d, name_of(n))
    if os.path.exists(path):
        return
    tmp = f"{path}.tmp.{os.getpid()}.{threading.get_ident()}.{uuid.uuid4().hex}"
    with open(tmp, "wb", buffering=0) as f:
        equal(f"{tmp}: write()", f.write(noise(n, SIZE)), SIZE)
    os.replace(tmp, path)


def get(d, n):
    path, memory = os.path.join(d, name_of(n)), aligned(SIZE)
    with open(path, "rb", buffering=0) as f:
        equal(f"{path}: readinto()", f.readinto(memory), SIZE)
    same(path, memory[:], noise(n, SIZE))


def exist(d, wanted):
    """A query: the whole directory is scanned for its pages."""
    names = {name_of(n): n for n in wanted}
    with os.scandir(d) as entries:
        return [names[e.name] for e in entries if e.is_file() and e.name in names]


def requests(d):
    """Those that a scan sends when d_type leaves something to ask."""
    counts = status(d)["requests"]
    return counts["lookup"] + counts["getattr"]


def query(d):
    before = requests(d)
    found = exist(d, (*PAGES, *range(-100, 0)))
    same_set(f"{d}: pages found", found, PAGES)
    # The status is looked up, too.
    between(f"{d}: LOOKUP and GETATTR of a scan", requests(d) - before, 0, 20)


def types(d):
    """Names and d_type of the directory."""
    stream, found = ctypes.c_void_p(libc.opendir(d.encode())), []
    while entry := libc.readdir(stream):
        found.append((entry.contents.name.decode(), entry.contents.type))
    libc.closedir(stream)
    return found


def check(d):
    regular, directory = stat.S_IFREG >> 12, stat.S_IFDIR >> 12
    same_set(f"{d}: names and types", types(d),
             [(".", directory), ("..", directory), *((name_of(n), regular) for n in (*PAGES, *OTHERS))])
    for _ in range(2):
        query(d)
    each(THREADS, lambda n: get(d, n), PAGES)


def hicache_store(d):
    os.makedirs(d)
    for n in OTHERS:
        os.mknod(os.path.join(d, name_of(n)), 0o644 | stat.S_IFREG)
    each(THREADS, lambda n: put(d, n), PAGES)
    check(d)


def hicache_load(d):
    check(d)


# ---- nixl


def transfer(d, *directions):
    for engine in "aio", "uring":
        for direction in directions:
            command = [os.path.join(os.environ["HELPERS"], "client_aio"), engine, direction, d]
            code = subprocess.run(command, check=False).returncode
            if code == 77:
                print(f"{engine} is left out: the kernel has it not")
                break
            equal(f"{' '.join(command)}: exit status", code, 0)


def nixl_store(d):
    os.makedirs(d)
    transfer(d, "write", "read")


def nixl_load(d):
    transfer(d, "read")


if __name__ == "__main__":
    main(globals())
