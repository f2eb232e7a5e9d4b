#!/usr/bin/env bash
# The tests, all layers, as CI runs them.
#
#   scripts/test.sh                the layers check, unit, build, cluster, golden, clients, chaos
#   scripts/test.sh --fast         check and unit: the gate and the tests that start no process
#   scripts/test.sh --clients      also other-clients: the official clients of Java, Go and Node
#   scripts/test.sh --ecosystem    also ecosystem: applications of Spring Cloud Alibaba and Dubbo
#   scripts/test.sh --chaos        also chaos-full: nodes under a larger load and cut networks; needs root
#   scripts/test.sh --soak         also soak: what takes minutes by the clock, about a quarter of an hour
#   scripts/test.sh --sim          also sim: 20,000 seeds of the simulation, some hours
#   scripts/test.sh --only NAME    one layer (repeatable)
#
# Installs what it needs besides Rust (python3-venv, Python packages; a JDK and Maven for --ecosystem) and fails where
# that fails: nothing is skipped.
# ROLLCALL_BIN names the program under test; without it, the layers that need it build it first (profile `soak`).
# Every layer's output is kept in .cache/logs. The last line counts tests: `N passed, N failed`.
source "$(dirname "$0")/lib.sh"

layers=(check unit build cluster golden clients chaos)
extra=(other-clients ecosystem chaos-full soak sim)
only=() more=()
while [ $# -gt 0 ]; do
  case $1 in
    --fast) only=(check unit) ;;
    --clients) more+=(other-clients) ;;
    --ecosystem) more+=(ecosystem) ;;
    --chaos) more+=(chaos-full) ;;
    --soak) more+=(soak) ;;
    --sim) more+=(sim) ;;
    --only)
      [ $# -gt 1 ] || die "--only needs a name: ${layers[*]} ${extra[*]}"
      [[ " ${layers[*]} ${extra[*]} " == *" $2 "* ]] || die "unknown layer $2, there are: ${layers[*]} ${extra[*]}"
      only+=("$2")
      shift
      ;;
    -h | --help)
      sed -n '2,/^source/{/^source/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    *) die "unknown argument $1, see --help" ;;
  esac
  shift
