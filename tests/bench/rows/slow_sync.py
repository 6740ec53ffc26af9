"""PUT on a disk whose syncs take 5 ms longer: concurrent PUTs must share syncs."""

from bench import NO_COMPACTION, numbered
from load.strace import slow_syncs
from load.wrk import wrk
from server import ServerError
from units import KIB

DELAY_MICROS = 5000
# A PUT waits for the rest of a sync in progress, its segment's and the log's: 15 ms at most, and a fifth for
# the rest.
PUT_SECONDS = 0.015
EFFICIENCY = 0.8
KEYS = 20_000
BODY_BYTES = 4 * KIB


def slow_sync(bench):
    """The rate at 8 and 32 connections; one connection verifies the delay, because it waits for two syncs."""
    store = bench.open("write", NO_COMPACTION, under=slow_syncs(DELAY_MICROS))
    lines, seconds = store.targets_file("PUT", numbered("slow", KEYS)), bench.options.seconds // 2 + 1
    run = lambda connections: wrk(store.server.host, lines, seconds, connections, BODY_BYTES)
    alone = run(1)
    if alone.p50 < 2 * DELAY_MICROS:
        raise ServerError(f"syncs are not slow: one connection waits {alone.p50:.0f} µs for a PUT")
    for connections in (8, 32):
        done = run(connections)
        target = EFFICIENCY * connections / PUT_SECONDS
        note = f"p50 {done.p50:,.0f} µs; alone {alone.p50:,.0f} µs"
        bench.report.at_least(f"slow-sync-{connections}", done.rate, "PUT/s", target, note)
