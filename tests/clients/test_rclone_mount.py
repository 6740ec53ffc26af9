"""A POSIX view of a bucket: `rclone mount`, read and written with ordinary file calls."""

import contextlib
import os
import shutil
import subprocess
import time

from content import content, small_objects
from rclone import Rclone

MOUNT_SECONDS_MAX = 30


@contextlib.contextmanager
def mounted(server, bucket, folder):
    """Mounts the bucket on `folder` within the block. Every block begins with empty caches."""
    (folder / "mount").mkdir(parents=True)
    log = folder / "log"
    options = [
        "--vfs-cache-mode=writes",
        "--vfs-write-back=0s",
        f"--cache-dir={folder / 'cache'}",
        f"--log-file={log}",
    ]
    command = ["rclone", "mount", f"s3:{bucket}", folder / "mount", *options]
    process = subprocess.Popen(command, env=Rclone(server).environment)
    deadline = time.monotonic() + MOUNT_SECONDS_MAX
    while not os.path.ismount(folder / "mount"):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    try:
        yield folder / "mount"
    finally:
        subprocess.run(["fusermount3", "-u", folder / "mount"], check=True)
        assert process.wait(MOUNT_SECONDS_MAX) == 0


def stored(server, bucket):
    """The bucket's keys and sizes as rclone lists them, bypassing the mount's caches."""
    lines = (
        Rclone(server).run("lsf", "--recursive", "--files-only", "--format=ps", f"s3:{bucket}").splitlines()
    )
    return {path: int(size) for path, size in (line.split(";") for line in lines)}


def wait_until_stored(server, bucket, sizes):
    """Waits until the bucket holds the written files: the mount uploads after close(2)."""
    deadline = time.monotonic() + MOUNT_SECONDS_MAX
    while (now := stored(server, bucket)) != sizes:
        assert time.monotonic() < deadline, f"{len(now)} of {len(sizes)} files are visible"


def test_a_large_file_is_written_through_one_mount_and_read_through_another(server, bucket, tmp_path):
    body = content(server.load.large_bytes, "mount")
    with mounted(server, bucket, tmp_path / "writer") as folder:
        (folder / "large").write_bytes(body)
        wait_until_stored(server, bucket, {"large": len(body)})
    with mounted(server, bucket, tmp_path / "reader") as folder, open(folder / "large", "rb") as file:
        file.seek(len(body) // 2)
        assert file.read(1000) == body[len(body) // 2 :][:1000]
        file.seek(0)
        assert file.read() == body


def test_many_small_files_are_written_listed_read_renamed_and_removed(server, bucket, tmp_path):
    files = dict(small_objects(server.load.small_objects))
    with mounted(server, bucket, tmp_path / "writer") as folder:
        for name, body in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(body)
        wait_until_stored(server, bucket, {name: len(body) for name, body in files.items()})
    with mounted(server, bucket, tmp_path / "reader") as folder:
        paths = [path for path in folder.rglob("*") if path.is_file()]
        assert {str(path.relative_to(folder)): path.read_bytes() for path in paths} == files
        (folder / "many" / "1" / "object-00001.bin").rename(folder / "moved")
        shutil.rmtree(folder / "many")
        assert os.listdir(folder) == ["moved"]
        assert (folder / "moved").read_bytes() == files["many/1/object-00001.bin"]
    assert stored(server, bucket) == {"moved": 37}
