"""A remote-backed bucket behind a slow path: 20 ms for each request, 60 MB/s per connection and 200 MB/s in
total.

Each figure is compared with the same reads done directly over the same path, in the same minutes."""

import os
import socket
import statistics
import time
from contextlib import contextmanager

import proc
from bench import numbered
from load.fault_proxy import FaultProxy
from load.keepalive import exchange
from load.streams import download, in_parallel
from load.wrk import wrk
from server import ROOT_KEY, ROOT_SECRET
from store import BUCKET, CONNECTIONS
from units import KIB, MIB

BOUND = "front"
PROGRAM = "MLGW_FAULT_PROXY"
FAR = {"delay": "20ms", "connection_rate": "60MB", "total_rate": "200MB"}
NEAR = {"delay": "2ms", "connection_rate": "0", "total_rate": "0"}
PAIRS = 12
LONG_TURNS = 3
CLIENTS = 64
BLOCK_BYTES = 8 * MIB
SECONDS = 5
TURNS = 3


class Front:
    """A store whose bucket `front` is bound to the bucket of `origin` behind `proxy`."""

    def __init__(self, bench, origin, proxy, more=None, name="front"):
        self.bench, self.origin, self.proxy = bench, origin, proxy
        settings = {"upstream.origin.endpoint": f"http://127.0.0.1:{proxy.port}", "upstream.origin.bucket": BUCKET,
                    "upstream.origin.credentials": "static", "upstream.origin.access_key": ROOT_KEY,
                    "upstream.origin.secret_key": ROOT_SECRET} | (more or {})
        self.store = bench.open(f"{name}-{proxy.port}", settings)
        self.store.command("bucket", "bind", BOUND, "--upstream", "origin", "--ttl", "1h")

    def requests(self, names, bucket=BOUND):
        """Complete GET requests for a bucket of this store."""
        return whole(self.store, names, bucket)

    def direct(self, names):
        """The same GETs for the origin; they are to be sent to the proxy."""
        return whole(self.origin, names, BUCKET)

    def lines(self, names, bucket):
        """A file of request lines for wrk."""
        path = self.store.folder.with_name(f"{self.store.folder.name}-{bucket}.txt")
        path.write_text("".join(f"GET {target}\n" for target in targets(self.store, names, bucket)))
        return path


def targets(store, names, bucket, method="GET"):
    signer = store.signers()[0]
    return [signer.presign(method, store.server.host, f"/{bucket}/{name}") for name in names]


def whole(store, names, bucket):
    return [f"GET {target} HTTP/1.1\r\nHost: {store.server.host}\r\n\r\n".encode()
            for target in targets(store, names, bucket)]


@contextmanager
def fronted(bench, shape):
    """A server as origin, and a proxy before it."""
    bench.stop()
    origin = bench.stores.get("origin") or bench.open("origin")
    if origin.server is None:
        bench.open("origin")
    # Both servers run: the bench stops the one in front.
    bench.current = None
    try:
        with FaultProxy(os.environ[PROGRAM], origin.server.port, **shape) as proxy:
            yield origin, proxy
            bench.stop()
    finally:
        bench.abandon()
        origin.stop()


def bound(bench):
    """The costs of a remote-backed bucket: warm compared with native objects, cold compared with the same
    reads done directly."""
    with fronted(bench, FAR) as (origin, proxy):
        objects = min(bench.options.objects, 20_000)
        small = origin.fill("4 KiB objects", numbered("small", objects), 4 * KIB)
        middle = origin.fill("8 MiB objects", numbered("middle", 2 * PAIRS), 8 * MIB)
        long = origin.fill("256 MiB objects", numbered("long", LONG_TURNS), 256 * MIB)
        one = origin.fill("an object of 64 MiB", ["one"], 64 * MIB)
        front = Front(bench, origin, proxy)
        cold(bench, front, middle)
        cold_long(bench, front, long)
        at_once(bench, front, one)
        warm(bench, front, small)


def cold(bench, front, names):
    """Pairs of one read through the gateway and one direct read, of different objects."""
    ours, theirs = names[:PAIRS], names[PAIRS:]
    times = {"ours": [], "direct": []}
    for here, there in zip(front.requests(ours), front.direct(theirs)):
        times["ours"].append(timed(front.store.server.port, here, 8 * MIB))
        times["direct"].append(timed(front.proxy.port, there, 8 * MIB))
    middle = lambda kind, at: statistics.median(pair[at] for pair in times[kind])
    first = (middle("ours", 0) - middle("direct", 0)) * 1000
    bench.report.at_most(
        "bound-cold-first-byte", max(first, 0.0), "ms more", 2,
        f"{middle('ours', 0) * 1000:.1f} ms of {PAIRS}")
    ratio = middle("ours", 1) / middle("direct", 1)
    bench.report.at_most("bound-cold-8m", ratio, "of direct", 1.1, f"{middle('ours', 1) * 1000:.0f} ms")


