#!/usr/bin/env python3
"""make_store.py STORE FILES: fills the database of a new, unmounted store with FILES files of 2,000 bytes, a
chunk each, 1,000 in a directory (s000000/f0001 and on): what takes hours to write is there in seconds. The
names, attributes and chunk rows are those kvfs would write; the content is a hole in segment 1, so reading
a file answers EIO. Chunks have the ids 1 to FILES.
"""
import os
import sqlite3
import sys
import time

PER, RAW, RECORD, START, BASE = 1000, 2000, 2064, 8192, 1000


def leb128(v):
    out = b""
    while v >= 0x80:
        out, v = out + bytes([v & 0x7F | 0x80]), v >> 7
    return out + bytes([v])


def ino(d, f):
    return BASE + d * (PER + 1) + f


def fill(db, files):
    now, dirs = time.time_ns(), files // PER

    def every():
        return ((d, f) for d in range(dirs) for f in range(1, PER + 1))

    db.executemany(
        "INSERT INTO inodes VALUES(?,?,0,0,?,0,0,?,?,?,?,?,NULL)",
        ((ino(d, f), 0o100644 if f else 0o40755, 1 if f else 2, RAW if f else 0, now, now, now, now)
         for d in range(dirs) for f in range(PER + 1)))
    db.executemany("INSERT INTO dentries VALUES(1,?,?,?,?)",
                   ((ino(d, 0), b"s%06d" % d, ino(d, 0), 0o40000) for d in range(dirs)))
    db.executemany("INSERT INTO dentries VALUES(?,?,?,?,?)",
                   ((ino(d, 0), ino(d, f), b"f%04d" % f, ino(d, f), 0o100000) for d, f in every()))
    db.execute("UPDATE inodes SET nlink=nlink+? WHERE ino=1", (dirs,))
    head = b"\x01\x00" + leb128(RAW) + b"\0"
    db.executemany("INSERT INTO extents VALUES(?,?)",
                   ((ino(d, f), head + leb128((d * PER + f - 1) * 2)) for d, f in every()))
    db.executemany("INSERT INTO chunks VALUES(?,?,0,1,?,?,?,0,0,1)",
                   ((k, os.urandom(16), START + k * RECORD, RAW, RAW) for k in range(1, files + 1)))
    for key in ("max_ino", "max_dentry_id"):
        db.execute("UPDATE meta SET value=? WHERE key=?", (ino(dirs, 0), key))
    for key, more in (("files", files), ("inodes", files + dirs), ("logical_bytes", files * RAW)):
        db.execute("UPDATE meta SET value=value+? WHERE key=?", (more, key))
    db.execute("INSERT OR REPLACE INTO segments VALUES(1,?)", (START + (files + 2) * RECORD,))


def main():
    store, files = sys.argv[1], int(sys.argv[2]) // PER * PER
    db = sqlite3.connect(store + "/meta.db", isolation_level=None)
    db.execute("PRAGMA synchronous=OFF")
    db.execute("PRAGMA cache_size=-400000")
    db.execute("BEGIN")
    fill(db, files)
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    with open(store + "/segments/00000001.seg", "ab") as f:
        f.truncate(START + (files + 2) * RECORD)


main()
