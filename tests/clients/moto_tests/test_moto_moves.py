"""Objects imported from a moto bucket or moved to another one, and segments stored in one."""

import pytest

from conftest import ATTIC
from content import content
from moto_origin import Moto, client
from seen import DESCRIBED, KEYS, MIB, PARTS, described, put_parts, refused, tags_of, wait_until_later
from server import Server
from wire import new_bucket

MODES = ["read-through", "write-through", "write-back"]


def fill(bucket, keys=KEYS):
    """Puts objects with these keys, one of parts and one that is large; returns their bodies and tags."""
    bodies = {key: content(number * 700, key) for number, key in enumerate(keys)}
    whole = content(9 * MIB, "whole")
    tags = {key: {"n": str(number)} for number, key in enumerate(keys)} | {"parts": {}, "whole": {}}
    for key, body in bodies.items():
        tag = f"n={tags[key]['n']}"
        bucket.there.put_object(**bucket.of_there(key), Body=body, Tagging=tag, **DESCRIBED)
    put_parts(bucket.there, bucket.of_there("parts"), ContentType="image/x", Metadata={"m": "1"})
    bucket.there.put_object(**bucket.of_there("whole"), Body=whole)
    return bodies | {"parts": b"".join(PARTS), "whole": whole}, tags


def without_time(facts):
    """The facts without Last-Modified: a move changes it, and a cached copy hides the change until it is
    evicted."""
    return {name: value for name, value in facts.items() if name != "LastModified"}


def figures(job):
    assert (job["state"], job["failed_objects"], job["error"]) == ("done", 0, None), job
    return [job[name] for name in ("objects_done", "moved_objects", "deleted_objects")]


def test_a_sync_imports_what_there_is_and_then_what_changed(bind):
    source = bind("read-through")
    bodies, _ = fill(source)
    ours, dataset = new_bucket(source.gateway), f"of-{source.name}"

    def of_ours(key):
        return {"Bucket": ours, "Key": f"in/{key}"}

    from_there = ["--bucket", ours, "--source", f"lake/{source.prefix}:in/"]
    source.gateway.command("dataset", "create", dataset, *from_there)
    sync = ["dataset", "sync", dataset, "--wait"]
    assert figures(source.gateway.command(*sync)) == [len(bodies), len(bodies), 0]
    for key, body in bodies.items():
        found, facts = described(source.here, of_ours(key))
        assert found == body, key
        assert facts["Metadata"] == described(source.there, source.of_there(key))[1]["Metadata"]
        assert key in ("parts", "whole") or DESCRIBED.items() <= facts.items(), key
    assert figures(source.gateway.command(*sync)) == [len(bodies), 0, 0]
    source.there.put_object(**source.of_there("ü"), Body=b"changed")
    source.there.put_object(**source.of_there("a//new"), Body=b"new")
    source.there.delete_object(**source.of_there("tail "))
    assert figures(source.gateway.command(*sync, "--delete")) == [len(bodies), 2, 1]
    assert described(source.here, of_ours("ü"))[0] == b"changed"
    assert described(source.here, of_ours("a//new"))[0] == b"new"
    assert refused(source.here.get_object, **of_ours("tail ")) == (404, "NoSuchKey")


