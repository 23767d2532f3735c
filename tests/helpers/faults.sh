# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# run_faults MODE OPTION...: tests/fault, in memory where that can be: it loses nothing that a disk would keep.
run_faults() {
	local folder status=0
	folder=$(mktemp -d /dev/shm/kvfs-faults.XXXXXX 2>/dev/null) || folder=$(mktemp -d "$CASE_DIR/faults.XXXXXX")
	"$BUILD/tests/fault" "$folder" "$TESTS/data" "$@" || status=$?
	rm -rf "$folder"
	return $status
}
