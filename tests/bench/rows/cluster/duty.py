"""The duty node is killed, and another node takes over what runs once per cluster."""

import time
from contextlib import contextmanager

from cluster import FIRST, GLANCE_SECONDS, new_cluster
from server import ROOT_KEY, ROOT_SECRET, ServerError
from store import BUCKET, RequestError, Store
from units import KIB

BOUND, OBJECT = "duty", "one"
BODY_BYTES = 4 * KIB
TURNS = 3
TAKEN_OVER_SECONDS_MAX = 10
# Longest wait until something is served. It is reached only if something is broken.
SERVED_SECONDS_MAX = 120
RETRY_SECONDS = 0.02


def cluster_duty(bench):
    """Time from each kill until the next duty node serves a remote-backed bucket."""
    with origin(bench) as settings, new_cluster(bench, settings=settings) as cluster:
        bind = ("bucket", "bind", BOUND, "--upstream", "origin", "--ttl", "1h")
        until("the bucket is bound", GLANCE_SECONDS, lambda: cluster.nodes[FIRST].command(*bind))
        times = [kill_turn(bench, cluster) for _ in range(TURNS)]
    note = f"each: {', '.join(f'{seconds:.1f}' for seconds in times)}"
    bench.report.at_most("cluster-duty", max(times), "s", TAKEN_OVER_SECONDS_MAX, note)


def kill_turn(bench, cluster):
    """Kills the duty node; returns the seconds until a read through another node is served. The node is
    started again."""
    cluster.until_settled()
    node = cluster.status(min(cluster.running()))["duty"]
    read(cluster.nodes[node])
    bench.report.say(f"cluster-duty: node {node}")
    killed = time.perf_counter()
    cluster.kill(node)
    read(cluster.nodes[min(cluster.running())])
    seconds = time.perf_counter() - killed
    cluster.start(node)
    return seconds


def read(store):
    """Reads the object of the remote-backed bucket through a node, as soon as the duty node serves it."""
    target = f"/{BOUND}/{OBJECT}"
    until("the remote-backed bucket is served", RETRY_SECONDS, lambda: store.call("GET", target))


def until(what, pause, request):
    """Repeats a request until it is not refused."""
    deadline = time.monotonic() + SERVED_SECONDS_MAX
    while True:
        try:
            return request()
        except RequestError as error:
            if time.monotonic() > deadline:
                raise ServerError(f"never within {SERVED_SECONDS_MAX} s: {what}: {error}") from error
        time.sleep(pause)


@contextmanager
def origin(bench):
    """A server with the object, and the settings of nodes for which it is the origin. It runs beside the one
    that the bench has open."""
    store = Store(bench.options.binary, bench.folder / "duty-origin", bench.log, bench.report)
    store.start(bench.settings())
    try:
        store.fill("an object of 4 KiB", [OBJECT], BODY_BYTES)
        yield {"upstream.origin.endpoint": f"http://127.0.0.1:{store.server.port}",
               "upstream.origin.bucket": BUCKET, "upstream.origin.credentials": "static",
               "upstream.origin.access_key": ROOT_KEY, "upstream.origin.secret_key": ROOT_SECRET}
    finally:
        if store.server:
            store.server.kill()
