"""A cluster in place of a server: the first node, two more storage nodes, and a gateway.

What a test does goes through all nodes. The order of the nodes follows from the name of the test, so that a
test that fails uses the same nodes when it runs again, and different tests use different ones. Programs and
libraries that are given an endpoint use the first node of that order. Each client of wire.py and http2.py
uses the next one, among them the one that makes the bucket of the test.

The admin API is that of the first node, which has all of it.
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
# The system group, and three groups of objects.
GROUPS = 4
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
            settings = {"cluster.listen": f"127.0.0.1:{free_port()}", "s3.shutdown_delay": "0s"}
            self.nodes.append(Server(certificates, settings=settings))
        self.first = self.nodes[0]

    def start(self):
        try:
            self.first.run_offline("cluster", "init", str(self.first.folder / "data"))
            self.first.start()
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
        token = self.first.command("cluster", "token")["token"]
        seed = self.first.settings["cluster.listen"]
        directory = str(node.folder / "data")
        node.run_offline("cluster", "join", directory, "--token", token, "--seed", seed, "--role", role)

    def wait_until_settled(self):
        """Waits until all storage nodes vote in all groups and each of them leads some, so that neither the
        voters nor the leaders change in a test."""
        deadline = time.monotonic() + SETTLED_SECONDS_MAX
        while not self.is_settled():
            assert time.monotonic() < deadline, f"{self.groups()}\n{self.output()}"
            time.sleep(0.1)

    def is_settled(self):
        groups = self.groups()
        leaders = {group["leader"] for group in groups.values()}
        voters = [self.voters(group) for group in groups.values()]
        return voters == [VOTERS] * GROUPS and leaders == set(range(1, VOTERS + 1))

    def groups(self):
        """The Raft groups by id, each as its leader describes it: no other node knows the members."""
        known = {}
        for node in self.nodes[:VOTERS]:
            for group in self.status_of(node)["groups"]:
                if group["members"]:
                    known[group["id"]] = group
        return known

    @staticmethod
    def status_of(node):
        command = [os.environ["MLGW_BIN"], "--endpoint", f"http://127.0.0.1:{node.admin_port}"]
        command += ["--output", "json", "cluster", "status"]
        done = subprocess.run(command, env=node.environment(), capture_output=True, text=True)
        # The exit status is not 0 if there are findings, as about a node that has not answered yet.
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    @staticmethod
    def voters(group):
        return sum(member["part"] == "voter" for member in group["members"])

    def stop(self):
        # The first node stops last: the gateway and the others forward some requests to it.
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
        return self.first.admin_port

    def command(self, *words, status=0):
        return self.first.command(*words, status=status)

    def metric(self, name):
        return self.first.metric(name)

    def output(self):
        return "\n".join(f"--- node {number}\n{node.output()}" for number, node in enumerate(self.nodes, 1))
