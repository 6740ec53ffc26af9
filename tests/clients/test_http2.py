"""Clients that use HTTP/2: refused uploads, responses without bodies, and curl."""

import subprocess
import time

import pytest

import http2
from wire import Wire, new_bucket

REFUSALS = {
    "a bucket that is not there": ("/no-such-bucket-here/k", [], 404),
    "an operation that is not offered": ("/{bucket}/k?acl=", [], 501),
    "a condition that does not hold": ("/{bucket}/there", [("If-None-Match", "*")], 412),
}


@pytest.fixture
def bucket(server):
    name = new_bucket(server)
    assert Wire(server).send("PUT", f"/{name}/there", body=b"there").status == 200
    return name


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("size", [400, 200_000, 3_000_000])
@pytest.mark.parametrize("comes", ["at once", "in pieces", "late", "never"])
def test_a_refused_put_is_answered_and_the_connection_goes_on(server, bucket, refusal, size, comes):
    target, more, status = REFUSALS[refusal]
    target, wire, body = target.format(bucket=bucket), Wire(server), b"x" * size
    headers = wire.headers("PUT", target, more, body)
    with http2.Connection(server) as connection:
        stream = connection.begin("PUT", target, headers, ends=False)
        if comes == "late":
            time.sleep(0.05)
        if comes == "in pieces":
            for first in range(0, size, size // 7):
                last = first + size // 7 >= size
                connection.send_body(stream, body[first : first + size // 7], ends=last)
        elif comes != "never":
            connection.send_body(stream, body)
        assert connection.read_answer(stream)[0] == status
        again = connection.exchange("GET", f"/{bucket}/there", wire.headers("GET", f"/{bucket}/there"))
        assert (again[0], again[2]) == (200, b"there")


ABSENT = ["/{bucket}/absent", "/no-such-bucket-here", "/{bucket}/there?partNumber=9"]


@pytest.mark.parametrize("target", ABSENT)
def test_a_head_that_fails_has_no_body(server, bucket, target):
    target = target.format(bucket=bucket)
    for wire in (Wire(server), Wire(server, http2=True)):
        answer = wire.send("HEAD", target)
        assert (answer.status >= 400, answer.body) == (True, b"")
        unsigned = wire.send_raw("HEAD", target, [("Host", server.host)])
        assert (unsigned.status, unsigned.body) == (403, b"")


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
def test_curl_reads_the_status_of_a_head_that_fails(http, version):
    url = f"{http.endpoint}/no-such-bucket-here/k"
    command = ["curl", "--silent", "--show-error", version, "--head", "--output", "/dev/null"]
    done = subprocess.run([*command, "--write-out", "%{http_code}", url], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "403"), done.stderr
