# The last LINES lines of a log, then whatever is added: SETTING ID LINES
# By size and offset, since tail -F is not the same everywhere. A log that was cut is read from its
# beginning. Every 15 quiet seconds a \001, so that a broken link ends this (the reader drops it).
qd_find_state_folder "$1" || exit 0
qd_is_id "$2" || exit 0
qd_log=$qd_folder/services/$2/log
if [ -h "$qd_folder/services/$2" ]; then exit 0; fi

qd_log_size() {
    qd_size=''
    IFS=' ' read -r _ _ _ _ qd_size _ <<QD_END
$(LC_ALL=C ls -lnL "$qd_log" 2>/dev/null)
QD_END
    [ -n "$qd_size" ]
}

qd_log_size || exit 0
qd_from=$((qd_size > 1048576 ? qd_size - 1048576 : 0))
tail -c "+$((qd_from + 1))" "$qd_log" | head -c "$((qd_size - qd_from))" | tail -n "$3"
qd_at=$qd_size
qd_quiet=0
while :; do
    sleep 0.5 2>/dev/null || sleep 1
    qd_log_size || exit 0
    if [ "$qd_size" -lt "$qd_at" ]; then qd_at=0; fi
    if [ "$qd_size" -gt "$qd_at" ]; then
        tail -c "+$((qd_at + 1))" "$qd_log" | head -c "$((qd_size - qd_at))" || exit 0
        qd_at=$qd_size
        qd_quiet=0
    else
        qd_quiet=$((qd_quiet + 1))
        if [ "$qd_quiet" -ge 30 ]; then
            printf '\001\n' || exit 0
            qd_quiet=0
        fi
    fi
done
