"""Rows about writing: streamed bodies, awkward keys, copies, conditions, the connector's small uploads."""

import base64
import concurrent.futures
import hashlib
import threading
import zlib

import pytest

import streams
from checksums import crc64nvme
from wire import UNSIGNED

BODY = b"0123456789" * 1000


def crc32(data):
    return zlib.crc32(data).to_bytes(4, "big")


def stream(wire, target, headers, body_of):
    """Sends a body whose framing may depend on the signature of the head."""
    return wire.send_raw("PUT", target, headers, body_of(headers))


@pytest.mark.parametrize(
    "algorithm", [("crc32", crc32), ("crc64nvme", crc64nvme)], ids=["crc32", "crc64nvme"]
)
@pytest.mark.parametrize("body", [b"", BODY], ids=["empty", "10kB"])
def test_row_08_chunked_around_aws_chunked_with_an_unsigned_trailer(server_wire, bucket, algorithm, body):
    wire, target, (name, checksum) = server_wire, f"/{bucket}/k", algorithm
    headers = streams.unsigned_trailer_headers(
        wire, target, name, len(body), [("Content-Encoding", "gzip,aws-chunked")]
    )
    framed = streams.framed(
        wire, streams.aws_chunks(body, {f"x-amz-checksum-{name}": encoded(checksum(body))})
    )
    assert stream(wire, target, headers, lambda _: framed).status == 200
    answer = wire.send("GET", target, [("x-amz-checksum-mode", "ENABLED")])
    assert (answer.body, answer.header("content-encoding")) == (body, "gzip")
    assert answer.header(f"x-amz-checksum-{name}") == encoded(checksum(body))


def encoded(digest):
    return base64.b64encode(digest).decode()


def test_row_08_aws_chunked_alone_is_not_stored_as_an_encoding(server_wire, bucket):
    wire, target = server_wire, f"/{bucket}/k"
    headers = streams.unsigned_trailer_headers(
        wire, target, "crc32", len(BODY), [("Content-Encoding", "aws-chunked")]
    )
    trailer = {"x-amz-checksum-crc32": encoded(crc32(BODY))}
    framed = streams.framed(wire, streams.aws_chunks(BODY, trailer))
    assert stream(wire, target, headers, lambda _: framed).status == 200
    assert wire.send("HEAD", target).header("content-encoding") is None


@pytest.mark.parametrize("fault", ["checksum", "length"])
def test_row_08_a_wrong_trailer_or_length_stores_nothing(server_wire, bucket, fault):
    wire, target = server_wire, f"/{bucket}/k"
    length = len(BODY) + (fault == "length")
    trailer = {"x-amz-checksum-crc32": encoded(crc32(BODY if fault == "length" else b"other"))}
    headers = streams.unsigned_trailer_headers(wire, target, "crc32", length, [])
    framed = streams.framed(wire, streams.aws_chunks(BODY, trailer))
    answer = stream(wire, target, headers, lambda _: framed)
    assert answer.status == 400 and (fault == "length" or answer.code == "BadDigest")
    assert wire.send("HEAD", target).status == 404


@pytest.mark.parametrize("trailer", [False, True], ids=["plain", "trailer"])
def test_row_09_signed_chunks_are_verified_one_by_one(wire, bucket, trailer):
    target = f"/{bucket}/k"
    extra = {"x-amz-checksum-crc32": encoded(crc32(BODY))} if trailer else {}
    headers = streams.signed_chunk_headers(wire, target, len(BODY), extra)
    good = stream(wire, target, headers, lambda lines: streams.signed_chunks(lines, BODY, extra))
    assert good.status == 200 and wire.send("GET", target).body == BODY
    tampered = lambda lines: streams.signed_chunks(lines, BODY, extra).replace(
        b"0123456789", b"0123456788", 1
    )
    answer = stream(
        wire, f"/{bucket}/k2", streams.signed_chunk_headers(wire, f"/{bucket}/k2", len(BODY), extra), tampered
    )
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")
    assert wire.send("HEAD", f"/{bucket}/k2").status == 404


def test_row_09_a_trailer_with_another_signature_is_refused(wire, bucket):
    target, extra = f"/{bucket}/k", {"x-amz-checksum-crc32": encoded(crc32(BODY))}
    headers = streams.signed_chunk_headers(wire, target, len(BODY), extra)
    changed = lambda lines: streams.signed_chunks(lines, BODY, extra, trailer_signature="0" * 64)
    answer = stream(wire, target, headers, changed)
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")
    assert wire.send("HEAD", target).status == 404


