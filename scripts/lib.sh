#!/usr/bin/env bash
# Shared by the scripts beside it: `source "$(dirname "$0")/lib.sh"`. Nothing happens when it is sourced, except that
# the current directory becomes the project's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Tools and virtual environments of this project; never committed, safe to delete.
cache=$PWD/.cache
# Where cargo puts what it builds.
target=${CARGO_TARGET_DIR:-$PWD/target}

say() { printf '\n=== %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# run as root, by sudo where we are not
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# needs PROGRAM PACKAGE...: installs these Debian packages unless the program is there
needs() {
  command -v "$1" >/dev/null || { as_root apt-get update && as_root apt-get install -y "${@:2}"; } >&2 ||
    die "$1 is not installed and cannot be"
}

# venv NAME REQUIREMENTS: a virtual environment with exactly what the file pins; prints its directory.
# Made once and again whenever the file changes. A failed install is an error, never a skip.
venv() {
  local dir=$cache/venv/$1 wanted=$2
  if ! cmp -s "$wanted" "$dir/installed.txt"; then
    command -v python3 >/dev/null || die "python3 is not installed"
    rm -rf "$dir"
    mkdir -p "$cache/venv"
    if ! python3 -m venv "$dir" >"$cache/venv/$1.log" 2>&1; then
      rm -rf "$dir"
      { as_root apt-get update && as_root apt-get install -y python3-venv; } >>"$cache/venv/$1.log" 2>&1 ||
        die "python3-venv cannot be installed, see $cache/venv/$1.log"
      python3 -m venv "$dir" >>"$cache/venv/$1.log" 2>&1 || die "no virtual environment, see $cache/venv/$1.log"
    fi
    "$dir/bin/pip" install --quiet --disable-pip-version-check -r "$wanted" >>"$cache/venv/$1.log" 2>&1 || {
      tail -n 20 "$cache/venv/$1.log" >&2
      die "pip could not install $wanted"
    }
    cp "$wanted" "$dir/installed.txt"
  fi
  printf '%s\n' "$dir"
}
