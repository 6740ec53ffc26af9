"""boto3: a restricted access key has exactly its rights; a read in progress continues after the object was
replaced."""

import io
import json
import os
import subprocess

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from server import MIB


def narrowed(aws, *rights):
    """A client with a key of its own, made by the command line."""
    command = [os.environ["MLGW_BIN"], "--endpoint", f"http://127.0.0.1:{aws.admin_port}", "--output", "json"]
    made = subprocess.run(
        [*command, "access", "key", "create", *rights], check=True, capture_output=True, env=dict(os.environ)
    )
    made = json.loads(made.stdout)
    return boto3.client(
        "s3", aws_access_key_id=made["key"]["access_key"], aws_secret_access_key=made["secret_access_key"]
    )


def refused(call, **arguments):
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return caught.value.response["Error"]["Code"] == "AccessDenied"


def test_a_key_narrowed_to_a_prefix_lists_and_reads_below_it_only(s3, aws, bucket):
    for key in ("team/a", "other/b"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    mine = narrowed(aws, "--role", "write", "--bucket", bucket, "--prefix", "team/*")
    assert mine.get_object(Bucket=bucket, Key="team/a")["Body"].read() == b"x"
    assert [o["Key"] for o in mine.list_objects_v2(Bucket=bucket, Prefix="team/")["Contents"]] == ["team/a"]
    assert refused(mine.get_object, Bucket=bucket, Key="other/b")
    assert refused(mine.put_object, Bucket=bucket, Key="other/c", Body=b"")
    for listing in (mine.list_objects_v2, mine.list_objects, mine.list_multipart_uploads):
        assert refused(listing, Bucket=bucket)
        assert refused(listing, Bucket=bucket, Prefix="other/")
    deleted = mine.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "team/a"}, {"Key": "other/b"}]})
    assert [o["Key"] for o in deleted["Deleted"]] == ["team/a"]
    assert [e["Code"] for e in deleted["Errors"]] == ["AccessDenied"]


def test_a_key_that_reads_writes_nothing(s3, aws, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    reader = narrowed(aws, "--role", "read")
    assert reader.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
    assert refused(reader.put_object, Bucket=bucket, Key="k", Body=b"y")
    assert refused(reader.delete_object, Bucket=bucket, Key="k")
    assert refused(reader.create_bucket, Bucket="a-bucket-of-its-own")


@pytest.mark.parametrize("end", ["delete", "overwrite"])
def test_a_download_goes_on_when_its_object_is_gone(s3, bucket, end):
    body = os.urandom(32 * MIB)
    # In parts, because the map of a part is fetched when the read reaches it.
    parts = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    s3.upload_fileobj(io.BytesIO(body), bucket, "k", Config=parts)
    download = s3.get_object(Bucket=bucket, Key="k")["Body"]
    first = download.read(MIB)
    if end == "delete":
        s3.delete_object(Bucket=bucket, Key="k")
    else:
        s3.put_object(Bucket=bucket, Key="k", Body=b"new")
    # The background job would free the maps of bodies first; give it time to run.
    for _ in range(20):
        s3.put_object(Bucket=bucket, Key="other", Body=b"x" * 5)
    assert first + download.read() == body