def timed(port, request, body_bytes):
    """Seconds to the first byte of the body, and to the last."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun, came, first, buffer = time.perf_counter(), b"", None, bytearray(MIB)
        connection.sendall(request)
        while b"\r\n\r\n" not in came or not came.partition(b"\r\n\r\n")[2]:
            came += connection.recv(65536)
        first = time.perf_counter() - begun
        head, _, rest = came.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head[:200]
        left = body_bytes - len(rest)
        while left > 0:
            left -= connection.recv_into(buffer, min(left, MIB), socket.MSG_TRUNC)
    return first, time.perf_counter() - begun


def cold_long(bench, front, names):
    """One stream through the gateway compared with one direct stream."""
    ours = [timed(front.store.server.port, request, 256 * MIB)[1] for request in front.requests(names)]
    direct = timed(front.proxy.port, front.direct(names[:1])[0], 256 * MIB)[1]
    ratio = direct / statistics.median(ours)
    bench.report.at_least(
        "bound-cold-256m", ratio, "times direct", 2,
        f"{statistics.median(ours):.2f} s, direct {direct:.2f} s")


def at_once(bench, front, names):
    """Many clients read one cold object: each of its blocks is fetched once."""
    front.proxy.log()
    requests = front.requests(names) * CLIENTS
    in_parallel(lambda one: download(front.store.server.port, one, 64 * MIB), requests, CLIENTS)
    asked = [line for line in front.proxy.log() if line["method"] == "GET"]
    bench.report.at_most(
        "bound-64-clients", len(asked) / (64 * MIB / BLOCK_BYTES), "requests/block", 1,
        f"{len(asked)} requests")


def warm(bench, front, names):
    """Remote-backed and native objects of one server, alternating; then the same reads done directly."""
    store = front.store
    store.fill("4 KiB objects", names, 4 * KIB)
    exchange(store.server.port, iter(front.requests(names)), CLIENTS)
    bench.rest()
    files = {bucket: front.lines(names, bucket) for bucket in (BOUND, BUCKET)}
    costs = {BOUND: [], BUCKET: []}
    with proc.kept_in_page_cache(store.folder):
        for bucket, lines in files.items():
            wrk(store.server.host, lines, 2, CONNECTIONS)
        for _ in range(TURNS):
            for bucket, lines in files.items():
                costs[bucket].append(bench.spent(lambda: wrk(store.server.host, lines, SECONDS, CONNECTIONS)))
    least = {bucket: min(load.cpu_micros for load in loads) for bucket, loads in costs.items()}
    rate = max(load.requests / load.seconds for load in costs[BOUND])
    note = f"{least[BOUND]:.1f} µs, native {least[BUCKET]:.1f}"
    bench.report.at_most("bound-warm-cpu", least[BOUND] / least[BUCKET], "of native", 1.1, note)
    direct = exchange(front.proxy.port, iter(front.direct(names[:4000])), CONNECTIONS)
    theirs = len(direct.waits) / direct.seconds
    bench.report.at_least(
        "bound-warm-rate", rate / theirs, "times direct", 5, f"{rate:,.0f}/s, direct {theirs:,.0f}/s")


def bound_small(bench):
    """Small files with valid metadata, 2 ms away."""
    with fronted(bench, NEAR) as (origin, proxy):
        names = origin.fill("4 KiB objects", numbered("small", min(bench.options.objects, 20_000)), 4 * KIB)
        front = Front(bench, origin, proxy)
        exchange(front.store.server.port, iter(front.requests(names)), CLIENTS)
        bench.rest()
        ours = exchange(front.store.server.port, iter(front.requests(names)), CLIENTS)
        direct = exchange(proxy.port, iter(front.direct(names)), CLIENTS)
        ratio = direct.seconds / ours.seconds
        note = f"{len(names) / ours.seconds:,.0f}/s, direct {len(names) / direct.seconds:,.0f}/s"
        bench.report.at_least("bound-small-files", ratio, "times direct", 3, note)
