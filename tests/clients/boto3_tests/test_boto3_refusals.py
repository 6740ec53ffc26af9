"""boto3: what the server does not do is refused by name, never accepted and forgotten."""

import pytest
from botocore.exceptions import ClientError

from wire import Connection, Wire

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


def test_a_head_of_more_than_100_lines_is_refused(http, bucket):
    wire, path = Wire(http), f"/{bucket}"

    def status(lines):
        signed = wire.headers("GET", path)
        return wire.send("GET", path, [(f"x-forwarded-{at}", "1") for at in range(lines - len(signed))]).status

    assert status(100) == 200
    assert status(101) == 431


def test_what_is_no_request_is_told_so(http):
    with Connection(http) as connection:
        connection.write(b"what is this\r\n\r\n")
        assert connection.read_head()[0] == 400
