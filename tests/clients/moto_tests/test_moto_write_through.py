"""Write-through to a moto bucket: acknowledged writes are at the origin, as moto's own readers see it."""

import io

import boto3.s3.transfer
import pytest

from content import content
from seen import DESCRIBED, KEYS, MIB, PARTS, begin, described, put_parts, refused, tags_of
from wire import new_bucket


@pytest.fixture
def bucket(bind):
    return bind("write-through", "--ttl", "1h")


def is_everywhere(bucket, key, body):
    """Asserts that both sides have these bytes, and that the gateway returns the same description as the
    origin."""
    there = described(bucket.there, bucket.of_there(key))
    assert there[0] == body, key
    assert described(bucket.here, bucket.of_here(key)) == there, key
    return there[1]


def put(bucket, *keys):
    for key in keys:
        bucket.here.put_object(**bucket.of_here(key), Body=key.encode())


def test_what_is_put_and_put_anew_is_at_the_origin_as_it_was_sent(bucket):
    for version in (1, 2):
        for number, key in enumerate(KEYS):
            body = content(number * 700, f"{version} {key}")
            etag = bucket.here.put_object(**bucket.of_here(key), Body=body, **DESCRIBED)["ETag"]
            facts = is_everywhere(bucket, key, body)
            assert DESCRIBED.items() <= facts.items() and facts["ETag"] == etag
        assert bucket.keys_there() == KEYS == bucket.keys_here()


def test_what_only_describes_an_object_is_seen_at_once_when_it_changes(bucket):
    where = bucket.of_here("k")

    def keep():
        """Reads until a copy is cached: with the same bytes it could be mistaken for the new object."""
        while bucket.here.get_object(**where)["ResponseMetadata"]["HTTPHeaders"]["x-mlgw-cache"][:3] != "hit":
            pass

    for number in ("1", "2"):
        bucket.here.put_object(**where, Body=b"same", ContentType=f"text/{number}", Metadata={"n": number})
        facts = is_everywhere(bucket, "k", b"same")
        assert (facts["ContentType"], facts["Metadata"]) == (f"text/{number}", {"n": number})
        keep()
    new = {"MetadataDirective": "REPLACE", "ContentType": "text/3", "Metadata": {"n": "3"}}
    bucket.here.copy_object(**where, CopySource=where, **new)
    facts = is_everywhere(bucket, "k", b"same")
    assert (facts["ContentType"], facts["Metadata"]) == ("text/3", {"n": "3"})


@pytest.mark.parametrize("length", [MIB, MIB + 1, 20 * MIB])
def test_bodies_that_are_sent_on_while_they_come_arrive(bucket, length):
    bucket.here.put_object(**bucket.of_here("k"), Body=content(length, "large"))
    is_everywhere(bucket, "k", content(length, "large"))


@pytest.mark.parametrize("length", [1000, 3 * MIB])
def test_a_body_that_is_not_what_was_announced_is_not_at_the_origin(bucket, length):
    put(bucket, "k")
    where = bucket.of_here("k")
    for wrong in ({"ChecksumCRC32": "AAAAAA=="}, {"ContentMD5": "A" * 22 + "=="}):
        sent = {**where, "Body": content(length, "k"), **wrong}
        assert refused(bucket.here.put_object, **sent) == (400, "BadDigest")
        is_everywhere(bucket, "k", b"k")


def test_what_is_deleted_is_gone_at_the_origin(bucket):
    put(bucket, "stays", *KEYS)
    # A key that is deleted alone, because XML cannot represent it in the response to DeleteObjects.
    single, rest = "control\x01", [key for key in KEYS if "\x01" not in key]
    bucket.here.delete_object(**bucket.of_here(single))
    assert refused(bucket.here.get_object, **bucket.of_here(single)) == (404, "NoSuchKey")
    assert sorted(bucket.keys_there()) == sorted(["stays", *rest])
    asked = [{"Key": key} for key in [*rest, "never"]]
    answer = bucket.here.delete_objects(Bucket=bucket.name, Delete={"Objects": asked})
    assert answer["Deleted"] == asked and "Errors" not in answer
    assert bucket.keys_there() == ["stays"] == bucket.keys_here()


def test_uploads_are_the_origins(bucket):
    like = {"ContentType": "image/x", "Metadata": {"m": "1"}}
    etag = put_parts(bucket.here, bucket.of_here("ü/parts"), **like)["ETag"]
    facts = is_everywhere(bucket, "ü/parts", b"".join(PARTS))
    assert facts["ETag"] == etag and like.items() <= facts.items()
    second = bucket.there.head_object(**bucket.of_there("ü/parts"), PartNumber=2)
    assert (second["ContentLength"], second["PartsCount"]) == (len(PARTS[1]), 3)


def test_an_upload_is_listed_takes_copies_and_is_aborted(bucket):
    put_parts(bucket.here, bucket.of_here("source"))
    upload = begin(bucket.here, bucket.of_here("k"))
    bucket.here.upload_part(**upload, PartNumber=1, Body=PARTS[1])
    copied = {"CopySource": bucket.of_here("source"), "CopySourceRange": f"bytes=7-{5 * MIB + 6}"}
    bucket.here.upload_part_copy(**upload, PartNumber=2, **copied)
    listed = bucket.here.list_parts(**upload)["Parts"]
    assert [(part["PartNumber"], part["Size"]) for part in listed] == [(1, 6 * MIB), (2, 5 * MIB)]
    uploads = bucket.here.list_multipart_uploads(Bucket=bucket.name)["Uploads"]
    assert [(row["Key"], row["UploadId"]) for row in uploads] == [("k", upload["UploadId"])]
    parts = [{name: part[name] for name in ("PartNumber", "ETag")} for part in listed]
    bucket.here.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    is_everywhere(bucket, "k", PARTS[1] + b"".join(PARTS)[7 : 5 * MIB + 7])
    bucket.here.abort_multipart_upload(**begin(bucket.here, bucket.of_here("gone")))
    uploads = bucket.there.list_multipart_uploads(Bucket=bucket.bucket, Prefix=bucket.prefix)
    assert "Uploads" not in uploads and bucket.keys_there() == ["k", "source"]


