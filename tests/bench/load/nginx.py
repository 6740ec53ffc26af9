"""nginx for comparison: the same files from a folder, without signatures or checksums."""

import os
import subprocess
import time

import proc
from server import ServerError, free_port

CONFIGURATION = """
daemon off;
{user}
worker_processes 2;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; root {folder}/files; }}
}}
"""


class Nginx:
    """An nginx on a folder of its own; `program` is the path of its binary."""

    def __init__(self, program, folder):
        self.program, self.folder, self.port = program, folder, free_port()
        (folder / "files").mkdir(parents=True)
        user = "user root;" if os.geteuid() == 0 else ""
        text = CONFIGURATION.format(folder=folder, port=self.port, user=user)
        (folder / "nginx.conf").write_text(text)

    @property
    def host(self):
        return f"127.0.0.1:{self.port}"

    def write(self, names, body_bytes):
        """Writes a file for each name; returns a file of request lines for them."""
        files, body = self.folder / "files", os.urandom(body_bytes)
        for folder in {name.rpartition("/")[0] for name in names}:
            (files / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            (files / name).write_bytes(body)
        lines = self.folder / "requests.txt"
        lines.write_text("".join(f"GET /{name}\n" for name in names))
        return lines

    def __enter__(self):
        log = open(self.folder / "output.log", "w")
        self.process = subprocess.Popen(
            [self.program, "-p", str(self.folder), "-e", f"{self.folder}/error.log",
             "-c", f"{self.folder}/nginx.conf"],
            stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + 20
        while not (self.folder / "nginx.pid").exists() or len(proc.children(self.process.pid)) < 2:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"nginx did not start: {(self.folder / 'output.log').read_text()}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=20)

    def cpu_seconds(self):
        """User and system time of the master and its workers."""
        return sum(proc.cpu_seconds(pid) for pid in [self.process.pid, *proc.children(self.process.pid)])
