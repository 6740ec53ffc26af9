#!/bin/sh
# Makes the data directory of this pod that of a node of one cluster; `mlgw serve` runs afterwards. The image
# has it as `mlgw-prepare`, and the init containers of the pods of a cluster run it.
#
# An empty directory joins the cluster that a member of ADMIN_URLS belongs to. Only in the pod FIRST_NODE, and
# only if no member answers, it begins a cluster. A server without peers there becomes its first node with all
# of its objects.
#
# The script ends when STORAGE_NODES storage nodes belong to the cluster, and no pod serves S3 before. So a
# first pod that has lost its volume, and begins a second cluster because no other pod answers, never serves
# it: the other pods belong to the first cluster and do not join. The first pod then ends with an error.
#
# May be killed and run again at any point. A directory changes only by `mlgw cluster init` and
# `mlgw cluster join`, which may be repeated. The file MLGW_DATA_DIR.formed is created last; with it the
# script ends at once, so a later start needs no other pod. No file is ever removed.
#
# Environment: MLGW_DATA_DIR and the settings of the node, among them cluster.listen, cluster.address and
# cluster.seeds, and
#   NODE_NAME      name of this pod
#   NODE_ROLE      storage or gateway
#   FIRST_NODE     name of the pod that may begin a cluster
#   STORAGE_NODES  number of storage nodes of a complete cluster
#   ADMIN_URLS     admin APIs of the storage nodes, separated by spaces
#   MLGW_ROOT_ACCESS_KEY_ID, MLGW_ROOT_SECRET_ACCESS_KEY
#                  root credentials of a new cluster; of an existing one any key with the role admin
#   PAUSE_SECONDS  pause between two attempts, by default 5
#
# usage: mlgw-prepare
set -eu

# Longest wait for an answer of another pod.
ANSWER_SECONDS=20
# Times that the first pod looks for members before it begins a cluster. Members that start at the same time
# need some seconds.
SEARCHES=5
# Exit status of `mlgw` if nothing answers at an address.
UNREACHABLE=3

: "${MLGW_DATA_DIR:?}" "${NODE_NAME:?}" "${NODE_ROLE:?}"
: "${FIRST_NODE:?}" "${STORAGE_NODES:?}" "${ADMIN_URLS:?}"
PAUSE_SECONDS=${PAUSE_SECONDS:-5}
# The commands of mlgw sign requests to other pods with these.
AWS_ACCESS_KEY_ID=${MLGW_ROOT_ACCESS_KEY_ID:?}
AWS_SECRET_ACCESS_KEY=${MLGW_ROOT_SECRET_ACCESS_KEY:?}
export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
FORMED=$MLGW_DATA_DIR.formed
NODE_FILE=$MLGW_DATA_DIR/node.json
# Process of the server that runs while the first pod waits for the others.
server=''

log() { printf 'mlgw-prepare: %s\n' "$*" >&2; }

die() {
    log "$*"
    exit 1
}

# Stops the server, also if the pod is deleted meanwhile. It is waited for again if a signal ends the wait.
stop_server() {
    [ -n "$server" ] || return 0
    kill "$server" 2>/dev/null || true
    while kill -0 "$server" 2>/dev/null; do wait "$server" || true; done
    server=''
}

is_member() { grep -q '"id":' "$NODE_FILE" 2>/dev/null; }

is_server_without_peers() { [ -e "$NODE_FILE" ] && ! is_member; }

# True if a join was interrupted. Such a directory has a key that a cluster may know already.
has_begun_to_join() { [ -e "$MLGW_DATA_DIR/cluster" ] && [ ! -e "$NODE_FILE" ]; }

# cluster_in: prints the id of the cluster in a document on standard input.
cluster_in() { sed -n 's/.*"cluster": *"\([0-9a-f]*\)".*/\1/p' | head -n 1; }

