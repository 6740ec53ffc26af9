"""What the policy engine keeps of a bound bucket, seen by clients: epochs, jobs that share a dataset, a mix, checkpoints beside training.

The goals of the simulator (`ml`) at a small scale through two servers and a slow way between them. The optimum is computed from the very
reads that were made."""

import itertools
import random
import shutil
import statistics
import threading
import time
from contextlib import contextmanager

from bench import numbered
from load.jobs import Job, Reading, epochs, hit_ratio
from load.streams import in_parallel, upload
from references import lru, optimum, ratio
from rows.bound import BOUND, Front, fronted, targets
from store import BUCKET
from units import KIB, MIB

# 20 ms away, with a bandwidth that a few connections fill.
WAY = {"delay": "20ms", "connection_rate": "60MB", "total_rate": "100MB"}
# Of `bound.capacity`, in percent; the server says what it came to.
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
MIX_EPOCHS = 6
ZIPF = 0.9
PART_BYTES = 8 * MIB
PUTS_AT_ONCE = 4
BURSTS = 3


class Kept:
    """A server that begins with nothing kept and has room for a share of `total` bytes, and the objects that it fronts."""

    def __init__(self, bench, origin, proxy, room, more=None):
        self.bench = bench
        settings = {"bound.capacity": str(int(room) * 100 // BLOCKS_PERCENT + 100)} | (more or {})
        self.front = Front(bench, origin, proxy, settings, "kept")
        self.store = self.front.store
        self.signer = self.store.signers()[0]
        self.known = {}

    def target(self, name):
        """That of one object; signed once."""
        if name not in self.known:
            self.known[name] = self.signer.presign("GET", self.store.server.host, f"/{BOUND}/{name}")
        return self.known[name]

    def read(self, *jobs):
        """The reads of jobs, in the order in which they began."""
        return Reading(self.store.server.port, self.target, list(jobs)).run()

    def recorded(self, *jobs, meanwhile=None):
        """The same recorded: the reads, what the server says of its trace, and the trace in a file."""
        self.store.command("trace", "start", "bench")
        reads = self.read(*jobs)
        said = self.store.command("trace", "stop")
        file = self.store.folder.with_suffix(".trace")
        file.unlink(missing_ok=True)
        self.store.command("trace", "export", "bench", str(file))
        return reads, said["capacity_bytes"], file

    def rehearsed(self, file, capacity, *policies):
        """Byte hit ratios of policies on a trace."""
        rows = self.store.command("policy", "simulate", "--trace", str(file), "--cache", f"{capacity}B", "--policy", ",".join(policies))
        return {row["policy"]: row["byte_hit_ratio"] for row in rows}


@contextmanager
def kept(bench, origin, proxy, room, more=None):
    """One, whose data goes afterwards."""
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
        for goal in (one_job, shared):
            goal(bench, origin, proxy)


def pairs(reads):
    return [(read.object, read.size) for read in reads]


def one_job(bench, origin, proxy):
    """G1: from the third epoch on as much is found here as fits."""
    count = 100 if bench.options.quickly else 300
    names = origin.fill("objects of one job", numbered("one", count), ONE_BYTES)
    for order, share in itertools.product(("shuffled", "sequential"), ONE_SHARES):
        chance = random.Random(bench.options.seed) if order == "shuffled" else None
        with kept(bench, origin, proxy, share * count * ONE_BYTES) as server:
            reads, capacity, _ = server.recorded(Job("trainer", epochs(names, ONE_EPOCHS, chance), connections=4))
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
            Job(f"trainer-{at}", epochs(names, SHARED_EPOCHS, chance), connections=2, after=chance.randrange(count) if at else 0)
            for at in range(JOBS)
        ]
        with kept(bench, origin, proxy, share * count * SHARED_BYTES) as server:
            reads, capacity, file = server.recorded(*jobs)
            told = server.rehearsed(file, capacity, "mlgw", "optimum")
        first = len(reads) // 2
        ours, best, old = hit_ratio(reads[first:]), ratio(optimum, pairs(reads), capacity, first), ratio(lru, pairs(reads), capacity, first)
        note = f"found {ours:.3f}, optimum {best:.3f}, LRU {old:.3f}, never evicting {share:.3f}"
        name = f"policy-g2-{share * 100:.0f}"
        bench.report.at_least(name, ours / best, "of optimum", goal, note)
        whole = hit_ratio(reads)
        note = f"all reads: found {whole:.3f}; rehearsed {told['mlgw']:.3f}, optimum {told['optimum']:.3f}"
        bench.report.at_most(f"{name}-rehearsed", abs(whole - told["mlgw"]), "apart", 0.02, note)
