"""A million keys in one bucket whose ranges are in four groups, listed; and an empty node that joins them."""

import time
from statistics import median
from urllib.parse import quote

from bench import NO_COMPACTION
from cluster import FIRST, STORAGE, VOTERS, new_cluster
from load.keepalive import AnswerError
from load.listing import listed
from load.nodes import Mix, NodesLoad, p99
from load.result import Load
from rows.cluster.latency import rate_of_load, report_p99
from rows.cluster.requests import serving_node
from server import ServerError
from store import BUCKET, CONNECTIONS, RequestError
from units import KIB

RANGES = 4
SETTINGS = NO_COMPACTION | {"catalogue.object_groups": RANGES}
SPLIT, SPLIT_KEYS = "split", "x-mlgw-split-keys"
TURNS = 3
LIST_MIN = 0.85
SERVES_SECONDS_MAX, JOIN_P99_MAX = 10, 1.5
SERVES_SECONDS_LIMIT = 120
GLANCE_SECONDS = 0.05
# At most.
PER_SECOND = 200
PUTS_OF_TEN = 2
BEFORE_SECONDS, SHORT_SECONDS = 15, 3


def cluster_million(bench):
    """The keys are written to the first node before the others join, because that is cheaper. The bucket
    `split` has all keys, the bucket of one group those of one range."""
    what, names, body_bytes = bench.million_objects()
    quarter = names[: len(names) // RANGES]
    with new_cluster(bench, (STORAGE,), SETTINGS) as cluster:
        first = cluster.nodes[FIRST]
        keys = ",".join(quote(names[at * len(quarter)], safe="") for at in range(1, RANGES))
        first.call("PUT", f"/{SPLIT}", headers={SPLIT_KEYS: keys})
        first.fill(what, quarter, body_bytes)
        first.fill("1 KiB objects of four ranges", names, body_bytes, SPLIT)
        for _ in range(1, VOTERS):
            cluster.add()
        cluster.until_settled()
        cluster.until_copied()
        list_ranges(bench, cluster, names, quarter)
        join(bench, cluster, quarter)


def list_ranges(bench, cluster, names, quarter):
    """Listed keys per CPU second of all nodes: all ranges, and one group's keys as often as there are ranges;
    the two alternate."""
    store, rates = cluster.nodes[FIRST], {SPLIT: [], BUCKET: []}
    cluster.rest()
    for turn in range(TURNS):
        bench.report.say(f"cluster-list: turn {turn + 1} of {TURNS}")
        for bucket, times in ((SPLIT, 1), (BUCKET, RANGES)):
            with store.connection() as over:
                walk = lambda: sum(listed(store, over, "m/", bucket=bucket) for _ in range(times))
                load = cluster.spent(lambda: Load.counted(walk))
            expected = len(names) if bucket == SPLIT else times * len(quarter)
            if load.requests != expected:
                raise AnswerError(f"{bucket}: {load.requests:,} keys listed of {expected:,}")
            rates[bucket].append(load.requests / load.cpu)
    split, one = median(rates[SPLIT]), median(rates[BUCKET])
    note = f"{split:,.0f} keys/CPU s, one group {one:,.0f}"
    bench.report.at_least("cluster-list", split / one, "of one group's", LIST_MIN, note)


def join(bench, cluster, names):
    """A fourth node: the time from `mlgw cluster join` until it serves an object that was there before, and
    the p99 through the leader of the group until the node lacks nothing, compared with that before."""
    leader, seconds = cluster.leader(), SHORT_SECONDS if bench.options.quickly else BEFORE_SECONDS
    mix = Mix(names, PUTS_OF_TEN, KIB, "join")
    stores = {leader: cluster.nodes[leader]}
    per_second = rate_of_load(bench, "cluster-join", stores, mix, PER_SECOND)
    with NodesLoad(stores, mix, per_second, CONNECTIONS, bench.options.seed) as load:
        time.sleep(seconds)
        begun = time.perf_counter()
        node = cluster.add()
        until_serving(cluster, node, names[0])
        served = time.perf_counter()
        cluster.until_copied()
        ended = time.perf_counter()
    failed = [sent.failure for sent in load.requests if sent.failure]
    if failed:
        raise AnswerError(f"{len(failed)} requests failed through the leader: {failed[0]}")
    bench.report.at_most("cluster-join-serves", served - begun, "s", SERVES_SECONDS_MAX,
                         f"lacks nothing after {ended - begun:.1f} s")
    usual, meanwhile = p99(load.requests, begun - seconds, begun), p99(load.requests, begun, ended)
    report_p99(bench, "cluster-join-p99", usual, meanwhile, "meanwhile", JOIN_P99_MAX)


def until_serving(cluster, node, name):
    """Waits until a node serves an object itself."""
    deadline = time.monotonic() + SERVES_SECONDS_LIMIT
    while not serves(cluster.nodes[node], node, name):
        if time.monotonic() > deadline:
            raise ServerError(f"node {node} served nothing within {SERVES_SECONDS_LIMIT} s")
        time.sleep(GLANCE_SECONDS)


def serves(store, node, name):
    try:
        return serving_node(store, name) == node
    except RequestError:
        return False
