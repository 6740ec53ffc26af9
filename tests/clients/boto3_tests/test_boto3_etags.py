"""boto3: an ETag is the MD5 of the bytes, for every upload method and number of chunks, and a wrong MD5
stores nothing."""

import base64
import concurrent.futures
import hashlib

import pytest
from botocore.exceptions import ClientError

import streams
from checksums import crc32
from content import content
from wire import Connection, Wire, head_bytes

MIB = 1 << 20
# The server hashes a body of one chunk of 1 MiB alone, and longer bodies in parallel.
AROUND_CHUNKS = [
    0, 1, 63, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 55, 3 * MIB + 56, 3 * MIB + 64, 5 * MIB + 77]
PARTS, PART_BYTES, THREADS = 16, 5 * MIB + 9, 8


def etag(body):
    return f'"{hashlib.md5(body).hexdigest()}"'


def encoded(body):
    return base64.b64encode(hashlib.md5(body).digest()).decode()


@pytest.mark.parametrize("length", AROUND_CHUNKS)
def test_bodies_and_their_copies_around_the_ends_of_chunks(s3, bucket, length):
    body = content(length, f"etag {length}")
    assert s3.put_object(Bucket=bucket, Key="k", Body=body, ContentMD5=encoded(body))["ETag"] == etag(body)
    copied = s3.copy_object(Bucket=bucket, Key="copy", CopySource=f"{bucket}/k")["CopyObjectResult"]
    assert copied["ETag"] == etag(body) == s3.head_object(Bucket=bucket, Key="copy")["ETag"]
    assert s3.get_object(Bucket=bucket, Key="copy")["Body"].read() == body


@pytest.mark.parametrize("length", [3000, MIB, 3 * MIB])
def test_another_md5_than_the_clients_stores_nothing(s3, bucket, length):
    body = content(length, "wrong")
    s3.put_object(Bucket=bucket, Key="k", Body=b"before")
    with pytest.raises(ClientError, match="BadDigest"):
        s3.put_object(Bucket=bucket, Key="k", Body=body, ContentMD5=encoded(b"other"))
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"before"
    upload = {"Bucket": bucket, "Key": "parts"}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    with pytest.raises(ClientError, match="BadDigest"):
        s3.upload_part(**upload, PartNumber=1, Body=body, ContentMD5=encoded(b"other"))
    assert "Parts" not in s3.list_parts(**upload)


def test_many_parts_at_once_and_copies_of_ranges(s3, bucket):
    bodies = [content(PART_BYTES + number * 1000, f"part {number}") for number in range(PARTS)]
    upload = {"Bucket": bucket, "Key": "k"}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        send = lambda number: s3.upload_part(**upload, PartNumber=number + 1, Body=bodies[number])["ETag"]
        etags = list(pool.map(send, range(PARTS)))
    assert etags == [etag(body) for body in bodies]
    parts = [{"PartNumber": number, "ETag": each} for number, each in enumerate(etags, 1)]
    done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    whole = hashlib.md5(b"".join(hashlib.md5(body).digest() for body in bodies)).hexdigest()
    assert done["ETag"] == f'"{whole}-{PARTS}"'
    again = {"Bucket": bucket, "Key": "again"}
    again["UploadId"] = s3.create_multipart_upload(**again)["UploadId"]
    source, across = {"Bucket": bucket, "Key": "k"}, b"".join(bodies)[7 : 2 * PART_BYTES]
    copied = s3.upload_part_copy(
        **again, PartNumber=1, CopySource=source, CopySourceRange=f"bytes=7-{2 * PART_BYTES - 1}"
    )
    assert copied["CopyPartResult"]["ETag"] == etag(across)


def test_forms_of_which_the_length_is_not_known(s3, web, bucket):
    for length in (1000, MIB + 1, 3 * MIB + 5):
        body, form = content(length, "form"), s3.generate_presigned_post(bucket, "form")
        answer = web.post(form["url"], data=form["fields"], files={"file": body})
        assert answer.status_code == 204, answer.text
        assert answer.headers["ETag"] == etag(body)


@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
def test_a_long_body_in_chunks_with_a_trailer(server, bucket, right):
    wire, target, body = Wire(server), f"/{bucket}/k", content(2 * MIB + 3, "chunked")
    md5 = ("Content-MD5", encoded(body if right else b"other"))
    headers = streams.unsigned_trailer_headers(wire, target, "crc32", len(body), [md5])
    trailer = {"x-amz-checksum-crc32": base64.b64encode(crc32(body)).decode()}
    with Connection(server) as connection:
        connection.write(head_bytes("PUT", target, headers))
        connection.write(streams.http_chunked(streams.aws_chunks(body, trailer)))
        answer = connection.read_answer("PUT")
    assert (answer.status, answer.code) == ((200, "") if right else (400, "BadDigest"))
    stored = wire.send("GET", target)
    assert (stored.status, stored.header("etag")) == ((200, etag(body)) if right else (404, None))
