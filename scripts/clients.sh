#!/usr/bin/env bash
# Makes the official clients ready that the cluster tests run: builds or installs each that is named, by default those
# of the default run of the tests. `--all` names all. Prints a line `NAME=PROGRAM ARGUMENT...` for each. Quick when
# nothing has changed; anything missing is an error.
source "$(dirname "$0")/lib.sh"

clients=$PWD/cluster-tests/clients
default=(rust python-grpc python-http python-2)
other=()

# client NAME: one client
client() {
  local python
  case $1 in
    rust)
      CARGO_TARGET_DIR=$target/clients cargo build --quiet --locked --manifest-path "$clients/rust/Cargo.toml" >&2
      echo "rust=$target/clients/debug/rust-client"
      ;;
    python-grpc)
      python=$(venv client-grpc "$clients/python/requirements-grpc.txt")/bin/python
      echo "python-grpc=$python $clients/python/grpc_client.py"
      ;;
    python-http)
      python=$(venv client-http "$clients/python/requirements-http.txt")/bin/python
      echo "python-http=$python $clients/python/http_client.py"
      ;;
    python-2)
      python=$(venv client-2 "$clients/python/requirements-2.txt")/bin/python
      echo "python-2=$python $clients/python/grpc_client.py"
      ;;
    *) die "unknown client $1, there are: ${default[*]} ${other[*]}" ;;
  esac
}

[ $# -gt 0 ] || set -- "${default[@]}"
[ "$1" != --all ] || set -- "${default[@]}" "${other[@]}"
for name in "$@"; do client "$name"; done
