#!/usr/bin/env bash
# Measures one node on loopback against a server that does nothing (the roof), with bench/regload, and prints a table
# in Markdown for docs/performance.md. Rates compare within one run on one quiet machine only, so read the ratios.
#
#   scripts/bench.sh             everything, about six minutes after the builds
#   scripts/bench.sh --quick     one second for each measurement: does it work at all
#   scripts/bench.sh STEP...     only these: register query query-http http push push1000 hold
#
# ROLLCALL_BIN names another program to measure. Raw results, one JSON object a line, are kept in .cache/bench.jsonl.
source "$(dirname "$0")/lib.sh"

steps=()
seconds=8 warmup=3 scale=1
while [ $# -gt 0 ]; do
  case $1 in
    --quick) seconds=1 warmup=0.5 scale=10 ;;
    register | query | query-http | http | push | push1000 | hold) steps+=("$1") ;;
    *) die "unknown argument $1" ;;
  esac
  shift
done
[ ${#steps[@]} -gt 0 ] || steps=(register query query-http http push push1000 hold)

port=23848 roof_port=21848
bin=${ROLLCALL_BIN:-$target/release/rollcall}
if [ -z "${ROLLCALL_BIN:-}" ]; then
  cargo build --release --locked -p rollcall-server --bin rollcall
fi
CARGO_TARGET_DIR=$target/regload cargo build --release --locked --manifest-path bench/regload/Cargo.toml
load=$target/regload/release/regload
out=$cache/bench.jsonl
mkdir -p "$cache"
: >"$out"

server='' roof=''
stop() {
  if [ -n "$1" ]; then
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
  fi
}
trap 'stop "$server"; stop "$roof"' EXIT

fresh() {
  stop "$server"
  # Every variable ROLLCALL_* is a setting to the program.
  env -u ROLLCALL_BIN "$bin" --bind 127.0.0.1 --port $port --log-level warn >"$cache/bench-server.log" 2>&1 &
  server=$!
  "$load" --target 127.0.0.1:$port --label rollcall --out "$out" watch --timeout 30 >&2
}

# go ROOF-OPTIONS -- COMMAND...: the same load on the node, then on the roof (none when its options are `-`)
go() {
  local extra=$1
  shift 2
  "$load" --target 127.0.0.1:$port --pid "$server" --label rollcall --out "$out" "$@" >&2
  [ "$extra" = - ] ||
    "$load" --target 127.0.0.1:$roof_port --pid "$roof" --label roof --out "$out" "$@" $extra >&2
}

"$load" null-server --port $roof_port >/dev/null 2>&1 &
roof=$!
fresh
for step in "${steps[@]}"; do
  say "bench: $step"
  case $step in
    # 100,000 instances, 20 in each service, each on another connection; then a second round beside the first.
    register) go '--verify 0' -- deregister --grpc --conns 50 --services $((5000 / scale)) --instances-per 20 --rounds 2 ;;
    query) go '' -- query --grpc --conns 16 --inflight 2 --duration "$seconds" --warmup "$warmup" ;;
    query-http) go '' -- query --http --conns 16 --inflight 2 --duration "$seconds" --warmup "$warmup" ;;
    http) go '' -- http-beat --conns 32 --services 1000 --instances-per 10 --duration "$seconds" --warmup "$warmup" ;;
    push) go '' -- push --subscribers 100 --instances 10 --flips $((20 / scale + 3)) ;;
    push1000) go '' -- push --subscribers 1000 --instances 100 --flips $((10 / scale + 2)) ;;
    hold)
      fresh
      go - -- hold --conns 100 --services $((10000 / scale)) --instances-per 10 --hold "$seconds"
      ;;
  esac
done
python3 bench/table.py "$out"
