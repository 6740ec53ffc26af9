"""Fixtures of all client tests: a server over HTTP, one over HTTPS, and fresh buckets in them.

With MLGW_CLIENTS_CLUSTER=1 both servers are clusters of four nodes, one of which is a gateway that stores
nothing, and the clients of a test are divided among the nodes (cluster.py).

Failed tests are listed in the file $MLGW_FAILED, if that is set, so that tests/steps/run can run them once
more.
"""

import os
import pathlib

import pytest

from cluster import IS_CLUSTER, TURNS, Cluster
from server import Certificates, Server
from wire import new_bucket


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return Certificates.make(pathlib.Path(tmp_path_factory.mktemp("certificates")))


def served(certificates=None):
    return Cluster(certificates) if IS_CLUSTER else Server(certificates)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    TURNS.begin(item.nodeid)


@pytest.fixture(scope="session")
def http():
    server = served().start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def https(certificates):
    server = served(certificates).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def fast_etags():
    """A server over HTTP that computes no MD5 unless requested."""
    server = Server(settings={"s3.etag": "fast"}).start()
    yield server
    server.stop()


@pytest.fixture(scope="session", params=["http", "https"])
def server(request):
    """The server of the test: a test with this fixture runs twice, once over HTTP and once over HTTPS."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def aws(server, monkeypatch):
    """The server of the test, with the environment of this process set for AWS clients."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.aws_variables().items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def bucket(request):
    """An empty bucket in the server that the test uses."""
    used = "server" if "server" in request.fixturenames else "http"
    return new_bucket(request.getfixturevalue(used))


failed = {}
broken = []


def pytest_runtest_logreport(report):
    if report.failed:
        failed[report.nodeid] = True


def pytest_collectreport(report):
    # The names of the tests in a file that cannot be imported are not known.
    if report.failed:
        broken.append(report.nodeid)


def pytest_sessionfinish():
    path = os.environ.get("MLGW_FAILED")
    if path and not broken:
        pathlib.Path(path).write_text("".join(f"{name}\n" for name in failed))
