"""GET and PUT of 4 KiB through members of a cluster and through a gateway, alternating with the same requests
to one server."""

import os
import re
import socket
import time
from multiprocessing import Barrier, Process, Queue
from statistics import median
from threading import BrokenBarrierError

import proc
from bench import NO_COMPACTION, numbered
from cluster import BUCKET_GROUP, FIRST, GATEWAY, THREE, new_cluster
from load.wrk import wrk
from server import ServerError, growth
from store import BUCKET, CONNECTIONS
from units import KIB

BODY_BYTES = 4 * KIB
# Of the objects of the rows of one server: four more copies of each are written here.
PART_OF_OBJECTS = 4
KEYS = 50_000
TURNS = 5
ONE_GET_TURNS = 3
QUICK_TURNS = 2
WARM_SECONDS = 2
GET_MAX, LEASE_GET_MAX, GATEWAY_GET_MAX = 1.3, 1.1, 2.5
LEASES = NO_COMPACTION | {"cluster.lease_reads": "true"}
ONE_GET_MICROS_MAX = 1000
PUT_MAX, SYNCS_MAX = 3.2, 0.15
# A PUT waits for the syncs of its segment and of the log, one after the other; and for the round trips of the
# client, of the segment's followers and of the log's.
SYNCS_OF_PUT, ROUND_TRIPS_OF_PUT, SLACK = 2, 3, 1.15
# Of one server, which waits for the same two syncs.
ONE_PUT_MAX = 2.5
# Seconds between two probes beside a load. They run for this part of it.
PROBE_PAUSE, PROBED_PART, PROBE_SECONDS_MAX = 0.025, 0.8, 30
# Without a load they follow each other as fast as requests do.
IDLE_PROBE_SECONDS, IDLE_PROBE_PAUSE = 1, 0.002
ANSWER = b"\0"
NODE = "x-mlgw-node"


class Side:
    """One of the servers that take turns: requests to it, and all processes that spend CPU on them."""

    def __init__(self, spender, store, method, names, bucket=BUCKET):
        self.spender, self.store, self.loads, self.requests = spender, store, [], 0
        self.lines = store.targets_file(method, names, bucket)

    def run(self, seconds, connections, seed=1):
        load = wrk(self.store.server.host, self.lines, seconds, connections, BODY_BYTES, seed)
        self.requests += load.requests
        return load

    def turn(self, seconds, connections, seed):
        self.loads.append(self.spender.spent(lambda: self.run(seconds, connections, seed)))

    @property
    def cpu_micros(self):
        return median(load.cpu_micros for load in self.loads)

    @property
    def p50(self):
        return median(load.p50 for load in self.loads)

    def __str__(self):
        return f"{self.cpu_micros:.1f} µs of {', '.join(f'{load.cpu_micros:.1f}' for load in self.loads)}"


