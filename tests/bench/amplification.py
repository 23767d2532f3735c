#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""amplification.py MNT SHARE BYTES TIMES: what compaction adds to what is written.

MNT is an empty mount, of a store that has a file system for itself. Files of noise of BYTES bytes are made until they
are SHARE of what df shows at the start. Then files drawn at random are replaced or, one in four, removed and made again
under another name, until TIMES the live bytes have been written. Everything is fsynced each 32 MiB. Printed are the
bytes that were settled in the second phase, those that compaction has copied meanwhile, the ratio of their sum to the
first, and how often a write was refused for want of space and had to wait.
"""
import errno
import json
import os
import random
import sys
import time

STEP = 32 << 20


def status(mnt):
    with open(f"{mnt}/.kvfs/status", encoding="ascii") as f:
        s = json.load(f)
    return s["settled_bytes_total"], s["gc"]["moved_bytes_total"]


class Load:
    def __init__(self, mnt, size):
        self.mnt, self.size = mnt, size
        self.draw = random.Random(1)
        self.names, self.count, self.since, self.waits = [], 0, 0, 0

    def sync(self):
        fd = os.open(self.mnt, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        self.since = 0

    def write(self, name):
        data = os.urandom(self.size)
        while True:
            try:
                with open(f"{self.mnt}/{name}", "wb") as f:
                    f.write(data)
                break
            except OSError as e:
                if e.errno != errno.ENOSPC:
                    raise
                self.waits += 1
                self.sync()
                time.sleep(0.2)
        self.since += self.size
        if self.since >= STEP:
            self.sync()

    def new(self):
        self.count += 1
        name = f"d{self.count % 64}/{self.count}"
        os.makedirs(f"{self.mnt}/d{self.count % 64}", exist_ok=True)
        self.write(name)
        self.names.append(name)

    def change(self):
        i = self.draw.randrange(len(self.names))
        if self.draw.random() < 0.75:
            self.write(self.names[i])
            return
        os.unlink(f"{self.mnt}/{self.names[i]}")
        self.names[i] = self.names[-1]
        self.names.pop()
        self.new()


def main():
    mnt, share, size, times = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    v = os.statvfs(mnt)
    live = int(v.f_bavail * v.f_frsize * share)
    load = Load(mnt, size)
    for _ in range(live // size):
        load.new()
    load.sync()
    before = status(mnt)
    begin = time.monotonic()
    for _ in range(int(live * times) // size):
        load.change()
    load.sync()
    settled, moved = (b - a for a, b in zip(before, status(mnt)))
    v = os.statvfs(mnt)
    print(f"{len(load.names)} files of {size} bytes, {live >> 20} MiB live: settled {settled >> 20} MiB, "
          f"moved {moved >> 20} MiB, amplification {(settled + moved) / settled:.3f}, {load.waits} waits, "
          f"{v.f_bavail * v.f_frsize >> 20} MiB free, {time.monotonic() - begin:.0f} s")


main()
