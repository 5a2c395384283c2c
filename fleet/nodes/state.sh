# What is shared by every script that touches the state folder of a node: where it is, who a
# process is, what the folder says. POSIX sh alone (dash, bash, busybox, macOS); functions only, so
# that a script may stand after it. A name that begins with qd_ is ours.

# qd_look PID: one look at a process, without a fork where there is /proc.
# Sets qd_state (ps letter), qd_group, qd_start, qd_rss_pages ('' on macOS); fails when there is no such process.
# qd_start is equal for one life of a pid on one boot and holds none but [A-Za-z0-9:._-].
qd_look() {
    qd_state='' qd_group='' qd_start='' qd_rss_pages=''
    case $1 in '' | *[!0123456789]* | 0* | ???????????*) return 1 ;; esac
    if [ -r /proc/self/stat ]; then
        [ -r "/proc/$1/stat" ] || return 1
        qd_stat=''
        # A program may put a newline into its own name: read on to the end.
        { while IFS= read -r qd_line || [ -n "$qd_line" ]; do qd_stat="$qd_stat$qd_line "; done <"/proc/$1/stat"; } 2>/dev/null
        # ... and parentheses: what counts stands after the last one.
        qd_stat=${qd_stat##*') '}
        IFS=' ' read -r qd_state _ qd_group _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ qd_ticks _ qd_rss_pages _ <<QD_END
$qd_stat
QD_END
        case $qd_ticks in '' | *[!0123456789]*) return 1 ;; esac
        if [ -z "${qd_boot-}" ]; then
            qd_boot=unknown
            [ ! -r /proc/sys/kernel/random/boot_id ] || IFS= read -r qd_boot </proc/sys/kernel/random/boot_id
        fi
        qd_start=$qd_boot:$qd_ticks
    else
        # Fixed language and zone: the text has to be equal whoever asks. One -o each: BSD's ps takes all
        # that follows a "=" as the title of that column.
        qd_line=$(LC_ALL=C TZ=UTC0 ps -o state= -o pgid= -o lstart= -p "$1" 2>/dev/null) || return 1
        IFS=' ' read -r qd_state qd_group qd_start <<QD_END
$qd_line
QD_END
        [ -n "$qd_start" ] || return 1
        if [ -z "${qd_boot-}" ]; then
            qd_boot=$(sysctl -n kern.bootsessionuuid 2>/dev/null) || qd_boot=''
            qd_boot=${qd_boot:-unknown}
        fi
        # "Thu Nov 30 22:00:00 2023" becomes Thu-Nov-30-22:00:00-2023
        IFS=' ' read -r qd_a qd_b qd_c qd_d qd_e _ <<QD_END
$qd_start
QD_END
        qd_start=$qd_boot:$qd_a-$qd_b-$qd_c-$qd_d-$qd_e
    fi
}

# qd_start_time PID: prints the start time, or nothing.
qd_start_time() {
    if qd_look "$1"; then printf '%s\n' "$qd_start"; fi
}

# qd_is_alive PID START: this very process exists and is no zombie. Sets qd_verdict: alive, zombie, recycled, dead.
qd_is_alive() {
    qd_verdict=dead
    qd_look "$1" || return 1
    if [ "$qd_start" != "$2" ]; then
        qd_verdict=recycled
        return 1
    fi
    case $qd_state in
    Z* | X* | x*)
        qd_verdict=zombie
        return 1
        ;;
    esac
    qd_verdict=alive
}

