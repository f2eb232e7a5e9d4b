#!/usr/bin/env bash
# Makes the official clients ready that the cluster tests run: builds or installs each that is named, by default those
# of the default run of the tests. `--all` names all. Prints a line `NAME=PROGRAM ARGUMENT...` for each. Quick when
# nothing has changed; anything missing is an error.
source "$(dirname "$0")/lib.sh"

clients=$PWD/cluster-tests/clients
default=(rust python-grpc python-http python-2 formats)
other=(go node java-1 java-2 java-3)

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
    java-1) maven "$1" http.Java1 ;;
    java-2) maven "$1" grpc.Java2 ;;
    java-3) maven "$1" fuzzy.Java3 ;;
    *) die "unknown client $1, there are: ${default[*]} ${other[*]}" ;;
  esac
}

# maven NAME MAIN: a program of the Maven profile of that name; built when its sources have changed
maven() {
  local dir=$target/clients/$1 sum
  sum=$(find "$clients/java" -type f -print0 | sort -z | xargs -0 cat | sha256sum)
  if [ "$sum" != "$(cat "$dir/sources.sum" 2>/dev/null)" ]; then
    { command -v mvn && command -v javac; } >/dev/null || install_java >&2
    rm -rf "$dir"
    mvn --quiet --batch-mode --file "$clients/java/pom.xml" --activate-profiles "$1" -Dmaven.repo.local="$cache/m2" \
      -Dfolder="$dir" dependency:copy-dependencies compiler:compile >&2 || die "Maven could not build $1"
    echo "$sum" >"$dir/sources.sum"
  fi
  echo "$1=java -Xmx128m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC" \
    "-Dlogback.configurationFile=$clients/java/logback.xml -cp $dir/classes:$dir/lib/* $2"
}

install_java() {
  as_root apt-get update && as_root apt-get install -y maven openjdk-17-jdk-headless ||
    die "Maven and a JDK cannot be installed"
}

[ $# -gt 0 ] || set -- "${default[@]}"
[ "$1" != --all ] || set -- "${default[@]}" "${other[@]}"
for name in "$@"; do client "$name"; done
