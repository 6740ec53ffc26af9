#!/usr/bin/env bash
# Builds the release binary and installs it in a folder.
#
# usage: build.sh FOLDER
set -euo pipefail

out=${1:?usage: build.sh FOLDER}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cargo build --release --locked --package mlgw
install -D -m 0755 "${CARGO_TARGET_DIR:-target}/release/mlgw" "$out/mlgw"
