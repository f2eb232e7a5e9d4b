#!/usr/bin/env bash
# Starts three real nodes, puts them under load, breaks them in turn and checks every list that they give meanwhile.
# docs/reliability.md has the rules and the results.
#
#   scripts/chaos.sh                        all scenarios: 2,000 providers over gRPC, 500 over HTTP; about ten minutes.
#                                           Needs root: the nodes run in network namespaces, so that they can be cut apart
#   scripts/chaos.sh --quick                100 providers, without cuts and without root; below three minutes
#   scripts/chaos.sh --scenario NAME        only this one (repeatable): quiet rolling kill stop partition one-way flapping
#   scripts/chaos.sh --providers GRPC HTTP  another load
#   scripts/chaos.sh --without-gate         nodes serve before they have loaded: the checker must report faults
#   scripts/chaos.sh --figures              no scenario: what large clusters cost, as a table; about four minutes, without root
#   scripts/chaos.sh --table FILE           also writes the table of results, in Markdown
#
# ROLLCALL_BIN names another program to test. The last line has the counts; the exit status is 0 when all of them are zero.
source "$(dirname "$0")/lib.sh"

args=() has_cuts=true has_consumers=true
while [ $# -gt 0 ]; do
  case $1 in
    --quick) args+=("$1") has_cuts=false ;;
    --figures) args+=("$1") has_cuts=false has_consumers=false ;;
    --without-gate) args+=("$1") ;;
    --scenario | --table)
      [ $# -gt 1 ] || die "$1 needs a value"
      args+=("$1" "$2")
      shift
      ;;
    --providers)
      [ $# -gt 2 ] || die "$1 needs two numbers"
      args+=("$1" "$2" "$3")
      shift 2
      ;;
    -h | --help)
      sed -n '2,/^source/{/^source/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    *) die "unknown argument $1, see --help" ;;
  esac
  shift
done

# Both of one profile: what drives the load must not be what the load waits for.
if [ -z "${ROLLCALL_BIN:-}" ]; then
  cargo build --locked --profile soak -p rollcall-server --bin rollcall >&2
fi
cargo build --locked --profile soak -p cluster-tests --bin chaos >&2
export ROLLCALL_BIN=${ROLLCALL_BIN:-$target/soak/rollcall}
if $has_consumers; then
  consumers=$(scripts/clients.sh rust python-grpc)
  while IFS= read -r line; do args+=(--consumer "$line"); done <<<"$consumers"
fi

# One namespace for each node, all on one bridge; the load is on the bridge too, in the namespace of this machine.
spaces=rollcall-$$ bridge=rc$$ driver=''
cleanup() {
  trap - EXIT
  # The nodes end with the driver, whatever becomes of it.
  if [ -n "$driver" ]; then
    kill "$driver" 2>/dev/null || true
    wait "$driver" 2>/dev/null || true
  fi
  if $has_cuts; then
    for i in 0 1 2; do
      # What runs there holds the namespace, and its name would be gone all the same.
      ip netns pids "$spaces-$i" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
      ip netns del "$spaces-$i" 2>/dev/null || true
    done
    ip link del "$bridge" 2>/dev/null || true
  fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if $has_cuts; then
  [ "$(id -u)" = 0 ] || die "network namespaces need root; --quick does without"
  needs ip iproute2
  # A network that nothing uses here; the number of this process tells two runs apart.
  network=10.254.$(($$ % 250 + 1))
  ip link add "$bridge" type bridge
  ip address add "$network.254/24" dev "$bridge"
  ip link set "$bridge" up
  for i in 0 1 2; do
    ip netns add "$spaces-$i"
    ip link add "$bridge-$i" type veth peer name eth0 netns "$spaces-$i"
    ip link set "$bridge-$i" master "$bridge" up
    ip -n "$spaces-$i" address add "$network.$((i + 1))/24" dev eth0
    ip -n "$spaces-$i" link set lo up
    ip -n "$spaces-$i" link set eth0 up
  done
  args+=(--namespaces "$spaces=$network")
fi

# Each provider over gRPC has a connection.
ulimit -n "$(ulimit -H -n)"
"$target/soak/chaos" "${args[@]}" &
driver=$!
status=0
wait "$driver" || status=$?
driver=''
exit "$status"
