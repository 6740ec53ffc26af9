"""The policy engine on a remote-backed bucket, as clients see it: epochs, jobs that share a dataset, a mix,
checkpoints beside training.

The goals of the simulator (`ml`) at a small scale through two servers and a slow path between them. The hits
of reference caches are computed from the same reads."""

import itertools
import os
import random
import shutil
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

from bench import numbered
from load.jobs import Job, Part, Reading, epochs, hit_ratio
from load.keepalive import AnswerError
from load.streams import in_parallel
from references import class_aware, lru, optimum, ratio
from rows.bound import BOUND, Front, fronted
from rows.multipart import Sender
from server import growth
from store import BUCKET, RequestError
from units import KIB, MIB

# 20 ms away, with a bandwidth that a few connections fill.
WAY = {"delay": "20ms", "connection_rate": "60MB", "total_rate": "100MB"}
# The same distance, with the bandwidth of an object store for one connection and for all: read-ahead takes
# nothing from waiting reads.
WIDE = {"delay": "20ms", "connection_rate": "100MB", "total_rate": "1GB"}
# In percent of `bound.capacity`; the server reports the resulting bytes.
BLOCKS_PERCENT = 92
COUNTED_FROM = 3

ONE_SHARES = (0.35, 0.5, 0.8)
ONE_BYTES = 256 * KIB
ONE_EPOCHS = 5
SHARED_GOALS = ((0.2, 0.72), (0.4, 0.83))
SHARED_BYTES = 128 * KIB
SHARED_EPOCHS = 6
JOBS = 3
MIX_SHARES = (0.25, 0.5, 0.75)
MIX_BYTES = 128 * KIB
MIX_EPOCHS = 6
ZIPF = 0.9
AHEAD_BYTES = MIB
AHEAD_PAUSE = 0.02
SHARD_BYTES = 32 * MIB
PART_BYTES = 8 * MIB
TURNS = 4
RANKS = 16
GENERATIONS = 3
PINNED_SECONDS_MAX = 60
CONNECTIONS_OF_CHECKPOINT = 8


