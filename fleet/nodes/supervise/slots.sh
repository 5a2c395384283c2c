# Where heads keep the contents of their slots over a swap: SETTING there MODEL tells the folder and how old the model
# is; SETTING keep KEY ... takes away every file that is of none of the keys.
if [ "$2" = keep ]; then
    qd_find_state_folder "$1" || exit 0
    [ -d "$qd_folder/slots" ] && [ ! -h "$qd_folder/slots" ] || exit 0
    shift 2
    for qd_file in "$qd_folder/slots"/*; do
        case " $* " in
            *" $(qd_base=${qd_file##*/}; printf '%s' "${qd_base%%-*}") "*) ;;
            *) rm -f "$qd_file" ;;
        esac
    done
    exit 0
fi
qd_make_state_folder "$1" || exit 0
if [ -h "$qd_folder/slots" ]; then
    qd_cannot write "$qd_folder/slots is a symbolic link"
    exit 0
fi
if qd_said=$( {
    umask 077
    mkdir -p "$qd_folder/slots" && chmod 700 "$qd_folder/slots"
} 2>&1); then
    printf 'slots %s\n' "$qd_folder/slots"
    qd_space "$qd_folder/slots"
    printf 'changed %s\n' "$(stat -L -c %Y "$3" 2>/dev/null || stat -L -f %m "$3" 2>/dev/null)"
    printf 'kept %s\n' "$(ls -t "$qd_folder/slots" | head -n 64 | tr '\n' ' ')"
else
    qd_cannot write "$qd_said"
fi
