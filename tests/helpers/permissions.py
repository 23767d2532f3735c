# SPDX-License-Identifier: Apache-2.0
"""What four users may do in a folder, as a transcript: permissions.py DIR

DIR belongs to root and is empty. alice (30001) makes files and directories of many modes, and then alice,
bob (30002, in alice's group 30003), carol (30004, in no group of theirs) and root try every kind of
operation on them, in a fixed order. Each line is user, operation and what came of it. Two file systems are
the same if their transcripts are.
"""
import errno
import os
import stat
import sys

USERS = {"alice": (30001, 30003), "bob": (30002, 30003), "carol": (30004, 30004), "root": (0, 0)}
TOP = -1  # the folder
MODES = (0o000, 0o200, 0o400, 0o600, 0o640, 0o660, 0o604, 0o606, 0o060, 0o006, 0o711, 0o755, 0o777, 0o4755, 0o2755)


def as_user(name, fn):
    """Calls fn with the effective rights of that user; what it returned, or the name of the errno."""
    uid, gid = USERS[name]
    os.setgroups([gid])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        said = fn()
        return "ok" if said is None else f"ok {said}"
    except OSError as e:
        return errno.errorcode[e.errno]
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.fchdir(TOP)


def make(path, mode, content=b"content"):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(fd, content)
    os.fchmod(fd, mode)
    os.close(fd)


def open_close(path, flags):
    os.close(os.open(path, flags))


def with_fd(path, flags, fn):
    fd = os.open(path, flags)
    try:
        return fn(fd)
    finally:
        os.close(fd)


def shown(path):
    s = os.lstat(path)
    return f"{stat.filemode(s.st_mode)} {s.st_uid}:{s.st_gid} {s.st_nlink}"


def run_file(path):
    uid, gid = os.geteuid(), os.getegid()
    pid = os.fork()
    if pid == 0:
        os.seteuid(0)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        try:
            os.execv(path, [path])
        except OSError as e:
            os._exit(e.errno)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def tree():
    """alice's, in the current folder."""
    for mode in MODES:
        make(f"f{mode:04o}", mode)
        os.mkdir(f"d{mode:04o}")
        make(f"d{mode:04o}/in", 0o666)
        os.chmod(f"d{mode:04o}", mode)
    os.mkdir("sticky")
    os.chmod("sticky", 0o1777)
    make("sticky/alices", 0o666)
    os.mkdir("setgid")
    os.chmod("setgid", 0o2777)
    os.mkdir("open")
    os.chmod("open", 0o777)
    make("open/alices", 0o666)
    make("script", 0o755, b"#!/bin/sh\nexit 7\n")
    make("script-none", 0o644, b"#!/bin/sh\nexit 7\n")
    os.symlink("f0600", "link-private")
    os.symlink("f0777", "link-open")


def on_file(f):
    """Everything that may be tried on a file without changing what the next one sees."""
    return {
        "read": lambda: with_fd(f, os.O_RDONLY, lambda fd: os.read(fd, 4).decode()),
        "write": lambda: open_close(f, os.O_WRONLY),
        "both": lambda: open_close(f, os.O_RDWR),
        "append": lambda: open_close(f, os.O_WRONLY | os.O_APPEND),
        "noatime": lambda: open_close(f, os.O_RDONLY | os.O_NOATIME),
        "R_OK": lambda: os.access(f, os.R_OK, effective_ids=True),
        "W_OK": lambda: os.access(f, os.W_OK, effective_ids=True),
        "X_OK": lambda: os.access(f, os.X_OK, effective_ids=True),
        "stat": lambda: shown(f),
        "touch": lambda: os.utime(f),
        "utime": lambda: os.utime(f, ns=(10**18, 10**18)),
        "chmod": lambda: os.chmod(f, stat.S_IMODE(os.lstat(f).st_mode)),
        "chown-root": lambda: os.chown(f, 0, -1),
        "chown-self": lambda: os.chown(f, 30001, -1),
        "chgrp-other": lambda: os.chown(f, -1, 30004),
        "setx": lambda: os.setxattr(f, "user.x", b"1"),
        "getx": lambda: os.getxattr(f, "user.x").decode(),
        "listx": lambda: len(os.listxattr(f)),
        "removex": lambda: os.removexattr(f, "user.x"),
        "trusted": lambda: os.getxattr(f, "trusted.x"),
        "ftruncate-ro": lambda: with_fd(f, os.O_RDONLY, lambda fd: os.ftruncate(fd, 3)),
    }


def on_dir(d):
    return {
        "list": lambda: sorted(os.listdir(d)),
        "enter": lambda: os.chdir(d),
        "look": lambda: shown(f"{d}/in"),
        "read-in": lambda: open_close(f"{d}/in", os.O_RDONLY),
        "create": lambda: make(f"{d}/new", 0o600),
        "remove": lambda: os.unlink(f"{d}/new"),
        "mkdir": lambda: os.mkdir(f"{d}/newdir"),
        "rmdir": lambda: os.rmdir(f"{d}/newdir"),
        "symlink": lambda: os.symlink("x", f"{d}/s"),
        "rename": lambda: os.rename(f"{d}/s", f"{d}/t"),
        "unlink": lambda: os.unlink(f"{d}/t"),
        "touch": lambda: os.utime(d),
        "chmod": lambda: os.chmod(d, stat.S_IMODE(os.lstat(d).st_mode)),
        "setx": lambda: os.setxattr(d, "user.x", b"1"),
        "removex": lambda: os.removexattr(d, "user.x"),
        "fsync": lambda: with_fd(d, os.O_RDONLY | os.O_DIRECTORY, os.fsync),
    }


