"""strace: counts a server's system calls for a while, or makes its syncs slow."""

import re
import signal
import subprocess

from server import ServerError


def slow_syncs(micros):
    """The prefix of a server's command line that makes each of its syncs take `micros` longer. The tracer is
    the grandchild (-D), so that the process started is the server itself; with --seccomp-bpf only syncs are
    slowed."""
    return ["strace", "-D", "-f", "--quiet=all", "--seccomp-bpf", "--trace=fsync,fdatasync",
            f"--inject=fsync,fdatasync:delay_exit={micros}", "--output=/dev/null"]


class CountedCalls:
    """Counts the system calls of all threads of a process while it is entered; afterwards `counts` has them
    by name."""

    def __init__(self, pid, output):
        self.pid, self.output, self.counts = pid, output, {}

    def __enter__(self):
        command = ["strace", "-f", "-c", "-U", "calls,name", "-p", str(self.pid), "-o", str(self.output)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        if "attached" not in line:
            raise ServerError(f"strace did not attach: {line}{self.process.stderr.read()}")
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=30)
        found = re.findall(r"^ *(\d+) +(\w+)$", self.output.read_text(), re.M)
        self.counts = {name: int(calls) for calls, name in found if name != "total"}

    def __str__(self):
        total = sum(self.counts.values())
        top = sorted(self.counts.items(), key=lambda item: -item[1])[:6]
        return ", ".join(f"{name} {count / total:.0%}" for name, count in top)
