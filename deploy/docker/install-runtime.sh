#!/usr/bin/env bash
# Installs the C++ library that the binary needs, and creates the user `mlgw` with a data directory.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends libstdc++6
rm -rf /var/lib/apt/lists/*
groupadd --system --gid 10001 mlgw
useradd --system --uid 10001 --gid mlgw --home-dir /var/lib/mlgw --shell /usr/sbin/nologin mlgw
install -d -m 0700 -o mlgw -g mlgw /var/lib/mlgw
