"""Starts the release binary for a benchmark and reads its CPU time and memory from /proc."""

import os
import signal
import socket
import subprocess
import time
import urllib.request

ROOT_KEY, ROOT_SECRET = "bench-root-key", "bench-root-secret-0123456789"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One `mlgw serve` on a data directory, perhaps `under` another program; `restart` keeps the directory."""

    def __init__(self, binary, data_dir, log, under=()):
        self.command, self.data_dir, self.log = [*under, binary], data_dir, log
        self.start()

    def start(self):
        self.port, self.admin_port = free_port(), free_port()
        environment = dict(os.environ, MLGW_ROOT_ACCESS_KEY_ID=ROOT_KEY, MLGW_ROOT_SECRET_ACCESS_KEY=ROOT_SECRET)
        self.process = subprocess.Popen(
            [*self.command, "serve", "--data-dir", self.data_dir,
             "--listen", f"127.0.0.1:{self.port}", "--admin-listen", f"127.0.0.1:{self.admin_port}"],
            env=environment, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/readyz", timeout=1)
                return
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit(f"mlgw serve ended with {self.process.returncode}; see its log")
                if time.monotonic() > deadline:
                    raise SystemExit("mlgw serve was not ready within 120 s")
                time.sleep(0.02)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout=120) != 0:
            raise SystemExit(f"mlgw serve ended with {self.process.returncode} on SIGTERM")

    def restart(self):
        self.stop()
        self.start()

    @property
    def host(self):
        return f"127.0.0.1:{self.port}"

    def cpu_seconds(self):
        """User and system time of all threads so far."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        raise SystemExit("no VmRSS in /proc")

    def metric(self, name):
        """The sum of a metric's samples."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=10).read().decode()
        samples = [line for line in text.splitlines() if line.startswith(name) and line[len(name)] in " {"]
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples)