@pytest.mark.parametrize("mode", MODES)
def test_a_bucket_moves_to_another_one_and_readers_see_no_change(bind, mode):
    bucket = bind(mode, "--ttl", "1h")
    # A third of the keys for each mode: moto is slow.
    bodies, tags = fill(bucket, KEYS[MODES.index(mode) :: 3])
    if mode == "write-back":
        for key in (next(iter(bodies)), "dirty ü"):
            if key in bodies:
                wait_until_later(bucket, key)
            bodies[key], tags[key] = b"dirty", {}
            bucket.here.put_object(**bucket.of_here(key), Body=bodies[key])
    before = {key: described(bucket.here, bucket.of_here(key)) for key in bodies}
    to = ["--upstream", "attic", "--prefix", f"moved ü/{bucket.name}/"]
    job = bucket.gateway.command("bucket", "migrate", bucket.name, *to, "--wait")
    assert figures(job)[0] >= len(bodies), job
    assert sorted(bucket.keys_there()) == sorted(bodies), "nothing is removed, and dirty objects have arrived"
    bucket.bucket, bucket.prefix = ATTIC, to[-1]
    assert sorted(bucket.keys_there()) == sorted(bodies) == sorted(bucket.keys_here())
    for key, body in bodies.items():
        found, facts = described(bucket.here, bucket.of_here(key))
        assert (found, before[key][0]) == (body, body), key
        assert without_time(facts) == without_time(before[key][1]), key
        assert described(bucket.there, bucket.of_there(key))[0] == body, key
        for client, where in ((bucket.here, bucket.of_here(key)), (bucket.there, bucket.of_there(key))):
            assert tags_of(client, where) == tags[key], key
    if mode != "read-through":
        bucket.here.put_object(**bucket.of_here("since"), Body=b"since")
        bucket.here.delete_object(**bucket.of_here("whole"))
        if mode == "write-back":
            bucket.flush()
        assert described(bucket.there, bucket.of_there("since"))[0] == b"since"
        assert sorted(bucket.keys_there()) == sorted({*bodies, "since"} - {"whole"})


@pytest.mark.parametrize("encrypt", [False, True])
def test_segments_go_to_it_are_read_there_and_come_back(start, encrypt):
    moto = start(Moto("segments"))
    settings = moto.settings("far", "segments") | {
        "upstream.far.prefix": "node-1/",
        "upstream.far.encrypt": str(encrypt).lower(),
        "cold.upstream": "far",
        "hot.segment_bytes": "1MiB",
        "memory.capacity": 0,
    }
    server = start(Server(settings=settings))
    bucket, s3 = new_bucket(server), client(server.endpoint)
    bodies = {f"k{n}": content(n * 80_000, n) for n in range(12)}
    for key, body in bodies.items():
        s3.put_object(Bucket=bucket, Key=key, Body=body)
    # Only sealed segments are spilled, and a start seals them.
    server.end()
    server.start()
    assert [step["fault"] for step in server.command("upstream", "check", "far")] == [None] * 9

    def stored():
        return moto.s3.list_objects_v2(Bucket="segments", Prefix="node-1/segments/").get("Contents", [])

    def read():
        return {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in bodies}

    assert stored() == [], "the check left nothing"
    drained = server.command("tier", "drain", "hot", "--wait")
    assert (drained["failed"], drained["waiting_bytes"]) == (0, 0), drained
    total = sum(map(len, bodies.values()))
    # Encrypted segments are slightly longer there.
    assert total < drained["spilled_bytes"] <= sum(row["Size"] for row in stored())
    others = moto.s3.list_objects_v2(Bucket="segments")["Contents"]
    assert {row["Key"] for row in others} - {row["Key"] for row in stored()} == {"node-1/mlgw-owner"}
    assert has_plain(moto, stored(), bodies["k1"]) != encrypt
    tiers = server.command("object", "show", f"s3://{bucket}/k7")["tiers"]
    assert [tier["tier"] for tier in tiers] == ["upstream"]
    assert read() == bodies
    ranged = s3.get_object(Bucket=bucket, Key="k9", Range="bytes=700000-700099")["Body"].read()
    assert ranged == bodies["k9"][700_000:700_100]
    returned = server.command("tier", "drain", "upstream", "--wait")
    assert returned["failed"] == 0 and returned["promoted_bytes"] == drained["spilled_bytes"], returned
    assert stored() == []
    assert read() == bodies


def has_plain(moto, stored, body):
    """True if a segment contains the beginning of `body` in plain text."""
    found = (moto.s3.get_object(Bucket="segments", Key=row["Key"])["Body"].read() for row in stored)
    return any(body[:1000] in segment for segment in found)