def say(user, what, fn):
    print(f"{user} {what}: {as_user(user, fn)}")


def links(user):
    say(user, "through a link to a private file", lambda: open_close("link-private", os.O_RDONLY))
    say(user, "through a link to an open file", lambda: open_close("link-open", os.O_RDWR))
    say(user, "chown of a link", lambda: os.lchown("link-open", 30002, -1))
    for f in ("f0600", "f0666", "f0777", "f4755", "script", "link-open"):
        if os.path.lexists(f):
            say(user, f"hard link to {f}", lambda: os.link(f, f"open/hard-{user}", follow_symlinks=False))
            say("root", "and away", lambda: os.unlink(f"open/hard-{user}"))
    say(user, "run", lambda: run_file("./script"))
    say(user, "run what may not", lambda: run_file("./script-none"))


def sticky(user):
    say(user, "makes in sticky", lambda: make(f"sticky/{user}", 0o666))
    say(user, "writes alice's in sticky", lambda: open_close("sticky/alices", os.O_WRONLY))
    say(user, "renames alice's in sticky", lambda: os.rename("sticky/alices", "sticky/alices2"))
    say("root", "and back", lambda: os.rename("sticky/alices2", "sticky/alices"))
    say(user, "replaces alice's in sticky", lambda: os.rename(f"sticky/{user}", "sticky/alices"))
    say(user, "removes alice's in sticky", lambda: os.unlink("sticky/alices"))
    if not os.path.exists("sticky/alices"):
        say("alice", "makes it again", lambda: make("sticky/alices", 0o666))
    say(user, "creates over alice's in sticky", lambda: open_close("sticky/alices", os.O_WRONLY | os.O_CREAT))
    say("alice", "removes theirs from her sticky folder", lambda: os.unlink(f"sticky/{user}"))


def making(user):
    say(user, "file in setgid", lambda: make(f"setgid/{user}", 0o2755))
    say(user, "folder in setgid", lambda: os.mkdir(f"setgid/{user}-d"))
    say(user, "fifo in setgid", lambda: os.mkfifo(f"setgid/{user}-p"))
    say(user, "device", lambda: os.mknod(f"setgid/{user}-n", stat.S_IFCHR | 0o666, os.makedev(1, 3)))
    for suffix in ("", "-d", "-p", "-n"):
        say(user, f"has{suffix}", lambda: shown(f"setgid/{user}{suffix}"))
    say(user, "own group bit", lambda: os.chmod(f"setgid/{user}", 0o6777))
    say(user, "has", lambda: shown(f"setgid/{user}"))
    say(user, "gives away", lambda: os.chown(f"setgid/{user}", 30001, -1))
    say(user, "truncates alice's", lambda: os.truncate("open/alices", 5))
    say(user, "renames alice's out", lambda: os.rename("open/alices", f"setgid/{user}-from"))
    say("root", "and back", lambda: os.rename(f"setgid/{user}-from", "open/alices"))
    say(user, "statvfs", lambda: os.statvfs("open").f_namemax)


def suid():
    for user in USERS:
        for name, fn in (
            ("write", lambda: with_fd("open/suid", os.O_WRONLY, lambda fd: os.write(fd, b"x"))),
            ("truncate", lambda: os.truncate("open/suid", 2)),
            ("O_TRUNC", lambda: open_close("open/suid", os.O_WRONLY | os.O_TRUNC)),
            ("chmod", lambda: os.chmod("open/suid", 0o6777)),
        ):
            say("alice", "suid", lambda: make("open/suid", 0o6777))
            say(user, f"{name} of suid", fn)
            # That a write of root's takes it too is kvfs's own: its README says so.
            if user != "root":
                say(user, "is", lambda: shown("open/suid"))
            say("alice", "away", lambda: os.unlink("open/suid"))


def main():
    global TOP

    TOP = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
    os.fchdir(TOP)
    os.umask(0)
    os.chmod(".", 0o777)
    say("alice", "tree", tree)
    for user in USERS:
        for mode in MODES:
            for what, fn in on_file(f"f{mode:04o}").items():
                say(user, f"f{mode:04o} {what}", fn)
            # What root has given away, alice has again.
            os.chown(f"f{mode:04o}", 30001, 30003)
            os.chmod(f"f{mode:04o}", mode)
            for what, fn in on_dir(f"d{mode:04o}").items():
                say(user, f"d{mode:04o} {what}", fn)
        links(user)
        sticky(user)
        making(user)
        os.lchown("link-open", 30001, 30003)
    suid()


main()
