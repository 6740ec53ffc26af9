"""boto3: unsupported operations are refused by name, never accepted and ignored."""

import pytest
from botocore.exceptions import ClientError

from wire import Connection, Wire, head_bytes

VERSIONING = {"VersioningConfiguration": {"Status": "Enabled"}}
KMS = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "key"}
OPERATIONS = {
    "put_bucket_versioning": VERSIONING,
    "put_bucket_policy": {"Policy": "{}"},
    "put_bucket_cors": {
        "CORSConfiguration": {"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}
    },
    "put_object_acl": {"Key": "k", "ACL": "public-read"},
    "restore_object": {"Key": "k"},
}
HEADERS = {
    "x-amz-server-side-encryption": KMS,
    "x-amz-object-lock-mode": {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": "2031-01-01"},
    "x-amz-acl": {"ACL": "public-read"},
    "x-amz-storage-class": {"StorageClass": "GLACIER"},
    "x-amz-server-side-encryption-customer-algorithm": {
        "SSECustomerAlgorithm": "AES256",
        "SSECustomerKey": "k" * 32,
    },
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_that_is_not_offered_is_refused(s3, bucket, operation):
    s3.put_object(Bucket=bucket, Key="k", Body=b"")
    with pytest.raises(ClientError) as caught:
        getattr(s3, operation)(Bucket=bucket, **OPERATIONS[operation])
    assert caught.value.response["Error"]["Code"] == "NotImplemented"


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_would_be_ignored_is_refused_by_its_name(s3, aws, bucket, header):
    if header.endswith("customer-algorithm") and not aws.certificates:
        pytest.skip("boto3 sends customer keys over HTTPS alone")
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket=bucket, Key="k", Body=b"", **HEADERS[header])
    error = caught.value.response["Error"]
    assert error["Code"] == "NotImplemented" and header in error["Message"]
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


# Lines (in addition to the signed ones), bytes of a value, and true if the head is too large. hyper accepts a
# hundred lines by default; the last heads exceed the size limit of a head.
HEADS = [
    (100, 1, False),
    (101, 1, False),
    (1000, 1, False),
    (1000, 40, False),
    (1024, 1, False),
    (1, 60_000, False),
    (1025, 1, True),
    (1000, 60, True),
    (2000, 1, True),
    (2, 40_000, True),
    (3000, 1, True),
    (10_000, 1, True),
    (3, 100_000, True),
]


@pytest.mark.parametrize("lines, bytes_of_value, too_large", HEADS)
def test_a_head_is_limited_by_its_bytes(http, bucket, lines, bytes_of_value, too_large):
    wire, path = Wire(http), f"/{bucket}"
    signed = wire.headers("GET", path)
    more = lines - len(signed) if lines > 10 else lines
    extra = [(f"x-forwarded-{at}", "1" * bytes_of_value) for at in range(more)]
    answer = wire.send_raw("GET", path, signed + extra)
    if not too_large:
        assert answer.status == 200, answer
        return
    assert (answer.status, answer.code) == (400, "RequestHeaderSectionTooLarge")
    request_id = answer.header("x-amz-request-id")
    assert len(request_id) == 18 and f"<RequestId>{request_id}</RequestId>" in answer.text


def test_a_connection_on_which_a_large_head_came_goes_on(http, bucket):
    wire, path = Wire(http), f"/{bucket}"
    with Connection(http) as connection:
        for lines in (1, 500, 1, 1025, 1, 800):
            extra = [(f"x-forwarded-{at}", "1") for at in range(lines)]
            connection.write(head_bytes("GET", path, wire.headers("GET", path) + extra))
            assert connection.read_answer("GET").status == (400 if lines > 1024 else 200), lines


def test_metadata_is_limited_by_its_bytes(s3, server, bucket):
    s3.put_object(Bucket=bucket, Key="many", Body=b"1", Metadata={f"k{at:03}": "v" for at in range(400)})
    # Python's own client reads at most 100 header lines.
    answer = Wire(server).send("HEAD", f"/{bucket}/many")
    assert sum(name.lower().startswith("x-amz-meta-k") for name, _ in answer.headers) == 400
    s3.put_object(Bucket=bucket, Key="full", Body=b"1", Metadata={"k": "v" * 2047})
    for metadata in ({"k": "v" * 2048}, {f"k{at:03}": "v" for at in range(410)}):
        with pytest.raises(ClientError, match="MetadataTooLarge"):
            s3.put_object(Bucket=bucket, Key="more", Body=b"1", Metadata=metadata)


@pytest.mark.parametrize(
    "head",
    [
        b"what is this\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/3.7\r\n\r\n",
        b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: nothing\r\n\r\n",
        b"\0\x01\x02\xff\r\n\r\n",
    ],
)
def test_what_is_no_request_is_told_so_in_a_document(http, head):
    with Connection(http) as connection:
        connection.write(head)
        answer = connection.read_answer("GET")
        assert answer.status == 400 and answer.code, answer
        assert f"<RequestId>{answer.header('x-amz-request-id')}</RequestId>" in answer.text