# ask URL COMMAND...: runs a command of mlgw for the admin API at URL, and returns its status. That nothing
# answers there is no error to report: it is normal while pods start.
ask() {
    at=$1
    shift
    status=0
    # The output of the command is that of this function, and its errors are kept.
    { error=$(timeout "$ANSWER_SECONDS" mlgw "$@" --endpoint "$at" 2>&1 >&3) || status=$?; } 3>&1
    [ "$status" -eq 0 ] || [ "$status" -eq "$UNREACHABLE" ] || log "$at: $error"
    return "$status"
}

# new_token: prints a join token of the first member that answers. Returns UNREACHABLE if none answers, and 1
# if one answers and makes no token.
new_token() {
    result=$UNREACHABLE
    for url in $ADMIN_URLS; do
        ! ask "$url" cluster token --quiet || return 0
        [ "$status" -eq "$UNREACHABLE" ] || result=1
    done
    return "$result"
}

join() {
    log "$NODE_NAME joins a cluster"
    MLGW_CLUSTER_TOKEN=$1 mlgw cluster join "$MLGW_DATA_DIR" --name "$NODE_NAME" --role "$NODE_ROLE"
}

# Joins with the token of any member, as soon as there is one.
join_any() {
    log "$NODE_NAME waits for a member of a cluster"
    until token=$(new_token); do sleep "$PAUSE_SECONDS"; done
    join "$token"
}

# Looks for a cluster, and begins one if no other pod answers.
begin_or_join() {
    searches=0
    while [ "$searches" -lt "$SEARCHES" ]; do
        status=0
        token=$(new_token) || status=$?
        if [ "$status" -eq 0 ]; then
            join "$token"
            return
        fi
        [ "$status" -eq "$UNREACHABLE" ] || die 'a member answers and admits no node: no cluster is begun'
        searches=$((searches + 1))
        sleep "$PAUSE_SECONDS"
    done
    log "$NODE_NAME begins a cluster"
    mlgw cluster init "$MLGW_DATA_DIR"
}

# Makes the directory that of a member of a cluster.
become_member() {
    if is_server_without_peers; then
        [ "$NODE_NAME" = "$FIRST_NODE" ] ||
            die "$MLGW_DATA_DIR belongs to a server without peers: use an empty volume in $NODE_NAME"
        mlgw cluster init "$MLGW_DATA_DIR"
    elif [ "$NODE_NAME" = "$FIRST_NODE" ] && ! has_begun_to_join; then
        begin_or_join
    else
        join_any
    fi
}

# is_formed: true if a member knows all storage nodes of the cluster of this directory. Ends the script if a
# member of another cluster answers.
is_formed() {
    own=$(cluster_in <"$NODE_FILE")
    for url in $ADMIN_URLS; do
        # The command fails if it reports findings, such as nodes that do not answer yet.
        document=$(ask "$url" cluster status --output json) || true
        found=$(printf '%s\n' "$document" | cluster_in)
        [ -n "$found" ] || continue
        [ "$found" = "$own" ] || die "$url is a node of cluster $found, and $MLGW_DATA_DIR belongs to" \
            "cluster $own. If the volume was new, delete its claim and the pod: $NODE_NAME then joins"
        nodes=$(printf '%s\n' "$document" | grep -c '"role": *"storage"') || true
        [ "$nodes" -lt "$STORAGE_NODES" ] || return 0
    done
    return 1
}

# Waits until the cluster is complete.
until_formed() {
    log "$NODE_NAME waits for $STORAGE_NODES storage nodes"
    until is_formed; do
        [ -z "$server" ] || kill -0 "$server" 2>/dev/null || die 'the server has ended'
        sleep "$PAUSE_SECONDS"
    done
}

[ ! -e "$FORMED" ] || exit 0
trap stop_server EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
is_member || become_member
if [ "$NODE_NAME" = "$FIRST_NODE" ] && ! is_formed; then
    # The other pods join through it. Clients do not reach its S3 endpoint.
    mlgw serve --listen 127.0.0.1:0 &
    server=$!
fi
until_formed
: >"$FORMED"
sync "$FORMED"
log "$NODE_NAME is a node of a complete cluster"
