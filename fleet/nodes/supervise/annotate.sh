# Replaces facts.json, if it is still what the caller has read.
# SETTING ID EXPECTED NEW
qd_find_state_folder "$1" || exit 0
qd_is_id "$2" || exit 0
qd_here=$qd_folder/services/$2
if [ -h "$qd_here" ] || [ ! -f "$qd_here/pid.json" ]; then
    printf 'missing\n'
    exit 0
fi
if ! qd_lock "facts-$2"; then
    printf 'changed\n'
    exit 0
fi
umask 077
qd_read_line "$qd_here/facts.json" || :
if [ "$qd_text" != "$3" ]; then
    printf 'changed\n'
elif qd_said=$( { printf '%s\n' "$4" >"$qd_here/facts.json.new"; } 2>&1) && qd_read_line "$qd_here/facts.json.new" &&
    [ "$qd_text" = "$4" ] && mv -f "$qd_here/facts.json.new" "$qd_here/facts.json"; then
    printf 'written\n'
else
    rm -f "$qd_here/facts.json.new"
    qd_cannot write "$qd_said"
fi
