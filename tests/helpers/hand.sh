# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A hand that holds files and mappings of the mount open while the case does something else: iosh as a
# co-process. To be sourced after lib.sh.
#
#	hand_start              starts it; one a case
#	hand COMMAND...         runs an iosh command; fails the case if it does; its value goes to $VALUE
#	hand_try COMMAND...     the same, and returns 1 with the answer in $VALUE instead
#	hand_end                ends it: the handles and mappings are gone when it returns
#	io COMMAND...           iosh in a process of its own, a command an argument; fails the case
VALUE=

hand_start() {
	coproc HAND { exec "$HELPERS/iosh"; }
	HAND_IN=${HAND[1]} HAND_OUT=${HAND[0]} HAND_OWN=$HAND_PID
}

hand_try() {
	local answer
	echo "$*" >&"$HAND_IN" && read -r answer <&"$HAND_OUT" || fail "iosh is gone: $*"
	VALUE=${answer#ok}
	VALUE=${VALUE# }
	[[ $answer == ok* ]]
}

hand() {
	hand_try "$@" || fail "$*: $VALUE"
}

hand_end() {
	eval "exec $HAND_IN>&- $HAND_OUT<&-"
	wait "$HAND_OWN"
}

io() {
	"$HELPERS/iosh" "$@" || fail "iosh: status $?"
}
