#!/usr/bin/env bash
# Makes the official clients ready that the cluster tests run: builds the Rust one, installs the two Python ones, and
# the parsers of others that read what nodes serve for machines.
# Prints one line `NAME=PROGRAM ARGUMENT...` for each. Quick when nothing has changed; anything missing is an error.
source "$(dirname "$0")/lib.sh"

clients=$PWD/cluster-tests/clients
CARGO_TARGET_DIR=$target/clients cargo build --quiet --locked --manifest-path "$clients/rust/Cargo.toml" >&2
grpc=$(venv client-grpc "$clients/python/requirements-grpc.txt")
http=$(venv client-http "$clients/python/requirements-http.txt")
formats=$(venv client-formats "$clients/python/requirements-formats.txt")
echo "rust=$target/clients/debug/rust-client"
echo "python-grpc=$grpc/bin/python $clients/python/grpc_client.py"
echo "python-http=$http/bin/python $clients/python/http_client.py"
echo "formats=$formats/bin/python $clients/python/formats.py"
