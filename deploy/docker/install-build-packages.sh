#!/usr/bin/env bash
# Installs the Debian packages that RocksDB and its bindings need to compile.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends clang cmake g++ libclang-dev make pkg-config
rm -rf /var/lib/apt/lists/*
