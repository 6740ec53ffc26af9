"""A multipart PUT in parts of 64 MiB on three nodes, alternating with the same on one server: CPU, and the
bytes between the nodes."""

import os
from statistics import median

import proc
from bench import NO_COMPACTION
from cluster import CountedBytes, new_cluster
from load.result import Load
from rows.multipart import Sender
from units import GIB, MIB

PART_BYTES = 64 * MIB
TURNS = 3
CPU_MAX = 3.2
# The bytes of a body go to two followers.
BYTES_MAX = 2.02


def cluster_parts(bench):
    """Half of the bytes that are called 1 GiB in each turn, four parts at a time. The copies that are made
    after a follower was dropped count, too."""
    alone = bench.open("alone", NO_COMPACTION)
    parts, body = max(1, int(bench.options.gib / 2 * GIB / PART_BYTES)), os.urandom(PART_BYTES)
    costs, total = {"alone": [], "cluster": []}, TURNS * parts * PART_BYTES
    with new_cluster(bench, settings=NO_COMPACTION) as cluster:
        counted = CountedBytes(cluster)
        for turn in range(TURNS):
            bench.report.say(f"cluster-parts: turn {turn + 1} of {TURNS}")
            costs["alone"].append(send(bench, bench.spent, alone, body, parts))
            leading = cluster.nodes[cluster.leader()]
            cost = send(bench, counted.spent, leading, body, parts, cluster.until_copied)
            costs["cluster"].append(cost)
    size = parts * PART_BYTES
    each = {side: median(load.cpu for load in loads) * GIB / size for side, loads in costs.items()}
    rates = {side: median(size / MIB / load.seconds for load in loads) for side, loads in costs.items()}
    note = (f"{each['cluster']:.2f} CPU s/GiB, alone {each['alone']:.2f}; "
            f"{rates['cluster']:.0f} MiB/s, alone {rates['alone']:.0f}")
    bench.report.at_most("cluster-parts", each["cluster"] / each["alone"], "of one node's", CPU_MAX, note)
    note = f"{counted.bytes / MIB:,.0f} MiB between nodes, {total / MIB:,.0f} MiB of bodies"
    bench.report.at_most("cluster-parts-bytes", counted.bytes / total, "of body", BYTES_MAX, note)


def send(bench, spent, store, body, parts, until_done=lambda: None):
    """One object; its CPU includes what follows until it is done, its seconds do not."""
    sender = Sender(store, body, None, parts)
    proc.have_page_cache_ready(bench.folder, parts * PART_BYTES)

    def work():
        load = Load.counted(sender.send)
        until_done()
        return load

    load = spent(work)
    store.call("DELETE", sender.path)
    return load
