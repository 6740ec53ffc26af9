"""Rows about listings, bucket configuration and the forms of a request's target."""

import pytest
import xml.etree.ElementTree as etree

NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def listing(answer):
    assert answer.status == 200, answer
    root = etree.fromstring(answer.body)
    assert root.tag == NAMESPACE + "ListBucketResult"
    text = lambda name: root.findtext(NAMESPACE + name)
    keys = [entry.findtext(NAMESPACE + "Key") for entry in root.iter(NAMESPACE + "Contents")]
    prefixes = [entry.findtext(NAMESPACE + "Prefix") for entry in root.iter(NAMESPACE + "CommonPrefixes")]
    return text, keys, prefixes


def test_row_15_list_v2_counts_keys_and_prefixes(wire, put, bucket):
    for key in ("a/1", "a/2", "b", "c"):
        put(key)
    text, keys, prefixes = listing(wire.send("GET", f"/{bucket}?list-type=2&delimiter=%2F"))
    assert (text("KeyCount"), keys, prefixes) == ("3", ["b", "c"], ["a/"])
    text, keys, _ = listing(wire.send("GET", f"/{bucket}?list-type=2&max-keys=2"))
    assert (text("KeyCount"), text("IsTruncated"), len(keys)) == ("2", "true", 2) and text(
        "NextContinuationToken"
    )
    text, keys, _ = listing(wire.send("GET", f"/{bucket}?list-type=2&max-keys=0"))
    assert (text("KeyCount"), text("IsTruncated"), keys) == ("0", "false", [])


def test_row_15_an_empty_delimiter_means_none(wire, put, bucket):
    put("a/1")
    for query in ("delimiter=", "delimiter=&prefix=&encoding-type=url&continuation-token="):
        if "continuation" in query:
            query = query.replace("&continuation-token=", "")
        _, keys, prefixes = listing(wire.send("GET", f"/{bucket}?list-type=2&{query}"))
        assert (keys, prefixes) == (["a/1"], [])


def test_row_15_names_are_encoded_when_asked(wire, put, bucket):
    put("d%20%2B/%C3%BC%26%0A", b"")
    text, keys, _ = listing(wire.send("GET", f"/{bucket}?list-type=2&encoding-type=url"))
    assert (
        text("EncodingType") == "url" and keys == ["d%20%2B/%C3%BC%26%0A"] or keys == ["d+%2B/%C3%BC%26%0A"]
    )
    _, _, prefixes = listing(wire.send("GET", f"/{bucket}?list-type=2&encoding-type=url&delimiter=/"))
    assert prefixes in (["d%20%2B/"], ["d+%2B/"])
    assert wire.send("GET", f"/{bucket}?list-type=2&encoding-type=other").code == "InvalidArgument"


def test_row_16_list_v1_goes_on_from_markers(wire, put, bucket):
    for key in ("a/1", "a/2", "b", "c/1", "d"):
        put(key)
    text, keys, _ = listing(wire.send("GET", f"/{bucket}?max-keys=2"))
    assert (keys, text("IsTruncated"), text("Marker"), text("KeyCount")) == (["a/1", "a/2"], "true", "", None)
    _, keys, _ = listing(wire.send("GET", f"/{bucket}?marker=a/2"))
    assert keys == ["b", "c/1", "d"]
    found, marker = [], ""
    while True:
        text, keys, prefixes = listing(wire.send("GET", f"/{bucket}?delimiter=/&max-keys=1&marker={marker}"))
        found += keys + prefixes
        if text("IsTruncated") == "false":
            break
        marker = text("NextMarker")
    assert found == ["a/", "b", "c/", "d"]


def test_row_19_creating_ones_own_bucket_again_says_so(wire, bucket):
    answer = wire.send("PUT", f"/{bucket}")
    assert answer.status == 200 or (answer.status, answer.code) == (409, "BucketAlreadyOwnedByYou")
    located = (b"<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint>"
               b"</CreateBucketConfiguration>")
    answer = wire.send("PUT", f"/{bucket}", body=located)
    assert answer.status == 200 or answer.status in (400, 409), answer


ABSENT = {
    "policy": (404, "NoSuchBucketPolicy"),
    "cors": (404, "NoSuchCORSConfiguration"),
    "lifecycle": (404, "NoSuchLifecycleConfiguration"),
    "tagging": (404, "NoSuchTagSet"),
    "website": (404, "NoSuchWebsiteConfiguration"),
    "acl": (200, "FULL_CONTROL"),
    "location": (200, "LocationConstraint"),
    "versioning": (200, "VersioningConfiguration"),
    "object-lock": (404, "ObjectLockConfigurationNotFoundError"),
}


@pytest.mark.parametrize("question", ABSENT)
def test_row_19_a_bucket_without_configuration_says_what_aws_says(wire, bucket, question):
    answer = wire.send("GET", f"/{bucket}?{question}")
    status, word = ABSENT[question]
    assert answer.status == status and word in answer.text, answer
    assert "<Status>" not in answer.text
    absent = wire.send("GET", f"/no-such-bucket-here?{question}")
    assert (absent.status, absent.code) == (404, "NoSuchBucket")
