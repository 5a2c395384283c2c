# Keeps what is on stdin as swarm/NAME of the state folder when that is what it says it is.
# SETTING NAME SHA256 PYTHON PUT: without PUT, only says what is there.
qd_make_state_folder "$1" || exit 0
case $2 in '' | .* | */*) exit 0 ;; esac
qd_here=$qd_folder/swarm
if [ -h "$qd_here" ]; then
    qd_cannot folder "$qd_here is a symbolic link"
    exit 0
fi
if [ ! -d "$qd_here" ] && ! qd_said=$(LC_ALL=C mkdir "$qd_here" 2>&1); then
    qd_cannot folder "$qd_said"
    exit 0
fi
qd_digest() {
    "$qd_python" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$1" </dev/null
}
qd_file=$qd_here/$2 qd_wanted=$3 qd_python=$4
if [ -z "${5-}" ]; then
    if [ -f "$qd_file" ] && [ ! -h "$qd_file" ] && [ "$(qd_digest "$qd_file")" = "$qd_wanted" ]; then
        printf 'kept|%s\n' "$qd_file"
    else
        printf 'wanted|%s\n' "$qd_file"
    fi
    exit 0
fi
qd_new=$qd_file.$$
rm -f "$qd_new"
if ! qd_said=$( {
    set -C
    LC_ALL=C cat >"$qd_new"
} 2>&1); then
    rm -f "$qd_new"
    qd_cannot write "$qd_said"
elif [ "$(qd_digest "$qd_new")" != "$qd_wanted" ]; then
    rm -f "$qd_new"
    printf 'differs|%s\n' "$qd_file"
elif mv -f "$qd_new" "$qd_file"; then
    printf 'kept|%s\n' "$qd_file"
fi
