# SPDX-License-Identifier: Apache-2.0
"""ds4: sessions written by stdio, tmp and rename, whose header each hit rewrites in place (kv)."""

import hashlib
import os
import struct

from client_lib import KIB, MIB, Stdio, between, equal, main, noise, same, settle_all, status

# Each with the longest chunk of a file of its size.
SIZES = [(17 * MIB, 256 * KIB), (6 * MIB, 32 * KIB), (700 * KIB, 4 * KIB)]
SESSIONS = range(len(SIZES))
BLOCK = 64 * KIB
# Magic, bits, reason, flags; tokens, hits, context; created, used, payload.
HEADER = struct.Struct("<4sBBBxIII4xQQQ")
HITS = os.path.join(os.environ["CASE_DIR"], "hits")


def text_of(n):
    return b"the prompt of session %d" % n


def path_of(d, n):
    return os.path.join(d, hashlib.sha1(text_of(n)).hexdigest() + ".kv")


def header_of(n, hits):
    return HEADER.pack(b"KVC\x01", 4, 1, 0, 512, hits, 4096, 1700000000, 1700000000 + hits, SIZES[n][0])


def body_of(n):
    """The text and a payload that compresses to about a quarter: each 64 bytes four times."""
    pieces = noise(n, SIZES[n][0] // 4)
    payload = b"".join(pieces[at:at + 64] * 4 for at in range(0, len(pieces), 64))
    return struct.pack("<I", len(text_of(n))) + text_of(n) + payload


def put(d, n):
    tmp = f"{path_of(d, n)}.tmp.{os.getpid()}"
    with Stdio(tmp, "wb") as f:
        f.write(header_of(n, 0))
        body = body_of(n)
        for at in range(0, len(body), MIB):
            f.write(body[at:at + MIB])
        f.flush()
    os.rename(tmp, path_of(d, n))


def load(d, n, hits):
    with Stdio(path_of(d, n), "rb") as f:
        same(f"{path_of(d, n)}: header after {hits} hits", f.read(HEADER.size), header_of(n, hits))
        body = body_of(n)
        same(path_of(d, n), f.read(len(body) + 1), body)


def touch(d, n, hits):
    with Stdio(path_of(d, n), "r+b") as f:
        same(f"{path_of(d, n)}: header before hit {hits}", f.read(HEADER.size), header_of(n, hits - 1))
        equal(f"{path_of(d, n)}: length of the text", f.read(4), struct.pack("<I", len(text_of(n))))
        f.seek(0)
        f.write(header_of(n, hits))


def find(d):
    """A lookup: the headers of all that is there."""
    found = sorted(os.path.join(d, name) for name in os.listdir(d) if name.endswith(".kv"))
    equal(f"{d}: sessions", found, sorted(path_of(d, n) for n in SESSIONS))
    for path in found:
        with Stdio(path, "rb") as f:
            equal(f"{path}: magic", f.read(HEADER.size)[:4], b"KVC\x01")


def next_hit():
    """Counted beside the mount, as the headers have to have it."""
    with open(HITS, "r+", encoding="ascii") as f:
        hits = int(f.read()) + 1
        f.seek(0)
        f.write(str(hits))
    return hits


def settled_by(d, function, *args):
    """What it makes the daemon settle, in bytes, and what of that was not in the store."""
    settle_all(d)
    before = status(d)
    function(d, *args)
    settle_all(d)
    settled, known = (status(d)[k] - before[k] for k in ("settled_bytes_total", "dedup_bytes_total"))
    return settled, settled - known


def hit(d, n, hits):
    load(d, n, hits - 1)
    touch(d, n, hits)


def check(d, hits):
    for n in SESSIONS:
        load(d, n, hits)
        size = SIZES[n][0]
        between(f"{path_of(d, n)}: bytes stored of {size} that compress",
                os.stat(path_of(d, n)).st_blocks * 512, size // 8, size // 2)


def kv_store(d):
    os.makedirs(d)
    with open(HITS, "w", encoding="ascii") as f:
        f.write("0")
    for n in SESSIONS:
        put(d, n)
    kv_load(d)


def kv_load(d):
    find(d)
    hits = next_hit()
    for n in SESSIONS:
        hit(d, n, hits)


def kv_touch(d):
    """All is cold: of each file only the chunks that a header touches are settled."""
    hits = next_hit()
    for n, (size, chunk) in enumerate(SIZES):
        between(f"{path_of(d, n)}: bytes of {size} settled by a hit", settled_by(d, touch, n, hits)[0],
                HEADER.size, BLOCK + 2 * chunk)
    check(d, hits)


def kv_hit(d):
    """All is cold, and loaded before it is touched, which makes it hot: then a handle that may have mapped
    it makes all of it be compared, but only what the header touches is stored."""
    hits = next_hit()
    for n, (size, chunk) in enumerate(SIZES):
        between(f"{path_of(d, n)}: bytes of {size} stored by a hit", settled_by(d, hit, n, hits)[1],
                HEADER.size, BLOCK + 2 * chunk)
    check(d, hits)


if __name__ == "__main__":
    main(globals())
