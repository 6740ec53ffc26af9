# shellcheck shell=bash
# Shared by all steps: paths, the copy of the sources that is compiled, and the installation of Debian
# packages.
#
# Everything that outlives one run (compiled crates, Python environments, logs) is under $MLGW_CACHE, outside
# the clone, so that a fresh clone on the same machine starts with a warm cache.

set -euo pipefail

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
MLGW_CACHE=${MLGW_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mlgw}
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$MLGW_CACHE/target}
SOURCES=$MLGW_CACHE/sources
# Tests that write files of the repository write them here.
MLGW_REPO=$REPO
export REPO MLGW_CACHE MLGW_REPO CARGO_TARGET_DIR SOURCES
mkdir -p "$MLGW_CACHE"

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# enter_sources: makes $SOURCES equal to this clone, and makes it the current directory.
#
# Cargo compiles a crate again if a file is newer than the compiled crate. All files of a fresh clone are new.
# In $SOURCES a file keeps its time until its content changes, so only crates that changed are compiled.
#
# Only cargo commands that run here may use $CARGO_TARGET_DIR. A crate compiled in a clone would count as
# compiled from the older files of $SOURCES, whatever the clone contained.
enter_sources() {
    lock_sources
    apt_install rsync
    mkdir -p "$SOURCES"
    rsync --recursive --links --perms --checksum --delete --exclude=/.git --filter=':- .gitignore' \
        "$REPO/" "$SOURCES/"
    cd "$SOURCES"
}

# Waits until no other clone uses $SOURCES. Steps of one run share the lock.
lock_sources() {
    [ "${MLGW_LOCKED:-}" != "$SOURCES" ] || return 0
    exec 9>"$SOURCES.lock"
    if ! flock --nonblock 9; then
        printf 'waiting: steps of another clone use %s\n' "$SOURCES" >&2
        flock 9
    fi
    export MLGW_LOCKED=$SOURCES
}

# A process that outlives its step does not keep the lock.
cargo() { command cargo "$@" 9>&-; }

# apt_install PACKAGE...: installs the missing packages. Prints them, and asks first, unless this is root or
# CI. Serialized by a lock, as steps run in parallel; a waiting step then finds the packages installed.
apt_install() {
    (
        flock 8
        install_missing "$@"
    ) 8>"$MLGW_CACHE/apt.lock"
}

install_missing() {
    local package missing=() sudo=() install
    for package in "$@"; do
        dpkg-query --show --showformat='${Status}\n' "$package" 2>/dev/null |
            grep -q '^install ok installed$' || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    command -v apt-get >/dev/null || die "install these first: ${missing[*]}"
    printf 'installing Debian packages: %s\n' "${missing[*]}"
    if [ "$(id -u)" -ne 0 ]; then
        sudo=(sudo)
        if [ "${CI:-}" != true ]; then
            [ -t 0 ] || die "not root, and no terminal to ask: run  sudo apt-get install ${missing[*]}"
            read -r -p 'with sudo apt-get, now? [y/N] ' answer
            [ "$answer" = y ] || [ "$answer" = Y ] || die "nothing was installed"
        fi
    fi
    # A fresh machine has no package lists, an old one has stale ones: fetch them if the first try fails.
    install=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive
        apt-get install -y -qq --no-install-recommends "${missing[@]}")
    "${install[@]}" >/dev/null 2>&1 ||
        { "${sudo[@]}" apt-get update -qq && "${install[@]}" >/dev/null; }
}

# program_of PACKAGE PATH: prints the path of a program whose Debian package would start a service when
# installed; so only the program is extracted from the package.
program_of() {
    local dir=$MLGW_CACHE/$(basename "$2")
    if [ ! -x "$dir/$2" ]; then
        rm -rf "$dir" && mkdir -p "$dir"
        (
            cd "$dir"
            apt-get download -qq "$1" >&2 || { apt-get update -qq >&2 && apt-get download -qq "$1" >&2; }
            dpkg-deb --fsys-tarfile "$1"_*.deb | tar -x "./$2"
            rm "$1"_*.deb
        ) 2>/dev/null || die "$(basename "$2") is not available: install the Debian package $1"
    fi
    printf '%s\n' "$dir/$2"
}

# Prints the path of promtool, which checks alert rules.
promtool() { program_of prometheus usr/bin/promtool; }

# Prints the path of nginx, the reference of the benchmark.
nginx() { program_of nginx usr/sbin/nginx; }

# Prints the path of haproxy, the load balancer of the tests. The libraries that it needs are installed.
haproxy() {
    local program libraries
    program=$(program_of haproxy usr/sbin/haproxy)
    mapfile -t libraries < <(apt-cache depends haproxy | awk '$1 == "Depends:" && $2 ~ /^lib/ { print $2 }')
    apt_install "${libraries[@]}" >&2
    printf '%s\n' "$program"
}

# program_of_tests NAME: prints the path of a program of the tests; builds it if necessary.
program_of_tests() {
    (enter_sources && cargo build --quiet --release --locked -p mlgw-tests --bin "$1") >&2
    printf '%s\n' "$CARGO_TARGET_DIR/release/$1"
}

# Prints the path of the fault proxy, which makes the path to a server slow and faulty.
fault_proxy() { program_of_tests mlgw-fault-proxy; }

# Prints the path of the slow disk: a pass-through mount of a directory, as slow as one spindle. Mounting
# needs the package fuse3.
slow_disk() { program_of_tests mlgw-slow-disk; }

# Installs the build dependencies: RocksDB is C++, and its bindings are generated with libclang (which needs
# clang's own headers).
install_build_packages() {
    apt_install g++ libclang-dev
}

# server_packages: prints the packages above the object layer, one per line. The packages below do not depend
# on them.
server_packages() {
    local file
    for file in "$REPO"/gateway/*/Cargo.toml "$REPO"/policies/runtime/Cargo.toml; do
        case $file in */gateway/api/* | */gateway/objects/*) continue ;; esac
        sed -n 's/^name = "\(mlgw-.*\)"$/\1/p' "$file"
    done
}
