"""boto3: storing, reading, listing, deleting, copying, tagging and conditions, as applications use them."""

import concurrent.futures
import datetime
import socket

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from content import content, small_objects


def error_of(call, **arguments):
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    response = caught.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def test_a_large_object_comes_back_byte_for_byte(s3, aws, bucket):
    body = content(aws.load.large_bytes, "boto3 large")
    s3.put_object(Bucket=bucket, Key="large", Body=body)
    answer = s3.get_object(Bucket=bucket, Key="large")
    assert answer["ContentLength"] == len(body)
    assert answer["Body"].read() == body


def test_many_small_objects_come_back_byte_for_byte_and_can_be_listed_and_deleted(s3, aws, bucket):
    objects = dict(small_objects(aws.load.small_objects))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda item: s3.put_object(Bucket=bucket, Key=item[0], Body=item[1]), objects.items()))
        read = pool.map(lambda key: (key, s3.get_object(Bucket=bucket, Key=key)["Body"].read()), objects)
        assert dict(read) == objects
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": 7})
    listed = [(entry["Key"], entry["Size"]) for page in pages for entry in page["Contents"]]
    assert listed == sorted((key, len(body)) for key, body in objects.items())
    doomed = {"Objects": [{"Key": key} for key in objects]}
    assert len(s3.delete_objects(Bucket=bucket, Delete=doomed)["Deleted"]) == len(objects)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    s3.delete_bucket(Bucket=bucket)
    assert error_of(s3.head_bucket, Bucket=bucket)[0] == 404


