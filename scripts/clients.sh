#!/usr/bin/env bash
# Makes the official clients ready that the cluster tests run: builds or installs each that is named, by default those
# of the default run of the tests. `--all` names all. Prints a line `NAME=PROGRAM ARGUMENT...` for each. Quick when
# nothing has changed; anything missing is an error.
source "$(dirname "$0")/lib.sh"

clients=$PWD/cluster-tests/clients
default=(rust python-grpc python-http python-2 formats)
other=(go node)

# node_modules NAME FOLDER: exactly what the lock file in the folder pins; prints where. Made again when the file changes.
node_modules() {
  local dir=$cache/npm/$1
  if ! cmp -s "$2/package-lock.json" "$dir/installed.json"; then
    rm -rf "$dir"
    mkdir -p "$dir"
    cp "$2/package.json" "$2/package-lock.json" "$dir"
    (cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund >npm.log 2>&1) || {
      tail -n 20 "$dir/npm.log" >&2
      die "npm could not install $2"
    }
    cp "$2/package-lock.json" "$dir/installed.json"
  fi
  printf '%s\n' "$dir/node_modules"
}

# client NAME: one client
client() {
  local python modules
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
    formats)
      python=$(venv formats "$clients/python/requirements-formats.txt")/bin/python
      echo "formats=$python $clients/python/formats.py"
      ;;
    go)
      needs go golang-go
      mkdir -p "$target/clients"
      # Modules and what is compiled are in Go's own caches. No other toolchain is wanted than the one there is.
      (cd "$clients/go" && GOTOOLCHAIN=local go build -mod=readonly -buildvcs=false -o "$target/clients/go-client" .) >&2
      echo "go=$target/clients/go-client"
      ;;
    node)
      needs npm nodejs npm
      modules=$(node_modules client-node "$clients/node")
      echo "node=env NODE_PATH=$modules node $clients/node/main.js"
      ;;
    *) die "unknown client $1, there are: ${default[*]} ${other[*]}" ;;
  esac
}

[ $# -gt 0 ] || set -- "${default[@]}"
[ "$1" != --all ] || set -- "${default[@]}" "${other[@]}"
for name in "$@"; do client "$name"; done
