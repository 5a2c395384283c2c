# Puts back what a bounded head changed: GROUP (or "") and then SETTING NOW WAS, of each readahead that was lowered.
qd_group=$1
shift
case $qd_group in
*/../* | */./*) ;;
/sys/fs/cgroup/*quarterdeck-*)
    # What it has in the page cache would stay there, free for whoever comes next.
    if [ -w "$qd_group/memory.force_empty" ]; then printf '0\n' 2>/dev/null >"$qd_group/memory.force_empty" || :; fi
    qd_tries=0
    while [ -d "$qd_group" ] && ! rmdir "$qd_group" 2>/dev/null && [ "$qd_tries" -lt 20 ]; do
        qd_tries=$((qd_tries + 1))
        sleep 0.1 2>/dev/null || sleep 1
    done
    if [ -d "$qd_group" ]; then printf 'kept %s\n' "$qd_group"; else printf 'removed %s\n' "$qd_group"; fi
    ;;
esac
while [ "$#" -ge 3 ]; do
    case $1 in
    */../* | */./*) ;;
    /sys/*/read_ahead_kb)
        qd_now=''
        { IFS= read -r qd_now <"$1"; } 2>/dev/null
        # Somebody else's setting by now is left alone.
        if [ "$qd_now" = "$2" ] && printf '%s\n' "$3" 2>/dev/null >"$1"; then printf 'readahead %s\n' "$3"; fi
        ;;
    esac
    shift 3
done
