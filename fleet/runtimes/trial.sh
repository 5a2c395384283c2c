# $1 = a ggml-rpc-server, $2 = a free port, $3 ... = further arguments. Runs it on loopback for a moment.
# It ends with this script, and by itself after 20 s should the script be killed without a word.
trap '' PIPE
program=$1
port=$2
shift 2
"$program" -H 127.0.0.1 -p "$port" "$@" </dev/null 2>&1 &
server=$!
(
  n=0
  while [ $n -lt 20 ] && kill -0 "$server" 2>/dev/null; do sleep 1; n=$((n + 1)); done
  [ $n -lt 20 ] || kill -9 "$server" 2>/dev/null
) >/dev/null 2>&1 &
trap 'kill -9 "$server" 2>/dev/null; exit 0' HUP INT TERM
echo "qd-started"
wait "$server"
echo "qd-ended $?"
