#!/usr/bin/env bash
# Drives the entries of crates/fuzz with libFuzzer, one after another; needs a C++ compiler for libFuzzer itself.
#
#   scripts/fuzz.sh [SECONDS [ENTRY...]]    60 seconds for each of all entries by default
#
# What libFuzzer learns is kept in .cache/fuzz/ENTRY, inputs that fail in .cache/fuzz/failed-ENTRY-*.
source "$(dirname "$0")/lib.sh"

seconds=${1:-60}
shift || true
entries=("$@")
[ ${#entries[@]} -gt 0 ] || entries=(payload_bytes request_json http_request peer_message)

# Coverage of branches and comparisons, which libFuzzer is led by.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
host=$(rustc -vV | sed -n 's/^host: //p')
# With a target named, the flags are not for build scripts.
CARGO_TARGET_DIR=$target/fuzz cargo build --release --locked --target "$host" --manifest-path fuzz/Cargo.toml
program=$target/fuzz/$host/release/rollcall-libfuzzer

for entry in "${entries[@]}"; do
  say "fuzz: $entry, $seconds s"
  mkdir -p "$cache/fuzz/$entry"
  ROLLCALL_FUZZ_ENTRY=$entry "$program" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
    -artifact_prefix="$cache/fuzz/failed-$entry-" "$cache/fuzz/$entry" 2>&1 |
    grep -E 'INITED|DONE|Done|ERROR|panicked|artifact' || true
  status=${PIPESTATUS[0]}
  [ "$status" -eq 0 ] || die "$entry failed with $status"
done
