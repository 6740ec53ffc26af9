"""Rows about the addressing and the signing of requests."""

import base64
import hashlib
import hmac
import time
import urllib.parse

import pytest

from server import ACCESS_KEY, SECRET_KEY
from wire import EMPTY_SHA256, UNSIGNED, amz_date, authorization

BODY = b"0123456789"


def test_row_14_an_absolute_target_is_signed_with_its_path_alone(wire1, bucket):
    wire, host = wire1, wire1.server.host
    path = f"/{bucket}/a%20b/k"
    assert wire.send("PUT", path, body=BODY).status == 200
    headers = wire.headers("GET", path)
    answer = wire.send_raw("GET", f"http://{host}{path}", headers)
    assert (answer.status, answer.body) == (200, BODY)
    target = f"/{bucket}?list-type=2&prefix=a%20b%2F"
    answer = wire.send_raw("GET", f"http://{host}{target}", wire.headers("GET", target))
    assert answer.status == 200 and "<Key>a b/k</Key>" in answer.text


def sign_v2(method, resource, expires, headers=""):
    """AWS's older signature of a URL: HMAC-SHA1 over method, expiry and resource."""
    text = f"{method}\n\n\n{expires}\n{headers}{resource}"
    signature = hmac.digest(SECRET_KEY.encode(), text.encode(), "sha1")
    query = {
        "AWSAccessKeyId": ACCESS_KEY,
        "Expires": expires,
        "Signature": base64.b64encode(signature).decode(),
    }
    return urllib.parse.urlencode(query)


def plain(wire, method, target, body=b"", host=None):
    headers = [("Host", host or wire.server.host)] + ([("Content-Length", str(len(body)))] if body else [])
    return wire.send_raw(method, target, headers, body)


def test_row_21_urls_presigned_with_signature_version_2(wire, bucket):
    path, expires = f"/{bucket}/a%20b", int(time.time()) + 60
    assert plain(wire, "PUT", f"{path}?{sign_v2('PUT', path, expires)}", BODY).status == 200
    answer = plain(wire, "GET", f"{path}?{sign_v2('GET', path, expires)}")
    assert (answer.status, answer.body) == (200, BODY)
    override = f"{path}?response-content-type=text/a"
    override += "&" + sign_v2("GET", override, expires)
    assert plain(wire, "GET", override).header("content-type") == "text/a"
    assert plain(wire, "HEAD", f"{path}?{sign_v2('GET', path, expires)}").status == 403
    late = plain(wire, "GET", f"{path}?{sign_v2('GET', path, int(time.time()) - 1)}")
    assert (late.status, late.code) == (403, "AccessDenied")
    moved = plain(wire, "GET", f"/{bucket}/other?{sign_v2('GET', path, expires)}")
    assert (moved.status, moved.code) == (403, "SignatureDoesNotMatch")


def test_row_21_signature_version_2_names_the_bucket_also_in_virtual_hosted_style(wire, put, bucket):
    put("k", BODY)
    query = sign_v2("GET", f"/{bucket}/k", int(time.time()) + 60)
    answer = plain(wire, "GET", f"/k?{query}", host=f"{bucket}.localhost:{wire.server.port}")
    assert (answer.status, answer.body) == (200, BODY)


def test_row_22_a_host_name_may_carry_the_bucket(wire, put, bucket):
    put("a/k", BODY)
    port = wire.server.port
    host = f"{bucket}.localhost:{port}"
    assert wire.send("GET", "/a/k", host=host).body == BODY
    listed = wire.send("GET", "/?list-type=2", host=host)
    assert listed.status == 200 and "<Key>a/k</Key>" in listed.text
    assert wire.send("PUT", "/new", body=BODY, host=host).status == 200
    assert wire.send("GET", f"/{bucket}/new", host=f"localhost:{port}").body == BODY
    assert wire.send("GET", f"/{bucket}/new").body == BODY


def signed(wire, method, target, lines, comma=", ", path=None, query=None):
    """A request whose Authorization header may have other forms than that of `Wire.send`."""
    lines = [
        ("Host", wire.server.host),
        ("x-amz-date", amz_date()),
        ("x-amz-content-sha256", EMPTY_SHA256),
        *lines,
    ]
    sent_path, _, sent_query = target.partition("?")
    value = authorization(method, path or sent_path, query or sent_query, lines, EMPTY_SHA256, comma=comma)
    return wire.send_raw(method, target, [*lines, ("Authorization", value)])


@pytest.mark.parametrize(
    "query", ["uploads", "uploads=", "prefix=a&uploads", "uploads&prefix=a%2fb", "uploads&prefix=x%2By~"]
)
def test_row_23_the_query_is_encoded_again_and_sorted(wire, bucket, query):
    assert signed(wire, "GET", f"/{bucket}?{query}", []).status == 200


@pytest.mark.parametrize(
    "path",
    ["a b", "a%20b", "a+b", "a%2Bb", "ü".encode().decode("latin-1"), "%C3%BC", "a!b*c'(d)", "%7e~", ".."],
)
def test_row_23_the_path_is_signed_as_it_was_sent(wire, bucket, path):
    if " " in path or not path.isascii():
        path = urllib.parse.quote(path, encoding="latin-1")
    lines = [("Content-Length", "0")]
    assert signed(wire, "PUT", f"/{bucket}/{path}", lines).status == 200
    assert signed(wire, "GET", f"/{bucket}/{path}", []).status == 200


def test_row_23_header_values_are_trimmed_and_inner_blanks_are_one(wire1, bucket):
    wire, path = wire1, f"/{bucket}/k"
    answer = signed(wire, "PUT", path, [("Content-Length", "0"), ("x-amz-meta-a", "  two   words  ")])
    assert answer.status == 200
    assert wire.send("HEAD", path).header("x-amz-meta-a").split() == ["two", "words"]


@pytest.mark.parametrize("comma", [",", ", ", ",  "])
def test_row_23_blanks_after_commas_in_authorization_are_optional(wire, bucket, comma):
    assert signed(wire, "GET", f"/{bucket}", [], comma=comma).status == 200


def test_row_23_a_changed_path_query_or_header_breaks_the_signature(wire, put, bucket):
    path = put("k", BODY)
    good = wire.headers("GET", path, payload=UNSIGNED)
    assert wire.send_raw("GET", path, good).status == 200
    assert wire.send_raw("GET", path + "?partNumber=1", good).code == "SignatureDoesNotMatch"
    assert wire.send_raw("GET", path + "x", good).code == "SignatureDoesNotMatch"
    digest = hashlib.sha256(b"other").hexdigest()
    changed = [(name, digest if name == "x-amz-content-sha256" else value) for name, value in good]
    assert wire.send_raw("GET", path, changed).code in ("SignatureDoesNotMatch", "XAmzContentSHA256Mismatch")
