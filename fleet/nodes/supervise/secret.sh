# Keeps what is on stdin in a file that nobody else can read: SETTING NAME, or SETTING NAME remove.
if [ "${3-}" = remove ]; then
    qd_find_state_folder "$1" || exit 0
    if qd_is_id "$2" && [ ! -h "$qd_folder/secrets" ]; then rm -f "$qd_folder/secrets/$2"; fi
    exit 0
fi
qd_make_state_folder "$1" || exit 0
qd_is_id "$2" || exit 0
qd_file=$qd_folder/secrets/$2
rm -f "$qd_file.$$"
if qd_said=$( {
    set -C
    LC_ALL=C cat >"$qd_file.$$"
} 2>&1) && mv -f "$qd_file.$$" "$qd_file"; then
    printf 'secret %s\n' "$qd_file"
else
    rm -f "$qd_file.$$"
    qd_cannot write "$qd_said"
fi