def test_what_boto3_sends_in_parts_by_itself_arrives(bucket):
    body = content(20 * MIB, "transfer")
    config = boto3.s3.transfer.TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    bucket.here.upload_fileobj(io.BytesIO(body), bucket.name, "k", Config=config)
    is_everywhere(bucket, "k", body)
    found = io.BytesIO()
    bucket.here.download_fileobj(bucket.name, "k", found)
    assert found.getvalue() == body


def test_copies_within_the_upstream_and_to_and_from_a_bucket_of_ours(bucket):
    bucket.here.put_object(**bucket.of_here("ü source+"), Body=b"source", **DESCRIBED)
    source = bucket.of_here("ü source+")
    bucket.here.copy_object(**bucket.of_here("same"), CopySource=source)
    assert DESCRIBED.items() <= is_everywhere(bucket, "same", b"source").items()
    new = {"MetadataDirective": "REPLACE", "ContentType": "text/y", "Metadata": {"z": "9"}}
    bucket.here.copy_object(**bucket.of_here("other"), CopySource=source, **new)
    facts = is_everywhere(bucket, "other", b"source")
    assert (facts["ContentType"], facts["Metadata"]) == ("text/y", {"z": "9"})
    ours = {"Bucket": new_bucket(bucket.gateway), "Key": "k"}
    bucket.here.copy_object(**ours, CopySource=source)
    assert bucket.here.get_object(**ours)["Body"].read() == b"source"
    bucket.here.put_object(**ours, Body=b"ours", ContentType="text/z")
    bucket.here.copy_object(**bucket.of_here("back"), CopySource=ours)
    assert is_everywhere(bucket, "back", b"ours")["ContentType"] == "text/z"


def test_a_copy_of_nothing_or_of_what_is_known_writes_nothing(bucket):
    put(bucket, "k")
    target, none = bucket.of_here("copy"), bucket.of_here("none")
    assert refused(bucket.here.copy_object, **target, CopySource=none) == (404, "NoSuchKey")
    # moto evaluates this condition on a copy's source and ignores the other three.
    etag = bucket.here.head_object(**bucket.of_here("k"))["ETag"]
    known = {"CopySource": bucket.of_here("k"), "CopySourceIfNoneMatch": etag}
    assert refused(bucket.here.copy_object, **target, **known) == (412, "PreconditionFailed")
    assert bucket.keys_there() == ["k"]


def test_tags_are_the_origins(bucket):
    here, there = bucket.of_here("k"), bucket.of_there("k")
    bucket.here.put_object(**here, Body=b"k", Tagging="a=1&b=%C3%BC+x")
    assert tags_of(bucket.there, there) == {"a": "1", "b": "ü x"} == tags_of(bucket.here, here)
    bucket.here.put_object_tagging(**here, Tagging={"TagSet": [{"Key": "t ü", "Value": "v+@"}]})
    assert tags_of(bucket.there, there) == {"t ü": "v+@"} == tags_of(bucket.here, here)
    bucket.here.delete_object_tagging(**here)
    assert tags_of(bucket.there, there) == {} == tags_of(bucket.here, here)


def test_a_write_whose_condition_does_not_hold_changes_nothing(bucket):
    where, failed = bucket.of_here("k"), (412, "PreconditionFailed")
    bucket.here.put_object(**where, Body=b"1", IfNoneMatch="*")
    assert refused(bucket.here.put_object, **where, Body=b"2", IfNoneMatch="*") == failed
    assert refused(bucket.here.put_object, **where, Body=b"2", IfMatch='"other"') == failed
    assert refused(bucket.here.delete_object, **where, IfMatch='"other"') == failed
    absent = bucket.of_here("absent")
    assert refused(bucket.here.put_object, **absent, Body=b"2", IfMatch='"other"') == (404, "NoSuchKey")
    etag = is_everywhere(bucket, "k", b"1")["ETag"]
    bucket.here.put_object(**where, Body=b"3", IfMatch=etag)
    etag = is_everywhere(bucket, "k", b"3")["ETag"]
    bucket.here.delete_object(**where, IfMatch=etag)
    assert bucket.keys_there() == []


def test_an_upload_that_may_not_replace_anything_does_not(bucket):
    put(bucket, "k")
    # moto evaluates If-None-Match of a complete, and ignores its If-Match.
    upload = begin(bucket.here, bucket.of_here("k"))
    part = {"PartNumber": 1, "ETag": bucket.here.upload_part(**upload, PartNumber=1, Body=b"x")["ETag"]}
    complete = {**upload, "MultipartUpload": {"Parts": [part]}, "IfNoneMatch": "*"}
    assert refused(bucket.here.complete_multipart_upload, **complete) == (412, "PreconditionFailed")
    is_everywhere(bucket, "k", b"k")
    bucket.here.delete_object(**bucket.of_here("k"))
    bucket.here.complete_multipart_upload(**complete)
    is_everywhere(bucket, "k", b"x")
