"""Segments spilled to a disk of one spindle and promoted again, compared with plain copies of as many bytes
the same ways, while a client reads objects that stay on the hot tier."""

import itertools
import os
import random
import threading
import time
from contextlib import ExitStack, contextmanager

import proc
from bench import numbered
from load.slow_disk import SlowDisk
from load.streams import download
from server import ServerError, growth
from units import GIB, KIB, MIB

PROGRAM = "MLGW_SLOW_DISK"
BODY_BYTES = 64 * MIB
GIB_MOVED = 2
# As the server copies: bytes read and written at a time, bytes per sync.
WINDOW_BYTES = MIB
PIECE_BYTES = 32 * MIB
SHARE_MIN = 0.8
WAIT_MS_MAX = 5
WAIT_SECONDS = "0.005"
LANES_OF_CLIENTS = ("checkpoint", "inference", "training")
READ_BYTES = 64 * KIB
# All together shorter than a segment, which stays open.
READ_OBJECTS = 1024
READS_PER_SECOND = 50
SEGMENT = "256MiB"
POLL_SECONDS = 0.1
DRAIN_SECONDS_MAX = 600


def spill(bench):
    """2 GiB to the cold tier and back."""
    with SlowDisk(os.environ[PROGRAM], bench.folder) as slow, ended(bench):
        cold = slow.path / "cold"
        cold.mkdir()
        settings = {"cold.dirs": cold, "cold.move_bytes_per_second": "64GiB",
                    "hot.compact_interval": "100ms", "hot.segment_bytes": SEGMENT}
        store = bench.open("spill", settings)
        count = max(2, int(bench.options.gib * GIB_MOVED * GIB / BODY_BYTES))
        store.fill("64 MiB objects", numbered("large", count), BODY_BYTES)
        # Seals their segments; the segments of the objects to read are open from here on, and stay.
        store.restart()
        sealed = set(proc.files(store.folder))
        names = store.fill("64 KiB objects to read meanwhile", numbered("read", READ_OBJECTS), READ_BYTES)
        opened = [file for file in proc.files(store.folder) if file.suffix == ".seg" and file not in sealed]
        copied = plain_copies(bench, slow.path, count * BODY_BYTES)
        for row, tier, in_cold in (("spill", "hot", count), ("promote", "cold", 0)):
            rate = count * BODY_BYTES / drained(bench, store, tier, in_cold, (names, opened))
            note = f"{rate / MIB:.0f} MiB/s, a plain copy {copied[row] / MIB:.0f}"
            bench.report.at_least(row, rate / copied[row], "of the disk", SHARE_MIN, note)


@contextmanager
def ended(bench):
    """Ensures that no server is left at the end, however the block ends."""
    try:
        yield
        bench.stop()
    finally:
        bench.abandon()


def drained(bench, store, tier, in_cold, read):
    """Seconds until this many segments are in the cold tier; also the latencies of concurrent reads
    meanwhile."""
    proc.drop_from_page_cache(store.folder)
    before = store.server.metrics()
    bench.report.say(f"draining the {tier} tier")
    with reading(store, *read, bench.options.seed):
        begun = time.perf_counter()
        store.command("tier", "drain", tier)
        while cold_segments(store) != in_cold:
            if time.perf_counter() - begun > DRAIN_SECONDS_MAX:
                raise ServerError(f"the {tier} tier was not drained within {DRAIN_SECONDS_MAX} s")
            time.sleep(POLL_SECONDS)
        took = time.perf_counter() - begun
    grown = growth(before, store.server.metrics())
    waits = grown("mlgw_queue_wait_seconds_count", queue="disk_read")
    if not waits:
        raise ServerError("no read passed the queue of the disk")
    mean = grown("mlgw_queue_wait_seconds_sum", queue="disk_read") / waits * 1000
    longer = lambda queue: (grown("mlgw_queue_wait_seconds_count", queue=queue)
                            - grown("mlgw_queue_wait_seconds_bucket", queue=queue, le=WAIT_SECONDS))
    places = sum(longer(lane) for lane in LANES_OF_CLIENTS)
    note = (f"of {waits:.0f} reads, {longer('disk_read'):.0f} of more than {WAIT_MS_MAX} ms, "
            f"{places:.0f} of them for a place")
    bench.report.at_most(f"{tier}-drain-wait", mean, "ms", WAIT_MS_MAX, note)
    return took


def cold_segments(store):
    return next(one["segments"] for one in store.command("tier", "list")["tiers"] if one["tier"] == "cold")


@contextmanager
def reading(store, names, files, seed):
    """One client that GETs these objects at a steady rate, each from the disk: `files`, which contain them,
    are dropped from the page cache before each read."""
    requests = list(store.requests("GET", names))
    random.Random(seed).shuffle(requests)
    over, failed = threading.Event(), []
    thread = threading.Thread(target=read_on, args=(store.server.port, requests, files, over, failed))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


def read_on(port, requests, files, over, failed):
    begun = time.perf_counter()
    try:
        with ExitStack() as stack:
            handles = [stack.enter_context(open(file, "rb")).fileno() for file in files]
            for at, request in enumerate(itertools.cycle(requests)):
                if over.wait(max(0, begun + at / READS_PER_SECOND - time.perf_counter())):
                    return
                for handle in handles:
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                download(port, request, READ_BYTES)
    except Exception as error:
        failed.append(error)


def plain_copies(bench, slow, length):
    """Bytes per second of plain copies from the hot disk to the slow one, and back, by the row that they are
    compared with."""
    source, there, back = bench.folder / "plain", slow / "plain", bench.folder / "plain.back"
    bench.report.say(f"copying {length} bytes to the slow disk and back")
    window = os.urandom(WINDOW_BYTES)
    write_synced(source, (window for _ in range(length // WINDOW_BYTES)))
    rates = {"spill": length / plain_copy(source, there), "promote": length / plain_copy(there, back)}
    for path in (source, there, back):
        path.unlink()
    return rates


def plain_copy(source, target):
    """Seconds of one copy."""
    begun = time.perf_counter()
    with open(source, "rb", buffering=0) as read:
        write_synced(target, iter(lambda: read.read(WINDOW_BYTES), b""))
    return time.perf_counter() - begun


def write_synced(path, windows):
    """Writes a file as segments are copied: synced piece by piece, and not kept in the page cache."""
    with open(path, "wb") as out:
        for at, window in enumerate(windows, 1):
            out.write(window)
            if at * WINDOW_BYTES % PIECE_BYTES == 0:
                out.flush()
                os.fdatasync(out.fileno())
                os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
