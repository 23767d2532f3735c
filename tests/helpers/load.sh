# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Drives the helper `load`, whose header says what it does and checks. To be sourced after lib.sh.
#
#	load_start [power]      starts it on $MNT with $SEED, printed so that a failure can be run again
#	load COMMAND...         gives it a command; fails the case if it finds something wrong; $ANSWER
#	load_end                ends it
SEED=${SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
ANSWER=

load_start() {
	echo "seed $SEED (run with SEED=$SEED to get the same operations)"
	RANDOM=$((SEED % 32768))
	coproc LOAD { exec "$HELPERS/load" "$MNT" "$SEED" 3 "$MODE" ${1:+"$1"} "$TESTS/data"; }
	LOAD_IN=${LOAD[1]} LOAD_OUT=${LOAD[0]} LOAD_OWN=$LOAD_PID
	# There is nothing to drop; the answer says that its directories are made.
	load drop
}

load() {
	echo "$*" >&"$LOAD_IN"
	while read -r ANSWER <&"$LOAD_OUT"; do
		case $ANSWER in
		ok*) return 0 ;;
		bad*) fail "load: $1: $ANSWER" ;;
		*) echo "$ANSWER" ;;
		esac
	done
	fail "load is gone, at $*"
}

load_end() {
	eval "exec $LOAD_IN>&- $LOAD_OUT<&-"
	wait "$LOAD_OWN"
}

# pause MAX_MS: until a random moment. What happens then is to be cut short at any point.
pause() {
	sleep "$(awk -v ms=$((RANDOM % $1)) 'BEGIN { print ms / 1000 }')"
}
