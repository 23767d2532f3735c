# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Replays of what engines do to their KV directory, client_ENGINE.py, over the life of a file. To be sourced
# after lib.sh. A client, ENGINE:CLIENT, has a directory of its own on the mount and at least the steps store,
# which reads back at once what it wrote, and load.
#
#	replay ENGINE:CLIENT STEP   runs one step; fails the case
#	cold                        all is settled and nothing of it is left in memory
#	lives ENGINE:CLIENT...      takes the clients through: store; kill -9, which finds most of it unsettled,
#	                            and a new daemon; load; cold; load. Leaves it mounted
replay() {
	python3 -B "$TESTS/helpers/client_${1%:*}.py" "${1#*:}" "$2" "$MNT" || fail "$*: status $?"
}

replay_each() {
	local step=$1 client
	shift
	for client; do
		replay "$client" "$step"
	done
}

cold() {
	until_true 20 "$KVFS" evict "$MNT" || fail "evict: status $?"
	[ "$(status_field tiers.hot.bytes)" = 0 ] && [ "$(status_field tiers.warm.bytes)" = 0 ] ||
		fail "evicted, and hot holds $(status_field tiers.hot.bytes), warm $(status_field tiers.warm.bytes) bytes"
}

lives() {
	kv_mounted || kv_mount
	replay_each store "$@"
	kv_kill9
	kv_mount
	replay_each load "$@"
	cold
	replay_each load "$@"
}
