#!/usr/bin/env python3
"""Instructions of one GET, HEAD, PUT and page of LIST, counted by callgrind and compared with the figures in
instructions.json.

A count hardly depends on other activity of the machine, so an increase of a fiftieth fails immediately, where
noise would hide it in times. All threads of the server count, and reads of blocks that the page cache has
dropped or threads that were preempted add some, never less: a count that is too high is measured again, and
the lowest counts. UPDATE=1 stores the new figures.

The record belongs to a machine: its kernel and its C library change the counts of the same binary by up to
5 %. On another machine, count the binary of the commit of the record again before a higher count is blamed on
a change.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from server import ROOT_KEY, ROOT_SECRET, Server
from signing import signers

KEPT = Path(__file__).resolve().parent / "instructions.json"
BUCKET = "bench"
OBJECTS = 1000
BODY = bytes(range(256)) * 16
MORE_MAX = 1.02
TRIES = 5
# No scan of all objects runs during counting, except the one at the start, which is waited for.
SETTINGS = {"policy.look_every": "1d"}
AT_REST_SHARE = 0.1


class Client:
    """A keep-alive connection; every request has a presigned URL made beforehand."""

    def __init__(self, server):
        self.host = server.host
        self.signer = signers([(ROOT_KEY, ROOT_SECRET)])[0]
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)

    def targets(self, method, paths, query=()):
        return [self.signer.presign(method, self.host, path, query) for path in paths]

    def send(self, method, target, body=None):
        self.connection.request(method, target, body, {"Host": self.host})
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {target} answered {answer.status}: {content[:300]!r}")
        return content


def fill(binary, data, log):
    server = Server(binary, data, log)
    client = Client(server)
    client.send("PUT", client.targets("PUT", [f"/{BUCKET}"])[0])
    for target in client.targets("PUT", [f"/{BUCKET}/small/{at:07d}" for at in range(OBJECTS)]):
        client.send("PUT", target, BODY)
    server.stop()


class Counter:
    """Switches counting in the server on and off."""

    def __init__(self, server, folder):
        self.pid, self.folder, self.dumps = server.process.pid, folder, 0

    def control(self, *options):
        subprocess.run(["callgrind_control", *options, str(self.pid)], check=True, capture_output=True)

    def count(self, work):
        self.control("--zero")
        self.control("--instr=on")
        work()
        self.dumps += 1
        self.control("--dump")
        self.control("--instr=off")
        dump = self.folder / f"callgrind.out.{self.dumps}"
        return int(re.search(r"^(?:summary|totals): (\d+)", dump.read_text(), re.M).group(1))


def rest(pid):
    """Waits until a process is nearly idle."""
    ticks = lambda: sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    before = ticks()
    while True:
        time.sleep(1)
        before, least = ticks(), before + AT_REST_SHARE * os.sysconf("SC_CLK_TCK")
        if before < least:
            return


def cache(data):
    """Reads the segments into the page cache, since they were written with direct I/O: the number of GETs
    that would wait for the disk depends on the disk, not on the program."""
    for path in (data / "segments").rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                file.read(2 * OBJECTS * len(BODY))


def measure(binary, folder, log):
    data = str(folder / "data")
    fill(binary, data, log)
    under = [
        "valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no",
        f"--callgrind-out-file={folder}/callgrind.out"]
    server = Server(binary, data, log, under, SETTINGS)
    rest(server.pid)
    client, counter, counts = Client(server), Counter(server, folder), {}
    cache(folder / "data")
    names = [f"/{BUCKET}/small/{at:07d}" for at in range(OBJECTS)]
    page = [("list-type", "2"), ("prefix", "small/"), ("max-keys", str(OBJECTS))]
    requests = {
        "get-4k": ("GET", client.targets("GET", names[:200]), None),
        # The same once more, from the memory tier.
        "get-4k-memory": ("GET", client.targets("GET", names[:200]), None),
        "head": ("HEAD", client.targets("HEAD", names[:200]), None),
        "put-4k": ("PUT", client.targets("PUT", [f"/{BUCKET}/put/{at:07d}" for at in range(200)]), BODY),
        "list-1000": ("GET", client.targets("GET", [f"/{BUCKET}"] * 4, page), None),
    }
    for name, (method, targets, body) in requests.items():
        warm, counted = targets[: len(targets) // 4], targets[len(targets) // 4 :]
        send = lambda chosen: [client.send(method, target, body) for target in chosen]
        send(warm)
        counts[name] = counter.count(lambda: send(counted)) // len(counted)
    server.stop()
    return counts


def measured(binary):
    folder = Path(tempfile.mkdtemp(prefix="mlgw-instructions-"))
    try:
        with open(folder / "server.log", "w") as log:
            return measure(binary, folder, log)
    finally:
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    arguments = parser.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    counts = {}
    for _ in range(TRIES):
        found = measured(arguments.binary)
        counts = {name: min(count, counts.get(name, count)) for name, count in found.items()}
        if all(counts[name] <= kept.get(name, counts[name]) * MORE_MAX for name in counts):
            break
    over = 0
    for name, count in counts.items():
        ratio = count / kept[name] if name in kept else 1
        over += ratio > MORE_MAX
        print(f"{name:<12} {count:>12,} instructions, {ratio:.3f} of the record"
              f"{'  TOO MANY' if ratio > MORE_MAX else ''}")
    if os.environ.get("UPDATE"):
        KEPT.write_text(json.dumps(counts, indent=2) + "\n")
        return
    if set(kept) != set(counts):
        raise SystemExit(f"{KEPT.name} has counts of {sorted(kept)}: run with UPDATE=1")
    if over:
        print("fix it, or explain the higher cost and run with UPDATE=1; after a change of the machine, "
              "count the binary of the record first", file=sys.stderr)
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
