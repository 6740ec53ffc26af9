"""A node that fails under load: killed, stopped, with slow syncs, and without its segments.

The load is an open loop over the nodes. What is compared is the p99 of the requests through the other nodes,
before the failure and some time after it."""

import os
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import proc
from bench import numbered
from cluster import FIRST, new_cluster
from load.nodes import Mix, NodesLoad, longest_pause, p99
from load.sampler import Sampler
from load.strace import slow_syncs
from load.streams import in_parallel, upload
from server import ServerError, environment
from store import BUCKET, CONNECTIONS, RequestError
from units import GIB, KIB, MIB

BODY_BYTES = 4 * KIB
READ_OBJECTS = 5000
# Of a load whose p99 is compared: half of the requests are PUTs.
PER_SECOND, PUTS_OF_TEN = 300, 5
P99_MAX = 2.0
BEFORE_SECONDS, SETTLE_SECONDS, AFTER_SECONDS = 15, 10, 15
WRITES_AGAIN_SECONDS_MAX = 5
# The last one: it leads no group of a cluster with one group for objects.
LAST = 3
# 30 MB/s, in many commands.
STREAM_BYTES, STREAM_PER_SECOND = 50_000, 600
# The smallest one permitted: the log is purged while the node is away.
SHORT_LOG = {"catalogue.log_bytes_max": "8MiB"}
LOG_MAX, MEMORY_MIB_MAX, SNAPSHOTS_MAX = 2, 64, 1
LOOK_SECONDS = 1
SYNC_MICROS = 2_000_000
REPAIR_BYTES_PER_SECOND = 64 * MIB
REPAIR_MIN = 0.8
STORED_BYTES, STORING_THREADS = 64 * MIB, 4


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


def report_p99(bench, row, usual, later, what):
    note = f"p99 {later * 1e3:.1f} ms {what}, before {usual * 1e3:.1f} ms"
    bench.report.at_most(row, later / usual, "of before", P99_MAX, note)


def fail_if_failed(requests):
    """Raises an error if a request through a node without a failure failed."""
    failed = [sent for sent in requests if sent.failure]
    if failed:
        raise RequestError(f"{len(failed)} requests failed, the first through node {failed[0].node}: "
                           f"{failed[0].failure}")


# A node is killed.


@dataclass
class KillTurn:
    """Results of one kill: PUTs that were acknowledged and those of them that are lost; failed requests
    through other nodes; seconds without an acknowledged PUT; both p99."""

    acknowledged: int
    lost: int
    errors: list
    pause: float
    usual: float
    later: float


def cluster_kill(bench):
    """Each node once, with 32 connections to all of them."""
    with new_cluster(bench) as cluster:
        reads, turns = written_objects(cluster), []
        for node in cluster.nodes:
            turns.append(kill_turn(bench, cluster, node, reads))
            cluster.start(node)
            cluster.until_settled()
            cluster.until_copied()
    lost, acknowledged = sum(turn.lost for turn in turns), sum(turn.acknowledged for turn in turns)
    bench.report.at_most("cluster-kill-lost", lost, "objects", 0, f"of {acknowledged:,} acknowledged")
    errors = [error for turn in turns for error in turn.errors]
    note = "through nodes that run" + (f": {', '.join(sorted(set(errors)))}" if errors else "")
    bench.report.at_most("cluster-kill-errors", len(errors), "requests", 0, note)
    pauses = [turn.pause for turn in turns]
    note = f"each node: {', '.join(f'{pause:.2f}' for pause in pauses)}"
    bench.report.at_most("cluster-kill-pause", max(pauses), "s", WRITES_AGAIN_SECONDS_MAX, note)
    ratios = [turn.later / turn.usual for turn in turns]
    each = ", ".join(f"{turn.later * 1e3:.1f} / {turn.usual * 1e3:.1f} ms" for turn in turns)
    bench.report.at_most("cluster-kill-p99", median(ratios), "of before", P99_MAX, f"p99 {each}")


def kill_turn(bench, cluster, node, reads):
    """Kills a node under load; the acknowledged objects are read while it is away."""
    bench.report.say(f"cluster-kill: node {node}")
    times, mix = Times.of(bench), Mix(reads, PUTS_OF_TEN, BODY_BYTES, f"kill-{node}")
    with NodesLoad(cluster.running(), mix, PER_SECOND, CONNECTIONS, bench.options.seed + node) as load:
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
    return KillTurn(len(acknowledged), lost_objects(cluster, load, acknowledged),
                    [sent.failure for sent in others if sent.failure], max(pauses), usual, later)


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
    with new_cluster(bench, settings=SHORT_LOG) as cluster:
        snapshots = cluster.snapshots()
        measured = stream(bench, cluster, "cluster-pause", lambda: cluster.paused(LAST))
        begun = time.perf_counter()
        cluster.until_settled()
        cluster.until_copied()
        caught_up = time.perf_counter() - begun
        received = [count - snapshots.get(group, 0) for group, count in cluster.snapshots().items()]
    report_stream(bench, "cluster-pause", measured)
    note = f"of a group; nothing is lacking {caught_up:.0f} s after the load ended"
    bench.report.at_most("cluster-pause-snapshots", max(received), "snapshots", SNAPSHOTS_MAX, note)


