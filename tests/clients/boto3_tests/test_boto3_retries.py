"""Retries of boto3: the defaults that docs/OPERATIONS.md lists, and clients of a cluster that loses nodes."""

import concurrent.futures
import threading

import boto3
import botocore.awsrequest
import botocore.endpoint
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError

from cluster import Cluster
from content import content
from retry_table import RetryRow
from server import ACCESS_KEY, REGION, SECRET_KEY

BUCKET = "retries"
# As in the table: enough for a node that starts again.
ATTEMPTS = 10
ANSWERED_SECONDS_MAX = 240
# Answers that may be repeated, by status, and answers that mean something else.
REPEATED = [(500, "InternalError"), (502, ""), (503, "SlowDown"), (503, "ServiceUnavailable"), (504, "")]
FINAL = [(409, "ConditionalRequestConflict"), (412, "PreconditionFailed")]


def client_of(endpoint, **settings):
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name=REGION,
        config=Config(**settings),
    )


def attempts(monkeypatch, outcome, **settings):
    """Returns the number of attempts of a client whose requests all have the same outcome, without pauses."""
    monkeypatch.setattr(botocore.endpoint.time, "sleep", lambda seconds: None)
    s3 = client_of("http://127.0.0.1:9", **settings)
    sent = []

    def answer(request, **_):
        sent.append(request.url)
        return outcome(request)

    s3.meta.events.register("before-send.s3", answer)
    with pytest.raises((ClientError, ConnectTimeoutError)):
        s3.get_object(Bucket=BUCKET, Key="key")
    return len(sent)


def answered(status, code):
    body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
    raw = type("Raw", (), {"stream": staticmethod(lambda **_: iter([body]))})
    return lambda request: botocore.awsrequest.AWSResponse(request.url, status, {}, raw)


def timed_out(request):
    raise ConnectTimeoutError(endpoint_url=request.url)


@pytest.mark.parametrize("outcome", [timed_out, *(answered(*one) for one in REPEATED)])
def test_errors_are_repeated_as_often_as_the_table_says(monkeypatch, outcome):
    row = RetryRow("boto3")
    assert row.repeats.startswith(f"{attempts(monkeypatch, outcome)} attempts (`retry_mode = standard`)")
    assert f'Config(retries={{"total_max_attempts": {ATTEMPTS}}})' in row.repeats
    assert attempts(monkeypatch, outcome, retries={"total_max_attempts": ATTEMPTS}) == ATTEMPTS


@pytest.mark.parametrize("status, code", FINAL)
def test_a_conflict_and_a_condition_that_does_not_hold_are_not_repeated(monkeypatch, status, code):
    assert attempts(monkeypatch, answered(status, code)) == 1


def test_the_version_and_the_time_limits_are_those_of_the_table():
    row, config = RetryRow("boto3"), client_of("http://127.0.0.1:9").meta.config
    assert boto3.__version__.startswith(f"{row.version}.")
    assert config.retries["mode"] == "standard"
    assert row.limits == (
        f"{config.connect_timeout} s to connect, {config.read_timeout} s without a byte"
    )


@pytest.fixture(scope="module")
def nodes():
    """The nodes of a cluster: three that store, and a gateway."""
    cluster = Cluster().start()
    client_of(cluster.nodes[0].endpoint).create_bucket(Bucket=BUCKET)
    yield cluster.nodes
    cluster.stop()


def kill(node):
    node.process.kill()
    node.process.wait()


class Upload:
    """An upload in a thread, by a client that repeats it often enough."""

    def __init__(self, endpoint, key, body):
        s3 = client_of(endpoint, retries={"total_max_attempts": ATTEMPTS})
        self.failed = threading.Event()
        s3.meta.events.register("needs-retry.s3.PutObject", self.look_at)
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.future = self.pool.submit(s3.put_object, Bucket=BUCKET, Key=key, Body=body)

    def look_at(self, response, caught_exception, **_):
        if caught_exception or response[0].status_code >= 500:
            self.failed.set()

    def until_failed(self):
        assert self.failed.wait(ANSWERED_SECONDS_MAX), "an attempt fails while the nodes are down"

    def until_stored(self):
        self.future.result(ANSWERED_SECONDS_MAX)
        self.pool.shutdown()


def test_a_client_goes_on_through_a_node_that_is_killed_and_starts_again(nodes):
    killed, other = nodes[1], nodes[2]
    body = content(100_000, "killed")
    client_of(killed.endpoint).put_object(Bucket=BUCKET, Key="before", Body=body)
    kill(killed)
    upload = Upload(killed.endpoint, "meanwhile", body)
    upload.until_failed()
    # Three attempts are soon over. A client with another endpoint goes on.
    with pytest.raises(EndpointConnectionError):
        client_of(killed.endpoint).get_object(Bucket=BUCKET, Key="before")
    patient = client_of(other.endpoint, retries={"total_max_attempts": ATTEMPTS})
    assert patient.get_object(Bucket=BUCKET, Key="before")["Body"].read() == body
    killed.start()
    upload.until_stored()
    assert patient.get_object(Bucket=BUCKET, Key="meanwhile")["Body"].read() == body


def test_a_client_waits_for_a_majority(nodes):
    left, *lost = nodes[:3]
    for node in lost:
        kill(node)
    with pytest.raises(ClientError) as refused:
        client_of(left.endpoint, retries={"total_max_attempts": 1}).list_objects_v2(Bucket=BUCKET)
    answer = refused.value.response
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert answer["Error"]["Code"] == "ServiceUnavailable" and answer["Error"]["Reason"]
    body = content(100_000, "majority")
    upload = Upload(left.endpoint, "majority", body)
    upload.until_failed()
    for node in lost:
        node.start()
    upload.until_stored()
    patient = client_of(lost[0].endpoint, retries={"total_max_attempts": ATTEMPTS})
    assert patient.get_object(Bucket=BUCKET, Key="majority")["Body"].read() == body
