"""Groups of rows, in the order in which they run: each leaves its store in the state that the later ones
need."""

from rows.back import bound_back
from rows.bound import bound, bound_small
from rows.cluster.duty import cluster_duty
from rows.cluster.failures import cluster_kill, cluster_pause, cluster_slow_sync, cluster_wiped
from rows.cluster.grow import cluster_grow
from rows.cluster.idle import cluster_idle
from rows.cluster.million import cluster_million
from rows.cluster.parts import cluster_parts
from rows.cluster.requests import cluster_get, cluster_put
from rows.get import get, get_100k, head
from rows.idle import idle
from rows.large import large
from rows.listing import listing
from rows.log import log
from rows.memory import memory
from rows.million import million
from rows.mixed import mixed
from rows.ml import ml
from rows.multipart import multipart
from rows.one_connection import one_connection
from rows.policy import policy
from rows.put import put
from rows.slow_sync import slow_sync
from rows.spill import spill
from rows.training import training
from rows.warm_up import warm_up
from rows.start import start
from rows.syncs import syncs

GROUPS = {
    "get": get,
    "memory": memory,
    "head": head,
    "one-connection": one_connection,
    "get-100k": get_100k,
    "large": large,
    "multipart": multipart,
    "mixed": mixed,
    "put": put,
    "syncs": syncs,
    "slow-sync": slow_sync,
    "million": million,
    "idle": idle,
    "start": start,
    "log": log,
    "list": listing,
    "bound": bound,
    "bound-small": bound_small,
    "bound-back": bound_back,
    "warm-up": warm_up,
    "spill": spill,
    "ml": ml,
    "policy": policy,
    "training": training,
    "cluster-get": cluster_get,
    "cluster-put": cluster_put,
    "cluster-parts": cluster_parts,
    "cluster-grow": cluster_grow,
    "cluster-kill": cluster_kill,
    "cluster-duty": cluster_duty,
    "cluster-pause": cluster_pause,
    "cluster-slow-sync": cluster_slow_sync,
    "cluster-idle": cluster_idle,
    "cluster-wiped": cluster_wiped,
    "cluster-million": cluster_million,
}


def named(name):
    """The groups that a name stands for: the group of that name, or those whose names begin with it, as
    `cluster` does; none if there is no such group."""
    if name in GROUPS:
        return [name]
    return [group for group in GROUPS if group.startswith(f"{name}-")]
