"""Row 22 with the real connector: with a host name it uses virtual-host style, so the bucket is in the name.

Such names do not resolve on a test machine, so the client runs in a mount namespace with an /etc/hosts of its
own.
"""

import os
import subprocess
import sys

import pytest

from content import content
from server import ACCESS_KEY, REGION, SECRET_KEY, Server
from wire import Wire

DOMAIN = "s3.store.test"

CLIENT = """
import sys
from s3torchconnector import S3Checkpoint, S3MapDataset
endpoint, bucket, region = sys.argv[1:]
where = {"region": region, "endpoint": endpoint}
with S3Checkpoint(**where).writer(f"s3://{bucket}/written") as writer:
    writer.write(b"by name")
found = {item.key: item.read() for item in S3MapDataset.from_prefix(f"s3://{bucket}/", **where)}
sys.stdout.buffer.write(b";".join(key.encode() + b"=" + found[key] for key in sorted(found)))
"""


@pytest.fixture
def named():
    server = Server(settings={"s3.domains": DOMAIN}).start()
    yield server
    server.stop()


def with_hosts(names, folder, command):
    """The command, wrapped in a mount namespace in which these names resolve to this machine."""
    (folder / "hosts").write_text("".join(f"127.0.0.1 {name}\n" for name in ["localhost", *names]))
    inside = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", inside, str(folder / "hosts"), *command]


def test_row_22_the_connector_puts_the_bucket_into_the_host_name(named, tmp_path):
    if subprocess.run(with_hosts([], tmp_path, ["true"]), capture_output=True).returncode != 0:
        pytest.skip("mount namespaces cannot be created here")
    wire, bucket, body = Wire(named), "by-name", content(100_000, "by name")
    assert wire.send("PUT", f"/{bucket}").status == 200
    assert wire.send("PUT", f"/{bucket}/put", body=body).status == 200
    arguments = [f"http://{DOMAIN}:{named.port}", bucket, REGION]
    command = with_hosts([DOMAIN, f"{bucket}.{DOMAIN}"], tmp_path, [sys.executable, "-c", CLIENT, *arguments])
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    ran = subprocess.run(command, env={**os.environ, **keys}, capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode()
    assert ran.stdout == b"put=" + body + b";written=by name"
