# A piece of a log: SETTING ID OFFSET LIMIT   (OFFSET '' = the end of it)
# Says "log SIZE START" on one line; the bytes follow.
qd_find_state_folder "$1" || exit 0
qd_is_id "$2" || exit 0
qd_here=$qd_folder/services/$2
if [ -h "$qd_here" ] || [ ! -d "$qd_here" ]; then
    printf 'missing service\n'
    exit 0
fi
if [ ! -f "$qd_here/log" ] || [ ! -r "$qd_here/log" ]; then
    printf 'missing log\n'
    exit 0
fi
IFS=' ' read -r _ _ _ _ qd_size _ <<QD_END
$(LC_ALL=C ls -lnL "$qd_here/log")
QD_END
qd_from=$3
if [ -z "$qd_from" ]; then
    qd_from=$((qd_size - $4))
    [ "$qd_from" -ge 0 ] || qd_from=0
elif [ "$qd_from" -gt "$qd_size" ]; then
    qd_from=0
fi
printf 'log %s %s\n' "$qd_size" "$qd_from"
tail -c "+$((qd_from + 1))" "$qd_here/log" 2>/dev/null | head -c "$4"