def test_row_13_keys_with_a_final_slash_and_with_double_slashes_are_names_like_others(wire, put, bucket):
    keys = ["a/", "a//", "a//b", "a/b", "/a", "//", "b//c//"]
    for key in keys:
        put(key, key.encode())
    for key in keys:
        assert wire.send("GET", f"/{bucket}/{key}").body == key.encode()
    listed = wire.send("GET", f"/{bucket}?list-type=2").text
    assert [part.partition("<")[0] for part in listed.split("<Key>")[1:]] == sorted(keys)
    folded = wire.send("GET", f"/{bucket}?list-type=2&delimiter=/&prefix=a/").text
    assert "<Key>a/</Key>" in folded and "<CommonPrefixes><Prefix>a//</Prefix></CommonPrefixes>" in folded
    assert wire.send("DELETE", f"/{bucket}/a//b").status == 204
    assert wire.send("GET", f"/{bucket}/a/b").status == 200


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("escaped", [False, True])
def test_row_17_a_copy_source_with_and_without_slash_and_escapes(wire, put, bucket, slash, escaped):
    put("from/%C3%BC%20%2B%25", BODY)
    source = f"{slash}{bucket}/from/%C3%BC%20%2B%25"
    source = source.replace("/from/", "%2Ffrom%2F") if escaped else source
    answer = wire.send("PUT", f"/{bucket}/to", [("x-amz-copy-source", source)])
    assert answer.status == 200 and "<CopyObjectResult" in answer.text, answer
    assert wire.send("GET", f"/{bucket}/to").body == BODY


def test_row_17_a_copy_onto_itself_replaces_metadata_and_nothing_else(wire, put):
    path = put("k", BODY, [("x-amz-meta-a", "1"), ("Content-Type", "text/a")])
    bare = wire.send("PUT", path, [("x-amz-copy-source", path)])
    assert (bare.status, bare.code) == (400, "InvalidRequest")
    directive = [("x-amz-copy-source", path), ("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-b", "2")]
    assert wire.send("PUT", path, directive).status == 200
    answer = wire.send("GET", path)
    assert (answer.body, answer.header("x-amz-meta-a"), answer.header("x-amz-meta-b")) == (BODY, None, "2")


def test_row_18_conditional_puts_are_atomic(wire, put, bucket):
    target, barrier = f"/{bucket}/raced", threading.Barrier(16)

    def race(number):
        barrier.wait()
        return wire.send("PUT", target, [("If-None-Match", "*")], str(number).encode()).status

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        statuses = sorted(pool.map(race, range(16)))
    assert statuses.count(200) == 1 and set(statuses) <= {200, 409, 412}


def test_row_18_if_match_on_put_and_head(wire, put, bucket):
    path = put("k", b"1")
    etag = wire.send("HEAD", path).header("etag")
    assert wire.send("HEAD", path, [("If-Match", etag)]).status == 200
    assert wire.send("HEAD", path, [("If-Match", '"other"')]).status == 412
    assert wire.send("PUT", path, [("If-Match", '"other"')], b"2").code == "PreconditionFailed"
    assert wire.send("PUT", path, [("If-Match", etag.strip('"'))], b"3").status == 200
    assert wire.send("PUT", path, [("If-Match", etag)], b"4").status == 412
    assert wire.send("PUT", f"/{bucket}/absent", [("If-Match", etag)], b"5").status == 404
    assert wire.send("GET", path).body == b"3"


def test_row_20_small_uploads_of_parts_on_25_connections(wire, bucket):
    def write(number):
        body, path = b"x" * (number % 3), f"/{bucket}/{number}"
        started = wire.send("POST", path + "?uploads", payload=UNSIGNED)
        upload = started.text.partition("<UploadId>")[2].partition("<")[0]
        part = wire.send("PUT", f"{path}?partNumber=1&uploadId={upload}", body=body, payload=UNSIGNED)
        xml = f"<Part><PartNumber>1</PartNumber><ETag>{part.header('etag')}</ETag></Part>"
        xml = f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode()
        done = wire.send("POST", f"{path}?uploadId={upload}", body=xml, payload=UNSIGNED)
        return done.status == 200 and wire.send("GET", path).body == body

    with concurrent.futures.ThreadPoolExecutor(25) as pool:
        assert all(pool.map(write, range(100)))
    empty = hashlib.md5(hashlib.md5(b"").digest()).hexdigest() + "-1"
    assert wire.send("HEAD", f"/{bucket}/0").header("etag") == f'"{empty}"'
