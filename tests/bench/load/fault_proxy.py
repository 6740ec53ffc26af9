"""A slow path to a server: the fault proxy of the tests, as a program of its own."""

import json
import subprocess
import urllib.request

from server import free_port


class FaultProxy:
    """A proxy before a server on `port` that delays every request and limits the rate of bodies; to be used
    by `with`."""

    def __init__(self, program, port, delay, connection_rate, total_rate):
        self.control = free_port()
        self.command = [program, "--to", f"127.0.0.1:{port}", "--control", f"127.0.0.1:{self.control}",
                        "--delay", delay, "--connection-rate", connection_rate, "--total-rate", total_rate]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])
        self.process.stdout.readline()
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def log(self):
        """The requests that reached it since the last call."""
        url = f"http://127.0.0.1:{self.control}"
        with urllib.request.urlopen(f"{url}/log", timeout=30) as answer:
            lines = json.loads(answer.read())
        clearing = urllib.request.Request(f"{url}/clear", data=b"", method="POST")
        urllib.request.urlopen(clearing, timeout=30).close()
        return lines