# qd_usable FOLDER [strict]: may we keep our state there? Sets qd_why when not. Creates nothing.
# The folder itself may be no symbolic link, has to be ours, and nobody else may write in it.
qd_usable() {
    qd_why=''
    case $1 in
    *'
'*) qd_why='has a line break in its name' ;;
    /*) ;;
    *) qd_why='is no absolute path' ;;
    esac
    [ -z "$qd_why" ] || return 1
    if [ -h "$1" ] || [ -h "$1/services" ]; then
        qd_why='is a symbolic link'
    elif [ -e "$1" ]; then
        IFS=' ' read -r qd_mode _ qd_owner _ <<QD_END
$(LC_ALL=C ls -ldn "$1" 2>/dev/null)
QD_END
        if [ ! -d "$1" ]; then
            qd_why='is no folder'
        elif [ "$qd_owner" != "$qd_uid" ]; then
            qd_why='belongs to another user'
        elif [ ! -w "$1" ] || [ ! -x "$1" ]; then
            qd_why='cannot be written'
        else
            case ${2-}$qd_mode in
            strictdrwx------*) ;;
            strict*) qd_why='can be read by others' ;;
            d????w* | d???????w*) qd_why='can be written by others' ;;
            esac
        fi
    else
        qd_above=$1
        while [ ! -e "$qd_above" ]; do
            qd_above=${qd_above%/*}
            qd_above=${qd_above:-/}
        done
        if [ ! -d "$qd_above" ] || [ ! -w "$qd_above" ] || [ ! -x "$qd_above" ]; then
            qd_why='cannot be made'
        fi
    fi
    [ -z "$qd_why" ]
}

# qd_has_services FOLDER: any service folder in it?
qd_has_services() {
    for qd_file in "$1"/services/*/pid.json; do
        if [ -f "$qd_file" ]; then return 0; fi
    done
    return 1
}

