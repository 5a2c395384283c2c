# What a node has for a model that is to come or to go out: SETTING COUNT FOLDER ... NAME ...
# Of COUNT folders the first that can be written is taken, or made later. With 0 folders the names are paths.
qd_setting=$1 qd_count=$2
shift 2
qd_find_state_folder "$qd_setting" || :
printf 'state|%s\n' "${qd_folder-}"

PATH=$PATH:/usr/local/bin:/opt/homebrew/bin:/opt/local/bin
qd_python=$(command -v python3) || qd_python=''
# Without its developer tools, macOS's own opens a window that asks to install them: not run.
if [ "$qd_python" = /usr/bin/python3 ] && [ "$(uname -s)" = Darwin ]; then
    xcode-select -p >/dev/null 2>&1 || qd_python=''
fi
if [ -n "$qd_python" ]; then
    qd_version=$("$qd_python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null) || qd_version=''
    printf 'python|%s\nversion|%s\n' "$qd_python" "$qd_version"
fi
for qd_tool in sha256sum shasum sha256 openssl; do
    if command -v "$qd_tool" >/dev/null 2>&1; then
        printf 'tool|%s\n' "$qd_tool"
        break
    fi
done

qd_there='' qd_new=''
while [ "$qd_count" -gt 0 ]; do
    qd_count=$((qd_count - 1))
    qd_try=$1
    shift
    case $qd_try in
    '~') qd_try=${HOME-} ;;
    '~/'*) qd_try=${HOME-}/${qd_try#'~/'} ;;
    esac
    case $qd_try in /*) ;; *) continue ;; esac
    if [ -d "$qd_try" ]; then
        if [ -z "$qd_there" ] && [ -w "$qd_try" ] && [ -x "$qd_try" ]; then qd_there=$qd_try; fi
    elif [ -z "$qd_new" ] && [ ! -e "$qd_try" ]; then
        qd_above=$qd_try
        while [ ! -e "$qd_above" ]; do
            qd_above=${qd_above%/*}
            qd_above=${qd_above:-/}
        done
        if [ -d "$qd_above" ] && [ -w "$qd_above" ] && [ -x "$qd_above" ]; then qd_new=$qd_try; fi
    fi
done
qd_there=${qd_there:-$qd_new}
if [ -n "$qd_there" ]; then
    printf 'folder|%s\n' "$qd_there"
    qd_space "$qd_there"
fi

qd_file() {
    if [ -f "$1" ] && [ -r "$1" ]; then
        IFS=' ' read -r _ _ _ _ qd_size _ <<QD_END
$(LC_ALL=C ls -lnL "$1" 2>/dev/null)
QD_END
        IFS='	 ' read -r qd_blocks _ <<QD_END
$(LC_ALL=C du -kL "$1" 2>/dev/null)
QD_END
        printf 'file|%s %s %s\n' "$qd_size" "$qd_blocks" "$1"
    fi
}
for qd_name in "$@"; do
    case $qd_name in
    /*) qd_file "$qd_name" ;;
    *)
        if [ -n "$qd_there" ]; then
            qd_file "$qd_there/$qd_name"
            qd_file "$qd_there/$qd_name.part"
        fi
        ;;
    esac
done
printf 'looked\n'
