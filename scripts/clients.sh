#!/usr/bin/env bash
# Makes the official clients ready that the cluster tests run: builds or installs each that is named, by default those
# of the default run of the tests. `--all` names all. Prints a line `NAME=PROGRAM ARGUMENT...` for each. Quick when
# nothing has changed; anything missing is an error.
source "$(dirname "$0")/lib.sh"

clients=$PWD/cluster-tests/clients
default=(rust python-grpc python-http)
other=(java-1 java-2 java-3)

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
