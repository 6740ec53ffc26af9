"""Rows of the table of S3 client requirements: one file per group, one test per row, named after its number.

A test with the fixture `wire` runs over HTTP/1.1 and over HTTP/2; one with `wire1` tests a feature that only
HTTP/1.1 has.
"""

import pytest

from wire import Wire


@pytest.fixture(params=["http1", "http2"])
def version(request):
    return request.param


@pytest.fixture
def wire(http, version):
    return Wire(http, http2=version == "http2")


@pytest.fixture
def wire1(http):
    return Wire(http)


@pytest.fixture
def server_wire(server, version):
    """Like `wire`, over HTTP and over HTTPS."""
    return Wire(server, http2=version == "http2")


@pytest.fixture
def put(wire, bucket):
    """Stores an object in the bucket of the test and returns its path."""

    def put(key, body=b"", headers=()):
        answer = wire.send("PUT", f"/{bucket}/{key}", headers, body)
        assert answer.status == 200, answer
        return f"/{bucket}/{key}"

    return put
