# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Helpers of the mount cases. A case starts with
#
#	#!/bin/bash
#	# What it proves, in a line.
#	# modes: passthrough fallback
#	. "$TESTS/lib.sh"
#
# and then uses $STORE, $MNT and $RUN, all inside its folder $CASE_DIR. A command that fails and is not
# asked whether it did fails the case, so `[ "$a" = "$b" ]` is an assertion. When the case ends, in
# whatever way, what is still mounted is unmounted, and a daemon that cannot unmount fails the case.
set -Eeuo pipefail
trap 'echo "FAIL: line $((${#BASH_LINENO[@]} > 1 ? BASH_LINENO[-2] : LINENO)) of ${0##*/}: $BASH_COMMAND" >&2' ERR

: "${CASE_DIR:?run the case with tests/run}"
STORE=$CASE_DIR/store
MNT=$CASE_DIR/mnt
RUN=$CASE_DIR/run
# The daemon kv_mount started last.
KV_PID=

# fail MSG...: ends the case as failed, and says from which line.
fail() {
	echo "FAIL: line ${BASH_LINENO[-2]} of ${0##*/}: $*" >&2
	exit 1
}

# skip REASON...: ends the case as skipped.
skip() {
	echo "$*"
	exit 77
}

# need root | fuse | passthrough | COMMAND...: skips the case where that is missing.
need() {
	local what
	for what; do
		case $what in
		root) [ "$(id -u)" = 0 ] || skip "needs root" ;;
		fuse) [ -e /dev/fuse ] || skip "needs /dev/fuse" ;;
		passthrough)
			[ "$(id -u)" = 0 ] || skip "passthrough needs root"
			printf '6.9\n%s\n' "$(uname -r)" | sort -VC || skip "passthrough needs Linux 6.9"
			;;
		*) command -v "$what" >/dev/null || skip "needs the program $what" ;;
		esac
	done
}

# until_true SECONDS COMMAND...: repeats the command until it succeeds; fails when time is up.
until_true() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.05
	done
}

# expect_fail COMMAND...: the command must fail of its own accord and say why in one line, which is left
# in $ERR and printed.
expect_fail() {
	local rc=0
	ERR=$("$@" 2>&1) || rc=$?
	echo "$* -> $rc: $ERR"
	[ $rc != 0 ] || fail "succeeded: $*"
	[ $rc -lt 126 ] || fail "exit status $rc: $*"
	[ -n "$ERR" ] || fail "failed without a word: $*"
	[ "$(printf '%s\n' "$ERR" | wc -l)" = 1 ] || fail "more than one line: $*"
}

# as_nobody COMMAND...: runs it as a user without rights, in the same session and environment.
as_nobody() {
	setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
}

# ---- Mounting ------------------------------------------------------------------------------------

# The mount options that stand for the runner's MODE.
mode_options() {
	case $MODE in
	passthrough) ;;
	fallback) echo ,nopassthrough ;;
	nommap) echo ,testmask=no-passthrough+no-direct-mmap ;;
	*) fail "unknown mode '$MODE'" ;;
	esac
}

# kv_mount [OPTION,...]: mounts $STORE at $MNT in the case's mode.
kv_mount() {
	local options
	options=rundir=$RUN$(mode_options)${1:+,$1}
	need fuse
	# Left by a daemon that was killed, the mount point exists and cannot be looked at.
	kv_mounted || mkdir -p "$MNT"
	"$KVFS" mount "$STORE" "$MNT" -o "$options" || fail "kvfs mount -o $options: status $?"
	KV_PID=$(status_field pid) || fail "no pid in the status"
}

# kv_umount: unmounts, and the daemon must be gone soon after.
kv_umount() {
	local pid=$KV_PID
	"$KVFS" umount "$MNT" || fail "kvfs umount: status $?"
	! kv_mounted || fail "still mounted: $MNT"
	KV_PID=
	[ -z "$pid" ] || until_true 10 gone "$pid" || fail "the daemon outlives its mount"
}