def test_awkward_keys_come_back_as_they_were(s3, bucket):
    keys = [
        "a//b",
        "a/b",
        "a/",
        "/a",
        "..",
        "../up",
        "a b+c%d&e=f?g#h",
        "naïve/ключ/鍵/🔑",
        "x" * 1024,
        "'\"<>&;",
    ]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    for key in keys:
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    listed = [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert listed == sorted(keys, key=str.encode)
    assert error_of(s3.put_object, Bucket=bucket, Key="x" * 1025, Body=b"") == (400, "KeyTooLongError")


def test_a_delimiter_folds_keys_into_common_prefixes_page_by_page(s3, bucket):
    for key in ["a/1", "a/2", "b", "c/1", "c/2/3", "d"]:
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    found, token = [], {}
    while True:
        page = s3.list_objects_v2(Bucket=bucket, Delimiter="/", MaxKeys=2, **token)
        assert page["KeyCount"] <= 2
        found += [entry["Key"] for entry in page.get("Contents", [])]
        found += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        if not page["IsTruncated"]:
            break
        token = {"ContinuationToken": page["NextContinuationToken"]}
    assert sorted(found) == ["a/", "b", "c/", "d"]
    after = s3.list_objects_v2(Bucket=bucket, StartAfter="b", Prefix="c/")
    assert [entry["Key"] for entry in after["Contents"]] == ["c/1", "c/2/3"]


def test_headers_and_metadata_come_back_and_can_be_overridden_in_the_answer(s3, bucket):
    stored = {"ContentType": "text/x-test", "CacheControl": "max-age=7", "ContentDisposition": "inline"}
    stored |= {
        "ContentEncoding": "gzip",
        "ContentLanguage": "de",
        "Metadata": {"colour": "blue", "size": "7"},
    }
    s3.put_object(Bucket=bucket, Key="k", Body=b"1", Expires=datetime.datetime(2031, 5, 6), **stored)
    for answer in (s3.head_object(Bucket=bucket, Key="k"), s3.get_object(Bucket=bucket, Key="k")):
        assert {name: answer[name] for name in stored} == stored
        assert answer["ExpiresString"] == "Tue, 06 May 2031 00:00:00 GMT"
    answer = s3.get_object(
        Bucket=bucket, Key="k", ResponseContentType="text/other", ResponseCacheControl="no-store"
    )
    assert (answer["ContentType"], answer["CacheControl"]) == ("text/other", "no-store")


def test_ranges_of_a_large_object_are_exact(s3, aws, bucket):
    body = content(aws.load.large_bytes // 4 + 12345, "ranges")
    s3.put_object(Bucket=bucket, Key="k", Body=body)
    length = len(body)
    for first, last in [
        (0, 0),
        (65535, 65536),
        (1 << 20, (1 << 20) + 1),
        (length - 1, length - 1),
        (3, length - 3),
    ]:
        answer = s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={first}-{last}")
        assert answer["Body"].read() == body[first : last + 1]
        assert answer["ContentRange"] == f"bytes {first}-{last}/{length}"
    assert s3.get_object(Bucket=bucket, Key="k", Range="bytes=-17")["Body"].read() == body[-17:]
    assert s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={length - 5}-")["Body"].read() == body[-5:]
    assert error_of(s3.get_object, Bucket=bucket, Key="k", Range=f"bytes={length}-") == (416, "InvalidRange")


def test_conditional_reads(s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"1")["ETag"]
    earlier = datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc)
    later = datetime.datetime.now(datetime.timezone.utc)
    assert s3.get_object(Bucket=bucket, Key="k", IfMatch=etag, IfModifiedSince=earlier)["ETag"] == etag
    assert error_of(s3.get_object, Bucket=bucket, Key="k", IfMatch='"other"') == (412, "PreconditionFailed")
    assert error_of(s3.get_object, Bucket=bucket, Key="k", IfNoneMatch=etag)[0] == 304
    assert error_of(s3.head_object, Bucket=bucket, Key="k", IfNoneMatch=etag)[0] == 304
    assert error_of(s3.get_object, Bucket=bucket, Key="k", IfModifiedSince=later)[0] == 304
    assert error_of(s3.get_object, Bucket=bucket, Key="k", IfUnmodifiedSince=earlier) == (
        412,
        "PreconditionFailed",
    )


def test_conditional_writes(s3, bucket):
    first = s3.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    put = {"Bucket": bucket, "Key": "k", "Body": b"2"}
    assert error_of(s3.put_object, **put, IfNoneMatch="*") == (412, "PreconditionFailed")
    second = s3.put_object(**put, IfMatch=first)["ETag"]
    assert error_of(s3.put_object, **put, IfMatch=first) == (412, "PreconditionFailed")
    assert error_of(s3.put_object, Bucket=bucket, Key="absent", IfMatch=first) == (404, "NoSuchKey")
    assert s3.get_object(Bucket=bucket, Key="k")["ETag"] == second
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"3")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    complete = {"Bucket": bucket, "Key": "k", "UploadId": upload, "MultipartUpload": parts}
    assert error_of(s3.complete_multipart_upload, **complete, IfNoneMatch="*") == (412, "PreconditionFailed")
    s3.complete_multipart_upload(**complete, IfMatch=second)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"3"


def test_copying_keeps_or_replaces_what_describes_the_object(s3, bucket):
    s3.put_object(
        Bucket=bucket, Key="a b/ü", Body=b"data", Metadata={"x": "1"}, ContentType="text/a", Tagging="t=1"
    )
    source = {"Bucket": bucket, "Key": "a b/ü"}
    s3.copy_object(Bucket=bucket, Key="kept", CopySource=source)
    kept = s3.head_object(Bucket=bucket, Key="kept")
    assert (kept["Metadata"], kept["ContentType"], kept["TagCount"]) == ({"x": "1"}, "text/a", 1)
    replaced = {"MetadataDirective": "REPLACE", "Metadata": {"y": "2"}, "ContentType": "text/b"}
    s3.copy_object(
        Bucket=bucket, Key="new", CopySource=source, TaggingDirective="REPLACE", Tagging="u=2&v=3", **replaced
    )
    new = s3.head_object(Bucket=bucket, Key="new")
    assert (new["Metadata"], new["ContentType"], new["TagCount"]) == ({"y": "2"}, "text/b", 2)
    assert s3.get_object(Bucket=bucket, Key="new")["Body"].read() == b"data"
    other = {"Bucket": bucket, "Key": "new", "CopySource": source, "CopySourceIfNoneMatch": new["ETag"]}
    assert error_of(s3.copy_object, **other) == (412, "PreconditionFailed")
    assert error_of(s3.copy_object, Bucket=bucket, Key="x", CopySource=f"{bucket}/no") == (404, "NoSuchKey")


