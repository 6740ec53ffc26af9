"""A cluster in place of a server: the store of all objects, two more storage nodes, and a gateway.

What a test does goes through all nodes. The order of the nodes follows from the name of the test, so that a
test that fails uses the same nodes when it runs again, and different tests use different ones. Programs and
libraries that are given an endpoint use the first node of that order. Each client of wire.py and http2.py uses
the next one, among them the one that makes the bucket of the test.

The admin API is that of the store, which has all of it.
"""

import itertools
import os
import random
import time

from server import Server, free_port

# With MLGW_CLIENTS_CLUSTER=1 the fixtures `http` and `https` of all suites are clusters. Servers with special
# settings, and those that a test starts by itself, stay single servers.
IS_CLUSTER = os.environ.get("MLGW_CLIENTS_CLUSTER", "") == "1"

ROLES = ["storage", "storage", "storage", "gateway"]
VOTERS = ROLES.count("storage")
SETTLED_SECONDS_MAX = 60


class Turns:
    """The order of the nodes in the running test."""

    def __init__(self):
        self.begin("")

    def begin(self, name):
        order = list(range(len(ROLES)))
        random.Random(name).shuffle(order)
        self.first, *others = order
        self.others = itertools.cycle([*others, self.first])


TURNS = Turns()


class Cluster:
    """Has the interface of a `Server`."""

    def __init__(self, certificates=None):
        self.nodes = []
        for _ in ROLES:
            settings = {"cluster.listen": f"127.0.0.1:{free_port()}"}
            self.nodes.append(Server(certificates, settings=settings))
        self.store = self.nodes[0]

    def start(self):
        self.store.run_offline("cluster", "init", str(self.store.folder / "data"))
        self.store.start()
        for role, node in zip(ROLES[1:], self.nodes[1:], strict=True):
            self.join(role, node)
            node.start()
        self.wait_until_settled()
        return self

    def join(self, role, node):
        token = self.store.command("cluster", "token")["token"]
        seed = self.store.settings["cluster.listen"]
        directory = str(node.folder / "data")
        node.run_offline("cluster", "join", directory, "--token", token, "--seed", seed, "--role", role)

    def wait_until_settled(self):
        """Waits until all storage nodes vote in both groups, so that no test meets a change of the voters."""
        deadline = time.monotonic() + SETTLED_SECONDS_MAX
        while not self.is_settled():
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.1)

    def is_settled(self):
        groups = self.store.cluster_status()["groups"]
        voters = [[member for member in group["members"] if member["part"] == "voter"] for group in groups]
        return [len(of_group) for of_group in voters] == [VOTERS] * 2

    def stop(self):
        # The store last: the others forward to it what they still have.
        for node in reversed(self.nodes):
            node.stop()

    def turn(self):
        """The node for a further client of the test."""
        return self.nodes[next(TURNS.others)]

    @property
    def node(self):
        """The node whose address programs and libraries get."""
        return self.nodes[TURNS.first]

    def __getattr__(self, name):
        # Also for a test that uses a Server's address, folder or variables; they are those of one node.
        return getattr(self.node, name)

    @property
    def admin_port(self):
        return self.store.admin_port

    def command(self, *words, status=0):
        return self.store.command(*words, status=status)

    def metric(self, name):
        return self.store.metric(name)

    def output(self):
        return "\n".join(f"--- node {number}\n{node.output()}" for number, node in enumerate(self.nodes, 1))
