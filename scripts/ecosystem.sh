#!/usr/bin/env bash
# Makes the Java applications ready that the ecosystem test runs: installs a JDK and Maven where they are missing, and
# builds `cluster-tests/ecosystem` with libraries fetched into .cache/m2.
# Prints `java=PROGRAM`, and one line `APPLICATION=CLASS_PATH` for each. Anything missing is an error.
source "$(dirname "$0")/lib.sh"

log=$cache/logs/ecosystem-build.log
mkdir -p "$cache/logs"
: >"$log"

# Succeeds if this folder's java and javac are of version 17 or later.
is_jdk() {
  local version
  version=$("$1/javac" -version 2>&1) || return 1
  version=${version#javac }
  [ -x "$1/java" ] && [ "${version%%.*}" -ge 17 ] 2>/dev/null
}

# Prints the folder of the programs of a JDK.
find_jdk() {
  local javac folder
  javac=$(readlink -f "$(command -v javac)" || true)
  for folder in "${JAVA_HOME:-/none}/bin" "${javac%/javac}" /usr/lib/jvm/java-17-openjdk-*/bin; do
    if is_jdk "$folder"; then
      printf '%s\n' "$folder"
      return
    fi
  done
  return 1
}

install_package() {
  { as_root apt-get update && as_root apt-get install -y --no-install-recommends "$1"; } >>"$log" 2>&1 ||
    die "$1 cannot be installed, see $log"
}

find_jdk >/dev/null || install_package openjdk-17-jdk-headless
jdk=$(find_jdk) || die "no JDK of version 17 or later was found"
command -v mvn >/dev/null || install_package maven

JAVA_HOME=${jdk%/bin} mvn --batch-mode --no-transfer-progress -Dmaven.repo.local="$cache/m2" \
  --file cluster-tests/ecosystem/pom.xml compile >>"$log" 2>&1 || {
  tail -n 20 "$log" >&2
  die "the applications could not be built, see $log"
}
echo "java=$jdk/java"
for application in spring dubbo; do
  folder=$PWD/cluster-tests/ecosystem/$application/target
  echo "$application=$folder/classes:$(<"$folder/classpath")"
done
