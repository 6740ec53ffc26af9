"""The client-visible state of an object, and keys that are easily mishandled."""

import datetime
import time

import pytest
from botocore.exceptions import ClientError

from content import content

MIB = 1 << 20
# Keys that a path, a URL, a form or XML may break, in byte order. moto has no keys with line ends.
KEYS = sorted(
    [
        "../up",
        "./dot",
        "/lead",
        "a//b",
        "a/./b",
        "a/b/c",
        "a/d",
        "a%2Fb",
        "colon:x@y!$()*,",
        "control\x01",
        "dir/",
        "emoji 😀",
        "in a dir/one",
        "in a dir/two",
        "p+lus",
        "quote'\"<>&",
        "q=1;2&x?y#z",
        "sp ace",
        "tail ",
        "x" * 900,
        "ü/é",
        "ü",
    ],
    key=str.encode,
)
DESCRIBED = {
    "CacheControl": "no-cache",
    "ContentDisposition": 'attachment; filename="a b"',
    "ContentEncoding": "x-none",
    "ContentLanguage": "de",
    "ContentType": "text/x",
    "Expires": datetime.datetime(2028, 1, 1, tzinfo=datetime.timezone.utc),
    "Metadata": {"a": "b  c", "number": "7"},
}
PARTS = [content(length, f"part {length}") for length in (5 * MIB, 6 * MIB, 1000)]


def head_of(client, where):
    """Everything except the body that describes an object, from HEAD."""
    answer = client.head_object(**where)
    return {name: value for name, value in answer.items() if name != "ResponseMetadata"}


def wait_until_later(bucket, key):
    """Waits until the current second is later than the object's Last-Modified, which moto gives in whole
    seconds."""
    there = bucket.there.head_object(**bucket.of_there(key))["LastModified"]
    while datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0) <= there:
        time.sleep(0.02)


def described(client, where):
    """The body of an object and its description, from GET.

    Without checksums, which moto keeps only if a header names the algorithm too, and without the number of
    tags, which a remote-backed bucket does not return.
    """
    answer = client.get_object(**where)
    left_out = ("ResponseMetadata", "Body", "TagCount")
    names = [name for name in answer if name not in left_out and "Checksum" not in name]
    return answer["Body"].read(), {name: answer[name] for name in names}


def tags_of(client, where):
    return {tag["Key"]: tag["Value"] for tag in client.get_object_tagging(**where)["TagSet"]}


def begin(client, where, **more):
    """Begins a multipart upload and returns the parameters that all requests of it need."""
    return {**where, "UploadId": client.create_multipart_upload(**where, **more)["UploadId"]}


def put_parts(client, where, **more):
    """Puts PARTS in an upload and returns the response to its complete."""
    upload = begin(client, where, **more)
    parts = [
        {"PartNumber": number, "ETag": client.upload_part(**upload, PartNumber=number, Body=body)["ETag"]}
        for number, body in enumerate(PARTS, 1)
    ]
    return client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})


def refused(call, **arguments):
    """Status and code of a response that must be an error."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]
