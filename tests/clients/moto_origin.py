"""moto's S3 server as an origin: an independent implementation of S3, in a process of its own.

It keeps everything in memory and serves one request per connection. It is used to test correctness, not
speed.
"""

import contextlib
import functools
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import boto3
from botocore.config import Config

from server import ACCESS_KEY, READY_SECONDS_MAX, REGION, SECRET_KEY, STOP_SECONDS_MAX, free_port

COLOUR = re.compile(r"\x1b\[\d+m")


@functools.cache
def client(endpoint):
    """The boto3 client of an endpoint; it never retries, so that every failure is visible."""
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": REGION}
    return boto3.client("s3", endpoint_url=endpoint, config=Config(retries={"total_max_attempts": 1}), **keys)


class Moto:
    """A running moto server with buckets."""

    def __init__(self, *buckets):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mlgw-moto-"))
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.s3 = client(self.endpoint)
        self.buckets = buckets
        self.process = None

    def start(self):
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        foreign = ("MLGW_", "AWS_", "MOTO_", "S3_")
        variables = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        with open(self.folder / "output", "ab") as output:
            self.process = subprocess.Popen(
                command, env=variables, stdout=output, stderr=output, cwd=self.folder
            )
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self.ready():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)
        for bucket in self.buckets:
            self.s3.create_bucket(Bucket=bucket)
        return self

    def ready(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def output(self):
        return (self.folder / "output").read_text(errors="replace")

    def stop(self):
        """Stops the server; fails if it could not handle a request."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS_MAX)
        finally:
            self.process.kill()
        output = COLOUR.sub("", self.output())
        shutil.rmtree(self.folder)
        # Its threads do not wait for each other: a listing may fail during a write. The gateway repeats it.
        failed = [line for line in output.splitlines() if line.endswith('" 500 -') and '"GET ' not in line]
        assert not failed, f"moto failed at {failed}:\n{output[-8000:]}"

    def settings(self, upstream, bucket):
        """Settings that make one of its buckets an upstream of an mlgw server."""
        values = {
            "endpoint": self.endpoint,
            "bucket": bucket,
            "region": REGION,
            "credentials": "static",
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
        }
        return {f"upstream.{upstream}.{name}": value for name, value in values.items()}
