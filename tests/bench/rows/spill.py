"""Segments that go down to another directory and come up again, beside the plain copy of as many bytes on the same disk."""

import os
import time

from load.streams import download, in_parallel
from units import GIB, MIB

BODY_BYTES = 64 * MIB
GIB_MOVED = 2
PIECE_BYTES = 4 * MIB
WAIT_MS_MAX = 5


def spill(bench):
    """2 GiB to the cold tier and back, while one client reads."""
    cold = bench.folder / "cold"
    cold.mkdir(exist_ok=True)
    settings = {"cold.dirs": cold, "cold.move_bytes_per_second": "64GiB", "hot.compact_interval": "100ms"}
    store = bench.open("spill", settings)
    count = int(bench.options.gib * GIB_MOVED * GIB / BODY_BYTES)
    names = store.fill("64 MiB objects", [f"large/{at}" for at in range(count)], BODY_BYTES)
    store.restart()
    medium = plain_copy(bench.folder, count * BODY_BYTES)
    seconds = {tier: drained(bench, store, tier, names) for tier in ("hot", "cold")}
    for tier, took in seconds.items():
        rate = count * BODY_BYTES / took
        name = "spill" if tier == "hot" else "promote"
        note = f"{rate / MIB:.0f} MiB/s, a plain copy {medium / MIB:.0f}"
        bench.report.at_least(name, rate / medium, "of the disk", 0.8, note)


def drained(bench, store, tier, names):
    """Seconds that it takes, and how long reads waited for us meanwhile."""
    requests, before = list(store.requests("GET", names[:2])), store.server.metrics()
    begun = time.perf_counter()
    asked = store.command("tier", "drain", tier)
    while store.command("--quiet", "tier", "list") and not is_done(store, tier):
        in_parallel(lambda one: download(store.server.port, one, BODY_BYTES), requests[:1], 1)
    took = time.perf_counter() - begun
    after = store.server.metrics()
    grown = lambda name: after.sum(name, queue="disk_read") - before.sum(name, queue="disk_read")
    count = grown("mlgw_queue_wait_seconds_count")
    mean = grown("mlgw_queue_wait_seconds_sum") / count * 1000 if count else 0.0
    bench.report.at_most(f"{tier}-drain-wait", mean, "ms", WAIT_MS_MAX, f"of {count:.0f} reads from the disk; asked {asked['waiting_bytes']}")
    return took


def is_done(store, tier):
    tiers = {one["tier"]: one for one in store.command("tier", "list")["tiers"]}
    return tiers[tier]["segments"] <= 1


def plain_copy(folder, length):
    """Bytes a second of a copy that is synced, as of a segment: read, written, synced now and then."""
    source, copy = folder / "plain", folder / "plain.copy"
    piece = os.urandom(PIECE_BYTES)
    with open(source, "wb") as out:
        for _ in range(length // PIECE_BYTES):
            out.write(piece)
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begun = time.perf_counter()
    with open(source, "rb") as read, open(copy, "wb") as out:
        while data := read.read(32 * MIB):
            out.write(data)
            out.flush()
            os.fdatasync(out.fileno())
    took = time.perf_counter() - begun
    for path in (source, copy):
        path.unlink()
    return length / took
