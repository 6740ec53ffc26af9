"""Starts the built server as a user would and stops it again, over HTTP or HTTPS.

Each server has a data directory, credentials and free loopback ports of its own. Stopping sends SIGTERM and
requires exit status 0: a server that served every client but does not exit cleanly has failed its tests. Its
standard output and standard error are shown if a test fails.
"""

import dataclasses
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

READY_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60
MIB = 1 << 20

ACCESS_KEY = "MLGWTESTACCESSKEY001"
SECRET_KEY = "clients/know+this=secret0123456789abcdef"
REGION = "us-east-1"


@dataclasses.dataclass(frozen=True)
class Load:
    """Amount of data that one client stores and reads back."""

    large_bytes: int
    small_objects: int


LOAD = {"http": Load(64 * MIB, 200), "https": Load(16 * MIB, 20)}


@dataclasses.dataclass(frozen=True)
class Certificates:
    """A certificate authority of one test session, and a certificate of it for loopback names."""

    authority: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path

    @classmethod
    def make(cls, folder):
        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl(
            "req",
            "-x509",
            *curve,
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
            "-days",
            "2",
            "-subj",
            "/CN=mlgw tests",
        )
        openssl("req", *curve, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
        names = "subjectAltName=DNS:localhost,DNS:*.localhost,IP:127.0.0.1"
        (folder / "server.ext").write_text(names + "\nextendedKeyUsage=serverAuth\n")
        authority = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
        openssl(
            "x509",
            "-req",
            "-in",
            "server.csr",
            *authority,
            "-out",
            "server.pem",
            "-days",
            "2",
            "-extfile",
            "server.ext",
        )
        return cls(folder / "ca.pem", folder / "server.pem", folder / "server.key")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A running `mlgw serve`."""

    def __init__(self, certificates=None, settings=None, root_key_given=True):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mlgw-clients-"))
        self.scheme = "https" if certificates else "http"
        self.certificates = certificates
        self.load = LOAD[self.scheme]
        self.port, self.admin_port = free_port(), free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.endpoint = f"{self.scheme}://{self.host}"
        self.settings = dict(settings or {})
        self.root_key_given = root_key_given
        self.process = None

    def turn(self):
        """The server for a further client. A cluster has several (cluster.py)."""
        return self

    def start(self):
        binary = os.environ["MLGW_BIN"]
        command = [binary, "serve", "--data-dir", str(self.folder / "data")]
        command += ["--listen", self.host, "--admin-listen", f"127.0.0.1:{self.admin_port}"]
        with open(self.folder / "output", "ab") as output:
            self.process = subprocess.Popen(
                command, env=self.variables(), stdout=output, stderr=output, cwd=self.folder
            )
        self.wait_until_ready()
        return self

    def variables(self):
        """The environment variables of the server: its settings and the root key."""
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("MLGW_", "AWS_"))
        }
        if self.root_key_given:
            variables |= {"MLGW_ROOT_ACCESS_KEY_ID": ACCESS_KEY, "MLGW_ROOT_SECRET_ACCESS_KEY": SECRET_KEY}
        if self.certificates:
            variables["MLGW_TLS__CERT"] = str(self.certificates.certificate)
            variables["MLGW_TLS__KEY"] = str(self.certificates.key)
        for name, value in self.settings.items():
            variables["MLGW_" + name.replace(".", "__").upper()] = str(value)
        return variables

    def run_offline(self, *words):
        """Runs an mlgw command on this host under the settings of the server, which does not run."""
        command = [os.environ["MLGW_BIN"], *words]
        done = subprocess.run(command, env=self.variables(), capture_output=True, text=True)
        assert done.returncode == 0, f"mlgw {' '.join(words[:2])}: {done.stdout}{done.stderr}"

    def wait_until_ready(self):
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self.ready():
            if self.process.poll() is not None:
                raise AssertionError(f"mlgw serve ended with {self.process.returncode}:\n{self.output()}")
            if time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"not ready after {READY_SECONDS_MAX} s:\n{self.output()}")
            time.sleep(0.02)

    def metric(self, name):
        """The value of a metric without labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))

    def ready(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def output(self):
        return (self.folder / "output").read_text(errors="replace")[-8000:]

    def stop(self):
        """Stops the server as an operator does, fails unless it exits cleanly, and removes its data."""
        self.end()
        shutil.rmtree(self.folder)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        assert status == 0, f"mlgw serve ended with {status} after SIGTERM:\n{self.output()}"

    def command(self, *words, status=0):
        """Runs an mlgw command; returns its output, or its error message if another status than 0 is
        expected."""
        admin = ["--endpoint", f"http://127.0.0.1:{self.admin_port}", "--output", "json", "--yes"]
        done = subprocess.run(
            [os.environ["MLGW_BIN"], *admin, *words], env=self.environment(), capture_output=True, text=True
        )
        assert done.returncode == status, f"mlgw {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stderr if status else json.loads(done.stdout)

    def environment(self):
        """The environment variables of an S3 client that is started as a program."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        variables |= self.aws_variables()
        return variables

    def aws_variables(self):
        variables = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(self.folder / "no-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.folder / "no-credentials"),
        }
        if self.certificates:
            authority = str(self.certificates.authority)
            variables |= {
                "AWS_CA_BUNDLE": authority,
                "SSL_CERT_FILE": authority,
                "REQUESTS_CA_BUNDLE": authority,
            }
            variables |= {"CURL_CA_BUNDLE": authority}
        return variables
