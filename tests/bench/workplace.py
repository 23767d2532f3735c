"""The places where files are written and read: kvfs, its rivals and the raw device.

Everything lives below one folder on the file system under test. Whatever was mounted there is
unmounted when the run ends, however it ends, and what an earlier run that was killed has left is
cleared at the start.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(TOP, "build")))
KVFS = os.path.abspath(os.environ.get("KVFS", os.path.join(BUILD, "kvfs")))

GIB = 1 << 30
MIB = 1 << 20
# The kernel checks permissions and keeps what it was told, as it does for kvfs.
PLAIN_OPTIONS = ("default_permissions,attr_timeout=3600,entry_timeout=3600,"
                 "negative_timeout=3600")
MOUNT_LIMIT = 30
UMOUNT_LIMIT = 120
WORKER_LIMIT = 300


class CannotRun(Exception):
    """A measurement that could not be made, and why, in one line."""


def command(*argv, limit=WORKER_LIMIT):
    """Runs a program; its standard output, or CannotRun with the last line it complained."""
    argv = [str(a) for a in argv]
    name = " ".join(argv[:3])
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit
        )
    except FileNotFoundError:
        raise CannotRun(f"{argv[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise CannotRun(f"{name}: not done after {limit} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise CannotRun(f"{name}: exit {done.returncode}: {said}")
    return done.stdout


def drop_caches():
    """Writes back and forgets every clean page, dentry and inode of this machine."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")


def make_huge_pages_likely():
    """Gives freed memory back in large pieces, so that every rival finds huge pages."""
    drop_caches()
    with contextlib.suppress(OSError), open("/proc/sys/vm/compact_memory", "w") as f:
        f.write("1")


def memory(field):
    """A field of /proc/meminfo in bytes."""
    with open("/proc/meminfo") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def mounts_below(path):
    """Mount points at or below a folder, the deepest first."""
    found = []
    with open("/proc/self/mountinfo") as f:
        for line in f:
            point = line.split()[4].encode().decode("unicode_escape")
            if point == path or point.startswith(path + "/"):
                found.append(point)
    return found[::-1]


def file_system_of(path):
    """(type, source) of the file system a folder is on."""
    out = command("findmnt", "-n", "-o", "FSTYPE,SOURCE", "-T", path).split()
    return out[0], out[1] if len(out) > 1 else "?"


def is_newer(path, sources):
    with contextlib.suppress(OSError):
        return all(os.path.getmtime(path) >= os.path.getmtime(s) for s in sources)
    return False


class Throttle:
    """A control group in which reads of the device under the store go no faster than limit() said. A
    program is started in it with prefix in front of its words."""

    V1 = "/sys/fs/cgroup/blkio"

    def __init__(self, place):
        self.device = whole_disk(place.base)
        v1 = os.path.exists(os.path.join(self.V1, "cgroup.procs"))
        top = self.V1 if v1 else self._unified()
        self.folder = os.path.join(top, "kvfs-bench")
        self.file = "blkio.throttle.read_bps_device" if v1 else "io.max"
        self.line = "{} {}" if v1 else "{} rbps={}"
        self.none = 0 if v1 else "max"
        os.makedirs(self.folder, exist_ok=True)
        if not os.path.exists(os.path.join(self.folder, self.file)):
            self.close()
            raise CannotRun(f"the kernel limits no reads: no {self.file}")
        self.prefix = ("sh", "-c", f'echo $$ >"{self.folder}/cgroup.procs" && exec "$@"', "sh")

    @staticmethod
    def _unified():
        for top in "/sys/fs/cgroup", "/sys/fs/cgroup/unified":
            with contextlib.suppress(OSError):
                with open(os.path.join(top, "cgroup.controllers")) as f:
                    if "io" not in f.read().split():
                        continue
                with open(os.path.join(top, "cgroup.subtree_control"), "w") as f:
                    f.write("+io")
                return top
        raise CannotRun("no control group has the io controller")

    def limit(self, rate):
        """Bytes/s; None: as fast as the device."""
        with open(os.path.join(self.folder, self.file), "w") as f:
            f.write(self.line.format(self.device, self.none if rate is None else int(rate)))

    def close(self):
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)


def whole_disk(path):
    """MAJOR:MINOR of the disk that the file system of a path is on, or has its partition on."""
    dev = os.stat(path).st_dev
    number = f"{os.major(dev)}:{os.minor(dev)}"
    folder = os.path.realpath(f"/sys/dev/block/{number}")
    if not os.path.exists(folder):
        raise CannotRun(f"{path} is on no block device of its own")
    if os.path.exists(os.path.join(folder, "partition")):
        with open(os.path.join(folder, "..", "dev")) as f:
            return f.read().strip()
    return number


