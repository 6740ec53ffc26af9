"""Write-back: acknowledged as fast as native writes, and written to the origin as fast as configured."""

import time

from bench import numbered
from load.keepalive import exchange
from rows.bound import CLIENTS, FAR, Front, fronted, targets
from store import BUCKET
from units import KIB, MB

BACK = "back"
BODY_BYTES = 100 * KIB
OBJECTS = 10_000
TURNS = 4
RATE = 20 * MB


def bound_back(bench):
    """10,000 objects alternating with as many native ones, at 20 MB/s to the origin."""
    with fronted(bench, FAR) as (origin, proxy):
        settings = {"upstream.origin.persist_bytes_per_second": RATE, "bound.dirty_bytes_max": "4GiB"}
        front = Front(bench, origin, proxy, settings)
        store = front.store
        store.command(
            "bucket", "bind", BACK, "--upstream", "origin", "--prefix", "back/", "--mode", "write-back")
        objects = min(OBJECTS, bench.options.objects)
        took, begun = {BACK: 0.0, BUCKET: 0.0}, None
        for turn in range(TURNS):
            for bucket in (BUCKET, BACK):
                names = numbered(f"turn-{turn}", objects // TURNS)
                requests = list(puts(store, names, bucket))
                if bucket == BACK and begun is None:
                    begun = time.perf_counter()
                took[bucket] += exchange(store.server.port, iter(requests), CLIENTS).seconds
        store.command("bucket", "flush", BACK)
        seconds = time.perf_counter() - begun
        total = objects // TURNS * TURNS
        note = f"{total / took[BACK]:,.0f}/s, native {total / took[BUCKET]:,.0f}/s"
        bench.report.at_least("bound-back-acknowledged", took[BUCKET] / took[BACK], "of native", 0.9, note)
        rate = total * BODY_BYTES / seconds / MB
        bench.report.at_least(
            "bound-back-persisted", rate, "MB/s", 18, f"{seconds:.0f} s until all was persisted")
        bench.report.at_most("bound-back-bound", rate, "MB/s", 20, "at most the configured rate")


def puts(store, names, bucket):
    """Complete PUT requests; all bodies differ."""
    body = bytes(BODY_BYTES - 8)
    for at, target in enumerate(targets(store, names, bucket, "PUT")):
        head = f"PUT {target} HTTP/1.1\r\nHost: {store.server.host}\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
        yield head.encode() + at.to_bytes(8, "big") + body
