"""Header values as every client can read them: metadata of any script, other headers, encodings, tags."""

import base64
import email.header
import urllib.parse

import pytest
from botocore.exceptions import ClientError

from wire import Wire

TEXTS = ["Grüße, 世界", "é", "🎉" * 60, "naïve =? x ?=", "ü" * 1000, "a" * 500 + "ñ"]


def metadata(answer):
    """The value of x-amz-meta-name as received, and as a client decodes it."""
    value = answer.header("x-amz-meta-name")
    pieces = email.header.decode_header(value)
    return value, "".join(p.decode(c or "ascii") if isinstance(p, bytes) else p for p, c in pieces)


def words(text, charset="UTF-8"):
    return f"=?{charset}?B?{base64.b64encode(text.encode(charset)).decode()}?="


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_metadata_of_any_script_is_taken_in_every_form_and_sent_as_encoded_words(server, bucket, text):
    wire = Wire(server)
    forms = {"raw": text, "words": words(text)}
    for key, value in forms.items():
        path = f"/{bucket}/{key}"
        assert wire.send("PUT", path, [("x-amz-meta-name", value)], b"1").status == 200
        copy = [("x-amz-copy-source", path)]
        assert wire.send("PUT", path + "-copy", copy).status == 200
        for at in (path, path + "-copy"):
            for method in ("HEAD", "GET"):
                value, decoded = metadata(wire.send(method, at))
                assert value.isascii() and decoded == text, (at, value)
                assert all(len(word) <= 75 for word in value.split(" ")), "RFC 2047, section 2"


def test_what_is_plain_ascii_stays_as_it_was_sent(server, bucket):
    wire, path = Wire(server), f"/{bucket}/k"
    for text in ('{"a": "b,  c"}', "two  blanks", "=?UTF-8?Q?ascii?=", "=?", "100%", ""):
        assert wire.send("PUT", path, [("x-amz-meta-name", text)], b"1").status == 200
        assert wire.send("HEAD", path).header("x-amz-meta-name") == text


def test_other_charsets_of_encoded_words_are_read(server, bucket):
    wire, path = Wire(server), f"/{bucket}/k"
    for value in (words("café", "ISO-8859-1"), "=?iso-8859-1?q?caf=E9?=", "=?utf-8*fr?Q?caf=C3=A9?="):
        wire.send("PUT", path, [("x-amz-meta-name", value)], b"1")
        assert metadata(wire.send("HEAD", path))[1] == "café", value


def test_boto3_reads_metadata_that_another_client_wrote(s3, server, bucket):
    Wire(server).send("PUT", f"/{bucket}/k", [("x-amz-meta-name", "Grüße")], b"1")
    value = s3.head_object(Bucket=bucket, Key="k")["Metadata"]["name"]
    assert email.header.decode_header(value)[0][0].decode() == "Grüße"


@pytest.mark.parametrize("name", ["content-disposition", "content-type", "cache-control", "content-language"])
def test_other_headers_are_latin_1_and_nothing_else(server, bucket, name):
    wire, path = Wire(server), f"/{bucket}/k"
    value = 'x; filename="café®.txt"'
    assert wire.send("PUT", path, [(name, value)], b"1").status == 200
    for method in ("HEAD", "GET"):
        # Header values are decoded as ISO-8859-1 here, as HTTP specifies.
        assert wire.send(method, path).header(name) == value
    for method, target in (("PUT", path), ("POST", path + "?uploads")):
        answer = wire.send(method, target, [(name, 'x; filename="世界.txt"')])
        assert (answer.status, answer.code) == (400, "InvalidArgument"), answer
    assert wire.send("HEAD", path).header(name) == value, "a refused request changes nothing"


def test_overrides_are_latin_1_and_nothing_else(server, bucket):
    wire, path = Wire(server), f"/{bucket}/k"
    wire.send("PUT", path, body=b"1")

    def overridden(value):
        return wire.send("GET", f"{path}?response-content-disposition={urllib.parse.quote(value)}")

    name = 'inline; filename="café.txt"'
    assert overridden(name).header("content-disposition") == name
    assert (overridden("世界").status, overridden("世界").code) == (400, "InvalidArgument")
    assert overridden("a\r\nx-injected: 1").status == 400


def test_content_encodings_come_back_as_they_were_sent(s3, server, bucket):
    for sent in ("deflate, gzip", "gzip,br", "zstd ;q=1 , gzip", "identity"):
        s3.put_object(Bucket=bucket, Key="k", Body=b"x", ContentEncoding=sent)
        assert s3.head_object(Bucket=bucket, Key="k")["ContentEncoding"] == sent
    wire, path = Wire(server), f"/{bucket}/k"
    wire.send("PUT", path, [("content-encoding", "deflate, aws-chunked ,  gzip")], b"1")
    assert wire.send("HEAD", path).header("content-encoding") == "deflate,  gzip"


def test_tags_in_a_header_are_url_encoded(server, bucket):
    wire, path = Wire(server), f"/{bucket}/k"
    for broken in ("a=%zz", "a=%4", "%=1", "a=1&b=%e"):
        answer = wire.send("PUT", path, [("x-amz-tagging", broken)], b"1")
        assert (answer.status, answer.code) == (400, "InvalidArgument"), broken
    assert wire.send("HEAD", path).status == 404


def test_a_redirect_is_not_copied_unless_it_is_given(s3, bucket):
    where = {"Bucket": bucket, "CopySource": {"Bucket": bucket, "Key": "from"}}
    s3.put_object(Bucket=bucket, Key="from", Body=b"x", WebsiteRedirectLocation="/x", ContentType="a/b")
    s3.copy_object(**where, Key="plain")
    s3.copy_object(**where, Key="given", WebsiteRedirectLocation="/y")
    s3.copy_object(**where, Key="from", WebsiteRedirectLocation="/z")
    heads = {key: s3.head_object(Bucket=bucket, Key=key) for key in ("plain", "given", "from")}
    assert {key: head.get("WebsiteRedirectLocation") for key, head in heads.items()} == {
        "plain": None,
        "given": "/y",
        "from": "/z",
    }
    assert {head["ContentType"] for head in heads.values()} == {"a/b"}
    with pytest.raises(ClientError, match="InvalidRequest"):
        s3.copy_object(**where, Key="from")
