"""boto3: the configuration of a new bucket, the calls by which tools empty it, and its repeated creation."""

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError


def test_a_new_bucket_is_the_owners_alone_and_not_public(s3, bucket):
    controls = s3.get_bucket_ownership_controls(Bucket=bucket)["OwnershipControls"]
    assert controls == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    block = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    names = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    assert block == dict.fromkeys(names, True)
    with pytest.raises(ClientError) as caught:
        s3.get_bucket_encryption(Bucket=bucket)
    assert caught.value.response["Error"]["Code"] == "ServerSideEncryptionConfigurationNotFoundError"


def test_a_bucket_that_never_had_versions_is_emptied_by_its_versions(s3, bucket):
    keys = sorted(["a", "a b/1", "a b/2", "dir/1", "dir/2", "ü+%&"], key=str.encode)
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": 2})
    versions = [version for page in pages for version in page.get("Versions", [])]
    assert [version["Key"] for version in versions] == keys
    for version in versions:
        assert version["VersionId"] == "null" and version["IsLatest"] and version["Owner"]["ID"]
        assert version["Size"] == len(version["Key"].encode()) and version["StorageClass"] == "STANDARD"
        assert s3.head_object(Bucket=bucket, Key=version["Key"], VersionId="null")["ETag"] == version["ETag"]
    grouped = s3.list_object_versions(Bucket=bucket, Delimiter="/")
    assert [group["Prefix"] for group in grouped["CommonPrefixes"]] == ["a b/", "dir/"]
    assert [version["Key"] for version in grouped["Versions"]] == ["a", "ü+%&"]
    one = s3.list_object_versions(Bucket=bucket, Delimiter="/", MaxKeys=2)
    assert one["IsTruncated"] and one["NextKeyMarker"] == "a b/" and "NextVersionIdMarker" not in one
    rest = s3.list_object_versions(Bucket=bucket, Delimiter="/", KeyMarker="a b/")
    assert [group["Prefix"] for group in rest["CommonPrefixes"]] == ["dir/"]
    assert [version["Key"] for version in rest["Versions"]] == ["ü+%&"]
    assert "Versions" not in s3.list_object_versions(Bucket=bucket, MaxKeys=0)
    for wrong in ({"KeyMarker": "a", "VersionIdMarker": "3sL4kqtJlcpXroDTDmJ"}, {"VersionIdMarker": "null"}):
        with pytest.raises(ClientError) as caught:
            s3.list_object_versions(Bucket=bucket, **wrong)
        assert caught.value.response["Error"]["Code"] == "InvalidArgument"
    doomed = [{"Key": version["Key"], "VersionId": version["VersionId"]} for version in versions]
    assert "Errors" not in s3.delete_objects(Bucket=bucket, Delete={"Objects": doomed})
    s3.delete_bucket(Bucket=bucket)


def refusal(call, **arguments):
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def test_making_ones_own_bucket_again_changes_nothing(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"kept")
    made = [b["CreationDate"] for b in s3.list_buckets()["Buckets"] if b["Name"] == bucket]
    s3.create_bucket(Bucket=bucket)
    s3.create_bucket(Bucket=bucket, ACL="private", ObjectOwnership="BucketOwnerEnforced")
    assert [b["CreationDate"] for b in s3.list_buckets()["Buckets"] if b["Name"] == bucket] == made
    acl, ownership = {"ACL": "public-read"}, {"ObjectOwnership": "ObjectWriter"}
    for other in (acl, ownership, {"ObjectLockEnabledForBucket": True}):
        assert refusal(s3.create_bucket, Bucket=bucket, **other) == (409, "BucketAlreadyExists"), other
        assert refusal(s3.create_bucket, Bucket=f"{bucket}-new", **other)[0] == 501, other
    elsewhere = {"CreateBucketConfiguration": {"LocationConstraint": "eu-west-1"}}
    west = boto3.session.Session().client("s3", region_name="eu-west-1")
    assert refusal(west.create_bucket, Bucket=bucket, **elsewhere) == (409, "BucketAlreadyOwnedByYou")
    west.create_bucket(Bucket=f"{bucket}-west", **elsewhere)
    for again in (elsewhere, {}):
        refused = refusal(west.create_bucket, Bucket=f"{bucket}-west", **again)
        assert refused == (409, "BucketAlreadyOwnedByYou"), again
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"kept"


@pytest.mark.parametrize("service, call", [("sts", "get_caller_identity"), ("iam", "list_users")])
def test_other_services_are_refused_by_the_name_of_the_call(aws, service, call):
    config = Config(retries={"max_attempts": 0})
    client = boto3.session.Session().client(service, endpoint_url=aws.endpoint, config=config)
    status, code = refusal(getattr(client, call))
    assert (status, code) == (501, "NotImplemented")


def test_a_plus_in_a_copy_source_is_a_space_and_boto3_escapes_it(s3, bucket):
    for key in ("a b+c", "a+b+c"):
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
        s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": key})
        assert s3.get_object(Bucket=bucket, Key="copy")["Body"].read() == key.encode()
