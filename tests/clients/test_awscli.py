"""awscli, as users type it: cp, sync, ls, rm, mv, presign and s3api."""

import json
import os
import pathlib
import subprocess
import sys
import urllib.request
import ssl

import pytest

from content import content, small_objects


@pytest.fixture
def aws_command(server):
    program = pathlib.Path(sys.executable).with_name("aws")
    environment = server.environment() | {"AWS_PAGER": ""}

    def run(*arguments, ok=True):
        done = subprocess.run(
            [sys.executable, program, *arguments], env=environment, capture_output=True, text=True
        )
        assert (done.returncode == 0) == ok, done.stderr + done.stdout
        return done.stdout if ok else done.stderr

    return run


def write_tree(folder, count):
    """Writes files with old timestamps: `sync` would transfer again any file younger than the bucket's whole
    seconds."""
    objects = dict(small_objects(count))
    for key, body in objects.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return objects


def read_tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_large_file_goes_up_and_comes_down(server, aws_command, bucket, tmp_path):
    body = content(server.load.large_bytes, "awscli")
    (tmp_path / "up").write_bytes(body)
    aws_command("s3", "cp", "--quiet", str(tmp_path / "up"), f"s3://{bucket}/large")
    aws_command("s3", "cp", "--quiet", f"s3://{bucket}/large", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == body
    aws_command("s3", "mv", "--quiet", f"s3://{bucket}/large", f"s3://{bucket}/moved")
    assert f"{len(body)} moved" in aws_command("s3", "ls", f"s3://{bucket}/")


def test_a_folder_is_synced_both_ways_and_removed(server, aws_command, bucket, tmp_path):
    objects = write_tree(tmp_path / "up", server.load.small_objects)
    aws_command("s3", "sync", "--quiet", str(tmp_path / "up"), f"s3://{bucket}/tree")
    assert aws_command("s3", "sync", str(tmp_path / "up"), f"s3://{bucket}/tree") == ""
    aws_command("s3", "sync", "--quiet", f"s3://{bucket}/tree", str(tmp_path / "down"))
    assert read_tree(tmp_path / "down") == objects
    listed = aws_command("s3", "ls", "--recursive", f"s3://{bucket}/tree/")
    assert len(listed.splitlines()) == len(objects)
    aws_command("s3", "rm", "--recursive", "--quiet", f"s3://{bucket}/tree")
    assert aws_command("s3", "ls", "--recursive", f"s3://{bucket}") == ""
    aws_command("s3", "rb", f"s3://{bucket}")


def test_s3api_tells_metadata_in_lower_case_and_keeps_conditions(aws_command, bucket, tmp_path):
    (tmp_path / "f").write_bytes(b"data")
    put = ["s3api", "put-object", "--bucket", bucket, "--key", "k", "--body", str(tmp_path / "f")]
    aws_command(*put, "--metadata", "Colour=Blue", "--if-none-match", "*")
    assert "PreconditionFailed" in aws_command(*put, "--if-none-match", "*", ok=False)
    head = json.loads(aws_command("s3api", "head-object", "--bucket", bucket, "--key", "k"))
    assert head["Metadata"] == {"colour": "Blue"} and "VersionId" not in head


def test_a_presigned_url_can_be_fetched(server, aws_command, bucket, tmp_path):
    (tmp_path / "f").write_bytes(b"data")
    aws_command("s3", "cp", "--quiet", str(tmp_path / "f"), f"s3://{bucket}/k")
    url = aws_command("s3", "presign", f"s3://{bucket}/k").strip()
    authority = server.certificates and ssl.create_default_context(cafile=str(server.certificates.authority))
    assert urllib.request.urlopen(url, context=authority).read() == b"data"
