#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the kernel knows of a mount and forgets again, for cases/forgets.

    forgets.py counts MNT   listings and lookups, all forgotten; leaves files that "dead" finds cold
    forgets.py dead MNT     files without a name, held by who has not opened them, and dead ones
"""

import ctypes
import errno
import json
import os
import struct
import sys
import time

FILES = 300
libc = ctypes.CDLL(None, use_errno=True)


def status(key):
    with open(".kvfs/status", encoding="utf-8") as f:
        return json.load(f)[key]


def drop():
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
        f.write("2")


def cached_becomes(most, what):
    """FORGETs are on their way for a moment."""
    end = time.monotonic() + 10
    while (n := status("cached_inodes")) > most:
        assert time.monotonic() < end, f"{what}: {n} inodes are cached, not {most}"
        drop()
        time.sleep(0.02)


def fails(want, call, *args, **more):
    try:
        call(*args, **more)
    except OSError as e:
        assert e.errno == want, f"{call.__name__}{args}: {e}"
        return
    raise AssertionError(f"{call.__name__}{args} succeeded")


def write(name, text):
    with open(name, "w", encoding="ascii") as f:
        f.write(text)


def read(name):
    with open(name, encoding="ascii") as f:
        return f.read()


def commit():
    root = os.open(".", os.O_RDONLY)
    os.fsync(root)
    os.close(root)


def look(where):
    """The kernel takes attributes along where somebody asks for them while it lists."""
    with os.scandir(where) as entries:
        return sum(e.stat(follow_symlinks=False).st_ino > 0 for e in entries)


def listings():
    os.makedirs("d/sub/sub")
    for k in range(FILES):
        write(f"d/{k}", str(k))
    commit()
    cached_becomes(1, "before")
    for _ in range(3):
        assert look("d") == FILES + 1 and look("d/sub") == 1 and look("d/sub/sub") == 0
        os.stat("d/.")
        os.stat("d/sub/..")
    assert status("requests")["readdirplus"], "no READDIRPLUS: this proves nothing"
    assert status("cached_inodes") == FILES + 4, f"{status('cached_inodes')} inodes are known"
    one, sub = os.open("d/7", os.O_PATH), os.open("d/sub", os.O_RDONLY)
    cached_becomes(4, "a file, a directory and what is above them")
    assert os.fstat(one).st_size == 1 and read(f"/proc/self/fd/{one}") == "7"
    assert os.listdir(sub) == ["sub"] and os.fstat(sub).st_nlink == 3
    os.close(one)
    os.close(sub)
    # The atime of what was read.
    commit()
    cached_becomes(1, "when nothing is held")


def removed_after_listing():
    look("d")
    for k in range(FILES):
        os.unlink(f"d/{k}")
    commit()
    # They go at once, for there is no name that the kernel could keep. The daemon keeps some names that were
    # not there when they were asked for last, and the directories with them.
    end = time.monotonic() + 10
    while status("cached_inodes") > 4 and time.monotonic() < end:
        time.sleep(0.02)
    assert status("cached_inodes") <= 4, f"{status('cached_inodes')} inodes of removed files"
    os.removedirs("d/sub/sub")
    commit()


def removed_directory():
    os.mkdir("gone")
    place = os.open("gone", os.O_RDONLY)
    os.rmdir("gone")
    write("gone", "a file of that name")
    commit()
    drop()
    assert os.fstat(place).st_nlink == 0
    fails(errno.ENOENT, os.mkdir, "x", dir_fd=place)
    fails(errno.ENOENT, os.symlink, "y", "x", dir_fd=place)
    fails(errno.ENOENT, os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=place)
    fails(errno.ENOENT, os.stat, "x", dir_fd=place)
    assert os.listdir(place) == []
    os.close(place)
    os.unlink("gone")


def counts():
    listings()
    removed_after_listing()
    removed_directory()
    for name in ("unlinked", "replaced", "truncated", "dead"):
        write(name, f"{name}: old")


def held_without_name():
    """The daemon sees them for the first time here."""
    place = {name: os.open(name, os.O_PATH) for name in ("unlinked", "replaced", "truncated")}
    ino = {name: os.stat(name).st_ino for name in place}
    os.unlink("unlinked")
    write("unlinked", "new")
    write("tmp", "new")
    os.rename("tmp", "replaced")
    os.unlink("truncated")
    write("truncated", "new")
    for _ in range(2):
        for name, fd in place.items():
            st = os.fstat(fd)
            assert (st.st_ino, st.st_nlink, st.st_size) == (ino[name], 0, len(name) + 5), f"{name}: {st}"
            assert read(f"/proc/self/fd/{fd}") == f"{name}: old", name
            assert read(name) == "new" and os.stat(name).st_ino != ino[name], name
        # And again when meta.db has nothing of them left, and attributes have timed out.
        commit()
        drop()
        time.sleep(1.1)
    place_of = f"/proc/self/fd/{place['truncated']}"
    os.truncate(place_of, 4)
    assert read(place_of) == "trun"
    for fd in place.values():
        os.close(fd)


def handle_of(name):
    fh = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    if libc.name_to_handle_at(-100, name.encode(), fh, ctypes.byref(ctypes.c_int()), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return fh


def open_by_handle(fh):
    root = os.open(".", os.O_RDONLY)
    fd = libc.open_by_handle_at(root, fh, os.O_RDONLY)
    error = ctypes.get_errno()
    os.close(root)
    if fd < 0:
        raise OSError(error, "open_by_handle_at")
    return fd


def dead_by_handle():
    fh = handle_of("dead")
    fd = open_by_handle(fh)
    assert os.read(fd, 100) == b"dead: old"
    os.unlink("dead")
    write("dead", "new")
    os.close(fd)
    commit()
    drop()
    cached_becomes(1, "all forgotten")
    fails(errno.ESTALE, open_by_handle, fh)
    assert read("dead") == "new"


def dead():
    held_without_name()
    dead_by_handle()


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    {"counts": counts, "dead": dead}[sys.argv[1]]()
