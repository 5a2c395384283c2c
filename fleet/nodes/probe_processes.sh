# Quarterdeck's probe: engines' processes and TCP sockets. Comes after state.sh and probe.sh.

# qd_engines: the processes of inference engines, each with its start time, its stat and its argv.
# Sets qd_pids. A comm never blocks; a cmdline may (it waits for the process's memory map), so only
# that of engines and of Python programs is read.
qd_engines() {
    qd_pids='' qd_pythons='' qd_count=0
    qd_text=$(grep -sHE '^(llama-server|ggml-rpc-serve|rpc-server|ollama|vllm|VLLM|[tT]iny[tT]itan|python)' \
        /proc/[0-9]*/comm)
    while IFS= read -r qd_line; do
        qd_pid=${qd_line#/proc/}
        qd_pid=${qd_pid%%/*}
        case $qd_line in
        */comm:python*) qd_pythons="$qd_pythons /proc/$qd_pid/cmdline" ;;
        /proc/*) qd_pids="$qd_pids $qd_pid" ;;
        esac
    done <<QD_END
$qd_text
QD_END
    if [ -n "$qd_pythons" ]; then
        for qd_line in $(grep -lsE 'vllm|tinytitan' $qd_pythons); do
            qd_pid=${qd_line#/proc/}
            qd_pids="$qd_pids ${qd_pid%%/*}"
        done
    fi
    for qd_pid in $qd_pids; do
        qd_count=$((qd_count + 1))
        [ "$qd_count" -le 64 ] || break
        if qd_look "$qd_pid"; then
            # On one line, also of a program that put a line break into its own name.
            qd_text=''
            { while IFS= read -r qd_line || [ -n "$qd_line" ]; do qd_text="$qd_text$qd_line "; done <"/proc/$qd_pid/stat"; } 2>/dev/null
            qd_mark "process $qd_pid"
            printf '%s\n%s\n' "$qd_start" "$qd_text"
            head -c 16384 "/proc/$qd_pid/cmdline"
        fi
    done
    qd_mark processes
    if [ -n "$qd_pids" ]; then
        getconf PAGESIZE
        # Whose it is does not change: asked once for each.
        qd_text=''
        for qd_pid in $qd_pids; do
            case $qd_seen in *" $qd_pid "*) ;; *) qd_text="$qd_text /proc/$qd_pid" ;; esac
        done
        [ -z "$qd_text" ] || ls -ld $qd_text 2>/dev/null | head -c 16384
    fi
}

qd_engines_elsewhere() {
    qd_pids=''
    # One -o each: BSD's ps takes all that follows a "=" as the title of that column.
    qd_text=$(ps -axww -o pid= -o ppid= -o state= -o rss= -o time= -o user= -o command= | grep -iE \
        '/?(llama-server|ggml-rpc-server|rpc-server|ollama|vllm|tinytitan[a-z]*)( |:|$)' | head -n 64)
    while IFS= read -r qd_row; do
        IFS=' ' read -r qd_pid _ <<QD_END
$qd_row
QD_END
        if qd_look "$qd_pid"; then
            qd_mark "process $qd_pid"
            printf '%s\n%s\n' "$qd_start" "$qd_row"
            qd_pids="$qd_pids $qd_pid"
        fi
    done <<QD_ALL
$qd_text
QD_ALL
    qd_mark processes
}

# qd_sockets: TCP of the ports in question and of every port that an engine listens on. Whose a socket
# is stands in /proc/PID/fd, by inode. ss asks the kernel for just the rows that matter; reading
# /proc/net/tcp walks its whole hash table (9 ms against 2 here), so that is for nodes without ss.
# All listeners are looked at when an engine is not known yet by a port of its own, or a service is new.
qd_sockets() {
    qd_fds='' qd_text='' qd_search=no
    [ "$qd_depth$qd_news" = quick ] || qd_search=yes
    for qd_pid in $qd_pids; do
        case $qd_settled in *" $qd_pid "*) ;; *) qd_search=yes ;; esac
    done
    for qd_pid in $qd_pids $qd_owner_pids; do qd_text="$qd_text /proc/$qd_pid/fd/"; done
    # Of one folder alone `ls` would not print the name.
    [ -z "$qd_text" ] || qd_fds=$(ls -l $qd_text /proc/self/fd/ 2>/dev/null | grep -m 4096 -E '^/proc|socket:')
    qd_ownerless='' qd_listen=''
    if qd_have ss && { [ "$qd_search" = no ] || qd_listen=$(ss -Htlne 2>/dev/null); }; then
        qd_mark ss
        while [ -n "$qd_listen" ] && IFS=' ' read -r _ _ _ qd_local _ qd_line; do
            qd_own_port "${qd_local##*:}" "${qd_line#*ino:}"
        done <<QD_END
$qd_listen
QD_END
        qd_text=''
        for qd_port in $qd_ports; do qd_text="$qd_text or sport = :$qd_port"; done
        if [ -n "$qd_text" ]; then
            ss -Htane state listening state established "( ${qd_text# or } )" | head -c 262144
        fi
    else
        # "0: 0100007F:C384 00000000:0000 0A 00000000:00000002 00:00000000 00000000 0 0 INODE ..."
        qd_listen=$(grep -shE '^ *[0-9]+: [0-9A-F]+:[0-9A-F]+ [0-9A-F]+:[0-9A-F]+ (0A|01) ' /proc/net/tcp /proc/net/tcp6 |
            head -c 1048576)
        while IFS=' ' read -r _ qd_local _ qd_value _ _ _ _ _ qd_inode _; do
            case $qd_value in 0A) qd_own_port "$((0x${qd_local##*:}))" "$qd_inode" ;; esac
        done <<QD_END
$qd_listen
QD_END
        qd_mark sockets
        qd_text=''
        for qd_port in $qd_ports; do qd_text="$qd_text|$(printf %04X "$qd_port")"; done
        [ -z "$qd_text" ] || printf '%s\n' "$qd_listen" | grep -E "^ *[0-9]+: [0-9A-F]+:(${qd_text#|}) "
    fi
    qd_mark descriptors
    printf '%s\n' "$qd_fds"
    # Somebody else's listener on a port that we want: ask every process, but not every two seconds.
    if [ -n "$qd_ownerless" ] && [ "$qd_depth" = full ]; then
        qd_text=$(ls -l /proc/[0-9]*/fd/ 2>/dev/null |
            sed -n -e '/^\/proc/h' -e '/socket:\[/{G;p;}' | grep -E -A 1 "\[(${qd_ownerless#|})\]" | head -c 16384)
        printf '@owners\n%s\n' "$qd_text"
        qd_owner_pids="$qd_owner_pids $(printf '%s\n' "$qd_text" | sed -n 's|^/proc/\([0-9]*\)/.*|\1|p' | head -n 32)"
    fi
    for qd_pid in $qd_owner_pids; do
        qd_value=''
        { IFS= read -r qd_value <"/proc/$qd_pid/comm"; } 2>/dev/null
        printf '@comm %s %s\n' "$qd_pid" "$qd_value"
    done
}

# qd_own_port PORT INODE...: a listener. An engine's port is wanted; a wanted port of nobody we know is noted.
qd_own_port() {
    case $qd_fds in
    *"[${2%% *}]"*)
        case " $qd_ports " in *" $1 "*) ;; *) qd_ports="$qd_ports $1" ;; esac
        ;;
    *) case " $qd_ports " in *" $1 "*) qd_ownerless="$qd_ownerless|${2%% *}" ;; esac ;;
    esac
}

qd_sockets_elsewhere() {
    qd_mark netstat
    netstat -an -p tcp 2>/dev/null | grep -E 'LISTEN|ESTABLISHED' | head -c 131072
    qd_mark lsof
    if qd_have lsof; then
        qd_know_timeout
        qd_bounded 3 lsof -nP -iTCP -sTCP:LISTEN -F pcn 2>/dev/null | head -c 65536
    fi
}
