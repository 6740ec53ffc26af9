"""A node that fails under load: killed, stopped, with slow syncs, and without its segments.

The load is an open loop over the nodes. What is compared is the p99 of the requests through the other nodes,
before the failure and some time after it."""

import os
import subprocess
import time
from dataclasses import dataclass
from statistics import median

import proc
from bench import NO_COMPACTION, numbered
from cluster import COPIED_SECONDS_MAX, FIRST, GLANCE_SECONDS, new_cluster
from load.nodes import Mix, NodesLoad, longest_pause, p99
from load.sampler import Sampler
from load.strace import SlowSyncs
from load.streams import in_parallel, upload
from rows.cluster.latency import rate_of_load, ratio, report_errors, report_p99
from rows.mixed import beside
from server import ServerError, environment
from store import BUCKET, CONNECTIONS, RequestError
from units import GIB, KIB, MIB

BODY_BYTES = 4 * KIB
READ_OBJECTS = 5000
# Of a load whose p99 is compared, at most: half of the requests are PUTs.
PER_SECOND, PUTS_OF_TEN = 300, 5
P99_MAX = 2.0
BEFORE_SECONDS, SETTLE_SECONDS, AFTER_SECONDS = 15, 10, 15
WRITES_AGAIN_SECONDS_MAX = 5
# The last one follows in the group of the bucket.
LAST = 3
# 30 MB/s.
STREAM_BYTES, STREAM_PER_SECOND = 150_000, 200
# Of 200 characters, deleted in small commands: with the PUTs, 50 MB of log in a minute.
ABSENT_KEYS, KEY_CHARS, ABSENT_EVERY_SECONDS = 200, 200, 0.05
# The smallest one permitted: the log is purged several times while the node is away. Its entries have up to
# 1.5 times as much, and 4.5 times while a snapshot is sent, as it is to a node with slow syncs; its files
# have up to twice the entries.
SHORT_LOG = {"catalogue.log_bytes_max": "8MiB"}
LOG_MIB_MAX, SENDING_LOG_MIB_MAX, SNAPSHOTS_MAX = 24, 72, 1
INSTALLED = "mlgw_raft_installed_snapshots_total"
# What waits for a follower has at most 32 MiB; the rest is for the tables of the catalogue in memory.
MEMORY_MIB_MAX = 128
LOOK_SECONDS = 1
SYNC_MICROS = 2_000_000
REPAIR_BYTES_PER_SECOND = 64 * MIB
REPAIR_MIN = 0.8
STORED_BYTES, STORING_THREADS = 64 * MIB, 4
BLOCK_BYTES = 4 * KIB


@dataclass
class Times:
    """Seconds of the parts of a turn: before a failure, until things have settled after it, and the time that
    is compared."""

    before: float
    settle: float
    after: float

    @staticmethod
    def of(bench):
        quick = bench.options.quickly
        return Times(3, 5, 3) if quick else Times(BEFORE_SECONDS, SETTLE_SECONDS, AFTER_SECONDS)


def written_objects(cluster):
    """Objects to read during a load, and their names."""
    names = numbered("small", READ_OBJECTS)
    cluster.nodes[FIRST].fill("4 KiB objects", names, BODY_BYTES)
    return names


# A node is killed.


@dataclass
class KillTurn:
    """Results of one kill: PUTs that were acknowledged and those of them that are lost; all requests through
    other nodes; seconds without an acknowledged PUT through one of them; both p99."""

    acknowledged: int
    lost: int
    others: list
    pause: float
    usual: float
    later: float


def cluster_kill(bench):
    """Each node once, with 32 connections to all of them."""
    with new_cluster(bench) as cluster:
        reads, turns = written_objects(cluster), []
        mix = Mix(reads, PUTS_OF_TEN, BODY_BYTES, "kill")
        per_second = rate_of_load(bench, "cluster-kill", cluster.running(), mix, PER_SECOND)
        for node in cluster.nodes:
            turns.append(kill_turn(bench, cluster, node, reads, per_second))
            cluster.start(node)
            cluster.until_settled()
            cluster.until_copied()
    lost, acknowledged = sum(turn.lost for turn in turns), sum(turn.acknowledged for turn in turns)
    bench.report.at_most("cluster-kill-lost", lost, "objects", 0, f"of {acknowledged:,} acknowledged")
    report_errors(bench, "cluster-kill", [sent for turn in turns for sent in turn.others])
    pauses = [turn.pause for turn in turns]
    note = f"each node: {', '.join(f'{pause:.2f}' for pause in pauses)}"
    bench.report.at_most("cluster-kill-pause", max(pauses), "s", WRITES_AGAIN_SECONDS_MAX, note)
    ratios = [ratio(turn.usual, turn.later) for turn in turns]
    each = ", ".join(f"{turn.later * 1e3:.1f} / {turn.usual * 1e3:.1f} ms" for turn in turns)
    bench.report.at_most("cluster-kill-p99", median(ratios), "of before", P99_MAX, f"p99 {each}")


