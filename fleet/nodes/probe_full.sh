# Quarterdeck's probe, what only the full probe reads. Comes after probe.sh and probe_processes.sh.

# qd_identity_sections: what does not change while the node is up.
qd_identity_sections() {
    qd_mark uname
    uname -snrm
    qd_mark user
    id -un
    qd_mark release
    if [ -r /etc/os-release ]; then
        qd_count=0
        while [ "$qd_count" -lt 100 ] && IFS= read -r qd_line; do
            qd_count=$((qd_count + 1))
            case $qd_line in PRETTY_NAME=*) printf '%.512s\n' "$qd_line" ;; esac
        done </etc/os-release
    elif qd_have sw_vers; then
        sw_vers -productVersion
    fi
    qd_mark machine-id
    if [ -r /etc/machine-id ]; then
        IFS= read -r qd_line </etc/machine-id || :
        printf '%.256s\n' "$qd_line"
    elif qd_have ioreg; then
        ioreg -rd1 -c IOPlatformExpertDevice | grep IOPlatformUUID | head -c 256
    fi
    # Known once is enough while it is there: a pyenv shim takes 50 ms to say it.
    if [ "$qd_python_known" = no ] || ! qd_have python3; then
        qd_mark python
        qd_python
    fi
    if [ "$qd_system" = linux ]; then
        qd_mark cpuinfo
        sed -n -e '1,/^$/p' -e '/^Hardware/p' -e '/^Model/p' -e '/^CPU part/p' /proc/cpuinfo
        qd_mark siblings
        for qd_file in /sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list; do
            [ ! -r "$qd_file" ] || { IFS= read -r qd_value <"$qd_file" && printf '%s\n' "$qd_value"; } 2>/dev/null
        done
        qd_mark nproc
        if qd_have nproc; then nproc; fi
        qd_mark interfaces
        for qd_link in /sys/class/net/*; do
            [ -e "$qd_link/operstate" ] || continue
            qd_row=${qd_link##*/}
            for qd_file in operstate speed type; do
                qd_value='-'
                { IFS= read -r qd_value <"$qd_link/$qd_file"; } 2>/dev/null
                qd_row="$qd_row ${qd_value:--}"
            done
            for qd_file in wireless phy80211 bridge tun_flags device; do
                [ ! -e "$qd_link/$qd_file" ] || qd_row="$qd_row $qd_file"
            done
            [ ! -r "$qd_link/uevent" ] || while IFS= read -r qd_value; do
                case $qd_value in DEVTYPE=*) qd_row="$qd_row $qd_value" ;; esac
            done <"$qd_link/uevent"
            printf '%s\n' "$qd_row"
        done
        qd_text=''
        if qd_have ip; then
            qd_text=$(ip -j address 2>/dev/null)
            case $qd_text in
            '['*) qd_mark ip-json ;;
            *) qd_text=$(ip -o address 2>/dev/null | head -c 131072) && qd_mark ip-lines ;;
            esac
        fi
        if [ -n "$qd_text" ]; then
            printf '%.262144s\n' "$qd_text"
        elif qd_have ifconfig; then
            qd_mark ifconfig
            ifconfig -a | head -c 131072
        fi
    else
        qd_mark ifconfig
        ifconfig -a | head -c 131072
        qd_mark hardware-ports
        if qd_have networksetup; then networksetup -listallhardwareports | head -c 16384; fi
    fi
}

# A python3 of macOS without its developer tools opens a window that asks to install them: not run.
qd_python() {
    qd_have python3 || return 0
    case $(command -v python3) in
    /usr/bin/python3)
        if qd_have xcode-select && ! xcode-select -p >/dev/null 2>&1; then return 0; fi
        ;;
    esac
    qd_know_timeout
    qd_bounded 3 python3 --version 2>&1 | head -c 64
}

# qd_expand PATH: sets qd_path to it, with ~ as our home.
qd_expand() {
    qd_path=$1
    case $qd_path in
    '~') qd_path=${HOME-} ;;
    '~/'*) qd_path=${HOME-}/${qd_path#'~/'} ;;
    esac
    while :; do
        case $qd_path in ?*/) qd_path=${qd_path%/} ;; *) break ;; esac
    done
}

# A name with a line break, or one of a file system that hangs, must not hold up the rest: the folders
# are looked at by a shell of their own that can be killed. It prints those that exist, once each.
qd_folders='
    seen=
    for folder; do
        [ -d "$folder" ] || continue
        case $folder in *"
"*) continue ;; esac
        same=
        for other in $seen; do [ ! "$folder" -ef "$other" ] || same=yes; done
        [ -z "$same" ] || continue
        seen="$seen$folder
"
        if [ -w "$folder" ]; then printf "w %s\n" "$folder"; else printf "r %s\n" "$folder"; fi
    done'

