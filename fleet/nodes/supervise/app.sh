# Keeps a file of our code under its hash's name: SETTING NAME HASH PYTHON look, or ... keep with its bytes on stdin.
# The hash is made by that Python: no tool for it is on every system.
# SETTING BEGINNING remove NAME ...: takes away all whose name begins so, but those named.
case $2 in '' | [.-]* | *[!abcdefghijklmnopqrstuvwxyz0123456789.-]*) exit 0 ;; esac
if [ "$3" = remove ]; then
    qd_find_state_folder "$1" || exit 0
    if [ -d "$qd_folder/apps" ] && [ ! -h "$qd_folder/apps" ]; then
        qd_beginning=$2
        shift 3
        for qd_file in "$qd_folder/apps/$qd_beginning"* "$qd_folder/apps/.$qd_beginning"*; do
            for qd_kept; do
                if [ "$qd_file" = "$qd_folder/apps/$qd_kept" ]; then continue 2; fi
            done
            rm -f "$qd_file"
        done
        rmdir "$qd_folder/apps" 2>/dev/null || :
    fi
    printf 'removed\n'
    exit 0
fi
qd_make_state_folder "$1" || exit 0
qd_apps=$qd_folder/apps
if [ -h "$qd_apps" ]; then
    qd_cannot folder "$qd_apps is a symbolic link"
    exit 0
fi
if [ ! -d "$qd_apps" ] && ! qd_said=$(LC_ALL=C mkdir "$qd_apps" 2>&1) && [ ! -d "$qd_apps" ]; then
    qd_cannot folder "$qd_said"
    exit 0
fi
qd_python=$4
qd_hash() {
    "$qd_python" -I -c 'import hashlib, sys
print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$1" 2>/dev/null </dev/null
}
qd_file=$qd_apps/$2
if [ -f "$qd_file" ] && [ ! -h "$qd_file" ] && [ "$(qd_hash "$qd_file")" = "$3" ]; then
    printf 'app %s\n' "$qd_file"
    exit 0
fi
if [ "$5" = look ]; then
    printf 'absent\n'
    exit 0
fi
# Whoever died half-way left a part behind.
rm -rf "$qd_file"
rm -f "$qd_apps/.$2".*
qd_part=$qd_apps/.$2.$$
if qd_said=$( {
    set -C
    LC_ALL=C cat >"$qd_part"
} 2>&1); then
    if [ "$(qd_hash "$qd_part")" = "$3" ]; then
        if qd_said=$(LC_ALL=C mv -f "$qd_part" "$qd_file" 2>&1); then
            printf 'app %s\n' "$qd_file"
            exit 0
        fi
    else
        qd_said='what arrived is not what was sent'
    fi
fi
rm -f "$qd_part"
qd_cannot write "$qd_said"
