# Writes the pid file of a process that somebody else started.
# SETTING ID PID START REST FACTS
qd_make_state_folder "$1" || exit 0
qd_is_id "$2" || exit 0
qd_here=$qd_folder/services/$2
if ! qd_lock "service-$2"; then
    printf 'busy\n'
    exit 0
fi
if ! qd_is_alive "$3" "$4"; then
    printf 'gone %s\n' "$qd_verdict"
    exit 0
fi
if [ -h "$qd_here" ]; then
    qd_cannot folder "$qd_here is a symbolic link"
    exit 0
fi
if qd_read_line "$qd_here/pid.json" && qd_identity "$qd_text" && qd_is_alive "$qd_pid" "$qd_pid_start"; then
    printf 'running %s\n' "$qd_pid"
    exit 0
fi
if [ -e "$qd_here" ]; then qd_end_keeper "$qd_here"; fi
rm -rf "$qd_here"
if ! qd_said=$(LC_ALL=C mkdir "$qd_here" 2>&1); then
    qd_cannot folder "$qd_said"
    exit 0
fi
# Its own log, where its output goes to a file; of another user's process none, for what that names is read as us.
if [ -d "/proc/$3" ]; then
    IFS=' ' read -r _ _ qd_owner _ <<QD_END
$(LC_ALL=C ls -ldn "/proc/$3" 2>/dev/null)
QD_END
else
    qd_owner=$(ps -o uid= -p "$3" 2>/dev/null | tr -d ' ')
fi
qd_log=''
if [ "$qd_owner" != "$qd_uid" ]; then
    :
elif [ -d "/proc/$3/fd" ]; then
    qd_log=$(readlink "/proc/$3/fd/1" 2>/dev/null)
else
    qd_log=$(LC_ALL=C lsof -a -p "$3" -d 1 -Fn 2>/dev/null | sed -n 's/^n//p' | sed 1q)
fi
case $qd_log in
/dev/* | /proc/*) ;;
/*) if [ -f "$qd_log" ] && [ -r "$qd_log" ]; then ln -s "$qd_log" "$qd_here/log"; fi ;;
esac
if printf '%s\n' "$6" >"$qd_here/facts.json" && [ -s "$qd_here/facts.json" ] &&
    printf '{"pid":%s,"start_time":"%s","started_epoch":%s,%s\n' "$3" "$4" "$(date +%s)" "$5" >"$qd_here/pid.json.new" &&
    qd_read_line "$qd_here/pid.json.new" && case $qd_text in *'}') ;; *) false ;; esac && mv -f "$qd_here/pid.json.new" "$qd_here/pid.json"; then
    printf 'up\n'
    qd_list_one "$qd_folder" "$2"
else
    qd_cannot write
    rm -rf "$qd_here"
fi
