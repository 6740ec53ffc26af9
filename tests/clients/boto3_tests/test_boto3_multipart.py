"""boto3: multipart uploads by hand and through its transfer manager, attributes, part reads, listings of
both."""

import concurrent.futures
import io

import boto3.s3.transfer
import pytest
from botocore.exceptions import ClientError

from content import content

MIB = 1 << 20
PART_BYTES = 5 * MIB


def start(s3, bucket, key, **arguments):
    return {
        "Bucket": bucket,
        "Key": key,
        "UploadId": s3.create_multipart_upload(Bucket=bucket, Key=key, **arguments)["UploadId"],
    }


def complete(s3, upload, parts):
    named = [{"PartNumber": number, "ETag": etag} for number, etag in parts]
    return s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": named})


def test_the_transfer_manager_moves_a_large_object_both_ways(s3, aws, bucket):
    body = content(aws.load.large_bytes, "transfer")
    config = boto3.s3.transfer.TransferConfig(
        multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB, max_concurrency=4
    )
    s3.upload_fileobj(io.BytesIO(body), bucket, "k", Config=config, ExtraArgs={"Metadata": {"a": "b"}})
    back = io.BytesIO()
    s3.download_fileobj(bucket, "k", back, Config=config)
    assert back.getvalue() == body
    head = s3.head_object(Bucket=bucket, Key="k")
    assert head["ETag"].endswith(f'-{len(body) // (8 * MIB)}"') and head["Metadata"] == {"a": "b"}


def test_parts_in_any_order_replaced_and_left_out_make_what_complete_names(s3, bucket):
    upload = start(s3, bucket, "k")
    bodies = {number: content(PART_BYTES, f"part {number}") for number in (1, 3, 7)}
    bodies[9] = b"the end"
    etags = {}
    for number in (9, 3, 1, 7):
        s3.upload_part(**upload, PartNumber=number, Body=b"replaced before complete")
        etags[number] = s3.upload_part(**upload, PartNumber=number, Body=bodies[number])["ETag"]
    listed = s3.list_parts(**upload, MaxParts=3)
    assert [part["PartNumber"] for part in listed["Parts"]] == [1, 3, 7] and listed["IsTruncated"]
    rest = s3.list_parts(**upload, PartNumberMarker=listed["NextPartNumberMarker"])
    assert [(part["PartNumber"], part["Size"]) for part in rest["Parts"]] == [(9, 7)]
    complete(s3, upload, [(number, etags[number]) for number in (1, 7, 9)])
    whole = bodies[1] + bodies[7] + bodies[9]
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == whole
    across = s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={PART_BYTES - 3}-{2 * PART_BYTES + 2}")
    assert across["Body"].read() == whole[PART_BYTES - 3 : 2 * PART_BYTES + 3]
    second = s3.get_object(Bucket=bucket, Key="k", PartNumber=2)
    assert second["Body"].read() == bodies[7] and second["PartsCount"] == 3


def test_an_upload_is_seen_until_it_is_aborted_and_never_as_an_object(s3, bucket):
    uploads = [start(s3, bucket, key) for key in ("a", "a", "b/c")]
    s3.upload_part(**uploads[0], PartNumber=1, Body=b"1")
    listed = s3.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [upload["Key"] for upload in listed] == ["a", "a", "b/c"]
    assert s3.list_multipart_uploads(Bucket=bucket, Delimiter="/")["CommonPrefixes"] == [{"Prefix": "b/"}]
    first = s3.list_multipart_uploads(Bucket=bucket, MaxUploads=1)
    markers = {"KeyMarker": first["NextKeyMarker"], "UploadIdMarker": first["NextUploadIdMarker"]}
    assert len(s3.list_multipart_uploads(Bucket=bucket, **markers)["Uploads"]) == 2
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    for upload in uploads:
        s3.abort_multipart_upload(**upload)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    with pytest.raises(ClientError, match="NoSuchUpload"):
        s3.upload_part(**uploads[0], PartNumber=2, Body=b"2")


