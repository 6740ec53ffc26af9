"""The server under load and the measuring tools: stores that rows share, and the CPU time of the server
during a load."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import proc
from load.nginx import Nginx
from report import Report
from store import Store
from units import KIB

# With --quickly segments are sealed and the log is cut as often, for a tenth of the requests.
QUICK_SETTINGS = {"hot.segment_bytes": "16MiB", "catalogue.log_bytes_max": "8MiB"}
# Rows read from the page cache, unless they state otherwise.
NO_MEMORY_TIER = {"memory.capacity": "0"}
# For rows that compaction would disturb: compaction runs only on request, or at the next start.
NO_COMPACTION = {"hot.compact_interval": "1h"}
MILLION_PREFIXES = 1000
NGINX = "MLGW_NGINX"
REST_SECONDS_MAX = 60
# CPU seconds per second.
REST_CPU_SECONDS = 0.02


class Bench:
    """One server at a time; each store is a data directory."""

    def __init__(self, options):
        self.options, self.report = options, Report()
        self.folder = Path(tempfile.mkdtemp(prefix="mlgw-bench-", dir=options.dir))
        self.log = open(self.folder / "server.log", "w")
        self.stores, self.current, self._nginx = {}, None, None

    def close(self):
        """Stops the running server and removes all data."""
        self.abandon()
        self.log.close()
        self.report.say("removing the data")
        shutil.rmtree(self.folder)

    def open(self, name, settings=None, under=()):
        """Opens a store with a server that was just started."""
        self.stop()
        store = self.stores.get(name) or Store(self.options.binary, self.folder / name, self.log, self.report)
        self.stores[name] = self.current = store
        store.start(self.settings(settings), under)
        return store

    def settings(self, settings=None):
        """The settings of a server, with these in addition."""
        quick = QUICK_SETTINGS if self.options.quickly else {}
        return NO_MEMORY_TIER | quick | (settings or {})

    def stop(self):
        """Stops the running server."""
        if self.current:
            self.current.stop()
        self.current = None

    def abandon(self):
        """Kills the running server, whatever it does."""
        if self.current and self.current.server:
            self.current.server.kill()
        self.current = None

    def spent(self, work):
        """The result of `work`, with the CPU seconds that the server spent on it as its `cpu`."""
        pid = self.current.server.pid
        before = proc.cpu_seconds(pid)
        load = work()
        load.cpu = proc.cpu_seconds(pid) - before
        return load

    def rest(self):
        """Waits until the server has no background work, for a minute at most."""
        pid, deadline = self.current.server.pid, time.monotonic() + REST_SECONDS_MAX
        self.report.say("waiting until the server is at rest")
        while time.monotonic() < deadline:
            before = proc.cpu_seconds(pid)
            time.sleep(1)
            if proc.cpu_seconds(pid) - before < REST_CPU_SECONDS:
                return

    def nginx(self, names):
        """nginx over files of 4 KiB under these names, to be started by `with`; and a file of request lines
        for them."""
        if not self._nginx:
            nginx = Nginx(os.environ.get(NGINX, "nginx"), self.folder / "nginx")
            self.report.say(f"writing {len(names):,} files for nginx")
            self._nginx = nginx, nginx.write(names, 4 * KIB)
        return self._nginx

    # Objects that several groups of rows use.

    def small(self, settings=None):
        """The store of objects to read, with a restarted server, and the names of its 4 KiB objects."""
        return self._filled(
            "read", "4 KiB objects", numbered("small", self.options.objects), 4 * KIB, settings)

    def empty(self):
        """The same with empty objects."""
        return self._filled("read", "empty objects", numbered("empty", self.options.objects), 0)

    def medium(self):
        """The same with objects of 100 KiB."""
        return self._filled(
            "read", "100 KiB objects", numbered("medium", self.options.objects // 20), 100 * KIB)

    def million(self, settings=None):
        """The store of a million objects of 1 KiB, with a restarted server, and their names: m/PPP/NNN."""
        return self._filled("million", *self.million_objects(), settings)

    def million_objects(self):
        """The contents of that store: description, names, bytes of each object."""
        width = max(1, self.options.million // MILLION_PREFIXES)
        names = [f"m/{at // width:03d}/{at % width:03d}" for at in range(width * MILLION_PREFIXES)]
        return "1 KiB objects", names, KIB

    def _filled(self, store, what, names, body_bytes, settings=None):
        opened = self.open(store, settings)
        if what not in opened.filled:
            opened.fill(what, names, body_bytes)
            opened.restart()
        return opened, names


def numbered(prefix, count):
    return [f"{prefix}/{at:07d}" for at in range(count)]
