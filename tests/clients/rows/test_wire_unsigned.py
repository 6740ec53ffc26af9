"""A client that does not sign learns no name, and still receives the responses it needs."""

import hashlib

import pytest

from server import ACCESS_KEY, REGION
from wire import amz_date, quote, scope_of, sign

BODY = b"0123456789"
ORIGIN = [("Origin", "http://app.test"), ("Access-Control-Request-Method", "PUT")]


def unsigned(wire, method, target, lines=(), body=b""):
    lines = [("Host", wire.server.host), *lines]
    if body or method in ("PUT", "POST"):
        lines.append(("Content-Length", str(len(body))))
    return wire.send_raw(method, target, lines, body)


def form(fields):
    part = lambda name, value: f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
    parts = [part(*field) for field in fields] + [part('file"; filename="f', "hello")]
    return "".join(parts).encode() + b"--x--\r\n"


MULTIPART = [("Content-Type", "multipart/form-data; boundary=x")]


def test_a_form_without_a_signature_is_denied_whether_the_bucket_is_there_or_not(wire, bucket):
    post = lambda name, fields: unsigned(wire, "POST", f"/{name}", MULTIPART, form(fields))
    answers = [post(name, [("key", "k")]) for name in (bucket, "not-there")]
    assert [(answer.status, answer.code) for answer in answers] == [(403, "AccessDenied")] * 2
    same = [answer.text.partition("<Resource>")[0] for answer in answers]
    assert same[0] == same[1]
    unknown = [("key", "k"), ("AWSAccessKeyId", "nobody"), ("policy", "e30="), ("signature", "c2ln")]
    assert {post(name, unknown).code for name in (bucket, "not-there")} == {"InvalidAccessKeyId"}


def test_a_preflight_is_not_signed_and_never_granted(wire, bucket):
    presigned = f"/{bucket}/k?X-Amz-Signature=ab&X-Amz-Algorithm=c"
    for target in (f"/{bucket}/k", presigned, "/not-there/k", f"/{bucket}"):
        refused = unsigned(wire, "OPTIONS", target, ORIGIN)
        assert (refused.status, refused.code) == (403, "AccessForbidden"), target
        assert refused.header("access-control-allow-origin") is None
        bad = unsigned(wire, "OPTIONS", target, ORIGIN[1:])
        assert (bad.status, bad.code) == (400, "BadRequest"), target


@pytest.mark.parametrize("method", ["HEAD", "GET", "PUT", "DELETE"])
def test_a_denial_names_the_region(wire, bucket, method):
    for target in (f"/{bucket}", f"/{bucket}/k", "/not-there"):
        denied = unsigned(wire, method, target)
        assert (denied.status, denied.header("x-amz-bucket-region")) == (403, REGION), target
        assert method != "HEAD" or denied.body == b""


def test_calls_of_iam_and_sts_are_refused_by_their_names(wire):
    form_type = [("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")]
    for name in ("GetCallerIdentity", "AssumeRoleWithWebIdentity", "ListUsers"):
        body = f"Action={name}&Version=2011-06-15".encode()
        for answer in (
            unsigned(wire, "POST", "/", form_type, body),
            wire.send("POST", "/", form_type, body),
            unsigned(wire, "GET", f"/?Action={name}&Version=2011-06-15"),
        ):
            assert (answer.status, answer.code) == (501, "NotImplemented") and name in answer.text, answer
    for body in (b"", b"Version=1", b"Action=%3Cb%3E", b"Action=" + b"a" * 10_000):
        answer = unsigned(wire, "POST", "/", form_type, body)
        assert answer.status in (400, 501) and b"<b>" not in answer.body, answer


def presigned(method, path, host, expires, more=""):
    date = amz_date()
    query = [
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", f"{ACCESS_KEY}/{scope_of(date)}"),
        ("X-Amz-Date", date),
        ("X-Amz-Expires", str(expires)),
        ("X-Amz-SignedHeaders", "host"),
    ]
    text = "&".join(f"{quote(name)}={quote(value)}" for name, value in query)
    request = "\n".join([method, path, text, f"host:{host}\n", "host", "UNSIGNED-PAYLOAD"])
    hashed = hashlib.sha256(request.encode()).hexdigest()
    signature = sign(date, REGION, "\n".join(["AWS4-HMAC-SHA256", date, scope_of(date), hashed]))
    return f"{path}?{text}&X-Amz-Signature={signature}"


def test_a_url_that_is_good_for_no_time_has_expired(wire, put):
    path = put("k", BODY)
    fetch = lambda expires: unsigned(wire, "GET", presigned("GET", path, wire.server.host, expires))
    assert fetch(60).body == BODY
    assert (fetch(0).status, fetch(0).code) == (403, "AccessDenied")
    assert (fetch(-1).status, fetch(604801).status) == (400, 400)


def test_a_url_with_a_part_of_its_signature_twice_is_refused(wire, put):
    url = presigned("GET", put("k", BODY), wire.server.host, 60)
    assert unsigned(wire, "GET", url).status == 200
    signature = url.rpartition("&")[2]
    for again in (signature, "X-Amz-Signature=00", "%58-Amz-Signature=00"):
        for twice in (f"{url}&{again}", url.replace("?", f"?{again}&")):
            answer = unsigned(wire, "GET", twice)
            assert (answer.status, answer.code) == (400, "AuthorizationQueryParametersError"), again
