"""Row 25: a refusal under load is SlowDown with a time to wait, clients come through it, and a failed
complete inside a 200 is an error they see."""

import threading
import time

import boto3
import pytest
from botocore.config import Config

from server import ACCESS_KEY, SECRET_KEY, Server
from wire import Connection, Wire, head_bytes, new_bucket

CONNECTIONS = 4
HOLD_SECONDS_MAX = 10


@pytest.fixture
def small():
    """A server that takes only a few connections at a time."""
    server = Server(settings={"limits.connections": CONNECTIONS}).start()
    yield server
    server.stop()


def hold(server, wire, bucket):
    """A connection that the server has taken: it may still count one that has just been closed."""
    deadline = time.monotonic() + HOLD_SECONDS_MAX
    while time.monotonic() < deadline:
        connection = Connection(server)
        connection.write(head_bytes("GET", f"/{bucket}", wire.headers("GET", f"/{bucket}")))
        if connection.read_answer("GET").status == 200:
            return connection
        connection.__exit__()
    raise AssertionError("no connection is taken although fewer than the limit are open")


def test_row_25_too_many_connections_are_told_to_slow_down_and_come_through_later(small):
    bucket = new_bucket(small)
    wire = Wire(small)
    held = [hold(small, wire, bucket) for _ in range(CONNECTIONS)]
    refused = wire.send("GET", f"/{bucket}")
    assert (refused.status, refused.code) == (503, "SlowDown")
    assert int(refused.header("retry-after")) >= 1
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    patient = Config(retries={"max_attempts": 10, "mode": "standard"})
    client = boto3.client("s3", endpoint_url=small.endpoint, region_name="us-east-1", config=patient, **keys)
    refusals = []
    client.meta.events.register("needs-retry.s3", lambda response, **_: seen(response, refusals, held))
    client.put_object(Bucket=bucket, Key="k", Body=b"1")
    assert 503 in refusals
    for connection in held:
        connection.__exit__()


def seen(response, refusals, held):
    """After the first refusal the connections that are in the way are closed."""
    if response is not None:
        refusals.append(response[0].status_code)
    while held:
        held.pop().__exit__()


def test_row_25_an_error_within_a_200_is_seen_by_a_client(http, bucket):
    """Two completes of one upload with contrary conditions: whatever the status line, the loser reads an error."""
    wire, path = Wire(http), f"/{bucket}/k"
    outcomes = []
    barrier = threading.Barrier(2)

    def complete(name):
        upload = wire.send("POST", path + "?uploads").text.partition("<UploadId>")[2].partition("<")[0]
        part = wire.send("PUT", f"{path}?partNumber=1&uploadId={upload}", body=name.encode())
        xml = f"<Part><PartNumber>1</PartNumber><ETag>{part.header('etag')}</ETag></Part>"
        xml = f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode()
        barrier.wait()
        answer = wire.send("POST", f"{path}?uploadId={upload}", [("If-None-Match", "*")], xml)
        outcomes.append((name, answer.status == 200 and "<Error>" not in answer.text, answer))

    threads = [threading.Thread(target=complete, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [name for name, won, _ in outcomes if won]
    losers = [answer for _, won, answer in outcomes if not won]
    assert len(winners) == 1 and losers[0].code in ("PreconditionFailed", "ConditionalRequestConflict")
    assert wire.send("GET", path).body == winners[0].encode()
