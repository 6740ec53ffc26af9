"""The catalogue's log over five million commands, and the effect of a snapshot (the flush and purge when the
log is long) on concurrent writers, with a million objects in the catalogue.

The log is filled by DeleteObjects of long keys that do not exist, the cheapest commands that are as long in
the log as a PUT's; they pass the log and change nothing. When it is nearly full, 32 connections PUT until a
snapshot was taken."""

import random
import time
from dataclasses import dataclass, field
from statistics import median

import proc
from bench import NO_COMPACTION
from load.keepalive import exchange
from load.sampler import Sampler
from server import ServerError
from store import CONNECTIONS, DELETE_KEYS_MAX
from units import KIB, MIB

KEY_CHARS = 200
NEARLY = 0.93
WINDOW_SECONDS = 2.0
LOOK_SECONDS = 0.05
CYCLE_SECONDS_MAX = 120
# PUTs read the entries they replace, and the output of a compaction is read again: filling the cache is not a
# cost of a snapshot.
SMALL_CACHE = {"catalogue.cache_bytes": "16MiB"}


@dataclass
class Seen:
    """Results of each snapshot: the longest stall in seconds with the time of its end after the snapshot, and
    its memory in bytes; and the longest wait that was not near a snapshot."""

    stalls: list = field(default_factory=list)
    memory: list = field(default_factory=list)
    outside: list = field(default_factory=list)


def log(bench):
    """Alternates both until the number of commands is reached."""
    store, names = bench.million(NO_COMPACTION | SMALL_CACHE)
    seen, wanted = Seen(), bench.options.commands
    folder = store.folder / "catalogue" / "log"
    count = bench.report.counter("commands", wanted)
    with Sampler(lambda: proc.disk_bytes(folder), LOOK_SECONDS) as on_disk:
        while count.done < wanted:
            fill_log(store, count)
            cross(store, names, seen)
            count(commands(store) - count.done)
    largest, last = max(value for _, value in on_disk.samples), proc.disk_bytes(folder)
    note = f"after {count.done:,} commands {last / MIB:.0f} MiB; the largest on the way counts"
    bench.report.at_most("log-on-disk", largest / MIB, "MiB", 256, note)
    each = ", ".join(f"{stall * 1e3:.0f} at {after:+.1f} s" for stall, after in seen.stalls)
    note = f"{each}; the longest wait without one {max(seen.outside) * 1e3:.0f} ms"
    bench.report.at_most("snapshot-stall", max(seen.stalls)[0] * 1e3, "ms", 100, note)
    note = ", ".join(f"{value / MIB:.1f}" for value in seen.memory)
    bench.report.at_most("snapshot-memory", max(seen.memory) / MIB, "MiB RSS", 32, note)


def commands(store):
    return int(store.server.metrics().sum("mlgw_raft_commands_total"))


def fill_log(store, count):
    """Sends DeleteObjects until the log is nearly as long as it may get."""
    number = random.Random(count.done)
    while True:
        metrics = store.server.metrics()
        count(int(metrics.sum("mlgw_raft_commands_total")) - count.done)
        if metrics.sum("mlgw_raft_log_bytes") > NEARLY * metrics.sum("mlgw_raft_log_limit_bytes"):
            return
        store.delete([f"absent/{number.getrandbits(64):0{KEY_CHARS}d}" for _ in range(DELETE_KEYS_MAX * 30)])


def cross(store, names, seen):
    """PUTs during a snapshot, whose time the sampler finds from its counter."""
    pid = store.server.pid
    look = lambda: (proc.resident_bytes(pid), store.server.metrics().sum("mlgw_raft_snapshots_total"))
    requests = store.puts(random.sample(names, len(names)) * 4, KIB)
    with Sampler(look, LOOK_SECONDS) as sampler:
        time.sleep(3 * LOOK_SECONDS)
        moment = Moment(sampler)
        waits = exchange(store.server.port, requests, CONNECTIONS, CYCLE_SECONDS_MAX, until=moment.is_past)
    if moment.at is None:
        raise ServerError(f"no snapshot within {CYCLE_SECONDS_MAX} s of PUTs")
    judge(waits, sampler, moment.at, seen)


class Moment:
    """The time at which the counter of snapshots was first higher."""

    def __init__(self, sampler):
        self.sampler, self.at = sampler, None
        _, self.before = sampler.last()

    def is_past(self):
        """True if that is long enough in the past for its effects to have been sampled."""
        at, (_, taken) = self.sampler.samples[-1]
        if self.at is None and taken > self.before:
            self.at = at
        return self.at is not None and at >= self.at + WINDOW_SECONDS


def judge(waits, sampler, at, seen):
    """Computes stall and memory: a stall is a wait near the snapshot less the median of the others; memory is
    the peak less the value before."""
    near = [
        (wait, when - at) for when, wait in zip(waits.at, waits.waits) if abs(when - at) <= WINDOW_SECONDS]
    others = [wait for when, wait in zip(waits.at, waits.waits) if abs(when - at) > WINDOW_SECONDS]
    longest, after = max(near)
    seen.stalls.append((longest - median(others or waits.waits), after))
    seen.outside.append(max(others or [0.0]))
    memory = [resident for resident, _ in sampler.between(at - WINDOW_SECONDS, at + WINDOW_SECONDS)]
    seen.memory.append(max(memory) - memory[0])
