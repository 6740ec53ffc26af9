#!/usr/bin/env python3
"""The rows of `make bench`: server CPU per request, beside its target.

CPU is user plus system time of the whole server process over the requests it served; requests
come from wrk over 32 keep-alive connections, each target presigned beforehand. Exit 1 when a row
misses its target by more than --slack times (1 unless told).
"""

import argparse
import http.client
import json
import os
import random
import re
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from server import ROOT_KEY, ROOT_SECRET, Server
from signing import signers

HERE = Path(__file__).resolve().parent
BUCKET = "bench"
CONNECTIONS = 32


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = Path(tempfile.mkdtemp(prefix="mlgw-bench-", dir=arguments.dir))
        self.log = open(self.folder / "server.log", "w")
        self.server = Server(arguments.binary, str(self.folder / "data"), self.log)
        self.keys = [(ROOT_KEY, ROOT_SECRET)] + [self.access_key(name) for name in ("a", "b")]
        self.call("PUT", f"/{BUCKET}")
        self.rows = []

    def access_key(self, name):
        """A further key, made by the command line."""
        out = subprocess.run(
            [self.arguments.binary, "--endpoint", f"http://127.0.0.1:{self.server.admin_port}", "--output", "json",
             "access", "key", "create", "--role", "write"],
            env=dict(os.environ, AWS_ACCESS_KEY_ID=ROOT_KEY, AWS_SECRET_ACCESS_KEY=ROOT_SECRET),
            check=True, capture_output=True, text=True).stdout
        made = json.loads(out)
        return made["key"]["access_key"], made["secret_access_key"]

    def call(self, method, path, query=()):
        """One request outside the measurement."""
        target = signers(self.keys[:1] if hasattr(self, "keys") else [(ROOT_KEY, ROOT_SECRET)])[0].presign(
            method, self.server.host, path, query)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        connection.request(method, target, headers={"Host": self.server.host})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path} answered {answer.status}: {body[:300]!r}")
        return body

    def targets(self, method, names, query=()):
        """A file with a presigned request for each name."""
        many = signers(self.keys)
        path = self.folder / f"{method.lower()}-{len(names)}-{random.randrange(1 << 30)}.txt"
        with open(path, "w") as out:
            for at, name in enumerate(names):
                target = many[at % len(many)].presign(method, self.server.host, f"/{BUCKET}/{name}", query)
                out.write(f"{method} {target}\n")
        return path

    def wrk(self, targets, seconds, order="any", body_bytes=0, connections=CONNECTIONS):
        out = subprocess.run(
            ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(HERE / "requests.lua"),
             f"http://{self.server.host}", "--", str(targets), order, str(body_bytes), self.server.host,
             str(self.arguments.seed)],
            check=True, capture_output=True, text=True).stdout
        found = re.search(r"RESULT (.*)", out)
        if not found:
            raise SystemExit(f"wrk printed no result:\n{out}")
        result = {name: int(value) for name, value in (pair.split("=") for pair in found.group(1).split())}
        failed = {name: result[name] for name in ("status", "connect", "read", "write", "timeout") if result[name]}
        if failed:
            raise SystemExit(f"requests failed: {failed}")
        return result

    def measured(self, *args, load=None, **kwargs):
        """A run of wrk (or of another load), with the CPU seconds that the server spent on it."""
        before = self.server.cpu_seconds()
        result = (load or self.wrk)(*args, **kwargs)
        result["cpu"] = self.server.cpu_seconds() - before
        return result

    def heads(self, targets, seconds):
        """HEAD requests over keep-alive connections: wrk waits for the body that HEAD never sends."""
        end = f" HTTP/1.1\r\nHost: {self.server.host}\r\n\r\n".encode()
        requests = [line.strip().encode() + end for line in open(targets)]
        chance, waits, sent = random.Random(self.arguments.seed), [], {}
        selector = selectors.DefaultSelector()

        def send(connection):
            sent[connection] = time.monotonic()
            connection.sendall(chance.choice(requests))

        for _ in range(CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", self.server.port))
            selector.register(connection, selectors.EVENT_READ)
            send(connection)
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            for key, _ in selector.select(1):
                answer = key.fileobj.recv(65536)
                if not (answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\n")):
                    raise SystemExit(f"HEAD answered {answer[:200]!r}")
                waits.append(time.monotonic() - sent[key.fileobj])
                send(key.fileobj)
        micros = (time.monotonic() - begin) * 1e6
        for key in list(selector.get_map().values()):
            key.fileobj.close()
        waits.sort()
        at = lambda part: int(waits[int(len(waits) * part)] * 1e6)
        return {"requests": len(waits), "micros": int(micros), "p50": at(0.5), "p99": at(0.99)}

    def fill(self, prefix, count, body_bytes):
        """PUTs `count` objects, each once."""
        names = [f"{prefix}/{at:07d}" for at in range(count)]
        targets = self.targets("PUT", names)
        done = 0
        while done < count:
            # wrk goes by time: what it did not reach is sent again from the start of the file.
            result = self.wrk(targets, self.arguments.fill_seconds, order="each", body_bytes=body_bytes)
            done = result["requests"]
            if done < count:
                rate = done / self.arguments.fill_seconds
                self.arguments.fill_seconds = int(count / rate * 1.3) + 1
        return names

    def row(self, name, value, unit, target, at_least=False, note=""):
        ratio = target / value if at_least else value / target
        self.rows.append((name, value, unit, target, at_least, ratio, note))
        sign = "≥" if at_least else "≤"
        verdict = "met" if ratio <= 1 else f"{ratio:.2f}x"
        digits = 1 if value >= 10 else 3
        print(f"{name:<28} {value:>12,.{digits}f} {unit:<12} target {sign} {target:>10,} {verdict:>8}  {note}", flush=True)

    def per_request(self, name, result, target, note=""):
        rate = result["requests"] / (result["micros"] / 1e6)
        more = f"{rate:,.0f}/s p50 {result['p50']} µs p99 {result['p99']} µs {note}"
        self.row(name, result["cpu"] / result["requests"] * 1e6, "µs CPU", target, note=more)


def get_rows(bench):
    names = bench.fill("small", bench.arguments.objects, 4096)
    bench.server.restart()
    targets = bench.targets("GET", names)
    bench.wrk(targets, 2)
    bench.per_request("get-4k", bench.measured(targets, bench.arguments.seconds), 18)
    single = bench.measured(targets, max(3, bench.arguments.seconds // 3), connections=1)
    bench.row("get-4k-one-connection", single["p50"], "µs p50", 1000)
    heads = bench.targets("HEAD", names)
    bench.per_request("head", bench.measured(heads, bench.arguments.seconds, load=bench.heads), 13)


def get_100k_row(bench):
    names = bench.fill("medium", max(1000, bench.arguments.objects // 20), 102400)
    bench.server.restart()
    targets = bench.targets("GET", names)
    bench.wrk(targets, 2)
    bench.per_request("get-100k", bench.measured(targets, bench.arguments.seconds), 50)


def put_rows(bench):
    bench.server.restart()
    names = [f"put/{at:07d}" for at in range(bench.arguments.puts)]
    targets = bench.targets("PUT", names)
    for connections, target in ((1, 2.0), (32, 0.15), (128, 0.05)):
        before = bench.server.metric("mlgw_sync_total")
        seconds = bench.arguments.seconds * (3 if connections == 32 else 1)
        result = bench.measured(targets, seconds, order="each", body_bytes=4096, connections=connections)
        syncs = bench.server.metric("mlgw_sync_total") - before
        if connections == 32:
            bench.per_request("put-4k", result, 60)
        bench.row(f"syncs-per-put-{connections}", syncs / result["requests"], "syncs", target)


def list_row(bench):
    bench.fill("list", bench.arguments.keys, 64)
    bench.server.restart()
    before, keys, token = bench.server.cpu_seconds(), 0, None
    while True:
        query = [("list-type", "2"), ("prefix", "list/")] + ([("continuation-token", token)] if token else [])
        page = bench.call("GET", f"/{BUCKET}", query).decode()
        keys += page.count("<Key>")
        found = re.search("<NextContinuationToken>([^<]*)<", page)
        if not found:
            break
        token = found.group(1)
    if keys != bench.arguments.keys:
        raise SystemExit(f"LIST gave {keys} of {bench.arguments.keys} keys")
    bench.row("list", keys / (bench.server.cpu_seconds() - before), "keys/CPU s", 400_000, at_least=True)


def idle_row(bench):
    bench.server.restart()
    bench.row("idle-memory", bench.server.resident_bytes() / 2**20, "MiB RSS", 80)


ROWS = {"idle": idle_row, "get": get_rows, "get-100k": get_100k_row, "put": put_rows, "list": list_row}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--only", default="", help=f"one of {', '.join(ROWS)}")
    parser.add_argument("--dir", default=None, help="where data goes; a disk, not tmpfs")
    parser.add_argument("--objects", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--puts", type=int, default=500_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--fill-seconds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slack", type=float, default=1.0)
    arguments = parser.parse_args()
    if arguments.only and arguments.only not in ROWS:
        parser.error(f"no row {arguments.only}; there are {', '.join(ROWS)}")
    bench = Bench(arguments)
    try:
        for name, row in ROWS.items():
            if arguments.only in ("", name):
                row(bench)
        bench.server.stop()
    finally:
        bench.server.process.kill()
        shutil.rmtree(bench.folder)
    missed = [row[0] for row in bench.rows if row[5] > arguments.slack]
    print(f"{len(bench.rows) - len(missed)} of {len(bench.rows)} rows within {arguments.slack:g}x of their targets")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
