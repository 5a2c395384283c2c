# Starts one service; the text of its keeper is on stdin.
# SETTING ID FACTS PORT TICKS
qd_make_state_folder "$1" || exit 0
qd_is_id "$2" || exit 0
qd_here=$qd_folder/services/$2
if ! qd_lock "service-$2"; then
    printf 'busy\n'
    exit 0
fi
qd_old=''
if [ -h "$qd_here" ]; then
    qd_cannot folder "$qd_here is a symbolic link"
    exit 0
elif [ -e "$qd_here" ]; then
    qd_verdict=unreadable
    if qd_read_line "$qd_here/pid.json" && qd_identity "$qd_text"; then
        if qd_is_alive "$qd_pid" "$qd_pid_start"; then
            printf 'running %s\n' "$qd_pid"
            exit 0
        fi
    fi
    [ ! -e "$qd_here/pid.json" ] || printf 'stale %s %s\n' "$qd_verdict" "$qd_pid"
    qd_end_keeper "$qd_here"
    qd_old=$qd_folder/services/.old-$2
    rm -rf "$qd_old"
    if ! mv "$qd_here" "$qd_old"; then
        qd_cannot folder "$qd_here cannot be cleared"
        exit 0
    fi
fi
if ! qd_said=$(LC_ALL=C mkdir "$qd_here" 2>&1); then
    qd_cannot folder "$qd_said"
    exit 0
fi
if [ -n "$qd_old" ]; then
    # What the last life said stays readable.
    if [ -f "$qd_old/log" ] && [ ! -h "$qd_old/log" ]; then mv -f "$qd_old/log" "$qd_here/log.1" || :; fi
    rm -rf "$qd_old"
fi
if ! qd_said=$( { LC_ALL=C cat >"$qd_here/keeper.sh" && printf '%s\n' "$3" >"$qd_here/facts.json" && [ -s "$qd_here/facts.json" ]; } 2>&1); then
    qd_cannot write "$qd_said"
    rm -rf "$qd_here"
    exit 0
fi
if ! qd_find_session; then
    qd_cannot session
    rm -rf "$qd_here"
    exit 0
fi
# The pipe ends when the keeper has said how it went: nothing to poll for.
qd_answer=$( (umask "$qd_umask" && qd_lead /bin/sh "$qd_here/keeper.sh") </dev/null 2>/dev/null &)
case $qd_answer in
'started '*) ;;
*)
    qd_cannot "${qd_answer#cannot }"
    rm -rf "$qd_here"
    exit 0
    ;;
esac
IFS=' ' read -r _ qd_child qd_child_start <<QD_END
$qd_answer
QD_END
qd_waited=0
while [ "$qd_waited" -lt "$5" ]; do
    qd_is_alive "$qd_child" "$qd_child_start" || break
    if [ "$4" -gt 0 ] && qd_has_port "$qd_child" "$4"; then break; fi
    qd_tick
done
if ! qd_is_alive "$qd_child" "$qd_child_start"; then
    qd_waited=0
    while [ ! -s "$qd_here/exit" ] && [ "$qd_waited" -lt 20 ]; do
        qd_tick
    done
    qd_read_line "$qd_here/exit" || :
    printf 'ended %s\n' "$qd_text"
    qd_list_one "$qd_folder" "$2"
    if [ "$4" -gt 0 ]; then qd_listeners "$4"; fi
    printf 'log\n'
    tail -c 8192 "$qd_here/log" 2>/dev/null || :
    exit 0
fi
printf 'up\n'
qd_list_one "$qd_folder" "$2"
