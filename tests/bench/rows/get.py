"""GET and HEAD of small objects from the page cache, each object with a presigned URL of its own."""

import random

from load.keepalive import exchange
from load.result import Load
from load.strace import CountedCalls
from load.wrk import wrk
from store import CONNECTIONS

WARM_SECONDS = 2


def get(bench):
    """GET 4 KiB: CPU, then system calls, which are counted apart because counting slows the server."""
    store, names = bench.small()
    load, lines = gets(bench, store, names)
    bench.report.at_most("get-4k", load.cpu_micros, "µs CPU", 18, str(load))
    seconds = bench.options.seconds // 2 + 1
    with CountedCalls(store.server.pid, bench.folder / "strace.txt") as calls:
        counted = wrk(store.server.host, lines, seconds, CONNECTIONS)
    per_get = sum(calls.counts.values()) / counted.requests
    bench.report.at_most("get-4k-calls", per_get, "system calls", 4, str(calls))


def get_100k(bench):
    """GET 100 KiB: CPU."""
    store, names = bench.medium()
    load, _ = gets(bench, store, names)
    bench.report.at_most("get-100k", load.cpu_micros, "µs CPU", 50, str(load))


def head(bench):
    """HEAD: CPU. The load is our own, because wrk waits for the body that HEAD never sends."""
    store, names = bench.small()
    requests = list(store.requests("HEAD", names))
    chance = random.Random(bench.options.seed)
    drawn = lambda: iter(lambda: chance.choice(requests), None)
    run = lambda seconds: exchange(store.server.port, drawn(), CONNECTIONS, seconds)
    run(WARM_SECONDS)
    bench.report.say("head: measuring")
    load = bench.spent(lambda: of(run(bench.options.seconds)))
    bench.report.at_most("head", load.cpu_micros, "µs CPU", 13, str(load))


def gets(bench, store, names):
    """A measured load of GETs drawn uniformly, warmed up; and its file of request lines."""
    bench.report.say(f"signing {len(names):,} requests")
    lines = store.targets_file("GET", names)
    wrk(store.server.host, lines, WARM_SECONDS, CONNECTIONS)
    bench.report.say("measuring")
    seed = bench.options.seed
    return bench.spent(lambda: wrk(store.server.host, lines, bench.options.seconds, CONNECTIONS, seed=seed)), lines


def of(waits):
    return Load.of_waits(waits.waits, waits.seconds)