# qd_files KEY=VALUE...: the model folders, their disks, and the GGUF files in them. A file is listed by
# the name that leads to it (a symbolic link, in Hugging Face's cache) with the size of what it leads to.
qd_files() {
    qd_wanted=''
    for qd_arg; do
        case $qd_arg in
        model=*) qd_expand "${qd_arg#model=}" && qd_wanted="$qd_wanted$qd_path$qd_nl" ;;
        esac
    done
    qd_above=$qd_folder
    while [ -n "$qd_above" ] && [ ! -d "$qd_above" ]; do
        qd_above=${qd_above%/*}
        [ -n "$qd_above" ] || qd_above=/
    done
    set -f
    qd_ifs=$IFS
    IFS=$qd_nl
    # shellcheck disable=SC2086
    set -- $qd_wanted
    IFS=$qd_ifs
    qd_know_timeout
    qd_text=$(qd_bounded 3 /bin/sh -c "IFS='$qd_nl'$qd_nl$qd_folders" sh "$@")
    qd_status=$?
    qd_mark folders
    printf '%s\n@status %s\n' "$qd_text" "$qd_status"
    IFS=$qd_nl
    set --
    for qd_row in $qd_text; do set -- "$@" "${qd_row#??}"; done
    IFS=$qd_ifs
    set +f
    qd_mark disks
    if [ -n "$qd_above" ]; then qd_bounded 3 df -Pk "$qd_above" "$@" 2>/dev/null; fi
    qd_mark disk-folders
    [ -z "$qd_above" ] || printf '%s\n' "$qd_above" "$@"
    qd_mark models
    [ "$#" -gt 0 ] || return 0
    qd_bounded 5 find -L "$@" -maxdepth 4 ! -path "*$qd_nl*" \
        \( -name '*.[gG][gG][uU][fF]' -o -name '*.[gG][gG][uU][fF].aria2' -o -name '*.[gG][gG][uU][fF].part*' \
        -o -name '*.[gG][gG][uU][fF].incomplete' -o -name '*.[gG][gG][uU][fF].download*' \
        -o -name '*.[gG][gG][uU][fF].crdownload' -o -name '*.[gG][gG][uU][fF].tmp' \
        -o -name '*.[gG][gG][uU][fF][.-]split-*' \) -type f \
        -exec stat -L "$qd_stat_option" "$qd_stat_format" {} + 2>/dev/null | head -n 501 | head -c 262144
}

# qd_look_in FOLDER: note the programs of inference engines in it, unless it is a folder that we had.
qd_look_in() {
    for qd_program in llama-server ggml-rpc-server rpc-server vllm ray; do
        if [ -f "$1/$qd_program" ] && [ -x "$1/$qd_program" ]; then
            for qd_other in $qd_homes; do
                if [ "$1" -ef "$qd_other" ]; then return; fi
            done
            qd_homes="$qd_homes$1$qd_nl"
            case $qd_program in vllm | ray) ;; *) qd_llama=yes ;; esac
            return
        fi
    done
}

# qd_package PROGRAM: the package that a Python program belongs to, by the folder that its installer left beside it.
# To ask vLLM itself would take a node many seconds of processor time.
qd_package() {
    qd_real=$(readlink -f "$1" 2>/dev/null)
    qd_real=${qd_real:-$1}
    for qd_info in "${qd_real%/*}"/../lib/python3*/site-packages/"${qd_real##*/}"-[0-9]*.dist-info; do
        if [ -d "$qd_info" ]; then
            printf '%s\n' "${qd_info##*/}"
            return
        fi
    done
}

