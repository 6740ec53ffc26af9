"""Write-back to a moto bucket: local immediately, and at the origin after a flush, as moto's own readers see
it."""

import concurrent.futures

import pytest

from conftest import LAKE, Bound
from content import content
from seen import DESCRIBED, KEYS, MIB, PARTS, begin, described, put_parts, refused, tags_of, wait_until_later
from server import Server, free_port

MARK = "mlgw-write"


@pytest.fixture
def bucket(bind):
    return bind("write-back", "--ttl", "1h")


def is_here(bucket, key, body):
    """Asserts that the gateway has these bytes; returns their description."""
    found, facts = described(bucket.here, bucket.of_here(key))
    assert found == body, key
    return facts


def is_everywhere(bucket, key, body):
    """Asserts that both sides have these bytes and the same description; only the origin shows the mark."""
    here = is_here(bucket, key, body)
    there, facts = described(bucket.there, bucket.of_there(key))
    assert there == body and facts["Metadata"].pop(MARK), key
    assert here == facts, key
    return here


def put(bucket, key, body, **more):
    return bucket.here.put_object(**bucket.of_here(key), Body=body, **more)["ETag"]


def test_what_is_put_and_put_anew_is_here_at_once_and_there_after_a_flush(bucket):
    for version in (1, 2):
        bodies = {key: content(number * 700, f"{version} {key}") for number, key in enumerate(KEYS)}
        etags = {key: put(bucket, key, body, **DESCRIBED) for key, body in bodies.items()}
        for key, body in bodies.items():
            assert is_here(bucket, key, body)["ETag"] == etags[key]
        assert bucket.keys_here() == KEYS
        bucket.flush()
        assert bucket.keys_there() == KEYS == bucket.keys_here()
        for key, body in bodies.items():
            facts = is_everywhere(bucket, key, body)
            assert DESCRIBED.items() <= facts.items() and facts["ETag"] == etags[key]


def test_what_is_deleted_is_gone_there_after_a_flush(bucket):
    keys = [key for key in KEYS if "\x01" not in key]
    for key in ["stays", *keys]:
        put(bucket, key, key.encode())
    bucket.flush()
    bucket.here.delete_object(**bucket.of_here(keys[0]))
    assert refused(bucket.here.get_object, **bucket.of_here(keys[0])) == (404, "NoSuchKey")
    put(bucket, "short-lived", b"x")
    asked = [{"Key": key} for key in [*keys[1:], "never", "short-lived"]]
    answer = bucket.here.delete_objects(Bucket=bucket.name, Delete={"Objects": asked})
    assert answer["Deleted"] == asked and "Errors" not in answer
    assert bucket.keys_here() == ["stays"]
    bucket.flush()
    assert bucket.keys_there() == ["stays"] == bucket.keys_here()
    is_everywhere(bucket, "stays", b"stays")


def test_an_upload_in_parts_goes_with_its_parts_and_is_put_over(bucket):
    like = {"ContentType": "image/x", "Metadata": {"m": "1"}}
    etag = put_parts(bucket.here, bucket.of_here("ü/k"), **like)["ETag"]
    assert is_here(bucket, "ü/k", b"".join(PARTS))["ETag"] == etag
    bucket.here.abort_multipart_upload(**begin(bucket.here, bucket.of_here("given up")))
    bucket.flush()
    facts = is_everywhere(bucket, "ü/k", b"".join(PARTS))
    assert facts["ETag"] == etag and like.items() <= facts.items()
    second = bucket.there.head_object(**bucket.of_there("ü/k"), PartNumber=2)
    assert (second["ContentLength"], second["PartsCount"]) == (len(PARTS[1]), 3)
    put(bucket, "ü/k", b"short")
    bucket.flush()
    is_everywhere(bucket, "ü/k", b"short")
    put(bucket, "whole", content(20 * MIB, "whole"))
    bucket.flush()
    is_everywhere(bucket, "whole", content(20 * MIB, "whole"))
    uploads = bucket.there.list_multipart_uploads(Bucket=bucket.bucket, Prefix=bucket.prefix)
    assert "Uploads" not in uploads and bucket.keys_there() == ["whole", "ü/k"]


