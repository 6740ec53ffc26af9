"""s3fs: S3 as an fsspec file system."""

import pytest
import s3fs

from content import content, small_objects
from retry_table import RetryRow
from server import ACCESS_KEY, SECRET_KEY


@pytest.fixture
def fs(aws):
    options = {"verify": str(aws.certificates.authority)} if aws.certificates else {}
    s3fs.S3FileSystem.clear_instance_cache()
    return s3fs.S3FileSystem(
        key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=aws.endpoint, client_kwargs=options
    )


def test_a_large_file_comes_back_byte_for_byte(fs, aws, bucket):
    body = content(aws.load.large_bytes, "s3fs")
    with fs.open(f"{bucket}/large", "wb") as file:
        file.write(body)
    with fs.open(f"{bucket}/large", "rb") as file:
        file.seek(len(body) - 100)
        assert file.read() == body[-100:]
        file.seek(0)
        assert file.read() == body
    assert fs.cat_file(f"{bucket}/large", start=-7, end=None) == body[-7:]


def test_many_small_files_come_back_and_are_found_and_removed(fs, aws, bucket):
    objects = dict(small_objects(aws.load.small_objects))
    fs.pipe({f"{bucket}/{key}": body for key, body in objects.items()})
    read = fs.cat([f"{bucket}/{key}" for key in objects])
    assert {path.partition("/")[2]: body for path, body in read.items()} == objects
    assert fs.find(bucket) == sorted(f"{bucket}/{key}" for key in objects)
    assert fs.ls(f"{bucket}/many") == [f"{bucket}/many/{number}" for number in range(7)]
    fs.rm(f"{bucket}/many", recursive=True)
    fs.invalidate_cache()
    assert fs.ls(bucket) == []


def test_copying_moving_touching_and_globbing(fs, bucket):
    fs.pipe_file(f"{bucket}/a/one.txt", b"1")
    fs.copy(f"{bucket}/a/one.txt", f"{bucket}/b//two.txt")
    fs.mv(f"{bucket}/b//two.txt", f"{bucket}/b/three.txt")
    fs.touch(f"{bucket}/empty")
    assert fs.glob(f"{bucket}/*/*.txt") == [f"{bucket}/a/one.txt", f"{bucket}/b/three.txt"]
    assert fs.cat_file(f"{bucket}/empty") == b"" and fs.info(f"{bucket}/empty")["size"] == 0
    assert fs.exists(f"{bucket}/b") and not fs.exists(f"{bucket}/c")
    with pytest.raises(FileNotFoundError):
        fs.cat_file(f"{bucket}/absent")


def test_exclusive_creation_and_metadata(fs, bucket):
    fs.pipe_file(f"{bucket}/k", b"1", mode="create")
    with pytest.raises(FileExistsError):
        fs.pipe_file(f"{bucket}/k", b"2", mode="create")
    fs.setxattr(f"{bucket}/k", colour="blue")
    assert fs.getxattr(f"{bucket}/k", "colour") == "blue" and fs.cat_file(f"{bucket}/k") == b"1"
    fs.put_tags(f"{bucket}/k", {"split": "train"})
    assert fs.get_tags(f"{bucket}/k") == {"split": "train"}
    assert fs.url(f"{bucket}/k").startswith("http")


def test_the_defaults_are_those_of_the_table():
    row = RetryRow("s3fs")
    assert s3fs.__version__.startswith(f"{row.version}.")
    assert f"up to {s3fs.S3FileSystem.retries} times" in row.repeats
    assert row.limits == (
        f"{s3fs.S3FileSystem.connect_timeout} s to connect, {s3fs.S3FileSystem.read_timeout} s without a byte"
    )
    assert TimeoutError in s3fs.core.S3_RETRYABLE_ERRORS