# kv_kill9: kills the daemon as a crash would. The dead mount stays; kv_mount takes it over.
kv_kill9() {
	[ -n "$KV_PID" ] || fail "no daemon to kill"
	kill -9 "$KV_PID" || fail "the daemon was dead before"
	until_true 10 gone "$KV_PID" || fail "the daemon does not die"
	KV_PID=
}

# kv_copy_store DIR: the store as a power cut would leave it, but for what the device may not have: one that
# changes under cp is of no moment at all. Nothing may wait for the stopped daemon, so not even the current
# folder is on the mount.
kv_copy_store() (
	cd /
	kill -STOP "$KV_PID"
	cp -a "$STORE" "$1"
	kill -CONT "$KV_PID"
)

kv_mounted() {
	[ -n "$(mounts_below "$MNT")" ]
}

# gone PID: no such process, or one that only waits to be reaped: its first thread may be dead while others still
# hold /dev/fuse.
gone() {
	local task state
	for task in "/proc/$1/task/"*; do
		state=$(sed 's/.*) //' "$task/stat" 2>/dev/null) || continue
		[[ ${state%% *} = [ZX] ]] || return 1
	done
}

# ---- Status --------------------------------------------------------------------------------------

# status_field NAME: a field of the status file; NAME may be a path: tiers.hot.bytes
status_field() {
	"$KVFS" status --json "$MNT" | python3 -c '
import json, sys
value = json.load(sys.stdin)
for key in sys.argv[1].split("."):
    value = value[int(key)] if isinstance(value, list) else value[key]
print(value if isinstance(value, str) else json.dumps(value))' "$1"
}

# kv_settled [SECONDS]: waits until everything is durable.
kv_settled() {
	until_true "${1:-30}" unsettled_is_zero ||
		fail "after ${1:-30} s unsettled_bytes is still $(status_field unsettled_bytes)"
}

unsettled_is_zero() {
	[ "$(status_field unsettled_bytes)" = 0 ]
}

# ---- Block devices -------------------------------------------------------------------------------

# mkloop SIZE FSTYPE [NAME]: a file system of that size and type, mounted at $LOOP and backed by the file
# $LOOP_IMG. The device goes with the mount.
mkloop() {
	need root losetup "mkfs.$2"
	LOOP=$CASE_DIR/${3:-loop}
	LOOP_IMG=$LOOP.img
	mkdir -p "$LOOP"
	truncate -s "$1" "$LOOP_IMG" && "mkfs.$2" -q "$LOOP_IMG" >/dev/null &&
		mount -o loop "$LOOP_IMG" "$LOOP" || fail "cannot make a $2 of $1"
}

# ---- Cleaning up ---------------------------------------------------------------------------------

# The type and the mount point of every mount at and below a folder, the last one first.
mounts_below() {
	awk -v top="$1" '$5 == top || index($5, top "/") == 1 {
		split($0, half, " - "); split(half[2], right, " "); print right[1], $5
	}' /proc/self/mountinfo | tac
}

# Unmounts what the case has left. What a killed daemon leaves is no fault of the case.
kv_cleanup() {
	local rc=$? type point pids
	trap - EXIT ERR
	set +e
	cd /
	pids=$(jobs -p)
	# The shell would tell of each job that it was killed.
	{ [ -z "$pids" ] || kill -9 $pids; wait; } 2>/dev/null
	# A kvfs takes its own tmpfs along, so look again before each step.
	while read -r type point < <(mounts_below "$CASE_DIR"); do
		if [[ $type = fuse* ]] && timeout 5 stat "$point" >/dev/null 2>&1; then
			timeout 60 "$KVFS" umount "$point" && continue
			echo "FAIL: cannot unmount $point at the end"
			rc=1
		fi
		umount "$point" 2>/dev/null || umount -l "$point" 2>/dev/null ||
			fusermount3 -uz "$point" || break
	done
	exit $rc
}
trap kv_cleanup EXIT
trap 'exit 143' TERM INT HUP
