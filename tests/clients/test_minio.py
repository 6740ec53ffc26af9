"""The MinIO client library for Python."""

import io

import minio
import pytest
import urllib3
from minio.deleteobjects import DeleteObject

from content import content, small_objects
from server import ACCESS_KEY, REGION, SECRET_KEY


@pytest.fixture
def client(aws):
    authority = aws.certificates and str(aws.certificates.authority)
    pool = urllib3.PoolManager(ca_certs=authority, retries=False)
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "region": REGION}
    return minio.Minio(aws.host, secure=bool(authority), http_client=pool, **keys)


def put(client, bucket, key, body, **options):
    client.put_object(bucket_name=bucket, object_name=key, data=io.BytesIO(body), length=len(body), **options)


def get(client, bucket, key):
    answer = client.get_object(bucket_name=bucket, object_name=key)
    try:
        return answer.read()
    finally:
        answer.close()
        answer.release_conn()


def test_a_large_object_comes_back_byte_for_byte(client, aws, bucket):
    body = content(aws.load.large_bytes, "minio")
    put(client, bucket, "large", body, part_size=8 << 20)
    assert get(client, bucket, "large") == body


def test_many_small_objects_come_back_and_are_listed_and_removed(client, aws, bucket):
    objects = dict(small_objects(aws.load.small_objects))
    for key, body in objects.items():
        put(client, bucket, key, body)
    assert {key: get(client, bucket, key) for key in objects} == objects
    listed = [entry.object_name for entry in client.list_objects(bucket_name=bucket, recursive=True)]
    assert listed == sorted(objects)
    errors = client.remove_objects(
        bucket_name=bucket, delete_object_list=[DeleteObject(key) for key in objects]
    )
    assert list(errors) == []
    client.remove_bucket(bucket_name=bucket)
    assert not client.bucket_exists(bucket_name=bucket)
