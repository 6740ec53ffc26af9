"""Durable PUT of 4 KiB at 32 connections, for so long that all consequences of PUTs are part of their cost.
"""

from bench import numbered
from load.wrk import wrk
from server import growth
from store import CONNECTIONS
from units import KIB

BODY_BYTES = 4 * KIB
SLICE_SECONDS = 10
SLICES_BEYOND = 4


def put(bench):
    """At least the configured number of requests, to keys drawn uniformly from two fifths as many, so that
    most of them overwrite and dead data is mixed with live data; until a flush with a purge, a seal and a
    compaction that moved data were included."""
    store = bench.open("write")
    wanted = bench.options.puts
    lines = store.targets_file("PUT", numbered("put", wanted * 2 // 5))
    count = bench.report.counter("put-4k", wanted)
    before = store.server.metrics()
    done = bench.spent(lambda: write(bench, store, lines, wanted, before, count))
    missing = not_seen(before, store.server.metrics())
    note = f"{done.requests:,} requests, {done}"
    if missing:
        bench.report.missed("put-4k", f"no {', no '.join(missing)} in {note}")
    else:
        bench.report.at_most("put-4k", done.cpu_micros, "µs CPU", 60, note)


def write(bench, store, lines, wanted, before, count):
    """One load after the other until enough was sent and everything was observed; it gives up at several
    times as much."""
    seconds = min(SLICE_SECONDS, bench.options.seconds)
    total = None
    while total is None or total.requests < wanted or not_seen(before, store.server.metrics()):
        load = wrk(
            store.server.host, lines, seconds, CONNECTIONS, BODY_BYTES, seed=bench.options.seed + count.done)
        total = load if total is None else total + load
        count(load.requests)
        if total.requests > SLICES_BEYOND * wanted:
            break
    return total


def not_seen(before, after):
    """Events that did not happen between two samples of the metrics."""
    grown = growth(before, after)
    happened = {
        "flush and purge": grown("mlgw_raft_snapshots_total") >= 1,
        # A segment that was begun after the first one of its kind implies that one was sealed.
        "seal": grown("mlgw_sync_total", file="segment_new") >= 3,
        "compaction":
            grown("mlgw_moved_bytes_total", reason="compaction") > 0 and grown("mlgw_freed_bytes_total") > 0,
    }
    return [what for what, seen in happened.items() if not seen]
