"""rclone, once at size: a file of 1 GiB, and a tree of 10,000 files, over HTTP."""

import pytest

from content import content, sha256_of, write_large_file
from rclone import Rclone

GIB = 1 << 30
OBJECTS = 10_000


@pytest.fixture
def rclone(http):
    return Rclone(http)


def test_one_gib_comes_back_byte_for_byte(rclone, bucket, tmp_path):
    (tmp_path / "up").mkdir()
    digest = write_large_file(tmp_path / "up" / "large", GIB, seed="rclone")
    rclone.run("copy", tmp_path / "up", f"s3:{bucket}")
    (tmp_path / "up" / "large").unlink()
    rclone.run("copy", f"s3:{bucket}", tmp_path / "down")
    with open(tmp_path / "down" / "large", "rb") as file:
        assert sha256_of(file) == digest


def test_ten_thousand_files_come_back_byte_for_byte(rclone, bucket, tmp_path):
    for number in range(OBJECTS):
        path = tmp_path / "up" / f"{number % 16:02}" / f"{number:06}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number % 2000, number))
    rclone.run("copy", tmp_path / "up", f"s3:{bucket}")
    rclone.run("copy", f"s3:{bucket}", tmp_path / "down")
    for number in range(OBJECTS):
        name = f"{number % 16:02}/{number:06}"
        assert (tmp_path / "down" / name).read_bytes() == content(number % 2000, number)
    rclone.run("purge", f"s3:{bucket}")
