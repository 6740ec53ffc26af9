"""GET and HEAD of small objects from the page cache, each object with a presigned URL of its own."""

from load.strace import CountedCalls
from load.wrk import wrk
from store import CONNECTIONS

WARM_SECONDS = 2


def get(bench):
    """GET 4 KiB: CPU, then system calls, which are counted apart because counting slows the server."""
    store, names = bench.small()
    load, lines = drawn(bench, store, "GET", names)
    bench.report.at_most("get-4k", load.cpu_micros, "µs CPU", 18, str(load))
    seconds = bench.options.seconds // 2 + 1
    with CountedCalls(store.server.pid, bench.folder / "strace.txt") as calls:
        counted = wrk(store.server.host, lines, seconds, CONNECTIONS)
    per_get = sum(calls.counts.values()) / counted.requests
    bench.report.at_most("get-4k-calls", per_get, "system calls", 4, str(calls))


def get_100k(bench):
    """GET 100 KiB: CPU."""
    store, names = bench.medium()
    load, _ = drawn(bench, store, "GET", names)
    bench.report.at_most("get-100k", load.cpu_micros, "µs CPU", 50, str(load))


def head(bench):
    """HEAD: CPU. Of empty objects, because wrk waits for as much body as the head announces."""
    store, names = bench.empty()
    load, _ = drawn(bench, store, "HEAD", names)
    bench.report.at_most("head", load.cpu_micros, "µs CPU", 13, str(load))


def drawn(bench, store, method, names):
    """A measured load of requests drawn uniformly, warmed up; and its file of request lines."""
    bench.report.say(f"signing {len(names):,} requests")
    lines = store.targets_file(method, names)
    wrk(store.server.host, lines, WARM_SECONDS, CONNECTIONS)
    bench.report.say("measuring")
    seed = bench.options.seed
    return bench.spent(lambda: wrk(store.server.host, lines, bench.options.seconds, CONNECTIONS, seed=seed)), lines
