# Which Pythons are here, one a line: "python|VERSION LACKS PATH"; LACKS is a module that is missing from its own
# library (distributions split it), or "-". Then "ours|HASH PATH" for what an installed Quarterdeck runs on.
qd_seen=' '
qd_try() {
    if [ ! -f "$1" ] || [ ! -x "$1" ]; then return 0; fi
    case $qd_seen in *" $1 "*) return 0 ;; esac
    qd_seen="$qd_seen$1 "
    # A python3 of macOS without its developer tools opens a window that asks to install them: not run.
    if [ "$1" = /usr/bin/python3 ] && command -v xcode-select >/dev/null 2>&1 && ! xcode-select -p >/dev/null 2>&1; then
        return 0
    fi
    qd_said=$("$1" -I -c 'import sys
lacks = "-"
try:
    import asyncio, hashlib, http.client, json, logging.config, multiprocessing, ssl, zipimport
except ImportError as error:
    lacks = error.name or "a module"
sys.stdout.write("%d.%d.%d %s" % (sys.version_info[:3] + (lacks.replace(" ", "-"),)))' 2>/dev/null </dev/null | head -c 80)
    [ -z "$qd_said" ] || printf 'python|%s %s\n' "$qd_said" "$1"
}
qd_old_ifs=$IFS
IFS=:
set -f
set -- $PATH /usr/local/bin /opt/homebrew/bin /usr/bin /opt/local/bin "${HOME-}/.local/bin"
set +f
IFS=$qd_old_ifs
for qd_dir in "$@" "${HOME-}"/.local/share/uv/python/*/bin "${HOME-}"/.pyenv/versions/*/bin; do
    case $qd_dir in /*) ;; *) continue ;; esac
    for qd_name in python3 python3.11 python3.12 python3.13 python3.14 python3.15; do
        qd_try "$qd_dir/$qd_name"
    done
done
for qd_dir in "$@"; do
    qd_file=$qd_dir/quarterdeck
    case $qd_file in /*) ;; *) continue ;; esac
    if [ ! -f "$qd_file" ] || [ ! -r "$qd_file" ]; then continue; fi
    IFS= read -r qd_line <"$qd_file" || continue
    case $qd_line in '#!/'*) qd_line=${qd_line#'#!'} ;; *) continue ;; esac
    [ -x "$qd_line" ] || continue
    # -P: never what lies in the working directory.
    qd_said=$("$qd_line" -P -c 'from fleet.proxy.zipapp import own_code
print(own_code())' 2>/dev/null </dev/null | head -c 80)
    [ -z "$qd_said" ] || printf 'ours|%s %s\n' "$qd_said" "$qd_line"
done
printf 'end\n'