def kill_turn(bench, cluster, node, reads, per_second):
    """Kills a node under load; the acknowledged objects are read while it is away."""
    bench.report.say(f"cluster-kill: node {node}")
    times, mix = Times.of(bench), Mix(reads, PUTS_OF_TEN, BODY_BYTES, f"kill-{node}")
    with NodesLoad(cluster.running(), mix, per_second, CONNECTIONS, bench.options.seed + node) as load:
        time.sleep(times.before)
        killed = time.perf_counter()
        cluster.kill(node)
        time.sleep(times.settle + times.after)
        ended = time.perf_counter()
    others = [sent for sent in load.requests if sent.node != node]
    acknowledged = load.acknowledged()
    bench.report.say(f"reading {len(acknowledged):,} acknowledged objects")
    pauses = [longest_pause([sent for sent in others if sent.node == other], killed, ended)
              for other in cluster.running()]
    usual = p99(others, killed - times.before, killed)
    later = p99(others, ended - times.after, ended)
    lost = lost_objects(cluster, load, acknowledged)
    return KillTurn(len(acknowledged), lost, others, max(pauses), usual, later)


def lost_objects(cluster, load, acknowledged):
    """The number of acknowledged PUTs whose body cannot be read through a running node."""
    store, lost = next(iter(cluster.running().values())), 0
    with store.connection() as over:
        for sent in acknowledged:
            try:
                _, body = store.call("GET", f"/{BUCKET}/{sent.name}", over=over)
                lost += body != load.body_of(sent)
            except RequestError:
                lost += 1
    return lost


# A follower hangs, or its disk does.


def cluster_pause(bench):
    """SIGSTOP of a node for a minute under 30 MB/s through the others; then it catches up."""
    hanging_node(bench, "cluster-pause", lambda cluster: cluster.paused(LAST), LOG_MIB_MAX)


def cluster_slow_sync(bench):
    """Each sync of a node takes 2 s longer, for a minute under 30 MB/s through the others; then it catches
    up."""
    slow = lambda cluster: SlowSyncs(cluster.nodes[LAST].server.pid, SYNC_MICROS)
    hanging_node(bench, "cluster-slow-sync", slow, SENDING_LOG_MIB_MAX)


def hanging_node(bench, row, failure_of, log_mib_max):
    """A failure of the last node, which runs all the time, under writes through the others; then it catches
    up with at most one snapshot of a group. Snapshots during the failure count, too."""
    with new_cluster(bench, settings=SHORT_LOG) as cluster:
        snapshots, installed = cluster.snapshots(), installed_snapshots(cluster)
        measured = stream(bench, cluster, row, lambda: failure_of(cluster))
        begun = time.perf_counter()
        cluster.until_settled()
        cluster.until_copied()
        caught_up = time.perf_counter() - begun
        received = {group: count - snapshots.get(group, 0) for group, count in cluster.snapshots().items()}
        installed = installed_snapshots(cluster) - installed
    report_stream(bench, row, measured, log_mib_max)
    if sum(received.values()) != installed:
        raise ServerError(f"{installed:.0f} snapshots were installed, and the directories show {received}")
    note = f"of a group, {installed:.0f} of all; nothing is lacking {caught_up:.0f} s after the load ended"
    bench.report.at_most(f"{row}-snapshots", max(received.values()), "snapshots", SNAPSHOTS_MAX, note)


def installed_snapshots(cluster):
    """The number of snapshots that all nodes have installed since their starts."""
    return sum(store.server.metrics().sum(INSTALLED) for store in cluster.running().values())


@dataclass
class Stream:
    """Results of a load of writes through the nodes that have no failure: its requests, both p99; of the node
    with the most bytes those of its log's files, and those that its memory grew by."""

    requests: list
    usual: float
    later: float
    log: float
    memory: float


def stream(bench, cluster, row, failure):
    """Writes through all nodes but the last one, before and during its failure."""
    times, seconds = Times.of(bench), bench.options.pause_seconds
    stores = {node: store for node, store in cluster.running().items() if node != LAST}
    mix = Mix([], 10, STREAM_BYTES, row)
    look = lambda: [state_of(store) for store in stores.values()]
    with beside(lambda: lengthen_log(stores[FIRST])):
        per_second = rate_of_load(bench, row, stores, mix, STREAM_PER_SECOND)
        load = NodesLoad(stores, mix, per_second, CONNECTIONS, bench.options.seed)
        with Sampler(look, LOOK_SECONDS) as sampler, load:
            bench.report.say(f"{row}: before the failure")
            time.sleep(times.before)
            failed = time.perf_counter()
            bench.report.say(f"{row}: {seconds} s of failure")
            with failure():
                time.sleep(seconds)
                ended = time.perf_counter()
    usual, later = sampler.between(failed - times.before, failed), sampler.between(failed, ended)
    log = max(state[0] for look in later for state in look)
    grown = (max(state[1] for state in node_later) - max(state[1] for state in node_usual)
             for node_later, node_usual in zip(zip(*later), zip(*usual)))
    return Stream(load.requests, p99(load.requests, failed - times.before, failed),
                  p99(load.requests, failed + times.settle, ended), log, max(grown))