done
[ ${#only[@]} -gt 0 ] || only=("${layers[@]}")
only+=("${more[@]}")

logs=$cache/logs
mkdir -p "$logs"
export CARGO_TERM_COLOR=never RUST_BACKTRACE=${RUST_BACKTRACE:-1}

# Builds all test programs at once, so that every layer shares one build, and prints those whose `folder/name` matches:
# folder of the package, path of the program, one line each. A library or binary has the name `lib` or `bin`.
programs() {
  cargo test --workspace --locked --no-run --message-format json-render-diagnostics >"$logs/programs.json" || return
  python3 - "$PWD" "$1" "$logs/programs.json" <<'PYTHON' | sort
import json, os, re, sys
root, wanted, path = sys.argv[1:]
for message in map(json.loads, open(path, encoding="utf-8")):
    if message.get("reason") == "compiler-artifact" and message["executable"] and message["profile"]["test"]:
        folder = os.path.dirname(message["manifest_path"])
        target = message["target"]
        name = target["name"] if target["kind"] == ["test"] else target["kind"][0]
        if re.fullmatch(wanted, f"{os.path.relpath(folder, root)}/{name}"):
            print(folder, message["executable"], sep="\t")
PYTHON
}

# run_tests PATTERN ARGUMENTS...: runs the test programs of `programs PATTERN`, all of them even if one fails
run_tests() {
  local pattern=$1 list folder program status=0
  shift
  list=$(programs "$pattern")
  [ -n "$list" ] || die "no test program matches $pattern"
  while IFS=$'\t' read -r folder program; do
    printf '\n     Running %s of %s\n' "$(basename "${program%-*}")" "$(basename "$folder")"
    (cd "$folder" && "$program" "$@" </dev/null) || status=1
  done <<<"$list"
  return $status
}

run_check() { scripts/check; }

# What starts no process of ours: library tests, properties, the engine, the simulation, examples in documentation.
run_unit() {
  run_tests 'crates/.*|cluster-tests/(lib|bin)' --show-output
  cargo test --workspace --locked --doc
}

run_build() {
  [ -z "${ROLLCALL_BIN:-}" ] || return 0
  cargo build --locked --profile soak -p rollcall-server --bin rollcall
}

with_binary() {
  run_build
  export ROLLCALL_BIN=${ROLLCALL_BIN:-$target/soak/rollcall}
  "$@"
}

# The scenarios on real processes, but for those that have a layer of their own.
run_cluster() { with_binary run_tests 'cluster-tests/(?!lib$|bin$|golden$|clients$|ecosystem$|soak$).*' --test-threads 4; }

# Each test of minutes mostly waits, so that all may run side by side; crowds and overload are for themselves.
run_soak() {
  with_binary run_tests 'cluster-tests/soak' --ignored --nocapture --test-threads 6
  with_binary run_tests 'cluster-tests/(crowds|overload)' --ignored --nocapture --test-threads 1
}

# Only what is ignored by default; prints how many seeds there were.
run_sim() { run_tests 'crates/node/simulation' --ignored --nocapture; }

run_golden() { with_binary run_tests 'cluster-tests/golden' --nocapture; }

run_clients() {
  scripts/clients.sh >/dev/null
  with_binary run_tests 'cluster-tests/clients' --nocapture --test-threads 3
}

run_other-clients() {
  scripts/clients.sh --all >/dev/null
  with_binary run_tests 'cluster-tests/clients' --ignored --nocapture --test-threads 2
}

# At most four Java machines run at a time.
run_ecosystem() {
  scripts/ecosystem.sh >/dev/null
  with_binary run_tests 'cluster-tests/ecosystem' --ignored --nocapture --test-threads 1
}

# The scenarios of a few minutes, and whether their checker finds what it is for: nodes that serve too early.
run_chaos() {
  with_binary scripts/chaos.sh --quick
  local log=$logs/chaos-without-gate.log
  if scripts/chaos.sh --quick --without-gate --scenario rolling >"$log" 2>&1 || ! grep -q '^rolling: .*lists: ' "$log"; then
    echo "chaos: 0 passed, 1 failed; without the gate no list was short"
    return 1
  fi
  echo "chaos: 1 passed, 0 failed; without the gate lists are short, and that is found"
}

run_chaos-full() { with_binary scripts/chaos.sh; }

# passed and failed tests in a log, by the closing lines of cargo's, tidy's and chaos' runners
count() {
  awk '/^test result:/ || /^tidy self-test: [0-9]+ passed/ || /^chaos: [0-9]+ passed/ {
         for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i - 1); if ($i ~ /^failed/) f += $(i - 1) }
       } END { print p + 0, f + 0 }' "$1"
}

passed=0 failed=0 broken=()
for layer in "${only[@]}"; do
  say "$layer"
  start=$SECONDS
  status=0
  # A subshell of its own, so that `set -e` holds inside; its output is shown and kept.
  bash -c "set -euo pipefail; $(declare -f); $(declare -p cache target logs); run_$layer" 2>&1 |
    tee "$logs/$layer.log" || status=$?
  read -r p f < <(count "$logs/$layer.log")
  passed=$((passed + p)) failed=$((failed + f))
  say "$layer: $p passed, $f failed, $((SECONDS - start)) s"
  if [ "$status" -ne 0 ]; then
    broken+=("$layer")
    # A layer that fails without a failed test (a build, a lint) counts as one.
    [ "$f" -gt 0 ] || failed=$((failed + 1))
    # Without a gate that holds or a program to test, the rest says nothing.
    case $layer in check | build) break ;; esac
  fi
done

if [ ${#broken[@]} -gt 0 ]; then
  echo "failed: ${broken[*]} (output in .cache/logs)"
fi
echo "$passed passed, $failed failed"
[ ${#broken[@]} -eq 0 ]
