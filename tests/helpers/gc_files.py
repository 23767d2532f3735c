#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files for the cases of compaction. A file's name, NUMBER-BYTES, says what is in it; LIST, outside of the mount,
has the names that are to be there.

    gc_files.py make DIR LIST FIRST COUNT [LARGE]  COUNT files of 200 bytes to 6 KiB; each LARGE-th is of 1 to 3 MiB
    gc_files.py fill DIR LIST FIRST COUNT          the same, small ones, until COUNT or until there is no space; their number
    gc_files.py thin DIR LIST SHARE SEED           removes about that share of them
    gc_files.py verify DIR LIST [cold]             all that are in LIST are there, to the byte, and no others
    gc_files.py churn DIR LIST SECONDS             until then reads those of LIST and evicts some, and makes, rewrites and
                                                   removes files of a directory of its own, which is verified at the end
"""
import errno
import os
import random
import sys
import time


def content(name):
    number, size = name.split("-")
    return random.Random(int(number)).randbytes(int(size))


def name_of(number, large):
    draw = random.Random(number ^ 0x5eed)
    size = draw.randrange(1 << 20, 3 << 20) if large else draw.randrange(200, 6144)
    return f"{number}-{size}"


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def listed(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="ascii") as f:
        return f.read().split()


def save(path, names):
    with open(path, "w", encoding="ascii") as f:
        f.write("".join(n + "\n" for n in names))


def make(folder, path, first, count, large=0):
    os.makedirs(folder, exist_ok=True)
    names = listed(path)
    for i in range(first, first + count):
        name = name_of(i, large and i % large == 0)
        write(f"{folder}/{name}", content(name))
        names.append(name)
    save(path, names)


def fill(folder, path, first, count):
    os.makedirs(folder, exist_ok=True)
    names, made = listed(path), 0
    for i in range(first, first + count):
        name = name_of(i, False)
        try:
            write(f"{folder}/{name}", content(name))
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
            if os.path.exists(f"{folder}/{name}"):
                os.unlink(f"{folder}/{name}")
            break
        names.append(name)
        made += 1
    save(path, names)
    print(made)


def thin(folder, path, share, seed):
    draw = random.Random(seed)
    names = []
    for name in listed(path):
        if draw.random() < share:
            os.unlink(f"{folder}/{name}")
        else:
            names.append(name)
    save(path, names)


def check(folder, name):
    with open(f"{folder}/{name}", "rb") as f:
        if f.read() != content(name):
            sys.exit(f"{folder}/{name}: other bytes")


def verify(folder, path, cold=False):
    names = listed(path)
    if cold:
        os.setxattr(folder, "user.kvfs.evict", b"cold")
    if sorted(names) != sorted(os.listdir(folder)):
        sys.exit(f"{folder}: {len(os.listdir(folder))} names, should be {len(names)}")
    for name in names:
        check(folder, name)


def churn(folder, path, seconds):
    names, mine, number = listed(path), {}, 1 << 20
    own = folder + ".churn"
    end = time.monotonic() + seconds
    draw = random.Random(seconds)
    os.makedirs(own, exist_ok=True)
    while time.monotonic() < end:
        name = draw.choice(names)
        check(folder, name)
        if draw.random() < 0.3:
            os.setxattr(f"{folder}/{name}", "user.kvfs.evict", draw.choice([b"cold", b"warm"]))
        number += 1
        slot = f"slot{draw.randrange(100)}"
        data = draw.randbytes(draw.choice([300, 5000, 200000]))
        if draw.random() < 0.2 and slot in mine:
            os.unlink(f"{own}/{slot}")
            del mine[slot]
        else:
            write(f"{own}/{slot}", data)
            mine[slot] = data
    if sorted(mine) != sorted(os.listdir(own)):
        sys.exit(f"{own}: other names")
    for slot, data in mine.items():
        with open(f"{own}/{slot}", "rb") as f:
            if f.read() != data:
                sys.exit(f"{own}/{slot}: other bytes")


def main():
    what, folder, path, *rest = sys.argv[1:]
    if what == "make":
        make(folder, path, *map(int, rest))
    elif what == "fill":
        fill(folder, path, *map(int, rest))
    elif what == "thin":
        thin(folder, path, float(rest[0]), int(rest[1]))
    elif what == "verify":
        verify(folder, path, *(True for _ in rest))
    else:
        churn(folder, path, float(rest[0]))


main()
