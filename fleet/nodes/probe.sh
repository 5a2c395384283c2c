# Quarterdeck's probe, what every probe needs, and what the quick one reads of the machine.
# POSIX sh alone (dash, bash, busybox, macOS). Comes after state.sh. A name that begins with qd_ is ours.
# Nothing is written, no network is used, every tool is optional. $1 is a token that nobody on the
# node can have guessed: it begins each marker, so no file name or process title can pose as one.

qd_mark() { printf '\n@@%s %s\n' "$qd_token" "$1"; }

qd_have() { command -v "$1" >/dev/null 2>&1; }

# qd_bounded SECONDS COMMAND...: the command, killed when it takes longer; status 124 or 137 then.
# `timeout` ends the whole process group; without it (macOS) job control gives the command a group of
# its own, where the shell can do that without a terminal (bash can, dash ends the command alone).
qd_bounded() {
    if [ "$qd_timeout" = yes ]; then
        timeout -k 1 "$@"
        return
    fi
    qd_seconds=$1
    shift
    { set -m; } 2>/dev/null
    "$@" &
    qd_child=$!
    { set +m; } 2>/dev/null
    (
        trap 'kill "$qd_nap"; exit 0' TERM
        sleep "$qd_seconds" &
        qd_nap=$!
        wait "$qd_nap"
        kill -9 "-$qd_child" || kill -9 "$qd_child"
    ) >/dev/null 2>&1 &
    qd_watch=$!
    { wait "$qd_child"; } 2>/dev/null
    qd_status=$?
    kill "$qd_watch" 2>/dev/null
    return "$qd_status"
}

# qd_know_timeout: is there a `timeout` with the arguments that we use? Asked at most once.
qd_know_timeout() {
    [ -z "$qd_timeout" ] || return 0
    qd_timeout=no
    if timeout -k 1 5 true >/dev/null 2>&1; then qd_timeout=yes; fi
}

# qd_tool SECTION SECONDS BYTES COMMAND...: what the tool prints (both streams), with its status in
# the first line. qd_out keeps the text.
qd_tool() {
    qd_section=$1 qd_limit=$2 qd_bytes=$3
    shift 3
    qd_know_timeout
    qd_out=$(
        { qd_bounded "$qd_limit" "$@" 2>&1; printf '\n@status %s\n' "$?"; } | {
            head -c "$qd_bytes"
            if IFS= read -r qd_line; then cat >/dev/null; fi
        }
    )
    qd_mark "$qd_section"
    printf '%s\n' "$qd_out"
}

# Every limit of a control group that we live in, with what it holds; of a page cache we say how much.
qd_cgroups() {
    while IFS=: read -r _ qd_controllers qd_path; do
        case ,$qd_controllers, in
        ,,) qd_base=/sys/fs/cgroup qd_max=memory.max qd_now=memory.current ;;
        *,memory,*) qd_base=/sys/fs/cgroup/memory qd_max=memory.limit_in_bytes qd_now=memory.usage_in_bytes ;;
        *) continue ;;
        esac
        qd_path=${qd_path%/}
        while :; do
            qd_value=max
            [ ! -r "$qd_base$qd_path/$qd_max" ] || IFS= read -r qd_value <"$qd_base$qd_path/$qd_max"
            case $qd_value in
            max | *[!0123456789]* | 9223372???????????? | '') ;;
            *)
                qd_used=''
                [ ! -r "$qd_base$qd_path/$qd_now" ] || IFS= read -r qd_used <"$qd_base$qd_path/$qd_now"
                printf 'limit %s\nused %s\n' "$qd_value" "$qd_used"
                grep -E '^(in)?active_file ' "$qd_base$qd_path/memory.stat" | head -c 256
                ;;
            esac
            case $qd_path in */*) qd_path=${qd_path%/*} ;; *) break ;; esac
        done
    done </proc/self/cgroup
}

# The cards of amdgpu, from sysfs: no tool, no fork. An in1 sensor (vddnb) exists on APUs alone.
qd_amd_cards() {
    qd_amd=''
    for qd_card in /sys/class/drm/card[0-9] /sys/class/drm/card[0-9][0-9]; do
        [ -r "$qd_card/device/mem_info_vram_total" ] || continue
        qd_row=${qd_card##*/}
        for qd_file in mem_info_vram_total mem_info_vram_used mem_info_gtt_total mem_info_gtt_used gpu_busy_percent; do
            qd_value='-'
            [ ! -r "$qd_card/device/$qd_file" ] || { IFS= read -r qd_value <"$qd_card/device/$qd_file"; } 2>/dev/null
            qd_row="$qd_row ${qd_value:--}"
        done
        qd_apu=no qd_temperature='-' qd_power='-'
        for qd_sensor in "$qd_card"/device/hwmon/hwmon*; do
            [ ! -e "$qd_sensor/in1_label" ] || qd_apu=yes
            [ ! -r "$qd_sensor/temp1_input" ] || { IFS= read -r qd_temperature <"$qd_sensor/temp1_input"; } 2>/dev/null
            for qd_file in power1_average power1_input; do
                [ ! -r "$qd_sensor/$qd_file" ] || { IFS= read -r qd_power <"$qd_sensor/$qd_file"; } 2>/dev/null
            done
        done
        qd_value=''
        [ ! -r "$qd_card/device/product_name" ] || { IFS= read -r qd_value <"$qd_card/device/product_name"; } 2>/dev/null
        qd_amd="$qd_amd$qd_row ${qd_temperature:--} ${qd_power:--} $qd_apu $qd_value
