# SPDX-License-Identifier: Apache-2.0
# bash completion for kvfs

_kvfs_mountpoints() {
	findmnt -rn -t fuse.kvfs -o TARGET 2>/dev/null
}

# The last option of a comma-separated list, the ones before it kept.
_kvfs_mount_options() {
	local before= last=$cur
	case $cur in
	*,*) before=${cur%,*}, last=${cur##*,} ;;
	esac
	compopt -o nospace
	COMPREPLY=($(compgen -P "$before" -W 'hot= warm= index= idle= commit= open_wait= codec= dedup= scrub= nopassthrough
		allow_other ro rw rundir= nodev nosuid noexec noatime nodiratime' -- "$last"))
}

_kvfs() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		COMPREPLY=($(compgen -W 'mount umount status evict prefetch gc analyze fsck gpu-check --help --version' \
			-- "$cur"))
		return
	fi
	case $command:$prev in
	mount:-o | mount:--options) _kvfs_mount_options; return ;;
	evict:--to | evict:-t) COMPREPLY=($(compgen -W 'warm cold' -- "$cur")); return ;;
	esac
	case $command:$cur in
	mount:-*) COMPREPLY=($(compgen -W '--options --foreground --help' -- "$cur")) ;;
	umount:-*) COMPREPLY=($(compgen -W '--force --quiet --help' -- "$cur")) ;;
	status:-*) COMPREPLY=($(compgen -W '--json --help' -- "$cur")) ;;
	evict:-*) COMPREPLY=($(compgen -W '--to --quiet --json --help' -- "$cur")) ;;
	prefetch:-*) COMPREPLY=($(compgen -W '--quiet --json --help' -- "$cur")) ;;
	gc:-*) COMPREPLY=($(compgen -W '--quiet --json --help' -- "$cur")) ;;
	analyze:-*) COMPREPLY=($(compgen -W '--quiet --json --help' -- "$cur")) ;;
	fsck:-*) COMPREPLY=($(compgen -W '--repair --deep --quiet --json --help' -- "$cur")) ;;
	gpu-check:-*) COMPREPLY=($(compgen -W '--device --help' -- "$cur")) ;;
	umount:* | status:* | gc:*) COMPREPLY=($(compgen -W "$(_kvfs_mountpoints)" -- "$cur")) ;;
	mount:* | fsck:*)
		compopt -o filenames
		COMPREPLY=($(compgen -d -- "$cur")) ;;
	*)
		compopt -o filenames
		COMPREPLY=($(compgen -f -- "$cur")) ;;
	esac
}

complete -F _kvfs kvfs
