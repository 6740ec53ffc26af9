"""Row 25: a refusal under load is SlowDown with a retry delay, clients recover from it, and a failed complete
inside a 200 is an error that they detect."""

import http.client as http_client
import http.server as http_server
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
    """A server that accepts only a few connections at a time."""
    server = Server(settings={"limits.connections": CONNECTIONS}).start()
    yield server
    server.stop()


def hold(server, wire, bucket):
    """Opens a connection that the server has accepted; retries, because the server may still count a
    connection that was just closed."""
    deadline = time.monotonic() + HOLD_SECONDS_MAX
    while time.monotonic() < deadline:
        connection = Connection(server)
        connection.write(head_bytes("GET", f"/{bucket}", wire.headers("GET", f"/{bucket}")))
        if connection.read_answer("GET").status == 200:
            return connection
        connection.__exit__()
    raise AssertionError("no connection is accepted although fewer than the limit are open")


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
    """Records refusals; after the first one, closes the connections that occupy the server."""
    if response is not None:
        refusals.append(response[0].status_code)
    while held:
        held.pop().__exit__()


def test_row_25_an_error_within_a_200_is_seen_by_a_client(http, bucket):
    """Sends two completes of one upload with contrary conditions: whatever the status line, the loser reads
    an error."""
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


LATE_ERROR = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n  <Error><Code>InternalError</Code>'
    b"<Message>We encountered an internal error. Please try again.</Message></Error>"
)


@pytest.fixture
def unlucky(http):
    """A proxy to the server that replaces the first response to a complete by an error within a 200."""

    class Way(http_server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        completes = []

        def log_message(self, *_):
            pass

        def forward(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            connection = http_client.HTTPConnection(http.host, timeout=30)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            status, headers, content = answer.status, answer.getheaders(), answer.read()
            connection.close()
            if self.command == "POST" and "uploadId=" in self.path:
                self.completes.append(status)
                if len(self.completes) == 1:
                    content = LATE_ERROR
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_GET = do_HEAD = forward

    server = http_server.ThreadingHTTPServer(("127.0.0.1", 0), Way)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_row_25_a_complete_that_seems_to_fail_within_a_200_is_retried_and_right(unlucky, bucket):
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    endpoint = f"http://127.0.0.1:{unlucky.server_address[1]}"
    plain = Config(request_checksum_calculation="when_required", s3={"addressing_style": "path"})
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=plain, **keys)
    upload = client.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    where = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    part = client.upload_part(PartNumber=1, Body=b"whole", **where)
    done = client.complete_multipart_upload(
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}, **where
    )
    assert unlucky.RequestHandlerClass.completes == [200, 200], "the complete was retried once"
    assert done["ETag"] == client.head_object(Bucket=bucket, Key="k")["ETag"]
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"whole"
