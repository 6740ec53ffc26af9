"""The costs of a request while the nodes become more: three, five and nine storage nodes, with sets of three
from five nodes on.

More nodes serve more requests on machines of their own. Here they share one, so what is measured is that a
request costs as much as before: CPU of all nodes, as a ratio to one server that takes turns with them, and
bytes between the nodes. The nodes of the first set have the rows of all groups, so a change also goes to up
to three nodes beyond its set, however many nodes there are."""

from bench import numbered
from cluster import BUCKET_GROUP, FIRST, THREE, CountedBytes, new_cluster
from rows.cluster.requests import BODY_BYTES, KEYS, Side, alone_with_objects, reading_side, take_turns
from server import ServerError
from store import BUCKET, CONNECTIONS
from units import KIB

SIZES = (3, 5, 9)
# Enough that every node has groups of its own.
GROUPS = 9
FIRST_SET = 0
# Compaction moves nothing. The passes that make a group leave its former set have its interval.
COMPACTION = {"hot.compact_interval": "1s", "hot.compact_dead_percent": 99}
SETTINGS = COMPACTION | {"catalogue.object_groups": GROUPS}
OBJECTS = 20_000
TURNS = 3
MORE_MAX = 1.25


def cluster_grow(bench):
    """GET and PUT of 4 KiB through the leader of a group, which is in its set."""
    alone, names = alone_with_objects(bench, COMPACTION)
    bench.rest()
    with new_cluster(bench, THREE, SETTINGS) as cluster:
        costs, buckets = {}, buckets_of_groups(cluster)
        for size in SIZES:
            grow(cluster, size)
            group = measured_group(cluster)
            costs[size] = costs_of(bench, cluster, alone, names[:OBJECTS], group, buckets[group])
    for what in ("get", "put"):
        report_cpu(bench, what, {size: found[what] for size, found in costs.items()})
    report_bytes(bench, {size: found["bytes"] for size, found in costs.items()})


def buckets_of_groups(cluster):
    """A bucket in each group: a new one is in the first of the groups with the fewest ranges."""
    buckets = {BUCKET_GROUP: BUCKET}
    for group in range(BUCKET_GROUP + 1, GROUPS + 1):
        buckets[group] = f"{BUCKET}-{group}"
        cluster.nodes[FIRST].call("PUT", f"/{buckets[group]}")
    return buckets


def measured_group(cluster):
    """A group whose set is not the first one, because its changes cost most; any one without sets."""
    sets = cluster.status(FIRST)["sets"]
    others = [group for of_set in sets if of_set["id"] != FIRST_SET for group in of_set["groups"]]
    if sets and not others:
        raise ServerError(f"all groups are in the first of {len(sets)} sets")
    return max(others, default=GROUPS)


def grow(cluster, size):
    """Adds nodes up to this number, and distributes the groups over all of them."""
    if len(cluster.nodes) < size:
        while len(cluster.nodes) < size:
            cluster.add()
        cluster.rebalance()
        cluster.until_settled()
    cluster.until_copied()
    cluster.rest()


def costs_of(bench, cluster, alone, names, group, bucket):
    """CPU of a GET and of a PUT as ratios to one server, and bytes between nodes of a PUT. What was written
    is deleted at the end, so that nothing of it moves when the group does."""
    size, leader = len(cluster.nodes), cluster.leader(group)
    if leader not in cluster.set_nodes(group):
        raise ServerError(f"node {leader} leads group {group}, whose set is {cluster.set_nodes(group)}")
    store, row = cluster.nodes[leader], f"cluster-grow, {size} nodes"
    read, written = numbered(f"grow-{size}", len(names)), numbered("put", KEYS)
    store.fill(f"4 KiB objects for {size} nodes", read, BODY_BYTES, bucket)
    reading = reading_side(cluster, leader, read, group, bucket)
    sides = {"alone": Side(bench, alone, "GET", names), "nodes": reading}
    take_turns(bench, sides, CONNECTIONS, f"{row}, GET", TURNS)
    costs = {"get": ratio_of(sides)}
    counted = CountedBytes(cluster)
    writing = Side(counted, store, "PUT", written, bucket)
    sides = {"alone": Side(bench, alone, "PUT", written), "nodes": writing}
    take_turns(bench, sides, CONNECTIONS, f"{row}, PUT", TURNS)
    puts = sum(load.requests for load in sides["nodes"].loads)
    costs |= {"put": ratio_of(sides), "bytes": counted.bytes / puts}
    store.delete(read + written, bucket)
    return costs


def ratio_of(sides):
    return sides["nodes"].cpu_micros / sides["alone"].cpu_micros


def report_cpu(bench, what, ratios):
    """One row for each size beyond the first one."""
    first, *further = SIZES
    for size in further:
        note = f"{ratios[size]:.2f} of one node's, with {first} nodes {ratios[first]:.2f}"
        bench.report.at_most(f"cluster-grow-{what}-{size}", ratios[size] / ratios[first],
                             f"of {first} nodes'", MORE_MAX, note)


def report_bytes(bench, each):
    first, *further = SIZES
    for size in further:
        note = f"{each[size] / KIB:.2f} KiB a PUT, with {first} nodes {each[first] / KIB:.2f}"
        bench.report.at_most(f"cluster-grow-bytes-{size}", each[size] / each[first],
                             f"of {first} nodes'", MORE_MAX, note)
