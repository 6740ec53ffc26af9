"""Rows about reading: ranges, lengths, interim responses, metadata, versions, probes."""

import base64
import zlib

import pytest

from wire import Connection, head_bytes

BODY = b"0123456789"
BODY_CRC32 = base64.b64encode(zlib.crc32(BODY).to_bytes(4, "big")).decode()
ENABLED = ("x-amz-checksum-mode", "ENABLED")


def test_row_01_a_range_of_an_empty_object_is_416_and_its_part_1_is_empty(wire, put):
    path = put("empty")
    answer = wire.send("GET", path, [("Range", "bytes=0-99")])
    assert (answer.status, answer.code) == (416, "InvalidRange")
    assert answer.header("content-type") == "application/xml"
    assert "<ActualObjectSize>0</ActualObjectSize>" in answer.text
    part = wire.send("GET", path + "?partNumber=1")
    assert part.status in (200, 206) and part.body == b"" and part.header("content-length") == "0"


@pytest.mark.parametrize("wanted", ["bytes=0-9", "bytes=0-", "bytes=0-4294967296", "bytes=-10"])
def test_row_02_a_ranged_get_of_the_whole_object_is_206(wire, put, wanted):
    answer = wire.send("GET", put("k", BODY), [("Range", wanted)])
    assert (answer.status, answer.body, answer.header("content-range")) == (206, BODY, "bytes 0-9/10")


def test_row_03_a_suffix_longer_than_the_object_is_everything(wire, put):
    answer = wire.send("GET", put("k", BODY), [("Range", "bytes=-1000")])
    assert (answer.status, answer.body, answer.header("content-range")) == (206, BODY, "bytes 0-9/10")
    assert answer.header("content-length") == "10"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_row_04_a_checksum_of_the_whole_object_is_on_200_and_never_on_206(wire, put, method):
    path = put("k", BODY, [("x-amz-checksum-crc32", BODY_CRC32)])
    whole = wire.send(method, path, [ENABLED])
    assert (whole.status, whole.header("x-amz-checksum-crc32")) == (200, BODY_CRC32)
    for wanted in ("bytes=0-3", "bytes=0-9"):
        ranged = wire.send(method, path, [ENABLED, ("Range", wanted)])
        assert ranged.status == 206
        assert not [name for name, _ in ranged.headers if name.lower().startswith("x-amz-checksum-")]


def test_row_05_head_honours_range(wire, put):
    answer = wire.send("HEAD", put("k", BODY), [("Range", "bytes=2-5")])
    assert (answer.status, answer.header("content-length")) == (206, "4")
    assert answer.header("content-range") == "bytes 2-5/10"


@pytest.mark.parametrize("body", [b"", BODY])
def test_row_06_100_continue_is_sent_when_asked_also_for_no_bytes(http, wire1, bucket, body):
    headers = wire1.headers("PUT", f"/{bucket}/k", [("Expect", "100-continue")], body)
    with Connection(http) as connection:
        connection.write(head_bytes("PUT", f"/{bucket}/k", headers))
        assert connection.read_head() == (100, [])
        connection.write(body)
        assert connection.read_answer("PUT").status == 200
    assert wire1.send("GET", f"/{bucket}/k").body == body


def test_row_06_a_refused_request_is_answered_without_asking_for_its_body(http, wire1, bucket):
    headers = wire1.headers("PUT", f"/{bucket}-absent/k", [("Expect", "100-continue")], BODY)
    with Connection(http) as connection:
        connection.write(head_bytes("PUT", f"/{bucket}-absent/k", headers))
        answer = connection.read_answer("PUT")
        assert (answer.status, answer.interim) == (404, [])
        if answer.header("connection") != "close":  # The connection is reusable then.
            connection.write(head_bytes("GET", "/", wire1.headers("GET", "/")))
            assert connection.read_answer("GET").status == 200


@pytest.mark.parametrize("length", [0, 10, 3_000_000])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_row_07_get_and_head_carry_a_length_and_are_never_chunked(wire, put, method, length):
    path = put("k", b"x" * length)
    answer = wire.send(method, path)
    assert (answer.header("content-length"), answer.header("transfer-encoding")) == (str(length), None)
    if length:
        answer = wire.send(method, path, [("Range", "bytes=1-5")])
        assert (answer.header("content-length"), answer.header("transfer-encoding")) == ("5", None)


def test_row_11_metadata_names_come_back_in_lower_case(wire, put):
    path = put("k", BODY, [("X-Amz-Meta-CamelCase", "Value"), ("x-amz-meta-UPPER", "Other")])
    for method in ("GET", "HEAD"):
        names = {name: value for name, value in wire.send(method, path).headers if "meta" in name.lower()}
        assert names == {"x-amz-meta-camelcase": "Value", "x-amz-meta-upper": "Other"}


def test_row_12_a_bucket_without_versioning_never_names_a_version(wire, put, bucket):
    path = f"/{bucket}/k"
    answers = [wire.send("PUT", path, body=BODY), wire.send("GET", path), wire.send("HEAD", path)]
    answers.append(wire.send("PUT", f"/{bucket}/copy", [("x-amz-copy-source", path)]))
    started = wire.send("POST", f"/{bucket}/parts?uploads")
    upload = started.text.partition("<UploadId>")[2].partition("<")[0]
    part = wire.send("PUT", f"/{bucket}/parts?partNumber=1&uploadId={upload}", body=BODY)
    xml = f"<Part><PartNumber>1</PartNumber><ETag>{part.header('etag')}</ETag></Part>"
    xml = f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode()
    answers += [started, part, wire.send("POST", f"/{bucket}/parts?uploadId={upload}", body=xml)]
    answers.append(wire.send("DELETE", path))
    for answer in answers:
        assert answer.status in (200, 204), answer
        assert answer.header("x-amz-version-id") is None and "VersionId" not in answer.text


@pytest.mark.parametrize(
    "target", ["/mlgw-no-such-bucket-0123456789", "/mlgw-no-such-bucket-0123456789?list-type=2"]
)
def test_row_24_a_bucket_that_is_not_there_is_404(wire, target):
    answer = wire.send("GET", target)
    assert (answer.status, answer.code) == (404, "NoSuchBucket")
    head = wire.send("HEAD", target)
    assert (head.status, head.body) == (404, b"")


def test_row_24_a_name_that_no_bucket_can_have_is_an_answer_too(wire):
    assert wire.send("HEAD", "/a-nonsense_Bucket!").status in (400, 404)