def cluster_slow_sync(bench):
    """Each sync of a node takes 2 s longer, for a minute under 30 MB/s through the others. Its start takes a
    while, too, so the time before the failure is that before its restart."""

    @contextmanager
    def slow():
        cluster.kill(LAST)
        cluster.start(LAST, slow_syncs(SYNC_MICROS))
        yield

    with new_cluster(bench, settings=SHORT_LOG) as cluster:
        report_stream(bench, "cluster-slow-sync", stream(bench, cluster, "cluster-slow-sync", slow))


@dataclass
class Stream:
    """Results of a load of writes through the nodes that have no failure: both p99, the largest part of its
    limit that the log had, and the growth of memory in bytes, of the node with the most."""

    usual: float
    later: float
    log: float
    memory: float


def stream(bench, cluster, row, failure):
    """Writes through all nodes but the last one, before and during its failure."""
    times, seconds = Times.of(bench), bench.options.pause_seconds
    stores = {node: store for node, store in cluster.running().items() if node != LAST}
    load = NodesLoad(stores, Mix([], 10, STREAM_BYTES, row), STREAM_PER_SECOND, CONNECTIONS, bench.options.seed)
    look = lambda: [state_of(store) for store in stores.values()]
    with Sampler(look, LOOK_SECONDS) as sampler, load:
        bench.report.say(f"{row}: before the failure")
        time.sleep(times.before)
        failed = time.perf_counter()
        with failure():
            begun = time.perf_counter()
            bench.report.say(f"{row}: {seconds} s of failure")
            time.sleep(seconds)
            ended = time.perf_counter()
    fail_if_failed(load.requests)
    states = {part: list(zip(*sampler.between(*span))) for part, span in (
        ("usual", (failed - times.before, failed)), ("later", (failed, ended)))}
    highest = lambda part, of: [max(of(state) for state in node) for node in states[part]]
    resident = lambda state: state[1]
    grown = [later - usual for later, usual in zip(highest("later", resident), highest("usual", resident))]
    return Stream(p99(load.requests, failed - times.before, failed),
                  p99(load.requests, begun + times.settle, ended),
                  max(highest("later", lambda state: state[0])), max(grown))


def state_of(store):
    """The part of its limit that a node's log has, and its memory in bytes."""
    metrics = store.server.metrics()
    log = metrics.sum("mlgw_raft_log_bytes") / metrics.sum("mlgw_raft_log_limit_bytes")
    return log, proc.resident_bytes(store.server.pid)


def report_stream(bench, row, measured):
    report_p99(bench, f"{row}-p99", measured.usual, measured.later, f"from {SETTLE_SECONDS} s on")
    bench.report.at_most(f"{row}-log", measured.log, "of its limit", LOG_MAX)
    bench.report.at_most(f"{row}-memory", measured.memory / MIB, "MiB more RSS", MEMORY_MIB_MAX)


# A disk is lost.


def cluster_wiped(bench):
    """A node without its segments fetches all of them again, beside a load through the others."""
    total = int(bench.options.wiped_gib * GIB)
    with new_cluster(bench, settings={"cluster.repair_bytes_per_second": REPAIR_BYTES_PER_SECOND}) as cluster:
        reads = written_objects(cluster)
        names = numbered("stored", max(1, total // STORED_BYTES))
        bench.report.say(f"writing {len(names)} objects of {STORED_BYTES // MIB} MiB")
        store_objects(cluster.nodes[FIRST], names)
        cluster.seal()
        cluster.until_copied()
        times, mix = Times.of(bench), Mix(reads, PUTS_OF_TEN, BODY_BYTES, "wiped")
        stores = {node: store for node, store in cluster.running().items() if node != LAST}
        with NodesLoad(stores, mix, PER_SECOND, CONNECTIONS, bench.options.seed) as load:
            time.sleep(times.before)
            stopped = time.perf_counter()
            wipe(bench, cluster)
            cluster.start(LAST)
            begun = time.perf_counter()
            cluster.until_copied()
            ended = time.perf_counter()
            copied = cluster.nodes[LAST].server.metrics().sum("mlgw_replica_copied_bytes_total")
    fail_if_failed(load.requests)
    rate = copied / (ended - begun)
    note = f"{copied / GIB:.2f} GiB in {ended - begun:.1f} s at {REPAIR_BYTES_PER_SECOND / MIB:.0f} MiB/s"
    bench.report.at_least("cluster-wiped-rate", rate / REPAIR_BYTES_PER_SECOND, "of the rate set", REPAIR_MIN, note)
    usual, later = p99(load.requests, stopped - times.before, stopped), p99(load.requests, begun, ended)
    report_p99(bench, "cluster-wiped-p99", usual, later, "meanwhile")


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
    for path in (folder / "segments").iterdir():
        if path.suffix == ".seg":
            path.unlink()
    command = [bench.options.binary, "store", "repair", str(folder), "--adopt", str(folder / "segments")]
    done = subprocess.run(command, env=environment({}), capture_output=True, text=True)
    if done.returncode != 0:
        raise ServerError(f"mlgw store repair: {done.stderr.strip()}")
