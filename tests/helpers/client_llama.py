# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's server: slots saved by stdio on their final names and restored the same way (slots)."""

import glob
import os
import signal
import struct

from client_lib import KIB, Stdio, between, equal, main, same

DATA = sorted(glob.glob(os.path.join(os.environ["TESTS"], "data", "*.ggsq?")))
# Saved half way: of the first slot, so much had reached the file when the server was killed.
FLUSHED = 128 * KIB


def content(path):
    with open(path, "rb") as f:
        return f.read()


def pieces(data):
    """As the server writes and reads them: magic, version, number of tokens, tokens, the slabs."""
    (tokens,) = struct.unpack_from("<I", data, 8)
    at = 0
    for size in (4, 4, 4, 4 * tokens):
        yield data[at:at + size]
        at += size
    for start in range(at, len(data), 20 * KIB):
        yield data[start:start + 20 * KIB]


def save(path, data):
    with Stdio(path, "wb") as f:
        for piece in pieces(data):
            f.write(piece)


def restore(path, data):
    """What it gets of the slot that should be there."""
    got = []
    with Stdio(path, "rb") as f:
        f.seek(0, os.SEEK_END)
        size = f.tell()
        f.seek(0)
        for piece in pieces(data):
            got.append(f.read(len(piece)))
        equal(f"{path}: behind the last piece", f.read(1), b"")
    got = b"".join(got)
    equal(f"{path}: size", size, len(got))
    return got


def save_killed(path, data):
    pid = os.fork()
    if not pid:
        try:
            f, written = Stdio(path, "wb"), 0
            for piece in pieces(data):
                f.write(piece)
                written += len(piece)
                if written >= FLUSHED:
                    break
            f.flush()
            f.write(b"in the buffer, never in the file")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    equal(f"{path}: the server ended", os.waitpid(pid, 0)[1], signal.SIGKILL)


def check_short(path, data):
    got = restore(path, data)
    between(f"{path}: size", len(got), FLUSHED, FLUSHED + 20 * KIB)
    same(path, got, data[:len(got)])


def check(d):
    for name in DATA:
        path, data = os.path.join(d, os.path.basename(name)), content(name)
        same(path, restore(path, data), data)
    check_short(os.path.join(d, "short"), content(DATA[0]))


def slots_store(d):
    os.makedirs(d)
    for name in DATA:
        path = os.path.join(d, os.path.basename(name))
        # Over another, longer slot of the name.
        save(path, content(name) + content(DATA[0]))
        save(path, content(name))
    save_killed(os.path.join(d, "short"), content(DATA[0]))
    check(d)


def slots_load(d):
    check(d)
    # A slot is saved again, is interrupted, and saved once more.
    path, data = os.path.join(d, os.path.basename(DATA[1])), content(DATA[1])
    save_killed(path, content(DATA[0]))
    check_short(path, content(DATA[0]))
    save(path, data)
    same(path, restore(path, data), data)


if __name__ == "__main__":
    main(globals())
