"""strace: counts a server's system calls for a while, or makes its syncs slow, always or for a while."""

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


class SlowSyncs:
    """Makes each sync of a running process take `micros` longer while it is entered. All of its system calls
    are traced meanwhile, so it is slower in other ways as well."""

    def __init__(self, pid, micros):
        self.command = ["strace", "-f", "-p", str(pid), "--trace=fsync,fdatasync", "--output=/dev/null",
                        f"--inject=fsync,fdatasync:delay_exit={micros}"]

    def __enter__(self):
        self.process = attached(self.command)
        return self

    def __exit__(self, *_):
        detach(self.process)


class CountedCalls:
    """Counts the system calls of all threads of a process while it is entered; afterwards `counts` has them
    by name."""

    def __init__(self, pid, output):
        self.pid, self.output, self.counts = pid, output, {}

    def __enter__(self):
        command = ["strace", "-f", "-c", "-U", "calls,name", "-p", str(self.pid), "-o", str(self.output)]
        self.process = attached(command)
        return self

    def __exit__(self, *_):
        detach(self.process)
        found = re.findall(r"^ *(\d+) +(\w+)$", self.output.read_text(), re.M)
        self.counts = {name: int(calls) for calls, name in found if name != "total"}

    def __str__(self):
        total = sum(self.counts.values())
        top = sorted(self.counts.items(), key=lambda item: -item[1])[:6]
        return ", ".join(f"{name} {count / total:.0%}" for name, count in top)


def attached(command):
    """A running strace, once it has attached."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    if "attached" not in line:
        raise ServerError(f"strace did not attach: {line}{process.stderr.read()}")
    return process


def detach(process):
    """Ends a strace; its process continues."""
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
