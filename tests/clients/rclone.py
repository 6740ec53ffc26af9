"""Runs rclone against a server of the tests, configured by its environment alone."""

import os
import subprocess

from server import ACCESS_KEY, SECRET_KEY


class Rclone:
    """A remote, called `s3:`."""

    def __init__(self, server):
        # Without the variables of other AWS clients: rclone would use some of them.
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("AWS_")
        } | {
            "RCLONE_CONFIG": str(server.folder / "no-rclone-config"),
            "RCLONE_CONFIG_S3_TYPE": "s3",
            "RCLONE_CONFIG_S3_PROVIDER": "Other",
            "RCLONE_CONFIG_S3_ENDPOINT": server.endpoint,
            "RCLONE_CONFIG_S3_ACCESS_KEY_ID": ACCESS_KEY,
            "RCLONE_CONFIG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
            "RCLONE_CONFIG_S3_REGION": "us-east-1",
        }
        if server.certificates:
            self.environment["RCLONE_CA_CERT"] = str(server.certificates.authority)

    def run(self, *arguments, ok=True):
        """Runs a command and returns its standard output; shows its log if the exit status fails the test."""
        command = ["rclone", "--retries=1", "--transfers=16", "--checkers=16", *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert (done.returncode == 0) == ok, done.stderr[-4000:] + done.stdout[-4000:]
        return done.stdout
