"""Starts the release binary for a measurement, and reads its metrics."""

import os
import re
import signal
import socket
import subprocess
import time
import urllib.request

ROOT_KEY, ROOT_SECRET = "bench-root-key", "bench-root-secret-0123456789"
READY_SECONDS_MAX = 300
GLANCE_SECONDS = 0.01


class ServerError(Exception):
    """The server did not start or exit as expected."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def variable(setting):
    """The environment variable of a setting: MLGW_HOT__SEGMENT_BYTES for hot.segment_bytes."""
    return "MLGW_" + setting.replace(".", "__").upper()


def environment(settings):
    """The server's environment: these settings and the root key, without any mlgw variables of the shell."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MLGW_")}
    root = {"MLGW_ROOT_ACCESS_KEY_ID": ROOT_KEY, "MLGW_ROOT_SECRET_ACCESS_KEY": ROOT_SECRET}
    return outside | root | {variable(name): str(value) for name, value in settings.items()}


class Server:
    """An `mlgw serve` on a data directory, optionally `under` another program that becomes it. Its ports stay
    the same over restarts, so that presigned requests stay valid."""

    def __init__(self, binary, data_dir, log, under=(), settings=None):
        self.command, self.data_dir, self.log = [*under, binary], data_dir, log
        self.settings = settings or {}
        self.port, self.admin_port = free_port(), free_port()
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [*self.command, "serve", "--data-dir", self.data_dir,
             "--listen", f"127.0.0.1:{self.port}", "--admin-listen", f"127.0.0.1:{self.admin_port}"],
            env=environment(self.settings), stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._is_ready():
            if self.process.poll() is not None:
                raise ServerError(f"mlgw serve ended with {self.process.returncode}; see its log")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerError(f"mlgw serve was not ready within {READY_SECONDS_MAX} s")
            time.sleep(GLANCE_SECONDS)

    def _is_ready(self):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/readyz", timeout=1).close()
            return True
        except OSError:
            return False

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout=120) != 0:
            raise ServerError(f"mlgw serve ended with {self.process.returncode} on SIGTERM")

    def kill(self):
        """Sends kill -9; no-op if the server has ended already."""
        self.process.kill()
        self.process.wait()

    @property
    def pid(self):
        return self.process.pid

    @property
    def host(self):
        return f"127.0.0.1:{self.port}"

    def metrics(self):
        """The current samples."""
        url = f"http://127.0.0.1:{self.admin_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return Metrics(answer.read().decode())


class Metrics:
    """Samples of one moment."""

    def __init__(self, text):
        self.samples = []
        for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.M):
            self.samples.append((name, dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)))

    def sum(self, name, **labels):
        """The sum of the samples that have this name and these labels."""
        wanted = labels.items()
        return sum(value for known, has, value in self.samples if known == name and wanted <= has.items())

    def values(self, label, name):
        """Every value that a label of a metric has."""
        return sorted({has[label] for known, has, _ in self.samples if known == name and label in has})


def growth(before, after):
    """The growth of a metric between two moments: a function like Metrics.sum."""
    return lambda name, **labels: after.sum(name, **labels) - before.sum(name, **labels)
