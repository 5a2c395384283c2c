# Takes away the folders of services that have ended.
# SETTING ID ...   (no ID: all that have ended)
qd_find_state_folder "$1" || exit 0
shift
[ -d "$qd_folder/services" ] && [ ! -h "$qd_folder/services" ] || exit 0
if [ $# -eq 0 ]; then
    rm -rf "$qd_folder"/services/.old-*
    for qd_each in "$qd_folder"/services/*; do set -- "$@" "${qd_each##*/}"; done
fi
for qd_name; do
    qd_here=$qd_folder/services/$qd_name
    if ! qd_is_id "$qd_name" || [ -h "$qd_here" ] || [ ! -d "$qd_here" ]; then continue; fi
    # A disk too full for a lock is one more reason to go on.
    if ! qd_lock "service-$qd_name" && [ -n "$qd_written" ]; then
        printf 'busy %s\n' "$qd_name"
        continue
    fi
    if qd_read_line "$qd_here/pid.json" && qd_identity "$qd_text" && qd_is_alive "$qd_pid" "$qd_pid_start"; then
        printf 'alive %s\n' "$qd_name"
    else
        qd_end_keeper "$qd_here"
        if rm -rf "$qd_here"; then printf 'forgot %s\n' "$qd_name"; else printf 'kept %s\n' "$qd_name"; fi
    fi
    rm -f "$qd_lock_file"
done
