"""What has no rival: how short codecs make elements of each kind, from which device on they cost time,
and what dedup finds."""

import contextlib
import glob
import json
import os
import random
import shutil
import statistics
import struct
import time

from measures import FILES, group
from workplace import GIB, MIB, TOP, CannotRun, command, drop_caches

KINDS = ["bf16", "bf16-channels", "fp16", "e4m3", "e5m2", "f32", "bf16-in-f32",
         "fp16-in-f32", "q8_0", "q8_0-channels",
         "q4_0", "q4_0-channels", "noise"]
CHOICES = ["lz4", "fast", "dense"]
TOKEN = 8 * 128 * 2  # bytes of a token in a slab of an 8B model's layer: heads, channels, bf16


@group("codec-table")
def codecs(bench):
    """Each kind of element by each choice of codecs, chunks of 64 KiB, one core."""
    table = bench.table("codec-table", "codecs on one core, chunks of 64 KiB; generated but for the last",
                        ("element", "codec", "ratio", "encode GB/s", "decode GB/s"))
    real = os.path.join(TOP, "tests", "data", "story_000.ggsq2")
    for kind in KINDS + [real]:
        for choice in CHOICES:
            ratio, encode, decode = command(bench.place.workers.path("codecs"), kind, choice).split()
            table.add("fp16, real" if kind == real else kind, choice, float(ratio),
                      float(encode) / 1e9, float(decode) / 1e9)


@group("chunk-scan")
def scan(bench):
    """What finding chunks and hashing them costs; all of content that is there already, but the compare."""
    table = bench.table("chunk-scan", "chunks of noise found and hashed on one core", ("what", "GB/s"))
    for what, name in (("cut", "finding the cuts"), ("hash", "XXH3-128 of each chunk"), ("both", "both")):
        table.add(name, bench.place.workers.rate("scan", what) / 1e9)


LIMITS = [200, 500, 1000, 2000, None]  # MB/s of the device


class Crossover:
    """A session of bf16, cold, behind a device that is slowed down, against the same bytes read raw."""

    def __init__(self, bench, throttle, mount):
        self.bench, self.throttle, self.mount = bench, throttle, mount
        # The kernel lets the first tenth of a second or so through: of less it would be a large part.
        self.size = min(bench.sizes["file"], 512 * MIB)
        self.rate = bench.place.workers.rate
        self.raw_file = bench.place.path("raw-session")
        self.rate("raw", "make", self.raw_file, self.size)
        for seed, codec in enumerate(("fast", "dense")):
            self.save(codec, codec, seed)

    def folder(self, name):
        return os.path.join(self.mount.dir, name)

    def save(self, name, codec, seed):
        os.makedirs(self.folder(name))
        os.setxattr(self.folder(name), "user.kvfs.codec", codec.encode())
        self.rate("session", "save", os.path.join(self.folder(name), "session"), FILES,
                  self.size // FILES, "1M", "normal", 4000 + seed)
        self.mount.settle()

    def restore(self, name):
        session = os.path.join(self.folder(name), "session")

        def forget():
            self.mount.evict("cold", session)
            drop_caches()

        return self.bench.warm(self.size * 5 // 4, lambda: self.rate("session", "restore", session),
                               forget)

    def raw(self):
        return self.bench.warm(self.size * 5 // 4, lambda: self.rate(
            "raw", "load", self.raw_file, self.size, "1M", 8, prefix=self.throttle.prefix), drop_caches)

    def settle_as_auto(self, seed):
        """What auto makes of a session once this device was measured: stored bytes of one."""
        self.mount.remount()
        until = time.monotonic() + 10
        while not self.mount.number("read_rate"):
            if time.monotonic() > until:
                raise CannotRun("the daemon did not measure its device")
            time.sleep(0.05)
        shutil.rmtree(self.folder("auto"), ignore_errors=True)
        self.save("auto", "auto", seed)
        stored = os.getxattr(os.path.join(self.folder("auto"), "session"), "user.kvfs.stored")
        return int(stored) / self.size

    def measure(self, limit):
        """GB/s of the session's bytes: raw, fast, dense, auto; then what auto stored of one."""
        self.throttle.limit(limit and limit * 1e6)
        share = self.settle_as_auto(5000 + (limit or 0))
        work = {"raw": self.raw, **{c: lambda c=c: self.restore(c) for c in ("fast", "dense", "auto")}}
        got = {name: [] for name in work}
        order = list(work)
        for _ in range(1 if self.bench.quick else 3):
            for name in order:
                got[name].append(work[name]() / 1e9)
            order = order[1:] + order[:1]
        return [statistics.median(v) for v in got.values()] + [share]


def crossing(rows):
    """The rate of raw reads, in GB/s, at which fast is as fast: the first between two rows, or None."""
    for (_, a, fast_a, *_), (_, b, fast_b, *_) in zip(rows, rows[1:]):
        gain, loss = fast_a - a, b - fast_b
        if gain >= 0 and loss > 0:
            return a + (b - a) * gain / (gain + loss)
    return None


@group("crossover-table")
def crossover(bench):
    """From which device on codecs cost a restore time instead of saving some."""
    with contextlib.ExitStack() as stack:
        try:
            throttle = stack.enter_context(bench.place.throttle())
        except CannotRun as e:
            bench.say(f"skipped, as no device can be slowed down here: {e}")
            return
        mount = stack.enter_context(bench.place.kvfs(prefix=throttle.prefix, hot=2 * GIB, warm=64 * MIB,
                                                     idle=3600))
        table = bench.table("crossover-table", "bf16 restored cold from a slower device, GB/s of the session",
                            ("device MB/s", "raw O_DIRECT", "fast", "dense", "auto", "auto stores"))
        c = Crossover(bench, throttle, mount)
        for limit in LIMITS:
            table.add(str(limit or "as it is"), *c.measure(limit))
        at = crossing(table.rows)
        bench.say(f"crossover: fast is as fast as raw reads of a device of {at:.2f} GB/s" if at else
                  "crossover: none, fast is the faster one on every one of these devices")


