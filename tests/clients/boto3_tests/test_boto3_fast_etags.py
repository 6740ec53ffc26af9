"""`s3.etag = "fast"`: ETags that identify bytes without being their MD5, and clients that accept them."""

import base64
import hashlib
import io

import boto3
import boto3.s3.transfer
import pytest
from botocore.exceptions import ClientError

from content import content
from wire import new_bucket

MIB = 1 << 20


@pytest.fixture
def client(fast_etags):
    variables = fast_etags.aws_variables()
    return boto3.client(
        "s3",
        endpoint_url=fast_etags.endpoint,
        region_name="us-east-1",
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
    )


def test_the_same_bytes_get_two_names_and_nobody_takes_them_for_an_md5(fast_etags, client):
    bucket = new_bucket(fast_etags)
    etags = [client.put_object(Bucket=bucket, Key="k", Body=b"body")["ETag"] for _ in range(2)]
    assert etags[0] != etags[1] and all(etag.endswith('-1"') and len(etag) == 36 for etag in etags), etags
    assert client.get_object(Bucket=bucket, Key="k", IfMatch=etags[1])["Body"].read() == b"body"
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="k", Body=b"other", IfMatch=etags[0])
    copied = client.copy_object(Bucket=bucket, Key="copy", CopySource=f"{bucket}/k")["CopyObjectResult"]
    assert copied["ETag"] == client.head_object(Bucket=bucket, Key="copy")["ETag"] != etags[1]


def test_who_sends_an_md5_has_it_checked_and_gets_it_back(fast_etags, client):
    bucket = new_bucket(fast_etags)
    digest = hashlib.md5(b"body")
    given = base64.b64encode(digest.digest()).decode()
    put = client.put_object(Bucket=bucket, Key="k", Body=b"body", ContentMD5=given)
    assert put["ETag"] == f'"{digest.hexdigest()}"'
    with pytest.raises(ClientError, match="BadDigest"):
        client.put_object(Bucket=bucket, Key="k", Body=b"other", ContentMD5=given)
    wrong = base64.b64encode(bytes(4)).decode()
    with pytest.raises(ClientError, match="BadDigest"):
        client.put_object(Bucket=bucket, Key="k", Body=b"other", ChecksumCRC32=wrong)
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"body"


def test_uploads_in_parts_come_through(fast_etags, client):
    bucket = new_bucket(fast_etags)
    body = content(20 * MIB, "parts")
    config = boto3.s3.transfer.TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB)
    client.upload_fileobj(io.BytesIO(body), bucket, "boto3", Config=config)
    assert client.head_object(Bucket=bucket, Key="boto3")["ETag"].endswith('-3"')
    assert client.get_object(Bucket=bucket, Key="boto3")["Body"].read() == body
