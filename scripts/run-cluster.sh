#!/usr/bin/env bash
# Builds Rollcall in release mode and runs it on this machine: three nodes, or one with `--nodes 1`.
#
# HTTP ports 8848, 8858, 8868; gRPC 1000 above. Ends all nodes on Ctrl-C. Needs cargo; curl is used when there is one.
set -euo pipefail

usage() {
    echo "usage: $0 [--nodes N] [-- flags for every node]" >&2
    exit 64
}

nodes=3
while [ $# -gt 0 ]; do
    case "$1" in
        --nodes) [ $# -ge 2 ] || usage; nodes="$2"; shift 2 ;;
        --nodes=*) nodes="${1#*=}"; shift ;;
        --) shift; break ;;
        *) usage ;;
    esac
done
[[ "$nodes" =~ ^[1-9]$ ]] || { echo "--nodes takes 1 to 9" >&2; exit 64; }

root="$(cd "$(dirname "$0")/.." && pwd)"
cd "$root"
cargo build --release --locked -p rollcall-server
binary="${CARGO_TARGET_DIR:-$root/target}/release/rollcall"
logs="$(mktemp -d "${TMPDIR:-/tmp}/rollcall.XXXXXX")"

members=""
for ((i = 0; i < nodes; i++)); do
    members="$members${members:+,}127.0.0.1:$((8848 + 10 * i))"
done

pids=()
end() {
    trap - EXIT INT TERM
    for pid in "${pids[@]}"; do
        kill -TERM "$pid" 2>/dev/null || true
    done
    # A node drains for 3 s; one that has not ended long after that never will.
    for ((i = 0; i < 100; i++)); do
        kill -0 "${pids[@]}" 2>/dev/null || break
        sleep 0.1
    done
    for pid in "${pids[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}
trap end EXIT
trap 'end; exit 0' INT TERM

for ((i = 0; i < nodes; i++)); do
    port=$((8848 + 10 * i))
    "$binary" --port "$port" --members "$members" "$@" >"$logs/node-$port.log" 2>&1 &
    pids+=($!)
done

# Prints the status of a GET on 127.0.0.1, or nothing when nobody answers.
status() {
    local port="$1" path="$2" line=""
    if command -v curl >/dev/null; then
        curl -s -o /dev/null --max-time 2 -w '%{http_code}' "http://127.0.0.1:$port$path" || true
    elif { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null; then
        printf 'GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n' "$path" >&3
        IFS= read -r -t 2 line <&3 || true
        exec 3>&- 3<&-
        line="${line#* }"
        echo "${line%% *}"
    fi
}

# A node that could not start must be noticed before whoever else listens on its port is taken for it.
sleep 0.5
for ((i = 0; i < nodes; i++)); do
    port=$((8848 + 10 * i))
    tries=0
    if ! kill -0 "${pids[$i]}" 2>/dev/null; then
        echo "the node on port $port has ended:" >&2
        tail -n 20 "$logs/node-$port.log" >&2
        exit 1
    fi
    until [ "$(status "$port" /nacos/v1/console/health/readiness)" = 200 ]; do
        if ! kill -0 "${pids[$i]}" 2>/dev/null; then
            echo "the node on port $port has ended:" >&2
            tail -n 20 "$logs/node-$port.log" >&2
            exit 1
        fi
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ]; then
            echo "the node on port $port is not ready after 60 s, see $logs/node-$port.log" >&2
            exit 1
        fi
        sleep 0.2
    done
done

echo "ready:"
for ((i = 0; i < nodes; i++)); do
    port=$((8848 + 10 * i))
    echo "  http 127.0.0.1:$port   gRPC 127.0.0.1:$((port + 1000))   pid ${pids[$i]}"
done
echo "logs: $logs"
echo "try:  curl -X POST 'http://127.0.0.1:8848/nacos/v1/ns/instance?serviceName=demo&ip=10.0.0.1&port=8080' && curl 'http://127.0.0.1:$((8848 + 10 * (nodes - 1)))/nacos/v1/ns/instance/list?serviceName=demo'"
echo "Ctrl-C ends."
wait -n "${pids[@]}" || true
echo "a node has ended, ending the others; see $logs" >&2
exit 1
