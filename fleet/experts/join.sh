# Becomes PROGRAM inside a cgroup of version 1 or 2 with a limit: first|second GROUP BYTES PROGRAM ARGUMENT...
qd_no() { printf 'quarterdeck: %s\n' "$1" >&2; exit 125; }
qd_kind=$1 qd_group=$2 qd_limit=$3
shift 3
[ ! -d "$qd_group" ] || rmdir "$qd_group" 2>/dev/null || qd_no "$qd_group is in use by another process"
if [ "$qd_kind" = second ]; then
    printf '+memory\n' 2>/dev/null >"${qd_group%/*}/cgroup.subtree_control" ||
        qd_no "memory cannot be limited below ${qd_group%/*}"
fi
mkdir "$qd_group" || qd_no "$qd_group cannot be made"
if [ "$qd_kind" = second ]; then
    printf '%s\n' "$qd_limit" >"$qd_group/memory.max" || qd_no "$qd_group takes no limit"
    [ ! -e "$qd_group/memory.swap.max" ] || printf '0\n' >"$qd_group/memory.swap.max"
else
    printf '%s\n' "$qd_limit" >"$qd_group/memory.limit_in_bytes" || qd_no "$qd_group takes no limit"
    # Where swap is counted: no more of both together, so none of it.
    [ ! -e "$qd_group/memory.memsw.limit_in_bytes" ] ||
        printf '%s\n' "$qd_limit" >"$qd_group/memory.memsw.limit_in_bytes"
fi
printf '%s\n' "$$" >"$qd_group/cgroup.procs" || qd_no "$qd_group cannot be joined"
exec "$@"
