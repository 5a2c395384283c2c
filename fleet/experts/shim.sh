# Has the expert shim on this node: SETTING NAME PROGRAM source|binary|look; its text or its bytes are on stdin.
# Answers "shim PATH", "how WORD", or "none WORD [WHY]".

qd_none() {
    printf 'none %s %s\n' "$1" "$(printf '%s' "${2-}" | tr '\n' ' ' | cut -c 1-300)"
    exit 0
}

# A library that this loader cannot take (another machine's, or on a disk without leave to execute) is said so by the
# loader, which then goes on without it.
qd_loads() {
    qd_said=$(LC_ALL=C LD_PRELOAD="$1" /bin/sh -c : 2>&1) && [ -z "$qd_said" ]
}

[ "$(uname -s)" = Linux ] || qd_none system "$(uname -s)"
case $(uname -m) in x86_64 | aarch64 | arm64 | riscv64 | ppc64le | s390x | loongarch64) ;; *) qd_none machine "$(uname -m)" ;; esac
if [ -n "$3" ]; then
    if command -v ldd >/dev/null 2>&1; then qd_needs=$(LC_ALL=C ldd "$3" 2>&1); else qd_needs=$(LD_TRACE_LOADED_OBJECTS=1 "$3" --version 2>&1); fi
    case $qd_needs in *libggml* | *libllama*) ;; *) qd_none static "$3" ;; esac
fi
qd_make_state_folder "$1" || exit 0
qd_file=$qd_folder/$2
if [ -f "$qd_file" ] && [ ! -h "$qd_file" ] && qd_loads "$qd_file"; then
    printf 'shim %s\nhow there\n' "$qd_file"
    exit 0
fi
qd_new=$qd_folder/$2.$$
trap 'rm -f "$qd_new" "$qd_new.c" "$qd_new.said"' EXIT
case $4 in
source)
    qd_cc=''
    for qd_try in cc gcc clang; do
        if qd_cc=$(command -v "$qd_try" 2>/dev/null); then break; fi
    done
    [ -n "$qd_cc" ] || qd_none compiler
    cat >"$qd_new.c" || { qd_cannot write; exit 0; }
    if ! LC_ALL=C "$qd_cc" -O2 -shared -fPIC -fvisibility=hidden -o "$qd_new" "$qd_new.c" -ldl -lpthread >"$qd_new.said" 2>&1; then
        qd_none build "$qd_cc: $(sed -n '/error/{p;q;}' "$qd_new.said")"
    fi
    qd_how="built ${qd_cc##*/}"
    ;;
binary)
    cat >"$qd_new" || { qd_cannot write; exit 0; }
    qd_how=copied
    ;;
*) qd_none absent ;;
esac
chmod 700 "$qd_new" || :
qd_loads "$qd_new" || qd_none loader "$qd_said"
if mv -f "$qd_new" "$qd_file"; then printf 'shim %s\nhow %s\n' "$qd_file" "$qd_how"; else qd_cannot write; fi
