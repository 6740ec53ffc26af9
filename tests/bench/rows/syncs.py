"""Syncs per PUT, of all files together, by the number of connections that write."""

from bench import NO_COMPACTION, numbered
from load.wrk import wrk
from server import growth
from units import KIB

TARGETS = ((1, 2.0), (32, 0.15), (128, 0.05))
KEYS = 50_000
BODY_BYTES = 4 * KIB


def syncs(bench):
    """PUTs of 4 KiB on an otherwise idle server."""
    store = bench.open("write", NO_COMPACTION)
    lines, seconds = store.targets_file("PUT", numbered("syncs", KEYS)), bench.options.seconds // 2 + 1
    for connections, target in TARGETS:
        bench.report.say(f"syncs: {connections} connections")
        before = store.server.metrics()
        done = wrk(
            store.server.host, lines, seconds, connections, BODY_BYTES, bench.options.seed + connections)
        grown = growth(before, store.server.metrics())
        kinds = {
            kind: grown("mlgw_sync_total", file=kind) for kind in before.values("file", "mlgw_sync_total")}
        by_kind = ", ".join(f"{kind} {count / done.requests:.4g}" for kind, count in kinds.items() if count)
        per_put = grown("mlgw_sync_total") / done.requests
        bench.report.at_most(f"syncs-per-put-{connections}", per_put, "syncs", target, f"{by_kind}; {done}")