def test_many_writers_at_once_leave_the_last_that_each_wrote(bucket):
    def write(writer):
        for version in range(6):
            for key in range(3):
                put(bucket, f"{writer}/{key}", content(version * 1000, f"{writer} {key}"))
        bucket.here.delete_object(**bucket.of_here(f"{writer}/0"))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    bucket.flush()
    left = [f"{writer}/{key}" for writer in range(8) for key in (1, 2)]
    assert bucket.keys_there() == left == bucket.keys_here()
    for key in left:
        is_everywhere(bucket, key, content(5_000, key.replace("/", " ")))


def test_conditions_copies_and_tags_find_all_that_was_written_before(bucket):
    failed = (412, "PreconditionFailed")
    etag = put(bucket, "k", b"1", Tagging="a=1&b=%C3%BC+x")
    assert refused(bucket.here.put_object, **bucket.of_here("k"), Body=b"2", IfNoneMatch="*") == failed
    assert refused(bucket.here.put_object, **bucket.of_here("k"), Body=b"2", IfMatch='"other"') == failed
    is_everywhere(bucket, "k", b"1")
    assert tags_of(bucket.there, bucket.of_there("k")) == {"a": "1", "b": "ü x"}
    put(bucket, "k", b"1", IfMatch=etag, ContentType="text/x")
    put(bucket, "new", b"new", IfNoneMatch="*")
    bucket.here.copy_object(**bucket.of_here("copy"), CopySource=bucket.of_here("k"))
    assert is_everywhere(bucket, "copy", b"1")["ContentType"] == "text/x"
    is_everywhere(bucket, "new", b"new")
    tag = {"TagSet": [{"Key": "t", "Value": "v"}]}
    bucket.here.put_object_tagging(**bucket.of_here("new"), Tagging=tag)
    assert tags_of(bucket.there, bucket.of_there("new")) == {"t": "v"}


def test_what_was_written_while_the_origin_was_away_is_sent_later_and_spares_what_others_wrote(origin, start):
    there = origin.settings("lake", LAKE)
    server = start(Server(settings=there))
    bucket = Bound(server, origin, "write-back", "--ttl", "1h")
    for key in ("deleted", "ours", "theirs"):
        put(bucket, key, b"before")
    bucket.flush()
    # No process listens on this port.
    restart(server, there | {"upstream.lake.endpoint": f"http://127.0.0.1:{free_port()}"})
    for key in ("new", "ours", "theirs", "theirs too"):
        put(bucket, key, b"written here")
    bucket.here.delete_object(**bucket.of_here("deleted"))
    is_here(bucket, "ours", b"written here")
    for key in ("theirs", "theirs too"):
        put_there_since(bucket, key, b"written there")
    restart(server, there)
    complaint = server.command("bucket", "flush", bucket.name, status=1)
    assert '["theirs", "theirs too"]' in complaint, complaint
    assert bucket.keys_there() == ["new", "ours", "theirs", "theirs too"]
    for key in ("new", "ours"):
        is_everywhere(bucket, key, b"written here")
    for key in ("theirs", "theirs too"):
        is_here(bucket, key, b"written here")
        assert described(bucket.there, bucket.of_there(key))[0] == b"written there"
    wait_until_later(bucket, "theirs too")
    put(bucket, "theirs too", b"decided")
    server.command("bucket", "flush", bucket.name, "--discard")
    is_here(bucket, "theirs", b"written there")
    is_everywhere(bucket, "theirs too", b"decided")


def put_there_since(bucket, key, body):
    """Puts an object at the origin that is certainly newer than the local one: moto's times have a resolution
    of a second."""
    ours = bucket.here.head_object(**bucket.of_here(key))["LastModified"]
    where = bucket.of_there(key)
    bucket.there.put_object(**where, Body=body)
    while bucket.there.head_object(**where)["LastModified"] <= ours:
        bucket.there.put_object(**where, Body=body)


def restart(server, settings):
    server.end()
    server.settings = settings
    server.start()