class Workers:
    """The C programs that do the timed work: those `make tools` built, else built here."""

    extra = {"limits": ["store/chunker.c", "store/codec*.c", "store/hash*.c"]}
    packages = {"limits": ["liblz4", "libxxhash"], "plainfuse": ["fuse3"]}

    def __init__(self):
        self.paths = {}

    def path(self, name):
        if name not in self.paths:
            self.paths[name] = self._find(name)
        return self.paths[name]

    def run(self, name, *args):
        """Units and seconds, as the worker printed them."""
        units, seconds = command(self.path(name), *args).split()
        return float(units), float(seconds)

    def rate(self, name, *args, prefix=()):
        """Units a second; prefix: words in front of the worker's."""
        units, seconds = (float(w) for w in command(*prefix, self.path(name), *args).split())
        return units / seconds

    def _find(self, name):
        here = os.path.join(TOP, "tests", "bench")
        sources = [os.path.join(here, f) for f in (f"{name}.c", "worker.h", "data.h", "team.h")]
        made = os.path.join(BUILD, "tests", "bench", name)
        if is_newer(made, sources):
            return made
        return self._build(name, sources)

    def _build(self, name, sources):
        folder = os.path.join(BUILD, "bench", "bin")
        os.makedirs(folder, exist_ok=True)
        env_path = ":".join(
            [os.path.join(os.environ.get("KVFS_DEPS", "/opt/kvfs-deps"), "lib/pkgconfig"),
             os.path.join(TOP, "build/deps/lib/pkgconfig"), os.environ.get("PKG_CONFIG_PATH", "")]
        )
        packages = self.packages.get(name, [])
        flags = ""
        if packages:
            flags = command("env", f"PKG_CONFIG_PATH={env_path}", "pkg-config", "--cflags",
                            "--libs", *packages)
        extra = " ".join(self.extra.get(name, []))
        out = os.path.join(folder, name)
        command("sh", "-c", f"cd '{TOP}' && ${{CC:-cc}} -std=gnu11 -O2 -pthread -D_GNU_SOURCE "
                f"-D_FILE_OFFSET_BITS=64 -I. -o '{out}' '{sources[0]}' {extra} {flags.strip()} -lm")
        return out