class Slabs:
    """Keys and values of layers, token by token: every file begins like this and ends as its own."""

    def __init__(self, seed, tokens, layers=1, token=TOKEN):
        self.random = random.Random(seed)
        self.layers, self.token = layers, token
        self.slabs = [self.random.randbytes(tokens * token) for _ in range(2 * layers)]

    def file(self, path, tokens, shared):
        """A safetensors file of [2, tokens, ...] bf16, whose header has a length of its own."""
        layer = 2 * tokens * self.token
        tensors = {
            str(i): {"dtype": "BF16", "shape": [2, tokens, self.token // 2],
                     "data_offsets": [i * layer, (i + 1) * layer]}
            for i in range(self.layers)
        }
        tensors["__metadata__"] = {"prompt": "x" * self.random.randrange(1, 200)}
        header = json.dumps(tensors).encode()
        header += b" " * (-len(header) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header)
            for slab in self.slabs:
                f.write(slab[:shared * self.token])
                f.write(self.random.randbytes((tokens - shared) * self.token))
        return self.layers * layer


class Dedup:
    def __init__(self, bench, mount):
        self.mount = mount
        self.table = bench.table("dedup-table", "what dedup finds",
                                 ("what", "written MiB", "could be shared MiB", "found", "chunks"))

    def measure(self, what, make):
        """make(folder) writes and returns (bytes written, of them such as were there before)."""
        folder = os.path.join(self.mount.dir, what.replace(" ", "-").replace(",", ""))
        os.makedirs(folder)
        self.mount.settle()
        unique, chunks = self.mount.number("unique_bytes"), self.mount.number("chunks")
        written, there = make(folder)
        self.mount.settle()
        new = self.mount.number("unique_bytes") - unique
        self.table.add(what, written / MIB, there / MIB, (written - new) / there,
                       self.mount.number("chunks") - chunks)


@group("dedup-table")
def dedup(bench):
    """Content that was there before, in the ways it comes back."""
    with bench.place.kvfs(hot=1 << 30, warm=1 << 28, idle=3600) as mount:
        d = Dedup(bench, mount)
        first = os.path.join(mount.dir, "first")
        os.makedirs(first)
        slabs = Slabs(1, 8000)
        size = slabs.file(os.path.join(first, "a"), 6000, 0)

        def copied(folder):
            command("cp", "-r", first, folder)
            return size, size

        def again(folder):
            with open(os.path.join(first, "a"), "rb") as f, open(os.path.join(folder, "a"), "wb") as t:
                while block := f.read(MIB):
                    t.write(block)
            return size, size

        def real(folder):
            written = there = 0
            # 300 of 400, 400 and 350 tokens are the same prompt, computed for each.
            for n, path in enumerate(sorted(glob.glob(os.path.join(TOP, "tests/data/prefix300_*")))):
                command("cp", path, folder)
                written += os.path.getsize(path)
                there += os.path.getsize(path) * 300 // (350 if "350" in path else 400) if n else 0
            return written, there

        def prefixes(folder, slabs, lengths):
            written = there = longest = 0
            for n, tokens in enumerate(lengths):
                shared = tokens * 9 // 10
                written += slabs.file(os.path.join(folder, str(n)), tokens, shared)
                there += len(slabs.slabs) * min(shared, longest) * slabs.token
                longest = max(longest, shared)
            return written, there

        def large(folder):
            return prefixes(folder, slabs, [2000, 7100, 2500, 4100, 3000, 8000, 6200, 5000])

        def small(folder):
            return prefixes(folder, Slabs(2, 900, 30, 384), [500, 350, 700, 420, 900, 600])

        d.measure("copied", copied)
        d.measure("saved again", again)
        d.measure("prefix computed again, real fp16 slot files", real)
        d.measure("prefix of 2000 to 8000 tokens, safetensors", large)
        d.measure("prefix of 350 to 900 tokens, 60 slabs of 384 B a token, safetensors", small)


@group("replay-table")
def replay(bench):
    """Traces of requests, as an engine keeps them: one layer, tokens an eighth of the real size."""
    requests = 200 if bench.quick else 1000
    table = bench.table("replay-table", f"the first {requests} requests of a trace, sessions of one layer",
                        ("trace", "hot MiB", "written MiB", "trace's own MiB", "unique beyond it %",
                         "stored MiB", "hot %", "warm %", "cold %", "write ms", "read ms"))
    for trace in "conversation", "synthetic":
        for hot in 1024, 256:
            with bench.place.kvfs(hot=hot * MIB, warm=hot * MIB // 2, idle=3600) as mount:
                path = os.path.join(TOP, "tests", "data", "traces", f"{trace}_1000.jsonl")
                got = json.loads(command(bench.place.workers.path("replay"), mount.dir, path,
                                         str(requests), "1", "8"))
                mount.settle()
                opened = max(got["hot"] + got["warm"] + got["cold"], 1)
                table.add(trace, hot, got["written"] / MIB, got["distinct"] / MIB,
                          100 * (mount.number("unique_bytes") / got["distinct"] - 1),
                          mount.number("stored_bytes") / MIB,
                          *(100 * got[t] / opened for t in ("hot", "warm", "cold")),
                          1000 * got["write_s"] / requests, 1000 * got["read_s"] / opened)
