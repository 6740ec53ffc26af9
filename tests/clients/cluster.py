"""A cluster in place of a server: the store of all objects, two more storage nodes, and a gateway.

What a test does goes through all nodes. The order of the nodes follows from the name of the test, so that a
test that fails uses the same nodes when it runs again, and different tests use different ones. Programs and
libraries that are given an endpoint use the first node of that order. Each client of wire.py and http2.py
uses the next one, among them the one that makes the bucket of the test.

The admin API is that of the store, which has all of it.
"""

import itertools
import json
import os
import random
import subprocess
import time

from server import Server, free_port

# With MLGW_CLIENTS_CLUSTER=1 the fixtures `http` and `https` of all suites are clusters. Servers with special
# settings, and those that a test starts by itself, stay single servers.
IS_CLUSTER = os.environ.get("MLGW_CLIENTS_CLUSTER", "") == "1"

ROLES = ["storage", "storage", "storage", "gateway"]
VOTERS = ROLES.count("storage")
# The system group, and the group of objects.
GROUPS = 2
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
        try:
            self.store.run_offline("cluster", "init", str(self.store.folder / "data"))
            self.store.start()
            for role, node in zip(ROLES[1:], self.nodes[1:], strict=True):
                self.join(role, node)
                node.start()
            self.wait_until_settled()
        except BaseException:
            for node in self.nodes:
                if node.process:
                    node.process.kill()
            raise
        return self

    def join(self, role, node):
        token = self.store.command("cluster", "token")["token"]
        seed = self.store.settings["cluster.listen"]
        directory = str(node.folder / "data")
        node.run_offline("cluster", "join", directory, "--token", token, "--seed", seed, "--role", role)

    def wait_until_settled(self):
        """Waits until all storage nodes vote in both groups, so that the voters do not change in a test."""
        deadline = time.monotonic() + SETTLED_SECONDS_MAX
        while [self.voters(group) for group in self.groups()] != [VOTERS] * GROUPS:
            assert time.monotonic() < deadline, f"{self.groups()}\n{self.output()}"
            time.sleep(0.1)

    def groups(self):
        """The Raft groups as the store describes them; it prefers to lead them."""
        endpoint = f"http://127.0.0.1:{self.store.admin_port}"
        command = [os.environ["MLGW_BIN"], "--endpoint", endpoint, "--output", "json", "cluster", "status"]
        done = subprocess.run(command, env=self.store.environment(), capture_output=True, text=True)
        # The exit status is not 0 if there are findings, as about a node that has not answered yet.
        assert done.stdout, done.stderr
        return json.loads(done.stdout)["groups"]

    @staticmethod
    def voters(group):
        return sum(member["part"] == "voter" for member in group["members"])

    def stop(self):
        # The store stops last, because the others forward to it.
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
        # Address, folder and variables are those of one node.
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
