"""boto3: a request over a quota is refused once, with a code and the figures, and is not retried."""

import boto3
import pytest
from botocore.exceptions import ClientError

from content import content

PART_BYTES = 5 << 20


def refused(call, **arguments):
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert answer["ResponseMetadata"]["RetryAttempts"] == 0
    assert answer["Error"]["Code"] == "QuotaExceeded"
    return answer["Error"]


def test_a_bucket_at_its_quota_refuses_what_grows(s3, aws, bucket):
    aws.command("bucket", "quota", bucket, "--bytes", "11MiB", "--objects", "2")
    s3.put_object(Bucket=bucket, Key="a", Body=content(1 << 20, "a"))
    upload = s3.create_multipart_upload(Bucket=bucket, Key="b")
    target = {"Bucket": bucket, "Key": "b", "UploadId": upload["UploadId"]}
    parts = [
        {"PartNumber": n, "ETag": s3.upload_part(**target, PartNumber=n, Body=content(PART_BYTES, n))["ETag"]}
        for n in (1, 2)
    ]
    error = refused(s3.upload_part, **target, PartNumber=3, Body=b"x")
    assert (error["Limit"], error["Used"]) == (str(11 << 20), str(11 << 20))
    assert "11534336 bytes" in error["Message"]
    s3.complete_multipart_upload(**target, MultipartUpload={"Parts": parts})
    assert refused(s3.put_object, Bucket=bucket, Key="c", Body=b"")["Limit"] == "2"
    s3.delete_object(Bucket=bucket, Key="b")
    s3.put_object(Bucket=bucket, Key="c", Body=content(PART_BYTES, "c"))
    assert aws.command("bucket", "show", bucket)["used"] == {"bytes": (1 << 20) + PART_BYTES, "objects": 2}


def test_a_key_at_its_quota_writes_no_more_and_others_do(s3, aws, bucket):
    made = aws.command("access", "key", "create", "--role", "write", "--quota-bytes", "1KiB")
    limited = boto3.client(
        "s3", aws_access_key_id=made["key"]["access_key"], aws_secret_access_key=made["secret_access_key"]
    )
    limited.put_object(Bucket=bucket, Key="a", Body=b"x" * 1024)
    error = refused(limited.put_object, Bucket=bucket, Key="b", Body=b"x")
    assert made["key"]["access_key"] in error["Message"]
    s3.put_object(Bucket=bucket, Key="b", Body=b"x")
    assert refused(limited.copy_object, Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "a"})
    limited.delete_object(Bucket=bucket, Key="a")
    limited.put_object(Bucket=bucket, Key="c", Body=b"x")