def test_wrong_completes_are_refused_by_name(s3, bucket):
    upload = start(s3, bucket, "k")
    etags = [s3.upload_part(**upload, PartNumber=number, Body=b"small")["ETag"] for number in (1, 2)]
    with pytest.raises(ClientError, match="EntityTooSmall"):
        complete(s3, upload, [(1, etags[0]), (2, etags[1])])
    with pytest.raises(ClientError, match="InvalidPartOrder"):
        complete(s3, upload, [(2, etags[1]), (1, etags[0])])
    with pytest.raises(ClientError, match="InvalidPart\\)"):
        complete(s3, upload, [(1, '"00000000000000000000000000000000"')])
    complete(s3, upload, [(2, etags[1])])
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"small"


def test_upload_part_copy_takes_ranges_of_another_object(s3, bucket):
    source = content(2 * PART_BYTES, "source")
    s3.put_object(Bucket=bucket, Key="source", Body=source)
    upload = start(s3, bucket, "k")
    copy = {"CopySource": {"Bucket": bucket, "Key": "source"}}
    first = s3.upload_part_copy(**upload, PartNumber=1, **copy, CopySourceRange=f"bytes=5-{PART_BYTES + 4}")
    second = s3.upload_part_copy(**upload, PartNumber=2, **copy)
    complete(s3, upload, [(1, first["CopyPartResult"]["ETag"]), (2, second["CopyPartResult"]["ETag"])])
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == source[5 : PART_BYTES + 5] + source


def test_attributes_tell_size_parts_and_checksum(s3, bucket):
    s3.put_object(Bucket=bucket, Key="plain", Body=b"12345", ChecksumAlgorithm="SHA256")
    wanted = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    plain = s3.get_object_attributes(Bucket=bucket, Key="plain", ObjectAttributes=wanted)
    assert plain["ObjectSize"] == 5 and plain["StorageClass"] == "STANDARD"
    assert plain["Checksum"]["ChecksumSHA256"] and '"' not in plain["ETag"]
    upload = start(s3, bucket, "parts", ChecksumAlgorithm="SHA256")
    sent = [
        s3.upload_part(**upload, PartNumber=n, Body=content(PART_BYTES, n), ChecksumAlgorithm="SHA256")
        for n in (1, 2)
    ]
    named = [
        {"PartNumber": n + 1, "ETag": p["ETag"], "ChecksumSHA256": p["ChecksumSHA256"]}
        for n, p in enumerate(sent)
    ]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": named})
    parts = s3.get_object_attributes(Bucket=bucket, Key="parts", ObjectAttributes=wanted, MaxParts=1)[
        "ObjectParts"
    ]
    assert parts["TotalPartsCount"] == 2 and parts["IsTruncated"] and parts["Parts"][0]["Size"] == PART_BYTES
    assert parts["Parts"][0]["ChecksumSHA256"] == sent[0]["ChecksumSHA256"]


def test_the_parts_of_an_object_that_is_replaced_meanwhile_are_those_of_one_version(s3, bucket):
    def replace(number):
        upload = start(s3, bucket, "k")
        etag = s3.upload_part(**upload, PartNumber=1, Body=b"x" * number)["ETag"]
        complete(s3, upload, [(1, etag)])

    def read(_):
        head = s3.head_object(Bucket=bucket, Key="k", PartNumber=1)
        assert head["PartsCount"] == 1
        found = s3.get_object_attributes(
            Bucket=bucket, Key="k", ObjectAttributes=["ObjectParts", "ObjectSize"]
        )
        assert found["ObjectParts"]["TotalPartsCount"] == 1
        body = s3.get_object(Bucket=bucket, Key="k", PartNumber=1)
        assert len(body["Body"].read()) == body["ContentLength"]

    replace(1)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        written = pool.submit(lambda: [replace(number) for number in range(2, 150)])
        reads = list(pool.map(read, range(400)))
        written.result()
    assert len(reads) == 400
