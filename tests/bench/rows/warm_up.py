"""A dataset that is warmed ahead of use, compared with the bandwidth of the path to its origin."""

import time

from bench import numbered
from load.streams import download, in_parallel
from rows.bound import BOUND, FAR, Front, fronted
from units import GIB, MIB

SMALL_OBJECTS = 1000
LARGE_OBJECTS = 4
STREAMS = 8


def warm_up(bench):
    """1,000 objects of 1 MiB and 4 of 1 GiB: the ratio of a warm-up's bandwidth to that of parallel
    downloads."""
    with fronted(bench, FAR) as (origin, proxy):
        large_bytes = max(int(bench.options.gib * GIB), 64 * MIB)
        small = origin.fill("1 MiB objects", numbered("warm/small", SMALL_OBJECTS), MIB)
        large = origin.fill("1 GiB objects", numbered("warm/large", LARGE_OBJECTS), large_bytes)
        front = Front(bench, origin, proxy)
        direct = direct_rate(front, large, large_bytes)
        for name, prefix, total in (
            ("small", "warm/small", len(small) * MIB),
            ("large", "warm/large", len(large) * large_bytes),
        ):
            front.store.command("dataset", "create", name, "--bucket", BOUND, "--prefix", prefix)
            begun = time.perf_counter()
            front.store.command("dataset", "warm", name, "--wait")
            rate = total / (time.perf_counter() - begun)
            note = f"{rate / MIB:.0f} MiB/s, downloads at once {direct / MIB:.0f}"
            bench.report.at_least(f"warm-up-{name}", rate / direct, "of the way", 0.9, note)


def direct_rate(front, names, body_bytes):
    """Bytes per second of parallel downloads over the same path."""
    requests = front.direct(names) * (STREAMS // len(names))
    begun = time.perf_counter()
    in_parallel(lambda one: download(front.proxy.port, one, body_bytes), requests, STREAMS)
    return len(requests) * body_bytes / (time.perf_counter() - begun)