def take_turns(bench, sides, connections, what, turns=TURNS):
    """Measures each side in each turn, after one load that warms it up."""
    turns = QUICK_TURNS if bench.options.quickly else turns
    for name, side in sides.items():
        bench.report.say(f"{what}: warming up, {name}")
        side.run(WARM_SECONDS, connections)
    for turn in range(turns):
        bench.report.say(f"{what}: turn {turn + 1} of {turns}")
        for side in sides.values():
            side.turn(bench.options.seconds // 2 + 1, connections, bench.options.seed + turn)


def other_member(leader):
    """A storage node that does not lead."""
    return next(node for node in range(FIRST, FIRST + len(THREE)) if node != leader)


def cluster_get(bench):
    """The leader of the group, another member and a gateway, then a leader with leases: CPU of all nodes for
    a GET; and the latency of one connection."""
    alone, names = alone_with_objects(bench)
    with new_cluster(bench, (*THREE, GATEWAY), NO_COMPACTION) as cluster:
        fill_all(cluster, names)
        leader, gateway = cluster.leader(), max(cluster.nodes)
        nodes = {"leader": leader, "member": other_member(leader), "gateway": gateway}
        sides = {"alone": Side(bench, alone, "GET", names)}
        for name, node in nodes.items():
            sides[name] = reading_side(cluster, node, names)
        one = {name: Side(side.spender, side.store, "GET", names) for name, side in sides.items()}
        with proc.kept_in_page_cache(alone.folder), proc.kept_in_page_cache(cluster.folder):
            take_turns(bench, sides, CONNECTIONS, "cluster-get")
            take_turns(bench, one, 1, "cluster-get-one", ONE_GET_TURNS)
    targets = {"leader": GET_MAX, "member": GET_MAX, "gateway": GATEWAY_GET_MAX}
    report_gets(bench, sides, targets)
    note = ", ".join(f"{name} {one[name].p50:,.0f} µs" for name in ("alone", "leader", "gateway"))
    bench.report.at_most("cluster-get-one", one["member"].p50, "µs p50", ONE_GET_MICROS_MAX, note)
    with new_cluster(bench, THREE, LEASES) as cluster:
        fill_all(cluster, names)
        leading = reading_side(cluster, cluster.leader(), names)
        sides = {"alone": Side(bench, alone, "GET", names), "lease": leading}
        with proc.kept_in_page_cache(alone.folder), proc.kept_in_page_cache(cluster.folder):
            take_turns(bench, sides, CONNECTIONS, "cluster-get-lease")
    report_gets(bench, sides, {"lease": LEASE_GET_MAX})


def fill_all(cluster, names):
    """Writes objects, and waits until all storage nodes have sealed copies of them."""
    cluster.nodes[FIRST].fill("4 KiB objects", names, BODY_BYTES)
    cluster.seal()
    cluster.until_copied()
    cluster.rest()


def reading_side(cluster, node, names, group=BUCKET_GROUP, bucket=BUCKET):
    """GETs through a node, which serves them itself if it stores them."""
    store = cluster.nodes[node]
    served = serving_node(store, names[0], bucket)
    if node in cluster.set_nodes(group) and served != node:
        raise ServerError(f"node {served} served a GET to node {node}, a member")
    return Side(cluster, store, "GET", names, bucket)


def report_gets(bench, sides, targets):
    """CPU by node that the clients use."""
    for name, target in targets.items():
        ratio = sides[name].cpu_micros / sides["alone"].cpu_micros
        note = f"{sides[name]}; alone {sides['alone']}"
        bench.report.at_most(f"cluster-get-{name}", ratio, "of one node's", target, note)


def alone_with_objects(bench, settings=NO_COMPACTION):
    """One server with 4 KiB objects, restarted, and their names."""
    store = bench.open("alone", settings)
    names = numbered("small", bench.options.objects // PART_OF_OBJECTS)
    if "4 KiB objects" not in store.filled:
        store.fill("4 KiB objects", names, BODY_BYTES)
        store.restart()
        bench.rest()
    return store, names


def serving_node(store, name, bucket=BUCKET):
    """Id of the node that serves a GET of an object; 0 if the response names none."""
    head, _ = store.call("GET", f"/{bucket}/{name}")
    found = re.fullmatch(r" *(\d+) *", head.get(NODE, ""))
    return int(found.group(1)) if found else 0


def cluster_put(bench):
    """Durable PUTs on three nodes: CPU and syncs at 32 connections, latency of one connection. Compaction is
    paused, also on the single server."""
    alone = bench.open("alone", NO_COMPACTION)
    with new_cluster(bench, THREE, NO_COMPACTION) as cluster:
        leader, names = cluster.leader(), numbered("put", KEYS)
        side = lambda node: Side(cluster, cluster.nodes[node], "PUT", names)
        one = Side(bench, alone, "PUT", names)
        sides = {"alone": one, "leader": side(leader), "member": side(other_member(leader))}
        before = {node: store.server.metrics() for node, store in cluster.nodes.items()}
        take_turns(bench, sides, CONNECTIONS, "cluster-put")
        synced = {node: growth(before[node], store.server.metrics())
                  for node, store in cluster.nodes.items()}
        report_puts(bench, sides, synced)
        one_connection(bench, {"alone": Side(bench, alone, "PUT", names), "leader": side(leader)})


def report_puts(bench, sides, synced):
    """CPU by node that the clients use, and syncs of the node with the most."""
    one = sides["alone"]
    for row, side in (("cluster-put", sides["leader"]), ("cluster-put-member", sides["member"])):
        note = f"{side}; alone {one}; {side.loads[-1]}, alone {one.loads[-1]}"
        bench.report.at_most(row, side.cpu_micros / one.cpu_micros, "of one node's", PUT_MAX, note)
    silent = [node for node, grown in synced.items() if not grown("mlgw_sync_total")]
    if silent:
        bench.report.missed("cluster-put-syncs", f"nodes {silent} synced nothing, by their metrics")
        return
    puts = sides["leader"].requests + sides["member"].requests
    each = {node: grown("mlgw_sync_total") / puts for node, grown in synced.items()}
    note = ", ".join(f"node {node} {value:.3f}" for node, value in each.items())
    bench.report.at_most("cluster-put-syncs", max(each.values()), "syncs/PUT", SYNCS_MAX, note)


def one_connection(bench, sides):
    """Compares the median latency of one connection with the time of the syncs and round trips that it waits
    for, and with that of one server. Separate processes measure these times twice: between the turns, and
    during the turns of the leader, when they share the processors with the nodes."""
    turns, alone, leader = (QUICK_TURNS if bench.options.quickly else TURNS), sides["alone"], sides["leader"]
    seconds, idle, loaded = bench.options.seconds // 3 or 1, Probed(), Probed()
    for turn in range(turns):
        bench.report.say(f"cluster-put-one: turn {turn + 1} of {turns}")
        alone.turn(seconds, 1, bench.options.seed + turn)
        loaded.beside(lambda: leader.turn(seconds, 1, bench.options.seed + turn), bench.folder, seconds)
        idle.beside(lambda: None, bench.folder, IDLE_PROBE_SECONDS, IDLE_PROBE_PAUSE)
    for row, probed in (("cluster-put-one", idle), ("cluster-put-one-loaded", loaded)):
        bench.report.at_most(row, leader.p50, "µs p50", probed.target, str(probed))
    note = f"{leader.p50:,.0f} µs p50, alone {alone.p50:,.0f}"
    bench.report.at_most("cluster-put-one-alone", leader.p50 / alone.p50, "of one node's", ONE_PUT_MAX, note)


class Probed:
    """Seconds that a sync and a round trip take, on the processors and the disk of the nodes."""

    def __init__(self):
        self.syncs, self.trips = [], []

    @property
    def target(self):
        """Microseconds of a PUT that waits for nothing else."""
        return (SYNCS_OF_PUT * median(self.syncs) + ROUND_TRIPS_OF_PUT * median(self.trips)) * SLACK * 1e6

    def __str__(self):
        return f"sync {median(self.syncs) * 1e6:,.0f} µs, round trip {median(self.trips) * 1e6:.0f} µs"

    def beside(self, load, folder, seconds, pause=PROBE_PAUSE):
        """Runs `load`, which takes `seconds` at most, and the probes at the same time."""
        until = time.monotonic() + seconds * PROBED_PART
        begin, syncs, trips = Barrier(len(THREE)), Queue(), Queue()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            probes = [Process(target=sync_often, args=(folder / f"sync-{at}", begin, syncs, until, pause))
                      for at in range(len(THREE))]
            probes += [Process(target=answer_all, args=(listener,)),
                       Process(target=ask_often, args=(listener.getsockname(), trips, until, pause))]
            for probe in probes:
                probe.start()
            try:
                load()
                # A batch is acknowledged when two of three nodes have synced it.
                times = [syncs.get(timeout=PROBE_SECONDS_MAX) for _ in THREE]
                self.syncs += [sorted(round_)[1] for round_ in zip(*times)]
                self.trips += trips.get(timeout=PROBE_SECONDS_MAX)
            finally:
                for probe in probes:
                    probe.terminate()
                    probe.join()


def sync_often(path, begin, times, until, pause):
    """Appends 4 KiB to a file and syncs it whenever the others do. Returns the times through the queue."""
    body, took = os.urandom(BODY_BYTES), []
    with open(path, "wb", buffering=0) as file:
        try:
            while time.monotonic() < until:
                time.sleep(pause)
                begin.wait(PROBE_SECONDS_MAX)
                begun = time.perf_counter()
                file.write(body)
                os.fdatasync(file.fileno())
                took.append(time.perf_counter() - begun)
        except BrokenBarrierError:
            # Another one has ended.
            pass
    begin.abort()
    path.unlink()
    times.put(took)


def ask_often(address, times, until, pause):
    """Sends messages of 4 KiB and waits for their short answers. Returns the times through the queue."""
    body, took = bytes(BODY_BYTES), []
    with socket.create_connection(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.monotonic() < until:
            time.sleep(pause)
            begun = time.perf_counter()
            connection.sendall(body)
            if connection.recv(1) != ANSWER:
                raise ServerError("the other process has ended")
            took.append(time.perf_counter() - begun)
    times.put(took)


def answer_all(listener):
    """Answers each message by one byte, until the connection ends."""
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        while connection.recv(BODY_BYTES, socket.MSG_WAITALL):
            connection.sendall(ANSWER)