def lengthen_log(store):
    """Deletes absent keys: the commands pass the log and change nothing."""
    store.delete([f"absent/{at:0{KEY_CHARS}d}" for at in range(ABSENT_KEYS)])
    time.sleep(ABSENT_EVERY_SECONDS)


def state_of(store):
    """Bytes of the files of a node's log, and of its memory."""
    log = sum(proc.disk_bytes(folder) for folder in store.folder.glob("catalogue*/log"))
    return log, proc.resident_bytes(store.server.pid)


def report_stream(bench, row, measured, log_mib_max):
    report_errors(bench, row, measured.requests)
    what = f"from {Times.of(bench).settle} s on"
    report_p99(bench, f"{row}-p99", measured.usual, measured.later, what, P99_MAX)
    bench.report.at_most(f"{row}-log", measured.log / MIB, "MiB", log_mib_max)
    bench.report.at_most(f"{row}-memory", measured.memory / MIB, "MiB more RSS", MEMORY_MIB_MAX)


# A disk is lost.


def cluster_wiped(bench):
    """A node without its segments fetches all of them again, beside a load through the others."""
    total = int(bench.options.wiped_gib * GIB)
    settings = NO_COMPACTION | {"cluster.repair_bytes_per_second": REPAIR_BYTES_PER_SECOND}
    with new_cluster(bench, settings=settings) as cluster:
        reads = written_objects(cluster)
        names = numbered("stored", max(1, total // STORED_BYTES))
        bench.report.say(f"writing {len(names)} objects of {STORED_BYTES // MIB} MiB")
        store_objects(cluster.nodes[FIRST], names)
        cluster.seal()
        cluster.until_copied()
        sealed = {path: path.stat().st_size for path in segments_of(cluster)}
        times, mix = Times.of(bench), Mix(reads, PUTS_OF_TEN, BODY_BYTES, "wiped")
        stores = {node: store for node, store in cluster.running().items() if node != LAST}
        per_second = rate_of_load(bench, "cluster-wiped", stores, mix, PER_SECOND)
        with NodesLoad(stores, mix, per_second, CONNECTIONS, bench.options.seed) as load:
            time.sleep(times.before)
            stopped = time.perf_counter()
            wipe(bench, cluster)
            cluster.start(LAST)
            begun = time.perf_counter()
            until_back(sealed)
            ended = time.perf_counter()
        cluster.until_copied()
    report_errors(bench, "cluster-wiped", load.requests)
    copied = sum(sealed.values())
    rate = copied / (ended - begun)
    note = f"{copied / GIB:.2f} GiB in {ended - begun:.1f} s at {REPAIR_BYTES_PER_SECOND / MIB:.0f} MiB/s"
    share = rate / REPAIR_BYTES_PER_SECOND
    bench.report.at_least("cluster-wiped-rate", share, "of the rate set", REPAIR_MIN, note)
    usual, later = p99(load.requests, stopped - times.before, stopped), p99(load.requests, begun, ended)
    report_p99(bench, "cluster-wiped-p99", usual, later, "meanwhile", P99_MAX)


def store_objects(store, names):
    """PUTs objects of 64 MiB, a few at a time."""
    length, body = f"Content-Length: {STORED_BYTES}\r\n", os.urandom(STORED_BYTES)
    heads = [f"PUT {target} HTTP/1.1\r\nHost: {store.server.host}\r\n{length}\r\n".encode()
             for target in store.targets("PUT", names)]
    in_parallel(lambda head: upload(store.server.port, head, body), heads, STORING_THREADS)


def wipe(bench, cluster):
    """Kills the last node, removes its segments, and accepts their loss as an operator does."""
    cluster.kill(LAST)
    folder = cluster.nodes[LAST].folder
    for path in segments_of(cluster):
        path.unlink()
    command = [bench.options.binary, "store", "repair", str(folder), "--adopt", str(folder / "segments")]
    done = subprocess.run(command, env=environment({}), capture_output=True, text=True)
    if done.returncode != 0:
        raise ServerError(f"mlgw store repair: {done.stderr.strip()}")


def segments_of(cluster):
    """The files of the last node's segments."""
    return list((cluster.nodes[LAST].folder / "segments").glob("*.seg"))


def until_back(sealed):
    """Waits until all of these files exist again with their sizes. The files of a segment may differ by the
    padding of their last block."""
    deadline = time.monotonic() + COPIED_SECONDS_MAX
    while not all(path.exists() and size - path.stat().st_size < BLOCK_BYTES
                  for path, size in sealed.items()):
        if time.monotonic() > deadline:
            raise ServerError(f"not all of {len(sealed)} segments are back after {COPIED_SECONDS_MAX} s")
        time.sleep(GLANCE_SECONDS)
