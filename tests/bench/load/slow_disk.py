"""A disk of one spindle, 150 MB/s and 8 ms for a seek: the slow disk of the tests, as a program of its own.
"""

import signal
import subprocess

UNMOUNT_SECONDS_MAX = 30


class SlowDiskError(Exception):
    """The disk could not be mounted or unmounted; the reason is on standard error."""


class SlowDisk:
    """A directory `path` that is mounted over `backing`; to be used by `with`, at whose end no process may
    use it. The kernel caches it as any disk: writes wait for it, recently written or read data can be read
    again from memory."""

    def __init__(self, program, folder):
        self.backing, self.path = folder / "slow-backing", folder / "slow"
        self.command = [
            program, self.backing, self.path, "--bytes-per-second", "150MB", "--seek", "8ms", "--page-cache"]

    def __enter__(self):
        for folder in (self.backing, self.path):
            folder.mkdir()
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        if not self.process.stdout.readline():
            self.process.wait()
            raise SlowDiskError(f"not mounted: {self.command[0]} ended with {self.process.returncode}")
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=UNMOUNT_SECONDS_MAX)
        self.process.stdout.close()
        if status != 0:
            raise SlowDiskError(f"not unmounted: {self.command[0]} ended with {status}")
