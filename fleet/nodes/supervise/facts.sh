# Prints facts.json and pid.json of one service as they stand: SETTING ID
qd_find_state_folder "$1" || exit 0
qd_is_id "$2" || exit 0
qd_here=$qd_folder/services/$2
if [ -h "$qd_here" ] || [ ! -f "$qd_here/pid.json" ]; then exit 0; fi
for qd_each in pid facts; do
    qd_read_line "$qd_here/$qd_each.json" || :
    printf '%s|%s\n' "$qd_each" "$qd_text"
done
