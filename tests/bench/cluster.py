"""A cluster whose nodes are servers on this machine: their states, and the CPU time of all of them together.

Node 1 is an empty server that became a cluster; the others join it. Nodes connect to each other at a loopback
address that no other run uses, so no client's connection gets the port of a node that is stopped."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager

import proc
from bench import REST_CPU_SECONDS, REST_SECONDS_MAX
from server import ServerError, environment
from store import Store
from units import KIB

FIRST = 1
VOTERS = 3
# Group of the bucket that a store creates: the first node makes it before there are other groups of objects.
BUCKET_GROUP = 1
STORAGE, GATEWAY = "storage", "gateway"
THREE = (STORAGE,) * VOTERS
# Below the ports that the kernel gives to connections.
PORTS = itertools.count(9100)
GLANCE_SECONDS = 0.3
SENT = "mlgw_cluster_bytes_total"
# A part of the log that is on its way.
LAG_BYTES_MAX = 64 * KIB
# Leaders are transferred one after the other; they are settled when they were the same for this long.
UNCHANGED_SECONDS = 3
SETTLED_SECONDS_MAX = 120
COPIED_SECONDS_MAX = 300
MOVED_SECONDS_MAX = 900


class Cluster:
    """The nodes by id, in the order in which they joined. Each is a store with the same bucket and keys."""

    def __init__(self, bench, folder, settings):
        self.bench, self.folder, self.settings = bench, folder, settings
        # Stores by node, and the servers of killed nodes.
        self.nodes, self.killed = {}, {}

    def add(self, role=STORAGE):
        """Makes the first node, or joins a further one with this role, and starts it; returns its id."""
        node, seed = len(self.nodes) + 1, self.nodes.get(FIRST)
        folder = self.folder / f"node-{node}"
        store = Store(self.bench.options.binary, folder, self.bench.log, self.bench.report)
        settings = self.settings | {"cluster.listen": f"{peer_host()}:{next(PORTS)}"}
        if seed is None:
            self._command(settings, "init", str(folder))
        else:
            token = seed.command("cluster", "token")["token"]
            self._command(settings, "join", str(folder), "--token", token,
                          "--seed", seed.server.settings["cluster.listen"], "--role", role)
            store.keys = seed.keys
        # Before the start: the node is removed even if the start fails halfway.
        self.nodes[node] = store
        store.start(settings)
        return node

    def _command(self, settings, *words):
        done = subprocess.run([self.bench.options.binary, "cluster", *words], env=environment(settings),
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise ServerError(f"mlgw cluster {words[0]}: {done.stderr.strip()}")

    def running(self):
        """The running nodes by id."""
        return {node: store for node, store in self.nodes.items() if store.server}

    def pids(self):
        return [store.server.pid for store in self.running().values()]

    def cpu_seconds(self):
        """User and system time of all running nodes so far."""
        return sum(proc.cpu_seconds(pid) for pid in self.pids())

    def spent(self, work):
        """The result of `work`, with the CPU seconds that all nodes together spent on it as its `cpu`."""
        before = self.cpu_seconds()
        load = work()
        load.cpu = self.cpu_seconds() - before
        return load

    # What happens to a node.

    def kill(self, node):
        """Sends kill -9 and waits for the end of the process."""
        self.nodes[node].server.kill()
        self.killed[node], self.nodes[node].server = self.nodes[node].server, None

    def start(self, node):
        """Starts a node that was killed."""
        server = self.killed.pop(node)
        server.start()
        self.nodes[node].server = server

    def seal(self):
        """Restarts the storage nodes one after the other, so that they seal their open segments."""
        for store in self.running().values():
            store.restart()
        self.until_settled()

    @contextmanager
    def paused(self, node):
        """Stops a node by SIGSTOP; at the end it continues."""
        pid = self.nodes[node].server.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def remove(self):
        """Kills all nodes and removes their data."""
        for store in self.running().values():
            store.server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # The state of the cluster.

    def status(self, node):
        """The cluster as a running node describes it."""
        done = self.nodes[node].run("cluster", "status")
        # The exit status is not 0 if there are findings, as about a node that does not answer yet.
        if not done.stdout.strip():
            raise ServerError(f"mlgw cluster status: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def groups(self):
        """Each Raft group as its leader describes it, by id; None for a group without a running leader."""
        found = {}
        for node in self.running():
            for group in self.status(node)["groups"]:
                if group["members"] or group["id"] not in found:
                    found[group["id"]] = group if group["members"] else None
        return found

    def leader(self, group=BUCKET_GROUP):
        """Id of the node that leads a group."""
        return self.groups()[group]["leader"]

    def until_settled(self):
        """Waits until every group has three voters, no member lacks a part of the log, and the leaders are
        the same for some time."""
        unchanged = Unchanged()
        self._until("the groups are settled", SETTLED_SECONDS_MAX,
                    lambda: unchanged.has_stayed(settled_leaders(self.groups())))

    def until_upgraded(self):
        """Waits until the cluster has the newest version that its nodes know."""
        self._until("the cluster has the newest version", SETTLED_SECONDS_MAX,
                    lambda: not self.status(FIRST).get("upgrade"))

    def rebalance(self):
        """Distributes the groups over sets of all nodes, and waits until each has left its former set. Its
        bytes are moved first, in passes with the interval of compaction."""
        def are_active():
            return all(node["state"] == "active" for node in self.status(FIRST)["nodes"])

        def is_done():
            status = self.status(FIRST)
            is_moving = status.get("rebalance") or status["moving_groups"] or status.get("sets_wait")
            return not is_moving and not any(of_set["guests"] for of_set in status["sets"])

        self._until("all nodes are active", SETTLED_SECONDS_MAX, are_active)
        self.nodes[FIRST].command("cluster", "rebalance")
        self._until("the groups are in their sets", MOVED_SECONDS_MAX, is_done)

    def set_nodes(self, group=BUCKET_GROUP):
        """Ids of the nodes of a group's set, which store its bytes; all storage nodes without sets."""
        status = self.status(FIRST)
        for of_set in status["sets"]:
            if group in of_set["groups"]:
                return sorted(of_set["nodes"])
        return [node["id"] for node in status["nodes"] if node["role"] == STORAGE]

    def until_copied(self):
        """Waits until every sealed segment has all of its copies, and every member all of the log."""
        def is_copied():
            copies = self.status(min(self.running()))["copies"]
            if copies["below_segments"] or copies["suspect_segments"]:
                return False
            return all(group and lacks_nothing(group["members"]) for group in self.groups().values())

        self._until("all copies are complete", COPIED_SECONDS_MAX, is_copied)

    def _until(self, what, seconds_max, is_so):
        deadline = time.monotonic() + seconds_max
        self.bench.report.say(f"waiting until {what}")
        while not is_so():
            if time.monotonic() > deadline:
                raise ServerError(f"never within {seconds_max} s: {what}")
            time.sleep(GLANCE_SECONDS)

    def rest(self):
        """Waits until no node has background work, for a minute at most."""
        deadline = time.monotonic() + REST_SECONDS_MAX
        self.bench.report.say("waiting until the nodes are at rest")
        while time.monotonic() < deadline:
            before = self.cpu_seconds()
            time.sleep(1)
            if self.cpu_seconds() - before < REST_CPU_SECONDS * len(self.pids()):
                return

    def snapshots(self):
        """The number of snapshots of each group that each node has received, and one more, by both: a
        received one becomes the directory state-N with the next N."""
        found = {}
        for path in self.folder.glob("node-*/catalogue*/group-*/state-*"):
            group = (path.parents[2].name, path.parent.name)
            found[group] = max(found.get(group, 0), int(path.name.partition("-")[2]))
        return found


