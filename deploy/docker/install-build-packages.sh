#!/usr/bin/env bash
# What compiling RocksDB and the bindings to it needs, on Debian.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends clang cmake g++ libclang-dev make pkg-config
rm -rf /var/lib/apt/lists/*
