# What this node can bound memory with, and what speaks against it for these files: FILE...
printf 'uid %s\n' "$(id -u)"
qd_uid=$(id -u)
printf 'system %s\n' "$(uname -s)"
if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null 2>&1; then
    printf 'systemd yes\n'
    if [ -S "/run/user/$qd_uid/systemd/private" ] || [ -S "/run/user/$qd_uid/bus" ]; then printf 'manager yes\n'; fi
    qd_line=''
    { IFS= read -r qd_line <"/sys/fs/cgroup/user.slice/user-$qd_uid.slice/user@$qd_uid.service/cgroup.controllers"; } 2>/dev/null
    case " $qd_line " in *' memory '*) printf 'delegated yes\n' ;; esac
    if [ -e "/var/lib/systemd/linger/$(id -un)" ]; then printf 'linger yes\n'; fi
fi
# Version 2: at the top, since a group that holds processes can hold no groups with limits.
if [ -r /sys/fs/cgroup/cgroup.controllers ]; then
    qd_line=''
    IFS= read -r qd_line </sys/fs/cgroup/cgroup.controllers
    case " $qd_line " in
    *' memory '*) if [ -w /sys/fs/cgroup/cgroup.subtree_control ] && [ -w /sys/fs/cgroup ]; then printf 'second /sys/fs/cgroup\n'; fi ;;
    esac
fi
# Version 1: below the group that we are in, so that what bounds us bounds the head too.
if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ] || [ -e /sys/fs/cgroup/memory/memory.usage_in_bytes ]; then
    qd_own=/
    while IFS= read -r qd_line; do
        case ${qd_line#*:} in memory:* | *,memory:* | memory,*:*) qd_own=${qd_line#*:*:} ;; esac
    done </proc/self/cgroup
    for qd_try in "/sys/fs/cgroup/memory${qd_own%/}" /sys/fs/cgroup/memory; do
        if [ -d "$qd_try" ] && [ -w "$qd_try" ]; then
            printf 'first %s\n' "$qd_try"
            break
        fi
    done
fi
if command -v python3 >/dev/null 2>&1; then printf 'python yes\n'; fi
qd_number=0
for qd_file; do
    qd_owner='' qd_device='' qd_ahead='' qd_setting='' qd_may=r
    IFS=' ' read -r qd_owner qd_device <<QD_END
$(LC_ALL=C stat -L -c '%u %d' "$qd_file" 2>/dev/null)
QD_END
    [ ! -w "$qd_file" ] || qd_may=w
    case $qd_device in
    '' | *[!0123456789]*) ;;
    *)
        qd_major=$(((qd_device >> 8) & 4095)) qd_minor=$(((qd_device & 255) | ((qd_device >> 12) & 1048320)))
        for qd_try in "/sys/dev/block/$qd_major:$qd_minor/queue/read_ahead_kb" "/sys/dev/block/$qd_major:$qd_minor/../queue/read_ahead_kb" "/sys/class/bdi/$qd_major:$qd_minor/read_ahead_kb"; do
            if [ -r "$qd_try" ] && IFS= read -r qd_ahead <"$qd_try"; then
                qd_setting=$(cd -P "${qd_try%/*}" && pwd -P)/read_ahead_kb
                [ -w "$qd_setting" ] || qd_setting="-$qd_setting"
                break
            fi
        done
        ;;
    esac
    printf 'file|%s|%s|%s|%s|%s\n' "$qd_number" "$qd_owner" "$qd_may" "$qd_ahead" "$qd_setting"
    qd_number=$((qd_number + 1))
done
