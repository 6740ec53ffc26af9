"""rclone: copy, sync, check, move and its listings."""

import os

import pytest

from content import content, small_objects
from rclone import Rclone
from wire import new_bucket


@pytest.fixture
def rclone(server):
    return Rclone(server)


def write_tree(folder, count):
    for key, body in small_objects(count):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


def read_tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_large_file_comes_back_byte_for_byte(rclone, server, bucket, tmp_path):
    body = content(server.load.large_bytes, "rclone")
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "large").write_bytes(body)
    rclone.run("copy", "--s3-upload-cutoff=8M", "--s3-chunk-size=8M", tmp_path / "up", f"s3:{bucket}")
    rclone.run("copy", f"s3:{bucket}", tmp_path / "down")
    assert (tmp_path / "down" / "large").read_bytes() == body
    rclone.run("copy", "--s3-upload-cutoff=200M", tmp_path / "up" / "large", f"s3:{bucket}/single")
    rclone.run("check", "--download", tmp_path / "up", f"s3:{bucket}/single")


def test_a_tree_is_copied_checked_changed_and_synced(rclone, server, bucket, tmp_path):
    up, down = tmp_path / "up", tmp_path / "down"
    write_tree(up, server.load.small_objects)
    rclone.run("copy", up, f"s3:{bucket}/tree")
    rclone.run("check", up, f"s3:{bucket}/tree")
    changed = up / "many" / "0" / "object-00000.bin"
    changed.write_bytes(b"changed")
    os.utime(up / "many" / "1" / "object-00001.bin", (1_600_000_000, 1_600_000_000))
    (up / "many" / "2" / "object-00002.bin").unlink()
    rclone.run("check", up, f"s3:{bucket}/tree", ok=False)
    rclone.run("sync", up, f"s3:{bucket}/tree")
    rclone.run("check", "--download", up, f"s3:{bucket}/tree")
    rclone.run("sync", f"s3:{bucket}/tree", down)
    assert read_tree(down) == read_tree(up)
    restored = (down / "many" / "1" / "object-00001.bin").stat().st_mtime
    assert restored == 1_600_000_000
    rclone.run("check", up, f"s3:{bucket}/tree")


def test_moving_deleting_and_listing(rclone, server, bucket, tmp_path):
    write_tree(tmp_path / "up", 10)
    rclone.run("copy", tmp_path / "up", f"s3:{bucket}/from")
    rclone.run("move", f"s3:{bucket}/from", f"s3:{bucket}/to")
    listed = rclone.run("lsf", "--recursive", "--files-only", f"s3:{bucket}").split()
    assert listed == sorted(f"to/{key}" for key, _ in small_objects(10))
    rclone.run("touch", "--timestamp", "2020-02-03T04:05:06", f"s3:{bucket}/to/many/1/object-00001.bin")
    times = rclone.run("lsf", "--format=t", f"s3:{bucket}/to/many/1/")
    assert "2020-02-03 04:05:06" in times
    rclone.run("purge", f"s3:{bucket}")
    assert bucket not in rclone.run("lsd", "s3:")


def test_names_that_are_no_md5_do_not_mislead_it(fast_etags, tmp_path):
    rclone, bucket = Rclone(fast_etags), new_bucket(fast_etags)
    (tmp_path / "small").write_bytes(b"body")
    (tmp_path / "large").write_bytes(content(20 << 20, "rclone"))
    rclone.run("copy", "--s3-upload-cutoff=8M", "--s3-chunk-size=8M", tmp_path, f"s3:{bucket}")
    rclone.run("check", "--download", tmp_path, f"s3:{bucket}")
    rclone.run("sync", "--checksum", tmp_path, f"s3:{bucket}")
