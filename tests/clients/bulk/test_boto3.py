"""boto3, once at size: an object of 1 GiB, and 10,000 objects, over HTTP."""

import concurrent.futures

import boto3
import botocore.config
import pytest

from content import content, sha256_of, write_large_file

GIB = 1 << 30
OBJECTS = 10_000
WORKERS = 8


@pytest.fixture
def s3(http):
    variables = http.aws_variables()
    config = botocore.config.Config(max_pool_connections=2 * WORKERS)
    keys = {
        "aws_access_key_id": variables["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": variables["AWS_SECRET_ACCESS_KEY"],
    }
    return boto3.client("s3", endpoint_url=http.endpoint, region_name="us-east-1", config=config, **keys)


def test_one_gib_comes_back_byte_for_byte(s3, bucket, tmp_path):
    digest = write_large_file(tmp_path / "large", GIB)
    s3.upload_file(str(tmp_path / "large"), bucket, "large")
    assert s3.head_object(Bucket=bucket, Key="large")["ContentLength"] == GIB
    assert sha256_of(s3.get_object(Bucket=bucket, Key="large")["Body"]) == digest


def body_of(number):
    return content(number % 2000, number)


def test_ten_thousand_objects_come_back_and_are_listed_in_order(s3, bucket):
    keys = [f"shard-{number % 16:02}/sample-{number:06}" for number in range(OBJECTS)]
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda n: s3.put_object(Bucket=bucket, Key=keys[n], Body=body_of(n)), range(OBJECTS)))
        same = pool.map(
            lambda n: s3.get_object(Bucket=bucket, Key=keys[n])["Body"].read() == body_of(n), range(OBJECTS)
        )
        assert all(same)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    listed = [entry["Key"] for page in pages for entry in page["Contents"]]
    assert listed == sorted(keys)
    for first in range(0, OBJECTS, 1000):
        doomed = {"Objects": [{"Key": key} for key in keys[first : first + 1000]], "Quiet": True}
        assert "Errors" not in s3.delete_objects(Bucket=bucket, Delete=doomed)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
