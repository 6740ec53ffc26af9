"""boto3: checksums of every algorithm, in a header and as a trailer, right and wrong, of whole bodies and of
parts."""

import base64
import hashlib

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
import boto3

from checksums import crc32, crc32c, crc64nvme
from content import content

ALGORITHMS = {
    "CRC32": crc32,
    "CRC32C": crc32c,
    "CRC64NVME": crc64nvme,
    "SHA1": lambda data: hashlib.sha1(data).digest(),
    "SHA256": lambda data: hashlib.sha256(data).digest(),
}
# botocore computes CRC32C and CRC64NVME only with the optional awscrt; for those the tests pass the value.
COMPUTED_BY_BOTOCORE = ("CRC32", "SHA1", "SHA256")
PART_BYTES = 5 << 20


def encoded(algorithm, data):
    return base64.b64encode(ALGORITHMS[algorithm](data)).decode()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_given_checksum_is_checked_stored_and_given_back(s3, bucket, algorithm):
    body, field = content(3000, algorithm), f"Checksum{algorithm}"
    s3.put_object(Bucket=bucket, Key="k", Body=body, **{field: encoded(algorithm, body)})
    head = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (head[field], head["ChecksumType"]) == (encoded(algorithm, body), "FULL_OBJECT")
    with pytest.raises(ClientError, match="BadDigest"):
        s3.put_object(Bucket=bucket, Key="wrong", Body=body, **{field: encoded(algorithm, b"other")})
    with pytest.raises(ClientError, match="404"):
        s3.head_object(Bucket=bucket, Key="wrong")


@pytest.mark.parametrize("algorithm", COMPUTED_BY_BOTOCORE)
def test_a_checksum_that_botocore_computes_is_checked_on_the_way_back(s3, bucket, algorithm):
    body = content(100_000, algorithm)
    put = s3.put_object(Bucket=bucket, Key="k", Body=body, ChecksumAlgorithm=algorithm)
    assert put[f"Checksum{algorithm}"] == encoded(algorithm, body)
    answer = s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert answer[f"Checksum{algorithm}"] == encoded(algorithm, body) and answer["Body"].read() == body


def test_an_upload_of_parts_has_a_composite_checksum(s3, bucket):
    bodies = [content(PART_BYTES, "first"), b"second"]
    upload = s3.create_multipart_upload(
        Bucket=bucket, Key="k", ChecksumAlgorithm="SHA256", ChecksumType="COMPOSITE"
    )
    target = {"Bucket": bucket, "Key": "k", "UploadId": upload["UploadId"]}
    parts = []
    for number, body in enumerate(bodies, 1):
        part = s3.upload_part(**target, PartNumber=number, Body=body, ChecksumAlgorithm="SHA256")
        parts.append({"PartNumber": number, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]})
    s3.complete_multipart_upload(**target, MultipartUpload={"Parts": parts})
    head = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    digests = b"".join(hashlib.sha256(body).digest() for body in bodies)
    assert head["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(digests).digest()).decode() + "-2"
    assert head["ChecksumType"] == "COMPOSITE"


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME"])
def test_an_upload_of_parts_can_have_a_checksum_of_the_whole_object(s3, bucket, algorithm):
    bodies, field = [content(PART_BYTES, "first"), b"second"], f"Checksum{algorithm}"
    upload = s3.create_multipart_upload(
        Bucket=bucket, Key="k", ChecksumAlgorithm=algorithm, ChecksumType="FULL_OBJECT"
    )
    target = {"Bucket": bucket, "Key": "k", "UploadId": upload["UploadId"]}
    parts = []
    for number, body in enumerate(bodies, 1):
        part = s3.upload_part(**target, PartNumber=number, Body=body, **{field: encoded(algorithm, body)})
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    whole = encoded(algorithm, b"".join(bodies))
    finish = {**target, "MultipartUpload": {"Parts": parts}, "ChecksumType": "FULL_OBJECT"}
    with pytest.raises(ClientError, match="BadDigest"):
        s3.complete_multipart_upload(**finish, **{field: encoded(algorithm, b"other")})
    s3.complete_multipart_upload(**finish, **{field: whole})
    head = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (head[field], head["ChecksumType"]) == (whole, "FULL_OBJECT")


def test_a_client_that_sends_no_checksum_can_store_and_read(aws, bucket):
    plain = Config(request_checksum_calculation="when_required", response_checksum_validation="when_required")
    s3 = boto3.session.Session().client("s3", config=plain)
    s3.put_object(Bucket=bucket, Key="k", Body=b"data")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"data"
    md5 = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    with pytest.raises(ClientError, match="BadDigest"):
        s3.put_object(Bucket=bucket, Key="k", Body=b"data", ContentMD5=md5)
