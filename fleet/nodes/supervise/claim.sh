# Follows state.sh in every script that writes: making the folder, locks, ports, sessions.

# qd_tick: the pause between two looks. Adds to qd_waited the tenths of a second that it took: a
# sleep that knows no fractions takes ten.
qd_tick() {
    if sleep 0.1 2>/dev/null; then
        qd_waited=$((qd_waited + 1))
    else
        sleep 1
        qd_waited=$((qd_waited + 10))
    fi
}

# qd_space FOLDER: prints "space KB", what is free there (of it, or of what will hold it).
qd_space() {
    qd_above=$1
    while [ ! -d "$qd_above" ]; do
        qd_above=${qd_above%/*}
        qd_above=${qd_above:-/}
    done
    qd_free=$(LC_ALL=C df -Pk "$qd_above" 2>/dev/null | while IFS=' ' read -r _ _ _ qd_kb _; do printf '%s ' "$qd_kb"; done)
    printf 'space %s\n' "${qd_free#* }"
}

# qd_cannot WHAT [WHY]: one thing that did not work, and how full the disk is.
qd_cannot() {
    qd_space "${qd_folder:-/}"
    printf 'cannot %s %s\n' "$1" "$(printf '%s' "${2-}" | tr '\n' ' ' | cut -c 1-300)"
}

# qd_make_state_folder SETTING: finds the folder and makes what is missing of it; says why it cannot.
# From here on what we write is ours alone; qd_umask is what the node had.
qd_make_state_folder() {
    if ! qd_find_state_folder "$1"; then
        printf 'nowhere %s\n' "$(printf '%s' "$qd_refused" | tr '\n' ';' | cut -c 1-600)"
        return 1
    fi
    qd_umask=$(umask)
    umask 077
    for qd_part in services locks leases secrets; do
        if [ -h "$qd_folder/$qd_part" ]; then
            qd_cannot folder "$qd_folder/$qd_part is a symbolic link"
            return 1
        fi
        if [ ! -d "$qd_folder/$qd_part" ] && ! qd_said=$(LC_ALL=C mkdir -p "$qd_folder/$qd_part" 2>&1); then
            qd_cannot folder "$qd_said"
            return 1
        fi
    done
    # Somebody may have made it in the moment between our look and our mkdir: in /tmp anybody can.
    qd_strict=''
    case $qd_folder in "/tmp/quarterdeck-$qd_uid"*) qd_strict=strict ;; esac
    for qd_part in "$qd_folder" "$qd_folder/services"; do
        if ! qd_usable "$qd_part" $qd_strict; then
            qd_cannot folder "$qd_part $qd_why"
            return 1
        fi
    done
    if [ ! -e "$qd_folder/host" ]; then
        qd_this_host
        (
            set -C
            printf '%s %s\n' "$qd_name" "$qd_id" >"$qd_folder/host"
        ) 2>/dev/null || :
    fi
}

# qd_take FILE LINE: make FILE with that one line, only if it is not there. A hard link appears whole or
# not at all, so nobody ever sees a lock without its owner.
qd_take() {
    qd_written=''
    if printf '%s\n' "$2" 2>/dev/null >"$1.$$" && [ -s "$1.$$" ]; then qd_written=yes; fi
    [ -n "$qd_written" ] && ln "$1.$$" "$1" 2>/dev/null
    qd_result=$?
    rm -f "$1.$$"
    return "$qd_result"
}

# qd_take_over FILE OLD LINE: the same where FILE holds the line OLD of somebody who is gone. Of two who
# try, one wins; whoever moved a line that he did not mean puts it back.
qd_take_over() {
    mv "$1" "$1.gone.$$" 2>/dev/null || return 1
    qd_read_line "$1.gone.$$" || :
    if [ "$qd_text" != "$2" ]; then
        ln "$1.gone.$$" "$1" 2>/dev/null
        rm -f "$1.gone.$$"
        return 1
    fi
    rm -f "$1.gone.$$"
    qd_take "$1" "$3"
}

# qd_unlock_at_exit: whatever ends this shell, short of KILL, also takes its lock away.
qd_unlock_at_exit() {
    trap 'rm -f "$qd_lock_file"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# qd_lock NAME: a lock that lasts as long as this shell. Fails when another living shell has it.
qd_lock() {
    qd_look $$
    qd_lock_file=$qd_folder/locks/$1
    qd_lock_line="$$ $qd_start"
    qd_tries=0
    while [ "$qd_tries" -lt 3 ]; do
        qd_tries=$((qd_tries + 1))
        if qd_take "$qd_lock_file" "$qd_lock_line"; then
            qd_unlock_at_exit
            return 0
        fi
        [ -n "$qd_written" ] || break
        if [ ! -e "$qd_lock_file" ]; then continue; fi
        qd_read_line "$qd_lock_file" || continue
        if qd_is_alive "${qd_text%% *}" "${qd_text#* }"; then return 1; fi
        if qd_take_over "$qd_lock_file" "$qd_text" "$qd_lock_line"; then
            qd_unlock_at_exit
            return 0
        fi
    done
    # Not somebody else's: it could not be written at all.
    if [ -z "$qd_written" ]; then qd_cannot write; fi
    return 1
}

# qd_find_session: how to make a program the leader of its own session here. Sets qd_by and qd_tool.
qd_find_session() {
    for qd_by in setsid perl python3; do
        if qd_tool=$(command -v "$qd_by" 2>/dev/null); then return 0; fi
    done
    return 1
}

# qd_lead PROGRAM ARGUMENT...: become that program, as leader of a session and process group of its own.
qd_lead() {
    case $qd_by in
    setsid) exec "$qd_tool" "$@" ;;
    perl) exec "$qd_tool" -e 'use POSIX (); POSIX::setsid(); exec { $ARGV[0] } @ARGV; print STDERR "$ARGV[0]: $!\n"; exit 127' "$@" ;;
    # Python ignores SIGPIPE for itself and would hand that on.
    python3) exec "$qd_tool" -c 'import os, signal, sys
if not os.environ.pop("QD_DEAF", ""): signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.setsid()
os.execvp(sys.argv[1], sys.argv[1:])' "$@" ;;
    esac
}

# qd_listening PORT: does anything listen there? (For waiting; who it is, tells qd_listeners.)
qd_listening() {
    if [ -r /proc/net/tcp ]; then
        grep -qi "^ *[0-9]*: [0-9A-F]*:$(printf '%04X' "$1") [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null
    else
        LC_ALL=C netstat -an 2>/dev/null | grep -q "[.:]$1 .*LISTEN"
    fi
}

# qd_has_port PID PORT: is it this very process that listens there? (Not the one that was quicker.)
qd_has_port() {
    if [ -r /proc/net/tcp ]; then
        qd_listening "$2" || return 1
        for qd_inode in $(grep -hi ":$(printf '%04X' "$2") [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null |
            while IFS=' ' read -r _ _ _ _ _ _ _ _ _ qd_inode _; do printf '%s ' "$qd_inode"; done); do
            if LC_ALL=C ls -l "/proc/$1/fd" 2>/dev/null | grep -q "socket:\[$qd_inode\]"; then return 0; fi
        done
        return 1
    fi
    lsof -a -nP -p "$1" "-iTCP:$2" -sTCP:LISTEN >/dev/null 2>&1
}

# qd_inode_owners: "inode|INODE PID PROGRAM" for the sockets that listen on qd_port, by looking through
# the open files of all processes; for nodes that have /proc but no ss.
qd_inode_owners() {
    grep -hi ":$(printf '%04X' "$qd_port") [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        while IFS=' ' read -r _ _ _ _ _ _ _ _ _ qd_inode _; do
            case $qd_inode in '' | 0 | *[!0123456789]*) continue ;; esac
            LC_ALL=C ls -l /proc/[0123456789]*/fd 2>/dev/null | grep -e '^/proc/' -e "socket:\[$qd_inode\]" |
                while IFS= read -r qd_line; do
                    case $qd_line in
                    /proc/*) qd_whose=${qd_line#/proc/} ;;
                    *)
                        qd_whose=${qd_whose%%/*}
                        IFS= read -r qd_comm <"/proc/$qd_whose/comm"
                        printf 'inode|%s %s %s\n' "$qd_inode" "$qd_whose" "$qd_comm"
                        break
                        ;;
                    esac
                done
        done
}

# qd_listeners PORT: prints what the node's own tools say of who listens there, "tool|line" each, for
# listeners.py. On macOS lsof shows only our own processes, so netstat has to speak as well.
qd_listeners() {
    qd_port=$1
    if command -v ss >/dev/null 2>&1; then
        LC_ALL=C ss -ltnp 2>/dev/null | grep ":$qd_port " | sed -n 's/^/ss|/p;20q'
    elif [ -r /proc/net/tcp ]; then
        grep -hi ":$(printf '%04X' "$qd_port") [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null | sed -n 's/^/proc|/p;20q'
        qd_inode_owners
    else
        LC_ALL=C netstat -an 2>/dev/null | grep "[.:]$qd_port .*LISTEN" | sed -n 's/^/netstat|/p;20q'
    fi
    if command -v lsof >/dev/null 2>&1 && ! command -v ss >/dev/null 2>&1; then
        LC_ALL=C lsof -nP "-iTCP:$qd_port" -sTCP:LISTEN -Fpcn 2>/dev/null | sed -n 's/^/lsof|/p;60q'
    fi
}

# qd_end_keeper FOLDER: ends what watches over a service that has ended, whoever of it is left.
qd_end_keeper() {
    [ -f "$1/keeper" ] && [ ! -h "$1/keeper" ] || return 0
    qd_waited=0
    while IFS=' ' read -r qd_who qd_keeper qd_keeper_start; do
        # The keeper itself gets a moment to write down how the service ended.
        while [ "$qd_who" = keeper ] && qd_is_alive "$qd_keeper" "$qd_keeper_start" && [ "$qd_waited" -lt 20 ]; do
            qd_tick
        done
        if qd_is_alive "$qd_keeper" "$qd_keeper_start"; then kill -s TERM "$qd_keeper" 2>/dev/null || :; fi
    done <"$1/keeper"
}

# qd_list_one FOLDER ID: the section of one service alone.
qd_list_one() {
    printf 'qd-services 1 %s\n' "$1"
    qd_list_service "$1" "$2"
    printf 'qd-services-end\n'
}
