"""boto3: presigned URLs and forms, used by a program that has no credentials."""

import boto3
import pytest
from botocore.config import Config

from content import content


def client(version, region="us-east-1"):
    config = Config(signature_version=version) if version else None
    return boto3.session.Session().client("s3", region_name=region, config=config)


# The default in us-east-1 is Signature Version 2; in an unknown region it is Version 4.
SIGNERS = {
    "default": (None, "us-east-1"),
    "v4": ("s3v4", "us-east-1"),
    "v2": ("s3", "us-east-1"),
    "region": (None, "here-1"),
}


@pytest.mark.parametrize("signer", SIGNERS)
def test_a_presigned_url_stores_reads_and_deletes(aws, bucket, web, signer):
    s3, body = client(*SIGNERS[signer]), content(10_000, signer)
    url = lambda method, **more: s3.generate_presigned_url(
        method, {"Bucket": bucket, "Key": "a b/ü+c", **more}, 60
    )
    put = url("put_object")
    assert ("AWSAccessKeyId=" in put) == (signer in ("default", "v2"))
    assert web.put(put, data=body).status_code == 200
    answer = web.get(url("get_object", ResponseContentType="text/x-a"))
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, body, "text/x-a")
    assert web.head(url("head_object")).headers["content-length"] == str(len(body))
    assert web.get(url("put_object")).status_code == 403
    assert web.delete(url("delete_object")).status_code == 204
    assert web.get(url("get_object")).status_code == 404


@pytest.mark.parametrize("signer", ["v2", "v4"])
def test_a_presigned_url_that_was_changed_or_has_expired_is_refused(aws, bucket, web, signer):
    s3 = client(*SIGNERS[signer])
    for key in ("k", "l"):
        client(None).put_object(Bucket=bucket, Key=key, Body=b"1")
    url = s3.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "k"}, 60)
    changed = web.get(url.replace(f"{bucket}/k", f"{bucket}/l"))
    assert changed.status_code == 403 and "SignatureDoesNotMatch" in changed.text
    expired = web.get(s3.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "k"}, -5))
    assert expired.status_code in (400, 403) and "<Error>" in expired.text


def test_a_form_stores_a_file_within_its_policy(aws, bucket, web):
    s3 = client("s3v4")
    conditions = [
        ["content-length-range", 1, 100],
        ["starts-with", "$x-amz-meta-by", "me"],
        {"success_action_status": "201"},
    ]
    fields = {"success_action_status": "201"}
    form = s3.generate_presigned_post(
        bucket, "up/${filename}", Fields=fields, Conditions=conditions, ExpiresIn=60
    )
    send = lambda data, **more: web.post(
        form["url"], data=form["fields"] | more, files={"file": ("name.txt", data)}
    )
    accesses = aws.metric("mlgw_policy_accesses_total")
    answer = send(b"from a form", **{"x-amz-meta-by": "me too"})
    assert answer.status_code == 201 and "<Key>up/name.txt</Key>" in answer.text
    assert aws.metric("mlgw_policy_accesses_total") == accesses + 1
    stored = s3.get_object(Bucket=bucket, Key="up/name.txt")
    assert (stored["Body"].read(), stored["Metadata"]) == (b"from a form", {"by": "me too"})
    assert "EntityTooLarge" in send(b"x" * 101, **{"x-amz-meta-by": "me"}).text
    assert send(b"x", **{"x-amz-meta-by": "you"}).status_code == 403
    assert send(b"x", **{"x-amz-meta-by": "me", "x-amz-meta-more": "1"}).status_code == 403
    form["fields"]["x-amz-signature"] = "0" * 64
    assert "SignatureDoesNotMatch" in send(b"x", **{"x-amz-meta-by": "me"}).text