# qd_programs KEY=VALUE...: programs of llama.cpp, vLLM and Ray, by absolute path. The PATH of this shell is not the
# one that the user sees after signing in, so the usual places are searched as well. `known=` names
# what was asked before ("size mtime path"): those are neither run nor read again.
qd_programs() {
    qd_homes='' qd_known=$qd_nl qd_new_server='' qd_hung='' qd_llama=''
    for qd_arg; do
        case $qd_arg in known=*) qd_known="$qd_known${qd_arg#known=}$qd_nl" ;; esac
    done
    qd_ifs=$IFS
    IFS=$qd_nl
    for qd_arg; do
        case $qd_arg in llama=*) qd_expand "${qd_arg#llama=}" && qd_look_in "$qd_path" ;; esac
    done
    IFS=:
    set -f
    qd_text=''
    for qd_path in $PATH; do
        case $qd_path in /*) qd_text="$qd_text$qd_path$qd_nl" ;; esac
    done
    set +f
    IFS=$qd_nl
    for qd_path in $qd_text; do qd_look_in "$qd_path"; done
    for qd_path in /home/linuxbrew/.linuxbrew/bin /opt/local/bin /snap/bin /run/current-system/sw/bin /app \
        "${HOME-}"/.nix-profile/bin "${HOME-}"/.local/bin "${HOME-}"/bin "${HOME-}"/llama*/build/bin \
        "${HOME-}"/llama*/bin "${HOME-}"/llama.cpp "${HOME-}"/*/llama.cpp/build/bin /opt/llama*/bin /opt/llama*/build/bin \
        /opt/llama* /opt/*/llama* /usr/local/llama*/bin /usr/local/llama*/build/bin /usr/lib/llama.cpp \
        "${HOME-}"/.venv/bin "${HOME-}"/venv/bin "${HOME-}"/vllm*/bin "${HOME-}"/vllm*/.venv/bin /opt/vllm*/bin \
        /opt/vllm*/.venv/bin; do
        qd_look_in "$qd_path"
    done
    # Those that were found by asking the login shell.
    for qd_arg; do
        case $qd_arg in known=*) qd_path=/${qd_arg#*/} && qd_look_in "${qd_path%/*}" ;; esac
    done
    if [ -z "$qd_llama" ] && [ "$qd_first" = yes ]; then
        IFS=$qd_ifs
        qd_tool login 3 8192 "${SHELL:-/bin/sh}" -lc 'command -v llama-server'
        IFS=$qd_nl
        # Noise of rc files comes first: the last line that is a path counts.
        qd_path=''
        set -f
        for qd_row in $qd_out; do
            case $qd_row in /*/llama-server) qd_path=$qd_row ;; esac
        done
        set +f
        [ -z "$qd_path" ] || qd_look_in "${qd_path%/*}"
    fi
    for qd_arg; do
        case $qd_arg in extra=*) qd_expand "${qd_arg#extra=}" && qd_look_in "$qd_path" ;; esac
    done
    set --
    for qd_path in $qd_homes; do
        for qd_program in llama-server ggml-rpc-server rpc-server vllm ray; do
            if [ -f "$qd_path/$qd_program" ] && [ -x "$qd_path/$qd_program" ] && [ "$#" -lt 48 ]; then
                set -- "$@" "$qd_path/$qd_program"
            fi
        done
    done
    qd_mark programs
    qd_text=''
    if [ "$#" -gt 0 ]; then
        qd_text=$(stat -L "$qd_stat_option" "$qd_stat_inode" "$@" 2>/dev/null)
        printf '%s\n' "$qd_text"
    fi
    qd_asked=$qd_nl qd_count=0
    for qd_row in $qd_text; do
        IFS=' ' read -r qd_size qd_mtime qd_inode qd_path <<QD_END
$qd_row
QD_END
        case $qd_known in *"$qd_nl$qd_size $qd_mtime $qd_path$qd_nl"*) continue ;; esac
        case $qd_asked in *"$qd_nl$qd_inode$qd_nl"*) continue ;; esac
        qd_asked="$qd_asked$qd_inode$qd_nl"
        case ${qd_path##*/} in
        llama-server)
            # One that hangs would hang again: the others are asked by the next full probe.
            if [ -z "$qd_hung" ] && [ "$qd_count" -lt 8 ]; then
                qd_count=$((qd_count + 1))
                IFS=$qd_ifs
                qd_tool "version $qd_inode" 5 8192 "$qd_path" --version
                IFS=$qd_nl
                case $qd_out in *'@status 124' | *'@status 137') qd_hung=yes ;; esac
                [ -n "$qd_new_server" ] || qd_new_server=$qd_path
            fi
            ;;
        vllm | ray)
            qd_mark "package $qd_inode"
            qd_package "$qd_path"
            ;;
        esac
        if [ "$qd_size" -le 67108864 ]; then
            qd_mark "digest $qd_inode"
            if qd_have sha256sum; then
                sha256sum <"$qd_path"
            elif qd_have shasum; then
                shasum -a 256 <"$qd_path"
            fi
        fi
    done
    IFS=$qd_ifs
}

# qd_devices: what llama.cpp itself says of its devices. This wakes GPU drivers, so it is asked of a
# program that was never seen before, and only where nothing cheaper told the memory of a GPU.
qd_devices() {
    if [ "$qd_system" = other ] && [ "$qd_first" = yes ] && qd_have system_profiler; then
        qd_tool profiler 6 65536 system_profiler SPDisplaysDataType -json
    fi
    [ "$qd_told" = no ] && [ -z "$qd_hung" ] || return 0
    qd_out=''
    if [ -n "$qd_new_server" ]; then qd_tool devices 6 16384 "$qd_new_server" --list-devices; fi
    case $qd_out in
    *' MiB free)'*) ;;
    *)
        if [ "$qd_first" = yes ] && qd_have vulkaninfo; then
            qd_tool vulkan 5 65536 /bin/sh -c 'vulkaninfo 2>/dev/null | grep -E \
                "deviceName|deviceType|memoryHeaps|size  *=|budget  *=|usage  *=|MEMORY_HEAP|None$|^GPU"'
        fi
        ;;
    esac
}

qd_search_sections() {
    # On Linux there is none that does it otherwise; a Mac may have either.
    if [ "$qd_system" = linux ] || stat -c %s / >/dev/null 2>&1; then
        qd_stat_option=-c qd_stat_format='%s %Y %n' qd_stat_inode='%s %Y %d:%i %n'
    else
        qd_stat_option=-f qd_stat_format='%z %m %N' qd_stat_inode='%z %m %d:%i %N'
    fi
    qd_files "$@"
    qd_programs "$@"
    qd_devices
}