"
    done
    if [ -n "$qd_amd" ]; then
        qd_mark amd-cards
        printf '%s' "$qd_amd"
    fi
}

# What GPUs say of themselves now. Sets qd_told=yes when one told its memory.
qd_gpu_figures() {
    qd_told=no
    if qd_have nvidia-smi; then
        qd_tool nvidia 4 16384 nvidia-smi --format=csv,nounits \
            --query-gpu=index,name,memory.total,memory.used,memory.free,utilization.gpu,temperature.gpu,power.draw
        case $qd_out in
        *'[N/A], [N/A], [N/A]'*) ;;
        *', '[0-9]*', '[0-9]*'@status 0') qd_told=yes ;;
        esac
        case $qd_depth:$qd_out in full:*N/A*) qd_tool nvidia-list 4 8192 nvidia-smi -L ;; esac
    fi
    qd_amd=''
    [ "$qd_system" != linux ] || qd_amd_cards
    if [ -n "$qd_amd" ]; then qd_told=yes; fi
    # These are Python programs that take a third of a second: only where the kernel says nothing, or for the names.
    if [ -z "$qd_amd" ] || { [ "$qd_depth" = full ] && [ "$qd_want_amd_names" = yes ]; }; then
        qd_out=''
        if qd_have rocm-smi; then
            qd_tool rocm 5 65536 rocm-smi --showproductname --showuse --showtemp --showpower --showmeminfo vram gtt --json
        fi
        case $qd_out in
        *'VRAM Total'*) qd_told=yes ;;
        *)
            if qd_have amd-smi; then
                qd_tool amd 5 65536 amd-smi metric --json
                case $qd_out in *total_vram*) qd_told=yes ;; esac
                [ "$qd_depth" = quick ] || qd_tool amd-static 5 65536 amd-smi static --asic --json
            fi
            ;;
        esac
    fi
}

# qd_probe TOKEN quick|full KEY=VALUE...
qd_probe() {
    qd_token=$1 qd_depth=$2
    shift 2
    qd_timeout='' qd_state_dir='' qd_ports='' qd_settled=' ' qd_seen=' ' qd_owner_pids='' qd_news='' qd_want_amd_names=no qd_first=no qd_python_known=no
    qd_nl='
'
    unset OMP_NUM_THREADS OMP_THREAD_LIMIT
    LC_ALL=C
    PATH=${PATH:-/usr/bin:/bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/opt/homebrew/bin:/opt/rocm/bin:/usr/lib/wsl/lib
    export LC_ALL PATH
    for qd_arg; do
        qd_value=${qd_arg#*=}
        case $qd_arg in
        state=*) qd_state_dir=$qd_value ;;
        port=*) qd_ports="$qd_ports $qd_value" ;;
        seen=*) qd_seen="$qd_seen$qd_value " ;;
        settled=*) qd_settled="$qd_settled$qd_value " ;;
        owner=*) qd_owner_pids="$qd_owner_pids $qd_value" ;;
        first=*) qd_first=$qd_value ;;
        python=*) qd_python_known=$qd_value ;;
        amd-names=*) qd_want_amd_names=$qd_value ;;
        esac
    done
    if [ -r /proc/self/stat ]; then qd_system=linux; else qd_system=other; fi
    printf '\n@@quarterdeck-probe 1 %s %s\n' "$qd_token" "$qd_depth"
    if [ "$qd_depth" = full ]; then qd_identity_sections "$@"; fi
    if [ "$qd_system" = linux ]; then
        qd_mark meminfo
        # What counts stands in the first lines, and reading those needs no fork.
        qd_count=0
        while [ "$qd_count" -lt 5 ] && IFS= read -r qd_line; do
            qd_count=$((qd_count + 1))
            printf '%s\n' "$qd_line"
        done </proc/meminfo
        qd_mark cgroups
        [ ! -r /proc/self/cgroup ] || qd_cgroups
        qd_mark loadavg
        [ ! -r /proc/loadavg ] || { IFS= read -r qd_value </proc/loadavg && printf '%s\n' "$qd_value"; }
    else
        qd_mark sysctl
        sysctl vm.loadavg hw.memsize iogpu.wired_limit_mb hw.physicalcpu hw.logicalcpu machdep.cpu.brand_string \
            machdep.cpu.features machdep.cpu.leaf7_features hw.optional hw.model | head -c 16384
        qd_mark vm_stat
        vm_stat | head -c 4096
    fi
    qd_mark services
    qd_find_state_folder "$qd_state_dir" || :
    qd_list_services "$qd_folder"
    if [ "$qd_system" = linux ]; then
        qd_engines
        qd_sockets
    else
        qd_engines_elsewhere
        qd_sockets_elsewhere
    fi
    qd_gpu_figures
    if [ "$qd_depth" = full ]; then qd_search_sections "$@"; fi
    qd_mark times
    times
    qd_mark end
}