def test_tags_are_set_read_replaced_and_removed(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"", Tagging="split=train&run=%C3%BC%20%2B")
    tags = lambda: {
        tag["Key"]: tag["Value"] for tag in s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"]
    }
    assert tags() == {"split": "train", "run": "ü +"}
    modified = s3.head_object(Bucket=bucket, Key="k")["LastModified"]
    s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": [{"Key": "split", "Value": "val"}]})
    assert tags() == {"split": "val"}
    assert s3.head_object(Bucket=bucket, Key="k")["LastModified"] == modified
    s3.delete_object_tagging(Bucket=bucket, Key="k")
    assert tags() == {}
    eleven = {"TagSet": [{"Key": str(number), "Value": ""} for number in range(11)]}
    assert error_of(s3.put_object_tagging, Bucket=bucket, Key="k", Tagging=eleven)[0] == 400


def test_deleting_what_is_not_there_succeeds_and_reading_it_is_an_error(s3, bucket):
    s3.delete_object(Bucket=bucket, Key="never")
    assert error_of(s3.get_object, Bucket=bucket, Key="never") == (404, "NoSuchKey")
    assert error_of(s3.head_object, Bucket=bucket, Key="never") == (404, "404")
    assert error_of(s3.list_objects_v2, Bucket="no-such-bucket-here") == (404, "NoSuchBucket")
    s3.put_object(Bucket=bucket, Key="k", Body=b"")
    assert error_of(s3.delete_bucket, Bucket=bucket) == (409, "BucketNotEmpty")


def test_buckets_are_listed_and_say_where_they_are(s3, bucket):
    names = [entry["Name"] for entry in s3.list_buckets()["Buckets"]]
    assert bucket in names and names == sorted(names)
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    assert error_of(s3.create_bucket, Bucket="Not_A_Name")[1] in ("InvalidBucketName", "ParamValidationError")


def test_a_wrong_secret_and_an_unknown_key_are_told_apart(s3, aws, bucket):
    wrong = boto3.session.Session().client(
        "s3", aws_secret_access_key="wrong", aws_access_key_id="MLGWTESTACCESSKEY001"
    )
    assert error_of(wrong.list_objects_v2, Bucket=bucket) == (403, "SignatureDoesNotMatch")
    unknown = boto3.session.Session().client("s3", aws_secret_access_key="wrong", aws_access_key_id="NOBODY")
    assert error_of(unknown.list_objects_v2, Bucket=bucket) == (403, "InvalidAccessKeyId")


def test_a_bucket_can_be_named_by_the_host(aws, bucket, monkeypatch):
    resolve = socket.getaddrinfo
    loopback = lambda host, *rest, **more: resolve(
        "127.0.0.1" if host.endswith(".localhost") else host, *rest, **more
    )
    monkeypatch.setattr(socket, "getaddrinfo", loopback)
    endpoint = f"{aws.scheme}://localhost:{aws.port}"
    virtual = Config(s3={"addressing_style": "virtual"})
    s3 = boto3.session.Session().client("s3", endpoint_url=endpoint, config=virtual)
    hosts = []
    s3.meta.events.register("before-send.s3", lambda request, **_: hosts.append(request.url.split("/")[2]))
    s3.put_object(Bucket=bucket, Key="a/b c", Body=b"data")
    assert s3.get_object(Bucket=bucket, Key="a/b c")["Body"].read() == b"data"
    assert s3.list_objects_v2(Bucket=bucket)["Contents"][0]["Key"] == "a/b c"
    assert set(hosts) == {f"{bucket}.localhost:{aws.port}"}
