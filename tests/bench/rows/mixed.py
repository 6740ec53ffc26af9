"""2,000 GET/s of 4 KiB while bodies of 1 GiB are written and compaction moves live data, compared with a
control: the same GETs beside two processes that only compute."""

import itertools
import multiprocessing
import os
import random
from contextlib import contextmanager

import proc
from bench import NO_COMPACTION, numbered
from load.paced import Paced
from load.result import Load
from load.streams import upload
from server import ServerError, growth
from store import BUCKET
from units import GIB, KIB, MIB

PER_SECOND = 2000
BODY_BYTES = 4 * KIB
PIECE_BYTES = 16 * MIB
WORSE_MAX = 2.0
QUEUE_SECONDS = "0.005"
OF_GETS = "disk_read"


def mixed(bench):
    """The ratio of both p99; and, from the server's histogram, the waits of over 5 ms in the only queue that
    GETs pass, that for a reader thread. PUT and compaction pass the other queues, where they wait for the
    disk: for information."""
    store, names = bench.small(NO_COMPACTION)
    waste(store, numbered("waste", len(names)))
    requests = list(store.requests("GET", names))
    control = gets(bench, store, requests, "beside two that compute", computing())
    before = store.server.metrics()
    loaded = gets(bench, store, requests, "beside a PUT and a compaction", writing(store, bench.options.gib))
    grown = growth(before, store.server.metrics())
    done = f"{grown('mlgw_tier_written_bytes_total') / GIB:.1f} GiB written, " \
           f"{grown('mlgw_moved_bytes_total', reason='compaction') / GIB:.2f} GiB moved"
    if not grown("mlgw_tier_written_bytes_total") or not grown("mlgw_moved_bytes_total", reason="compaction"):
        raise ServerError(f"no PUT or no compaction during the measurement: {done}")
    note = f"p99 {loaded.p99 / 1e3:.2f} ms, control {control.p99 / 1e3:.2f} ms; {done}"
    bench.report.at_most("mixed-p99", loaded.p99 / control.p99, "of control's", WORSE_MAX, note)
    for queue in before.values("queue", "mlgw_queue_wait_seconds_count"):
        waits = grown("mlgw_queue_wait_seconds_count", queue=queue)
        short = grown("mlgw_queue_wait_seconds_bucket", queue=queue, le=QUEUE_SECONDS)
        row = (f"mixed-queue-{queue}", waits - short, "waits > 5 ms")
        if queue == OF_GETS:
            bench.report.at_most(*row, 0, f"of {waits:,.0f}")
        else:
            bench.report.information(*row, f"of {waits:,.0f}")


def waste(store, names):
    """Writes data for compaction: every other one of these objects is deleted."""
    store.fill("4 KiB objects to be compacted", names, BODY_BYTES)
    store.delete(names[::2])


def gets(bench, store, requests, beside, load):
    bench.report.say(f"{PER_SECOND} GET/s {beside}")
    chance = random.Random(bench.options.seed)
    drawn = (chance.choice(requests) for _ in itertools.count())
    with proc.kept_in_page_cache(store.folder), load:
        waits = Paced(store.server.port, PER_SECOND, bench.options.seconds * 1.5, BODY_BYTES).run(drawn)
    return Load.of_waits(waits.waits, waits.seconds)


@contextmanager
def beside(*works):
    """Runs each in a process of its own, repeatedly, until the block ends."""
    processes = [multiprocessing.Process(target=over_and_over, args=(work,), daemon=True) for work in works]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def over_and_over(work):
    while True:
        work()


def computing():
    compute = lambda: sum(range(100_000))
    return beside(compute, compute)


@contextmanager
def writing(store, gib):
    """One PUT after the other, and a compaction of all dead data."""
    body, times = os.urandom(PIECE_BYTES), max(1, int(gib * GIB / PIECE_BYTES))
    target = next(store.targets("PUT", ["written"]))
    length = f"Content-Length: {len(body) * times}\r\n"
    head = f"PUT {target} HTTP/1.1\r\nHost: {store.server.host}\r\n{length}\r\n".encode()
    store.command("tier", "compact", "--dead-percent", "1")
    with beside(lambda: upload(store.server.port, head, body, times)):
        yield
    store.call("DELETE", f"/{BUCKET}/written")