# qd_find_state_folder SETTING: sets qd_folder, and qd_refused to one line for each better place that
# would not do. The first usable place wins; a later one that holds services wins over an earlier one
# that holds none (the home was read-only when they were started), but not one that the setting lies in:
# whoever keeps apart from the usual folder, as the demo does, is not to meet its services. Creates nothing.
qd_find_state_folder() {
    qd_folder='' qd_refused='' qd_setting=${1-}
    qd_uid=$(id -u)
    case $qd_setting in
    '~') qd_setting=${HOME-} ;;
    '~/'*) qd_setting=${HOME-}/${qd_setting#'~/'} ;;
    esac
    qd_usual=${XDG_STATE_HOME-}
    case $qd_usual in
    /*) ;;
    *) qd_usual=${HOME:+$HOME/.local/state} ;;
    esac
    for qd_try in "$qd_setting" "${qd_usual:+$qd_usual/quarterdeck}" "/tmp/quarterdeck-$qd_uid"; do
        [ -n "$qd_try" ] || continue
        qd_strict=''
        case $qd_try in "/tmp/quarterdeck-$qd_uid") qd_strict=strict ;; esac
        if ! qd_usable "$qd_try" $qd_strict; then
            [ -n "$qd_folder" ] || qd_refused="$qd_refused$qd_try $qd_why
"
        elif [ -z "$qd_folder" ]; then
            qd_folder=$qd_try
            if qd_has_services "$qd_folder"; then break; fi
        elif case $qd_setting in "$qd_try"/*) true ;; *) false ;; esac; then
            continue
        elif qd_has_services "$qd_try"; then
            qd_folder=$qd_try
            break
        fi
    done
    [ -n "$qd_folder" ] || return 1
    # A home that several machines share: the first one has the folder itself, each other one its own corner.
    if [ -f "$qd_folder/host" ]; then
        IFS=' ' read -r qd_host_name qd_host_id _ <"$qd_folder/host"
        qd_this_host
        if [ -n "$qd_host_name" ] && [ "$qd_host_name" != "$qd_name" ] && [ "$qd_host_id" != "$qd_id" ]; then
            qd_folder=$qd_folder/hosts/$qd_name
        fi
    fi
}

# qd_this_host: sets qd_name (safe as a file name) and qd_id of this machine.
qd_this_host() {
    qd_name=$(uname -n)
    case $qd_name in
    '' | .* | *[!abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-]*) qd_name=unnamed ;;
    esac
    qd_id=$qd_name
    [ ! -r /etc/machine-id ] || IFS= read -r qd_id </etc/machine-id
    qd_id=${qd_id:-$qd_name}
}

# qd_state_folder SETTING: prints the folder, or nothing when there is no place to write.
qd_state_folder() {
    if qd_find_state_folder "${1-}"; then printf '%s\n' "$qd_folder"; fi
}

# qd_is_id NAME: may this be the id of a service (and so the name of a folder)?
qd_is_id() {
    case $1 in
    '' | -* | *[!abcdefghijklmnopqrstuvwxyz0123456789-]*) return 1 ;;
    esac
    [ "${#1}" -le 64 ]
}

# qd_read_line FILE: sets qd_text to the first line of a regular file; '' when there is none.
qd_read_line() {
    qd_text=''
    if [ -f "$1" ] && [ ! -h "$1" ] && [ -r "$1" ]; then
        IFS= read -r qd_text <"$1" || [ -n "$qd_text" ]
    fi
}

# qd_identity LINE: sets qd_pid and qd_pid_start from the first line of a pid.json as we write it;
# fails for anything else, so that nobody else's file ever names a process to us.
qd_identity() {
    qd_pid='' qd_pid_start=''
    case $1 in '{"pid":'*,'"start_time":"'*'",'*) ;; *) return 1 ;; esac
    qd_pid=${1#'{"pid":'}
    qd_pid_start=${qd_pid#*,'"start_time":"'}
    qd_pid=${qd_pid%%,*}
    qd_pid_start=${qd_pid_start%%'"'*}
    case $qd_pid in '' | *[!0123456789]* | 0* | 1 | ???????????*) return 1 ;; esac
    case $qd_pid_start in
    '' | *[!abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:._-]*) return 1 ;;
    esac
}

# qd_list_service FOLDER ID: the lines of one service.
qd_list_service() {
    qd_here=$1/services/$2
    printf 'service %s\n' "$2"
    qd_pid_size=0 qd_facts_size=0 qd_exit_size=0
    # -L: the log of an adopted process is a link to its own.
    while IFS=' ' read -r qd_mode _ _ _ qd_size _ _ _ qd_file; do
        case $qd_mode:$qd_file in
        -*:pid.json) qd_pid_size=$qd_size ;;
        -*:facts.json) qd_facts_size=$qd_size ;;
        -*:exit) qd_exit_size=$qd_size ;;
        -*:stopping) printf 'stopping\n' ;;
        -*:log) printf 'log %s\n' "$qd_size" ;;
        esac
    done <<QD_END
$(LC_ALL=C ls -lnL "$qd_here" 2>/dev/null)
QD_END
    if [ ! -e "$qd_here/pid.json" ]; then
        printf 'state empty\n'
        return
    fi
    if [ "$qd_pid_size" -gt 65536 ] || ! qd_read_line "$qd_here/pid.json" || ! qd_identity "$qd_text"; then
        printf 'state torn\n'
        return
    fi
    printf 'pid|%s\n' "$qd_text"
    qd_is_alive "$qd_pid" "$qd_pid_start" || :
    printf 'state %s\n' "$qd_verdict"
    # A probe looks for the sockets of those that it was not told of, too.
    if [ "$qd_verdict" = alive ]; then
        case " ${qd_owner_pids-} " in *" $qd_pid "*) ;; *) qd_owner_pids="${qd_owner_pids-} $qd_pid" qd_news=yes ;; esac
    fi
    if [ "$qd_exit_size" -gt 0 ] && [ "$qd_exit_size" -le 8 ] && qd_read_line "$qd_here/exit"; then
        printf 'exit %s\n' "$qd_text"
    fi
    if [ "$qd_facts_size" -gt 0 ] && [ "$qd_facts_size" -le 65536 ] && qd_read_line "$qd_here/facts.json"; then
        printf 'facts|%s\n' "$qd_text"
    fi
}

# qd_list_services FOLDER: prints what the folder says of its services, for records.parse_services.
# What a file holds stands behind "pid|" or "facts|" on one line and so can never pose as anything else.
qd_list_services() {
    printf 'qd-services 1 %s\n' "${1-}"
    if [ -n "${qd_refused-}" ]; then
        while IFS= read -r qd_line; do
            [ -z "$qd_line" ] || printf 'refused|%s\n' "$qd_line"
        done <<QD_END
$qd_refused
QD_END
    fi
    qd_count=0
    if [ -n "${1-}" ] && [ -d "$1/services" ] && [ ! -h "$1/services" ]; then
        for qd_each in "$1"/services/*; do
            if [ ! -e "$qd_each" ] && [ ! -h "$qd_each" ]; then continue; fi
            qd_count=$((qd_count + 1))
            if [ "$qd_count" -gt 64 ]; then
                printf 'more\n'
                break
            fi
            if qd_is_id "${qd_each##*/}" && [ ! -h "$qd_each" ] && [ -d "$qd_each" ]; then
                qd_list_service "$1" "${qd_each##*/}"
            else
                printf 'odd\n'
            fi
        done
    fi
    printf 'qd-services-end\n'
}