class Kept:
    """A server with an empty cache that has space for a fraction of `total` bytes, and the objects of its
    remote-backed bucket."""

    def __init__(self, bench, origin, proxy, room, more=None):
        self.bench = bench
        settings = {"bound.capacity": str(int(room) * 100 // BLOCKS_PERCENT + 100)} | (more or {})
        self.front = Front(bench, origin, proxy, settings, "kept")
        self.store = self.front.store
        self.signer = self.store.signers()[0]
        self.known = {}

    def target(self, name):
        """The target of an object; signed once."""
        if name not in self.known:
            self.known[name] = self.signer.presign("GET", self.store.server.host, f"/{BOUND}/{name}")
        return self.known[name]

    def read(self, *jobs):
        """Runs jobs; returns their reads in the order in which they began."""
        return Reading(self.store.server.port, self.target, list(jobs)).run()

    def recorded(self, *jobs, meanwhile=None):
        """Runs jobs with recording; returns the reads, the capacity for copies in bytes, and the trace in a
        file."""
        self.store.command("trace", "start", "bench")
        with meanwhile or nullcontext():
            reads = self.read(*jobs)
        return reads, *self.end_recording()

    def end_recording(self):
        """Ends the recording; returns the capacity for copies in bytes, and the trace in a file."""
        capacity = self.store.command("trace", "stop")["capacity_bytes"]
        file = self.store.folder.with_suffix(".trace")
        file.unlink(missing_ok=True)
        self.store.command("trace", "export", "bench", str(file))
        return capacity, file

    def simulated(self, file, capacity, *policies, field="byte_hit_ratio"):
        """The results of policies on a trace."""
        words = ["--trace", str(file), "--cache", f"{capacity}B", "--policy", ",".join(policies)]
        rows = self.store.command("policy", "simulate", *words)
        return {row["policy"]: row[field] for row in rows}


@contextmanager
def kept(bench, origin, proxy, room, more=None):
    """A server of this kind, whose data is removed afterwards."""
    server = Kept(bench, origin, proxy, room, more)
    try:
        yield server
        bench.stop()
    finally:
        bench.abandon()
        folder = server.store.folder
        bench.stores.pop(folder.name)
        shutil.rmtree(folder)


def policy(bench):
    """Each goal with servers of its own before one origin."""
    with fronted(bench, WAY) as (origin, proxy):
        for goal in (one_job, shared, mixture, checkpoint, survival):
            goal(bench, origin, proxy)
    with fronted(bench, WIDE) as (origin, proxy):
        read_ahead(bench, origin, proxy)


def pairs(reads):
    return [(read.object, read.size) for read in reads]


def one_job(bench, origin, proxy):
    """G1: from the third epoch on, the hits equal the capacity."""
    count = 100 if bench.options.quickly else 300
    names = origin.fill("objects of one job", numbered("one", count), ONE_BYTES)
    for order, share in itertools.product(("shuffled", "sequential"), ONE_SHARES):
        chance = random.Random(bench.options.seed) if order == "shuffled" else None
        with kept(bench, origin, proxy, share * count * ONE_BYTES) as server:
            reads, capacity, _ = server.recorded(
                Job("trainer", epochs(names, ONE_EPOCHS, chance), connections=4))
        first = (COUNTED_FROM - 1) * count
        ours = hit_ratio(reads[first:])
        best = ratio(optimum, pairs(reads), capacity, first)
        old = ratio(lru, pairs(reads), capacity, first)
        note = f"found {ours:.3f}, optimum {best:.3f}, LRU {old:.3f}"
        bench.report.at_least(f"policy-g1-{order}-{share * 100:.0f}", ours / best, "of optimum", 0.98, note)


def shared(bench, origin, proxy):
    """G2: three jobs with shuffles of their own; the second half of their reads counts."""
    count = 200 if bench.options.quickly else 1000
    names = origin.fill("objects of jobs that share them", numbered("shared", count), SHARED_BYTES)
    for share, goal in SHARED_GOALS:
        chance = random.Random(bench.options.seed)
        jobs = [
            Job(
                f"trainer-{at}", epochs(names, SHARED_EPOCHS, chance), connections=2,
                after=at and chance.randrange(count))
            for at in range(JOBS)
        ]
        with kept(bench, origin, proxy, share * count * SHARED_BYTES) as server:
            reads, capacity, file = server.recorded(*jobs)
            simulated = server.simulated(file, capacity, "mlgw")["mlgw"]
        first = len(reads) // 2
        ours = hit_ratio(reads[first:])
        best, old = (ratio(cache, pairs(reads), capacity, first) for cache in (optimum, lru))
        note = f"found {ours:.3f}, optimum {best:.3f}, LRU {old:.3f}, never evicting {share:.3f}"
        name = f"policy-g2-{share * 100:.0f}"
        bench.report.at_least(name, ours / best, "of optimum", goal, note)
        as_simulated(bench, name, hit_ratio(reads), simulated)


def as_simulated(bench, name, found, simulated):
    """The hit ratio that `mlgw policy simulate` computes for the recorded trace equals the measured one."""
    note = f"of all reads: found {found:.3f}, simulated {simulated:.3f}"
    bench.report.at_most(f"{name}-simulated", abs(found - simulated), "apart", 0.02, note)


def mixture(bench, origin, proxy):
    """G4: training with a validation set, a scan that reads a lake once, pages read with a Zipf distribution,
    and checkpoints."""
    count = 150 if bench.options.quickly else 600
    chance = random.Random(bench.options.seed)
    train, validation, lake, pages = (
        origin.fill(f"{name} of the mix", numbered(f"mix/{name}", many), MIX_BYTES)
        for name, many in (
            ("train", count), ("validation", count // 20), ("lake", count * 2), ("pages", count),
        )
    )
    passes = [chance.sample(train, count) + validation for _ in range(MIX_EPOCHS)]
    weights = [1 / (at + 1) ** ZIPF for at in range(count)]
    jobs = [
        Job("trainer", list(itertools.chain.from_iterable(passes)), connections=3),
        Job("scanner", lake),
        Job("pages", chance.choices(pages, weights, k=2 * count)),
    ]
    for share in MIX_SHARES:
        with kept(bench, origin, proxy, share * count * MIX_BYTES) as server:
            # A 27th of the training set, as in MIX-1.
            body = os.urandom(count * MIX_BYTES // 27)
            checkpoints = over_and_over(Sender(server.store, body, None, 1, f"/{BUCKET}/mix"))
            reads, capacity, file = server.recorded(*jobs, meanwhile=checkpoints)
            simulated = server.simulated(file, capacity, "mlgw", "s3-fifo")
        ours = hit_ratio(reads)
        best, old = (ratio(cache, pairs(reads), capacity) for cache in (optimum, lru))
        of_job = lambda job: pairs(read for read in reads if read.job == job)
        classes = class_aware(of_job("trainer"), of_job("pages"), capacity) / sum(read.size for read in reads)
        note = f"found {ours:.3f}, class-aware {classes:.3f}, optimum {best:.3f}, LRU {old:.3f}"
        name = f"policy-g4-{share * 100:.0f}"
        bench.report.at_least(name, ours / classes, "of class-aware", 0.97, note)
        bench.report.information(f"{name}-optimum", ours / best, "of optimum")
        note = f"S3-FIFO found {simulated['s3-fifo']:.3f}, taking in what is written as well"
        bench.report.at_least(f"{name}-lru", ours / old, "times LRU", 1, note)
        as_simulated(bench, name, ours, simulated["mlgw"])


@contextmanager
def over_and_over(sender):
    """Writes the same object every second meanwhile."""
    done = threading.Event()

    def send():
        while not done.wait(1):
            sender.send()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            yield
        finally:
            done.set()
        sending.result()


def read_ahead(bench, origin, proxy):
    """G6: the first epoch in the order of the keys, and by shards in a random order."""
    count = 30 if bench.options.quickly else 300
    names = origin.fill("objects to be read ahead", numbered("ahead", count), AHEAD_BYTES)
    prompt(bench, origin, proxy, "policy-g6", names, names, "objects of 1 MiB")
    count = 4 if bench.options.quickly else 16
    shards = origin.fill(
        "shards to be read ahead", [f"shards/{at:05d}.tar" for at in range(count)], SHARD_BYTES)
    shuffled = random.Random(bench.options.seed).sample(shards, count)
    parts = [
        Part(shard, first, AHEAD_BYTES)
        for shard in shuffled for first in range(0, SHARD_BYTES, AHEAD_BYTES)]
    # The next shard is unpredictable.
    judged = [part for part in parts if part.first > 0]
    prompt(
        bench, origin, proxy, "policy-g6-shards", parts, judged,
        "parts of 1 MiB of shards, but the first of each")


def prompt(bench, origin, proxy, row, objects, judged, what):
    """The fraction of `judged` that does not wait for the origin in a first epoch, and the bytes fetched in
    vain."""
    with kept(bench, origin, proxy, 2 * len(objects) * AHEAD_BYTES) as server:
        before = server.store.server.metrics()
        reads = server.read(Job("trainer", epochs(objects, 2), pause=AHEAD_PAUSE))
        came = growth(before, server.store.server.metrics())("mlgw_upstream_bytes_total")
    first, second = reads[: len(objects)], reads[len(objects) :]
    usual = statistics.median(read.wait for read in second)
    asked = set(judged)
    # A read found entirely in local tiers waits for no origin, whatever other delays it has.
    quick = sum(read.is_here or read.wait <= usual + 0.001 for read in first if read.object in asked)
    quick /= len(judged)
    wasted = max(0.0, came / (len(objects) * AHEAD_BYTES) - 1)
    bench.report.at_least(f"{row}-quick", quick, "of requests", 0.95, f"{len(judged)} {what}")
    bench.report.at_most(f"{row}-wasted", wasted, "of bytes", 0.05, "of the bytes fetched")


def checkpoint(bench, origin, proxy):
    """G8: parts of checkpoints, alternately beside training and alone, and the hits of training meanwhile."""
    count, parts = (80, 8) if bench.options.quickly else (300, 32)
    names = origin.fill("objects of one job", numbered("one", count), ONE_BYTES)
    chance = random.Random(bench.options.seed)
    rates, found = {"alone": [], "beside": []}, {"alone": [], "beside": []}
    with kept(bench, origin, proxy, count * ONE_BYTES / 2) as server:
        sender = Sender(server.store, os.urandom(PART_BYTES), None, parts, f"/{BUCKET}/checkpoint")
        train = lambda: server.read(Job("trainer", epochs(names, 1, chance), connections=2, pause=0.03))
        for _ in range(COUNTED_FROM - 1):
            train()
        for _ in range(TURNS):
            found["alone"] += train()
            rates["alone"].append(rate_of(sender))
            with ThreadPoolExecutor(1) as pool:
                training = pool.submit(train)
                # Training is in progress by then.
                time.sleep(0.3)
                rates["beside"].append(rate_of(sender))
                found["beside"] += training.result()
    rate = {kind: statistics.median(all_rates) for kind, all_rates in rates.items()}
    note = f"{rate['beside'] / MIB:.0f} MiB/s, alone {rate['alone'] / MIB:.0f}, {parts} parts of 8 MiB"
    bench.report.at_least("policy-g8-checkpoint", rate["beside"] / rate["alone"], "of alone", 0.9, note)
    here, there = hit_ratio(found["beside"]), hit_ratio(found["alone"])
    bench.report.at_most(
        "policy-g8-hits", max(0.0, there - here), "fewer", 0.02, f"found {here:.3f}, without {there:.3f}")


def rate_of(sender):
    """Bytes per second of one checkpoint."""
    begun = time.perf_counter()
    sender.send()
    return sender.parts * len(sender.body) / (time.perf_counter() - begun)


def survival(bench, origin, proxy):
    """G8: after a kill -9 amid training, every acknowledged part of a checkpoint is present, and all of the
    newest complete group is pinned."""
    count = 80 if bench.options.quickly else 300
    names = origin.fill("objects of one job", numbered("one", count), ONE_BYTES)
    body = os.urandom(PART_BYTES)
    with kept(bench, origin, proxy, count * ONE_BYTES / 2, {"policy.look_every": "1s"}) as server:
        store, written = server.store, {}
        training = threading.Thread(target=until_it_dies, args=(server, names), daemon=True)
        training.start()
        for generation in range(GENERATIONS):
            # In the order of torch.distributed.checkpoint: the metadata last.
            prefix = f"/{BUCKET}/run/step-{generation:08d}"
            shards = {f"{prefix}/__{rank}_0.distcp": body[rank:] for rank in range(RANKS)}
            for group in (shards, {f"{prefix}/.metadata": body[:KIB]}):
                in_parallel(
                    lambda one: store.call("PUT", one[0], body=one[1]), group.items(),
                    CONNECTIONS_OF_CHECKPOINT)
                written |= group
        store.server.kill()
        training.join()
        store.server.start()
        lost = sum(not is_there(store, path, body) for path, body in written.items())
        pinned = count_pinned(store, RANKS + 1)
    note = f"of {len(written)} objects of {GENERATIONS} checkpoints, after kill -9 beside training"
    bench.report.at_most("policy-g8-lost", lost, "objects", 0, note)
    bench.report.at_least(
        "policy-g8-pinned", pinned / (RANKS + 1), "of the newest", 1, f"{RANKS + 1} objects")


def until_it_dies(server, names):
    """Trains until the server is killed."""
    try:
        server.read(Job("trainer", epochs(names, 1000), connections=2, pause=0.01))
    except (OSError, AnswerError):
        pass


def is_there(store, path, body):
    try:
        return store.call("GET", path)[1] == body
    except RequestError:
        return False


def count_pinned(store, wanted):
    """The number of objects pinned by rules, as soon as it reaches the expected number."""
    deadline = time.monotonic() + PINNED_SECONDS_MAX
    while time.monotonic() < deadline:
        pinned = store.server.metrics().sum("mlgw_policy_actions_total", action="pin", outcome="done")
        if pinned >= wanted:
            break
        time.sleep(1)
    return pinned