class Kvfs:
    """A kvfs mount with a store of its own, served by a daemon in the foreground. files: so many are made
    in its database first; prefix: words in front of the daemon's."""

    def __init__(self, place, name, files=0, prefix=(), **options):
        self.place = place
        self.prefix = prefix
        self.store = os.path.join(place.base, name + ".store")
        self.dir = os.path.join(place.base, name)
        self.log = os.path.join(place.base, name + ".log")
        os.makedirs(self.dir)
        options.setdefault("rundir", os.path.join(place.base, name + ".run"))
        self.options = ",".join(k if v is True else f"{k}={v}" for k, v in options.items())
        self._start()
        if files:
            self._stop()
            command(os.path.join(TOP, "tests/helpers/make_store.py"), self.store, files, limit=900)
            self._start()

    def _start(self):
        with open(self.log, "w") as log:
            self.daemon = subprocess.Popen(
                [*self.prefix, KVFS, "mount", self.store, self.dir, "-f", "-o", self.options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )
        self._wait_mounted()

    def _stop(self):
        command(KVFS, "umount", self.dir, limit=UMOUNT_LIMIT)
        self.daemon.wait(10)

    def remount(self):
        """Seconds until the mount answers again."""
        self._stop()
        drop_caches()
        begin = time.monotonic()
        self._start()
        os.listdir(self.dir)
        return time.monotonic() - begin

    def _wait_mounted(self):
        until = time.monotonic() + MOUNT_LIMIT
        while not os.path.ismount(self.dir):
            if self.daemon.poll() is not None or time.monotonic() > until:
                with open(self.log) as log:
                    said = (log.read().strip() or "no message").splitlines()[-1]
                raise CannotRun(f"kvfs mount: {said}")
            time.sleep(0.005)

    def status(self):
        with open(os.path.join(self.dir, ".kvfs", "status")) as f:
            return json.load(f)

    def number(self, key):
        """A number of the status, wherever in it the key stands."""
        found = find_key(self.status(), key)
        if found is None:
            raise CannotRun(f"kvfs status has no {key}")
        return found

    def tier_bytes(self, tier):
        found = find_key(self.status(), tier)
        return found["bytes"] if isinstance(found, dict) else 0

    def settle(self):
        """Seconds until everything written so far is durable: an fsync of the root says so."""
        seconds = self.place.workers.run("session", "sync", self.dir)[1]
        left = self.number("unsettled_bytes")
        if left:
            raise CannotRun(f"fsync of the root returned with {left} bytes unsettled")
        return seconds

    def evict(self, tier, *folders):
        command(KVFS, "evict", "--to", tier, *folders)
        for folder in folders:
            first = min(os.path.join(folder, name) for name in os.listdir(folder))
            got = os.getxattr(first, "user.kvfs.tier").decode()
            if got != tier and os.path.getsize(first):
                raise CannotRun(f"{first} is {got} after an eviction to {tier}")

    def own_memory(self):
        """Resident bytes outside of the tiers: not the images, not the warm chunks."""
        with open(f"/proc/{self.daemon.pid}/status") as f:
            rss = {line.split(":")[0]: line.split()[1] for line in f if line.startswith("Rss")}
        return (int(rss["RssAnon"]) + int(rss["RssFile"])) * 1024 - self.tier_bytes("warm")

    def close(self):
        with contextlib.suppress(CannotRun):
            command(KVFS, "umount", self.dir, limit=UMOUNT_LIMIT)
        for point in mounts_below(self.dir):
            subprocess.run(["umount", "-l", point], capture_output=True)
        try:
            self.daemon.wait(10)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait(10)
        for path in (self.store, os.path.join(self.place.base, os.path.basename(self.dir) + ".run")):
            for point in mounts_below(path):
                subprocess.run(["umount", "-l", point], capture_output=True)
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(self.dir)


def find_key(tree, key):
    """The value of a key in a tree of dictionaries; the shallowest first."""
    level = [tree]
    while level:
        for node in level:
            if key in node:
                return node[key]
        level = [v for node in level for v in node.values() if isinstance(v, dict)]
    return None


class Workplace:
    """The folder of the run, with the lock that keeps a second run out."""

    def __init__(self, base):
        self.base = os.path.realpath(base)
        self.workers = Workers()
        os.makedirs(self.base, exist_ok=True)
        self.lock = open(self.base + ".lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotRun(f"another run works in {self.base}") from None
        self.clear()
        os.makedirs(self.base)

    def path(self, name):
        return os.path.join(self.base, name)

    def clear(self):
        """Unmounts what is mounted here, frees the loop devices, removes the files."""
        for point in mounts_below(self.base):
            subprocess.run(["umount", "-l", point], capture_output=True)
        out = subprocess.run(["losetup", "-n", "-O", "NAME,BACK-FILE"], capture_output=True, text=True)
        for line in out.stdout.splitlines():
            device, _, backing = line.strip().partition(" ")
            if backing.strip().startswith(self.base + "/"):
                subprocess.run(["losetup", "-d", device], capture_output=True)
        shutil.rmtree(self.base, ignore_errors=True)

    def close(self):
        self.clear()
        self.lock.close()

    # Each of these is a context: a folder on that file system, gone afterwards.

    @contextlib.contextmanager
    def tmpfs(self, name, huge):
        path = self.path(name)
        os.makedirs(path)
        command("mount", "-t", "tmpfs", "-o", f"size={memory('MemTotal')},mode=700"
                + (",huge=always" if huge else ""), "kvfs-bench", path)
        try:
            yield path
        finally:
            self._unmount(path)

    @contextlib.contextmanager
    def disk(self, kind, size, options=""):
        """ext4: a folder of the file system under the store if that is ext4. Else a file system in
        a file, through a loop device that does direct I/O."""
        path = self.path(kind)
        os.makedirs(path)
        if kind == file_system_of(self.base)[0] and not options:
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)
            return
        image = path + ".img"
        with open(image, "w") as f:
            os.posix_fallocate(f.fileno(), 0, size)
        command(f"mkfs.{kind}", "-q", image)
        device = command("losetup", "--find", "--show", "--direct-io=on", image).strip()
        try:
            command("mount", *(["-o", options] if options else []), device, path)
            yield path
        finally:
            self._unmount(path)
            subprocess.run(["losetup", "-d", device], capture_output=True)
            os.unlink(image)

    @contextlib.contextmanager
    def plain_fuse(self, name):
        with self.tmpfs(name + "-backing", huge=True) as backing:
            path = self.path(name)
            os.makedirs(path)
            daemon = subprocess.Popen(
                [self.workers.path("plainfuse"), backing, path, "-f", "-o", PLAIN_OPTIONS],
                start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            try:
                until = time.monotonic() + MOUNT_LIMIT
                while not os.path.ismount(path):
                    if daemon.poll() is not None or time.monotonic() > until:
                        raise CannotRun("the plain FUSE daemon did not mount")
                    time.sleep(0.02)
                yield path
            finally:
                self._unmount(path)
                daemon.kill()
                daemon.wait()

    @contextlib.contextmanager
    def throttle(self):
        throttle = Throttle(self)
        try:
            yield throttle
        finally:
            throttle.close()

    @contextlib.contextmanager
    def kvfs(self, name="kvfs", **options):
        mount = Kvfs(self, name, **options)
        try:
            yield mount
        finally:
            mount.close()

    def _unmount(self, path):
        if subprocess.run(["umount", path], capture_output=True).returncode:
            subprocess.run(["umount", "-l", path], capture_output=True)
        with contextlib.suppress(OSError):
            os.rmdir(path)
