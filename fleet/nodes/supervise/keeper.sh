# The keeper of one service: starts it, waits for it, writes down how it ended, bounds its log.
# Runs from a file in the service's folder, detached; says on stdout how the start went, then nothing
# more. Were it killed, the service would go on all the same.
# LOG_LIMIT SECONDS DEAF REST CWD PAIRS NAME VALUE ... PROGRAM ARGUMENT ...
qd_umask=$(umask)     # for what the service itself writes
umask 077
trap '' HUP INT QUIT
# A head that loses a worker aborts: a core as large as its model would fill the disk.
ulimit -c 0 2>/dev/null || :
qd_here=${0%/*}
qd_limit=$1 qd_every=$2 qd_deaf=$3 qd_rest=$4 qd_cwd=$5 qd_pairs=$6
shift 6

qd_bound_log() {
    IFS=' ' read -r _ _ _ _ qd_size _ <<QD_END
$(LC_ALL=C ls -ln log 2>/dev/null)
QD_END
    if [ "${qd_size:-0}" -gt "$qd_limit" ]; then
        # Who writes, appends: after the cut the next line lands at the beginning.
        if tail -c "$((qd_limit / 2))" log >log.1.new; then mv -f log.1.new log.1; else rm -f log.1.new; fi
        : >log
    fi
}

qd_write_pid() {
    qd_pid_json=$(printf '{"pid":%s,"start_time":"%s","started_epoch":%s,%s' "$qd_child" "$qd_child_start" "$(date +%s)" "$qd_rest")
    qd_text=''
    printf '%s\n' "$qd_pid_json" >pid.json.new && qd_read_line pid.json.new &&
        [ "$qd_text" = "$qd_pid_json" ] && mv -f pid.json.new pid.json
}

if ! cd "$qd_here"; then
    printf 'cannot folder %s\n' "$qd_here"
    exit 1
fi
# Room for the exit status, taken now: the disk may be full when it is needed.
if ! printf '%-7s\n' '' >exit.new || [ ! -s exit.new ] || ! : >>log; then
    printf 'cannot write the log\n'
    exit 1
fi
qd_find_session || {
    printf 'cannot session\n'
    exit 1
}
(
    umask "$qd_umask"
    if [ -n "$qd_cwd" ]; then cd "$qd_cwd" || exit 126; fi
    while [ "$qd_pairs" -gt 0 ]; do
        export "$1=$2"
        shift 2
        qd_pairs=$((qd_pairs - 1))
    done
    if [ -n "$qd_deaf" ]; then
        # A client that goes away must not kill a worker by SIGPIPE.
        trap '' PIPE
        if [ "$qd_by" = python3 ]; then
            QD_DEAF=1
            export QD_DEAF
        fi
    fi
    qd_lead "$@"
) </dev/null >>log 2>&1 &
qd_child=$!
if qd_look "$qd_child"; then qd_child_start=$qd_start; else qd_child_start=gone; fi
if ! qd_write_pid; then
    # Not waited for yet, so this pid is still our child's and nobody else's.
    kill -KILL "-$qd_child" 2>/dev/null || kill -KILL "$qd_child" 2>/dev/null
    wait "$qd_child"
    rm -f pid.json.new
    printf 'cannot write pid.json\n'
    exit 1
fi
printf 'started %s %s\n' "$qd_child" "$qd_child_start"
exec >/dev/null 2>&1
(
    trap '[ "$!" = "$qd_child" ] || kill "$!"; exit 0' TERM
    while :; do
        sleep "$qd_every" &
        wait "$!"
        qd_is_alive "$qd_child" "$qd_child_start" || exit 0
        qd_bound_log
    done
) &
qd_helper=$!
{
    qd_look $$ && printf 'keeper %s %s\n' $$ "$qd_start"
    qd_look "$qd_helper" && printf 'helper %s %s\n' "$qd_helper" "$qd_start"
} >keeper
wait "$qd_child"
qd_status=$?
{ printf '%-7s\n' "$qd_status" 1<>exit.new && mv -f exit.new exit; } || printf '%s\n' "$qd_status" >exit
kill -s TERM "$qd_helper"
wait "$qd_helper"
rm -f keeper
