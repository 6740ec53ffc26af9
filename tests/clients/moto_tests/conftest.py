"""A moto server, a gateway that has it as upstream, and remote-backed buckets in the gateway.

Buckets are bound to `lake`, each to a prefix of its own; they are moved to `attic`.
"""

import contextlib
import itertools

import pytest

from moto_origin import Moto, client
from server import Server

LAKE, ATTIC = "lake-of-others", "attic-of-others"


class Bound:
    """A remote-backed bucket of the gateway and its origin; both sides are boto3 clients."""

    numbers = itertools.count(1)

    def __init__(self, gateway, origin, mode, *options):
        number = next(self.numbers)
        self.name, self.prefix, self.bucket = f"bound-{number}", f"prefix {number}/", LAKE
        self.gateway = gateway
        self.here, self.there = client(gateway.endpoint), origin.s3
        bind = ["bucket", "bind", self.name, "--upstream", "lake", "--prefix", self.prefix, "--mode", mode]
        gateway.command(*bind, *options)

    def of_here(self, key):
        return {"Bucket": self.name, "Key": key}

    def of_there(self, key):
        return {"Bucket": self.bucket, "Key": self.prefix + key}

    def keys_there(self):
        """All keys at the origin, as the gateway's bucket should list them."""
        pages = self.there.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        return [row["Key"][len(self.prefix) :] for page in pages for row in page.get("Contents", [])]

    def keys_here(self):
        pages = self.here.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [row["Key"] for page in pages for row in page.get("Contents", [])]

    def refresh(self):
        self.gateway.command("bucket", "refresh", self.name)

    def flush(self):
        self.gateway.command("bucket", "flush", self.name)


@pytest.fixture(scope="session")
def origin():
    moto = Moto(LAKE, ATTIC).start()
    yield moto
    moto.stop()


@pytest.fixture(scope="session")
def gateway(origin):
    server = Server(settings=origin.settings("lake", LAKE) | origin.settings("attic", ATTIC)).start()
    yield server
    server.stop()


@pytest.fixture
def start():
    """Starts a server that only this test has: start(Server(...)) or start(Moto(...))."""
    with contextlib.ExitStack() as ends:

        def started(server):
            server.start()
            ends.callback(server.stop)
            return server

        yield started


@pytest.fixture
def bind(gateway, origin):
    """Binds a bucket: bind(mode, option...)."""
    return lambda mode, *options: Bound(gateway, origin, mode, *options)
