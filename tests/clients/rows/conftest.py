"""Rows of the table of what S3 clients need: one file per group, one test per row, named after its number."""

import pytest

from wire import Wire


@pytest.fixture
def wire(http):
    return Wire(http)


@pytest.fixture
def put(wire, bucket):
    """Stores an object in the bucket of the test and returns its path."""

    def put(key, body=b"", headers=()):
        answer = wire.send("PUT", f"/{bucket}/{key}", headers, body)
        assert answer.status == 200, answer
        return f"/{bucket}/{key}"

    return put
