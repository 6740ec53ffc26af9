"""GET and HEAD of small objects from the page cache, each object with a presigned URL of its own.

Each load runs three times, and the cheapest counts: other activity of the machine and its neighbours only
adds. nginx alternates with GET, as a measure of the machine's minimal cost of a request in the same minutes.
"""

import proc
from load.strace import CountedCalls
from load.wrk import wrk
from store import CONNECTIONS

WARM_SECONDS = 2
TURNS = 3


def get(bench):
    """GET 4 KiB: CPU, then system calls, which are counted separately because counting slows the server."""
    store, names = bench.small()
    nginx, theirs = bench.nginx(names)
    with nginx:
        lines = drawn(bench, store, "GET", names, "get-4k", 18, beside=(nginx, theirs))
    seconds = bench.options.seconds // 2 + 1
    counting = CountedCalls(store.server.pid, bench.folder / "strace.txt")
    with proc.kept_in_page_cache(store.folder), counting as calls:
        counted = wrk(store.server.host, lines, seconds, CONNECTIONS)
    per_get = sum(calls.counts.values()) / counted.requests
    bench.report.at_most("get-4k-calls", per_get, "system calls", 4, str(calls))


def get_100k(bench):
    """GET 100 KiB: CPU."""
    store, names = bench.medium()
    drawn(bench, store, "GET", names, "get-100k", 50)


def head(bench):
    """HEAD: CPU. Of empty objects, because wrk waits for as much body as the head announces."""
    store, names = bench.empty()
    drawn(bench, store, "HEAD", names, "head", 13)


def drawn(bench, store, method, names, row, target, beside=None):
    """The row of a load of requests drawn uniformly, warmed up; returns the file of its request lines."""
    bench.report.say(f"signing {len(names):,} requests")
    lines = store.targets_file(method, names)
    wrk(store.server.host, lines, WARM_SECONDS, CONNECTIONS)
    loads, others = [], []
    with proc.kept_in_page_cache(store.folder):
        for turn in range(TURNS):
            bench.report.say(f"{row}: turn {turn + 1} of {TURNS}")
            load = lambda: wrk(
                store.server.host, lines, bench.options.seconds, CONNECTIONS, seed=bench.options.seed + turn)
            loads.append(bench.spent(load))
            if beside:
                others.append(nginx_load(bench, *beside))
    cost = lambda load: load.cpu_micros
    best = min(loads, key=cost)
    turns = ", ".join(f"{cost(load):.1f}" for load in loads)
    bench.report.at_most(row, cost(best), "µs CPU", target, f"of {turns}; {best}")
    if beside:
        least = min(others, key=cost)
        bench.report.information(
            f"{row}-nginx", cost(least), "µs CPU", f"of {', '.join(f'{cost(load):.1f}' for load in others)}")
    return lines


def nginx_load(bench, nginx, lines):
    """The same load on nginx, for half as long."""
    proc.read_into_page_cache(nginx.folder)
    wrk(nginx.host, lines, 1, CONNECTIONS)
    before = nginx.cpu_seconds()
    load = wrk(nginx.host, lines, bench.options.seconds // 2 + 1, CONNECTIONS)
    load.cpu = nginx.cpu_seconds() - before
    return load
