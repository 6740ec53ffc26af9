"""A million objects of 1 KiB: their cost in memory, in segments and in the catalogue."""

import random
import time

import proc
from load.keepalive import exchange
from store import CONNECTIONS
from units import KIB, MIB

# The smallest permitted value, so that the cache does not hide growth.
CACHE_MIB = 16
SETTINGS = {"catalogue.cache_bytes": f"{CACHE_MIB}MiB"}
SEGMENT_HEADER_BYTES = 64
SETTLE_SECONDS = 3


def million(bench):
    """Fills an empty store with a small catalogue cache. Memory counts from that of the empty server, less
    the whole of the configured cache."""
    store = bench.open("million", SETTINGS)
    time.sleep(1)
    empty = proc.resident_bytes(store.server.pid)
    names = store.fill(*bench.million_objects())
    filling, objects = proc.resident_bytes_max(store.server.pid), len(names)
    grown = lambda resident: (resident - empty) / MIB - CACHE_MIB
    note = f"empty {empty / MIB:.0f} MiB, cache {CACHE_MIB} MiB"
    bench.report.at_most("million-memory-filling", grown(filling), "MiB RSS", 64, note)
    store.restart()
    some = random.Random(bench.options.seed).sample(names, objects // 10)
    bench.report.say(f"reading {len(some):,} of them")
    exchange(store.server.port, store.requests("GET", some), CONNECTIONS, body_bytes=KIB)
    time.sleep(SETTLE_SECONDS)
    bench.report.at_most(
        "million-memory-settled", grown(proc.resident_bytes(store.server.pid)), "MiB RSS", 64, note)
    bench.stop()
    segments = list((store.folder / "segments").glob("*.seg"))
    records = sum(path.stat().st_size - SEGMENT_HEADER_BYTES for path in segments) - objects * KIB
    keys = sum(len(name) for name in names)
    bench.report.at_most(
        "million-segment", (records - keys) / objects, "B beside key", 64, f"{len(segments)} segments")
    tables = sum(path.stat().st_size for path in proc.files(store.folder / "catalogue") if is_state(path))
    bench.report.at_most("million-catalogue", tables / objects, "B/object", 250)


def is_state(path):
    """True if a file is a table of a group's state; the log has a row of its own."""
    return path.suffix == ".sst" and "group-" in str(path)
