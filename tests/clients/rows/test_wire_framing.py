"""Ambiguous framing and addressing, which two readers may interpret differently, is refused, and nothing is
stored."""

import pytest

from wire import Connection, head_bytes

BODY = b"0123456789"


def raw(server, data):
    """Sends these bytes; returns the first response, and true if the server closes the connection after it.
    """
    with Connection(server) as connection:
        connection.write(data)
        answer = connection.read_answer("PUT")
        try:
            closed = connection.reader.read(1) == b""
        except ConnectionError:
            closed = True
        return answer, closed


def without_length(wire, method, target, headers=()):
    return wire.headers(method, target, headers, payload="UNSIGNED-PAYLOAD", chunked=True)


@pytest.mark.parametrize("follows", [b"", BODY])
def test_an_object_without_a_length_is_refused_and_what_is_there_stays(http, wire, put, follows):
    path = put("k", b"kept")
    answer, closed = raw(http, head_bytes("PUT", path, without_length(wire, "PUT", path)) + follows)
    assert (answer.status, answer.code) == (411, "MissingContentLength"), answer
    assert answer.header("connection") == "close" and closed
    assert wire.send("GET", path).body == b"kept"


@pytest.mark.parametrize("follows", [b"", BODY])
def test_a_part_without_a_length_is_refused(http, wire, bucket, follows):
    path = f"/{bucket}/k"
    upload = wire.send("POST", f"{path}?uploads=").text.partition("<UploadId>")[2].partition("<")[0]
    target = f"{path}?partNumber=1&uploadId={upload}"
    answer, closed = raw(http, head_bytes("PUT", target, without_length(wire, "PUT", target)) + follows)
    assert (answer.status, answer.code) == (411, "MissingContentLength"), answer
    assert closed
    assert "<Part>" not in wire.send("GET", f"{path}?uploadId={upload}").text


def test_copies_and_buckets_need_no_length(wire, bucket, put):
    source = put("k", BODY)
    lines = without_length(wire, "PUT", f"/{bucket}/copy", [("x-amz-copy-source", source)])
    assert wire.send_raw("PUT", f"/{bucket}/copy", lines).status == 200
    assert wire.send("GET", f"/{bucket}/copy").body == BODY
    name = f"/{bucket}-new"
    assert wire.send_raw("PUT", name, without_length(wire, "PUT", name)).status == 200


@pytest.mark.parametrize("line", ["first", "header", "last"])
def test_a_bare_line_feed_is_refused(http, wire, put, line):
    path = put("k", BODY)
    head = head_bytes("GET", path, wire.headers("GET", path))
    cut = {
        "first": head.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"),
        "header": head.replace(b"\r\nx-amz-date", b"\nx-amz-date"),
        "last": head[:-2] + b"\n",
    }[line]
    assert cut != head
    answer, closed = raw(http, cut)
    assert (answer.status, answer.code) == (400, "BadRequest") and closed, answer


@pytest.mark.parametrize(
    "extra",
    [
        [("Content-Length", "10"), ("Transfer-Encoding", "chunked")],
        [("Transfer-Encoding", "chunked"), ("Content-Length", "10")],
        [("Content-Length", "10"), ("Content-Length", "10")],
        [("Content-Length", "+10")],
        [("Transfer-Encoding", "gzip, chunked")],
        [("Transfer-Encoding", "identity"), ("Content-Length", "10")],
    ],
)
def test_a_body_whose_end_is_not_certain_is_refused(http, wire, put, extra):
    path = put("k", b"kept")
    lines = without_length(wire, "PUT", path) + extra
    answer, closed = raw(http, head_bytes("PUT", path, lines) + BODY)
    assert answer.status == 400 and closed, answer
    assert wire.send("GET", path).body == b"kept"


def test_requests_before_one_that_is_refused_are_answered(http, wire, put):
    path = put("k", BODY)
    good = head_bytes("GET", path, wire.headers("GET", path))
    with Connection(http) as connection:
        connection.write(good + good + good.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"))
        answers = [connection.read_answer("GET") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 400]
    assert [answer.body for answer in answers[:2]] == [BODY, BODY]


def test_two_host_lines_are_refused(wire1, put):
    path = put("k", BODY)
    lines = wire1.headers("GET", path)
    assert wire1.send_raw("GET", path, [*lines, ("Host", "other")]).status == 400
    assert wire1.send_raw("GET", path, [lines[0], *lines]).status == 400


def test_the_dot_at_the_end_of_a_host_name_says_nothing(wire, put, bucket):
    put("k", BODY)
    port = wire.server.port
    for host in (f"{bucket}.localhost.:{port}", f"{bucket}.localhost."):
        assert wire.send("GET", "/k", host=host).body == BODY
    assert wire.send("GET", f"/{bucket}/k", host=f"localhost.:{port}").body == BODY
