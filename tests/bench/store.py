"""A data directory with a server on it: presigned requests to it, and the objects that rows share."""

import hashlib
import http.client
import json
import os
import subprocess
from base64 import b64encode
from contextlib import contextmanager
from pathlib import Path

from load.keepalive import exchange
from load.streams import in_parallel
from server import ROOT_KEY, ROOT_SECRET, Server, environment
from signing import signers

BUCKET = "bench"
CONNECTIONS = 32
# More connections share a sync.
FILL_CONNECTIONS = 128
DELETE_KEYS_MAX = 1000
DELETES_AT_ONCE = 3
FURTHER_KEYS = 2
NUMBER_BYTES = 8


class RequestError(Exception):
    """A response with an error status."""


class Store:
    """One bucket, and three access keys that requests alternate between. Each set of objects is written once,
    however many rows use it."""

    def __init__(self, binary, folder, log, report):
        self.binary, self.folder, self.log, self.report = binary, Path(folder), log, report
        self.server, self.filled, self.keys = None, {}, [(ROOT_KEY, ROOT_SECRET)]

    def start(self, settings, under=()):
        """Starts a server with these settings, optionally under another program."""
        self.server = Server(self.binary, str(self.folder), self.log, under, settings)
        if len(self.keys) == 1:
            self.keys += [self._access_key() for _ in range(FURTHER_KEYS)]
            self.call("PUT", f"/{BUCKET}")

    def stop(self):
        """Stops the server; fails unless it exits cleanly."""
        if self.server:
            self.server.stop()
        self.server = None

    def restart(self):
        """Stops the server and starts it again with the same settings."""
        self.server.stop()
        self.server.start()

    def run(self, *arguments):
        """Runs an `mlgw` command whose output is JSON."""
        return subprocess.run(
            [self.binary, "--endpoint", f"http://127.0.0.1:{self.server.admin_port}", "--output", "json", *arguments],
            env=environment({}) | {"AWS_ACCESS_KEY_ID": ROOT_KEY, "AWS_SECRET_ACCESS_KEY": ROOT_SECRET},
            capture_output=True, text=True)

    def command(self, *arguments):
        """The JSON output of an `mlgw` command."""
        done = self.run(*arguments)
        if done.returncode != 0:
            raise RequestError(f"mlgw {' '.join(arguments)}: {done.stderr.strip()}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def _access_key(self):
        made = self.command("access", "key", "create", "--role", "write")
        return made["key"]["access_key"], made["secret_access_key"]

    @contextmanager
    def connection(self):
        """A connection for several calls, one after the other."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=300)
        try:
            yield connection
        finally:
            connection.close()

    def call(self, method, path, query=(), body=None, headers=None, over=None):
        """Sends one request; returns headers and content of the response. Uses the connection `over`, or one
        of its own."""
        if over is None:
            with self.connection() as own:
                return self.call(method, path, query, body, headers, own)
        amz = {name: value for name, value in (headers or {}).items() if name.startswith("x-amz-")}
        signer = signers([(ROOT_KEY, ROOT_SECRET)])[0]
        target = signer.presign(method, self.server.host, path, query, amz)
        over.request(method, target, body, {"Host": self.server.host, **(headers or {})})
        answer = over.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RequestError(f"{method} {path} answered {answer.status}: {content[:300]!r}")
        return answer.headers, content

    def signers(self):
        """One signer for each access key and each of some dates."""
        return signers(self.keys)

    def targets(self, method, names, bucket=BUCKET):
        """A presigned target for each name; access keys and dates alternate."""
        many = self.signers()
        for at, name in enumerate(names):
            yield many[at % len(many)].presign(method, self.server.host, f"/{bucket}/{name}")

    def targets_file(self, method, names, bucket=BUCKET):
        """A file with a request line for each name, in the format of the wrk script."""
        path = self.folder.with_name(f"{self.folder.name}-{method.lower()}.txt")
        with open(path, "w") as out:
            out.writelines(f"{method} {target}\n" for target in self.targets(method, names, bucket))
        return path

    def requests(self, method, names):
        """Complete requests without a body, one for each name."""
        end = f" HTTP/1.1\r\nHost: {self.server.host}\r\n\r\n"
        return (f"{method} {target}{end}".encode() for target in self.targets(method, names))

    def puts(self, names, body_bytes, bucket=BUCKET):
        """Complete PUT requests, one for each name; the bodies begin with a number, so that all of them
        differ."""
        end = f" HTTP/1.1\r\nHost: {self.server.host}\r\nContent-Length: {body_bytes}\r\n\r\n"
        body = os.urandom(max(0, body_bytes - NUMBER_BYTES))
        for at, target in enumerate(self.targets("PUT", names, bucket)):
            yield f"PUT {target}{end}".encode() + (at.to_bytes(NUMBER_BYTES, "big") + body)[:body_bytes]

    def fill(self, what, names, body_bytes, bucket=BUCKET):
        """PUTs each name once, unless `what` was filled before."""
        if what not in self.filled:
            count = self.report.counter(f"writing {what}, {body_bytes} bytes each", len(names))
            puts = self.puts(names, body_bytes, bucket)
            exchange(self.server.port, puts, FILL_CONNECTIONS, on_answer=count)
            self.filled[what] = names
        return names

    def delete(self, names, bucket=BUCKET):
        """DeleteObjects of a thousand keys each, a few concurrently: as many commands as the catalogue's
        queue permits."""
        pages = [names[at : at + DELETE_KEYS_MAX] for at in range(0, len(names), DELETE_KEYS_MAX)]
        in_parallel(lambda page: self._delete(page, bucket), pages, DELETES_AT_ONCE)

    def _delete(self, names, bucket):
        keys = "".join(f"<Object><Key>{name}</Key></Object>" for name in names)
        body = f"<Delete><Quiet>true</Quiet>{keys}</Delete>".encode()
        digest = b64encode(hashlib.md5(body).digest()).decode()
        _, answer = self.call("POST", f"/{bucket}", [("delete", "")], body, {"Content-MD5": digest})
        if b"<Error>" in answer:
            raise RequestError(f"DeleteObjects: {answer[:300]!r}")
