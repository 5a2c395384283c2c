# One at a time, for a while, by the node's own clock.
# SETTING NAME OWNER TTL  |  SETTING NAME OWNER release
# The file's line: EXPIRY OWNER
qd_is_id "$2" || exit 0
if [ "$4" = release ]; then
    qd_find_state_folder "$1" || exit 0
    qd_file=$qd_folder/leases/$2
    qd_read_line "$qd_file" || :
    if [ "${qd_text#* }" = "$3" ]; then rm -f "$qd_file"; fi
    printf 'released\n'
    exit 0
fi
qd_make_state_folder "$1" || exit 0
qd_file=$qd_folder/leases/$2
qd_now=$(date +%s)
qd_tries=0
while [ "$qd_tries" -lt 3 ]; do
    qd_tries=$((qd_tries + 1))
    if qd_take "$qd_file" "$((qd_now + $4)) $3"; then
        printf 'taken\n'
        exit 0
    fi
    [ -n "$qd_written" ] || break
    if [ ! -e "$qd_file" ]; then continue; fi
    qd_read_line "$qd_file" || :
    qd_until=${qd_text%% *}
    case $qd_until in '' | *[!0123456789]* | ????????????*) qd_until=0 ;; esac
    if [ "${qd_text#* }" = "$3" ] && [ "$qd_until" -gt "$qd_now" ]; then
        # Ours, renewed in one step: nobody finds it missing.
        if printf '%s\n' "$((qd_now + $4)) $3" >"$qd_file.$$" && [ -s "$qd_file.$$" ] && mv -f "$qd_file.$$" "$qd_file"; then
            printf 'taken\n'
            exit 0
        fi
        rm -f "$qd_file.$$"
        qd_written=''
        break
    elif [ "$qd_until" -gt "$qd_now" ]; then
        printf 'held %s %s\n' "$((qd_until - qd_now))" "${qd_text#* }"
        exit 0
    fi
    qd_before=${qd_text#* }
    if [ "$qd_before" = "$3" ]; then qd_before=''; fi
    if qd_take_over "$qd_file" "$qd_text" "$((qd_now + $4)) $3"; then
        printf 'over %s\n' "$qd_before"
        exit 0
    fi
done
if [ -n "$qd_written" ]; then printf 'held 0 \n'; else qd_cannot write; fi