class Unchanged:
    """A value that is observed repeatedly."""

    def __init__(self):
        self.value, self.since = None, 0.0

    def has_stayed(self, value):
        """True if the value is known and was the same for some time."""
        if value != self.value:
            self.value, self.since = value, time.monotonic()
        return value is not None and time.monotonic() - self.since >= UNCHANGED_SECONDS


def lacks_nothing(members):
    """True if no member lacks more of the log than is on its way."""
    return all(member["lag_bytes"] <= LAG_BYTES_MAX for member in members)


def settled_leaders(groups):
    """The leader of each group; None while a group lacks one or a voter, or a member a part of the log. While
    votes move, their number may be even."""
    for group in groups.values():
        voters = [member for member in group["members"] if member["part"] == "voter"] if group else []
        if len(voters) < VOTERS or len(voters) % 2 == 0 or not lacks_nothing(group["members"]):
            return None
    return {number: group["leader"] for number, group in groups.items()}


class CountedBytes:
    """The nodes, with the bytes that were sent between them in all turns, before encryption. The counters of
    the nodes are used, because a connection that was closed has no counter in the kernel any more."""

    def __init__(self, cluster):
        self.cluster, self.bytes = cluster, 0

    def spent(self, work):
        before = self.sent()
        load = self.cluster.spent(work)
        grown = self.sent() - before
        if grown <= 0:
            raise ServerError("the nodes counted no bytes between them")
        self.bytes += grown
        return load

    def sent(self):
        stores = self.cluster.running().values()
        return sum(store.server.metrics().sum(SENT, direction="out") for store in stores)


def peer_host():
    """A loopback address that is made of the id of this process."""
    _, high, middle, low = os.getpid().to_bytes(4, "big")
    return f"127.{64 | high & 63}.{middle}.{low}"


@contextmanager
def new_cluster(bench, roles=THREE, settings=None):
    """A settled cluster with nodes of these roles; its processes and its data are removed at the end. The
    server that the bench has open runs beside it."""
    folder = bench.folder / f"cluster-{next(PORTS)}"
    folder.mkdir()
    cluster = Cluster(bench, folder, bench.settings(settings))
    bench.report.say(f"starting {len(roles)} nodes")
    try:
        for role in roles:
            cluster.add(role)
        if len(roles) >= VOTERS:
            cluster.until_settled()
            cluster.until_upgraded()
        yield cluster
    finally:
        cluster.remove()
