# One rung of the ladder: a signal, then up to TICKS looks whether it helped.
# service SETTING ID SIGNAL TICKS  |  process PID START SIGNAL TICKS
# (busybox's kill knows no --, so signal and group are given the old way.)
# Nothing is signalled before pid and start time match, here and now.
qd_here=''
if [ "$1" = service ]; then
    qd_find_state_folder "$2" || :
    if [ -z "$qd_folder" ] || ! qd_is_id "$3"; then
        printf 'gone none\n'
        exit 0
    fi
    qd_here=$qd_folder/services/$3
    if [ -h "$qd_here" ] || [ ! -d "$qd_here" ]; then
        printf 'gone none\n'
        exit 0
    fi
    if ! qd_read_line "$qd_here/pid.json" || ! qd_identity "$qd_text"; then
        printf 'gone unreadable\n'
        exit 0
    fi
    printf 'pid|%s\n' "$qd_text"
else
    qd_pid=$2 qd_pid_start=$3
fi
if ! qd_is_alive "$qd_pid" "$qd_pid_start"; then
    printf 'gone %s\n' "$qd_verdict"
    exit 0
fi
if [ -n "$qd_here" ]; then
    umask 077
    : 2>/dev/null >"$qd_here/stopping" || :
fi
if [ -n "$qd_rss_pages" ]; then
    printf 'rss %s\n' "$((qd_rss_pages * ($(getconf PAGESIZE 2>/dev/null || printf 4096) / 1024)))"
else
    printf 'rss %s\n' "$(ps -o rss= -p "$qd_pid" 2>/dev/null)"
fi
qd_target=$qd_pid
[ "$qd_group" != "$qd_pid" ] || qd_target=-$qd_pid
if ! kill "-$4" "$qd_target" 2>/dev/null && qd_is_alive "$qd_pid" "$qd_pid_start"; then
    printf 'refused %s\n' "$(ps -o user= -p "$qd_pid" 2>/dev/null)"
    exit 0
fi
# One that was stopped by a signal does not hear TERM before it goes on.
[ "$4" != TERM ] || kill -CONT "$qd_target" 2>/dev/null || :
qd_waited=0
while qd_is_alive "$qd_pid" "$qd_pid_start"; do
    if [ "$qd_waited" -ge "$5" ]; then
        printf 'still %s\n' "$qd_state"
        exit 0
    fi
    qd_tick
done
# Its children: the group cannot be anybody else's as long as one of them is in it.
if [ "$qd_target" != "$qd_pid" ] && kill -0 "$qd_target" 2>/dev/null; then
    qd_waited=0
    while kill -0 "$qd_target" 2>/dev/null && [ "$qd_waited" -lt 10 ]; do
        qd_tick
    done
    kill -KILL "$qd_target" 2>/dev/null || :
fi
printf 'gone ended\n'
