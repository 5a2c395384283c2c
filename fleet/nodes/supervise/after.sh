# After an end: the keeper is gone, the status is known, the port is free.
# SETTING ID PORT   (ID '' for a process that was no service of ours)
if [ -n "$2" ] && qd_is_id "$2" && qd_find_state_folder "$1"; then
    qd_here=$qd_folder/services/$2
    if [ -d "$qd_here" ] && [ ! -h "$qd_here" ]; then
        qd_end_keeper "$qd_here"
        rm -f "$qd_here"/*.new
        if qd_read_line "$qd_here/exit"; then printf 'exit %s\n' "$qd_text"; fi
    fi
fi
if [ "$3" -gt 0 ]; then
    qd_waited=0
    while qd_listening "$3" && [ "$qd_waited" -lt 20 ]; do
        qd_tick
    done
    qd_listeners "$3"
fi
printf 'done\n'
