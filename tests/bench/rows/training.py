"""The benefit of a remote-backed bucket for training and serving: PyTorch over the S3 connector, a model
loaded by many replicas at once, and a scan beside training; each compared with the same run without it."""

import json
import os
import random
import statistics
import subprocess
from pathlib import Path

from bench import numbered
from load.jobs import Job, Reading, epochs, hit_ratio
from references import lru
from rows.bound import BOUND, fronted
from rows.policy import COUNTED_FROM, ONE_BYTES, WAY, kept, pairs
from server import ROOT_KEY, ROOT_SECRET, growth
from store import BUCKET
from units import KIB, MIB

REPO = Path(__file__).parents[3]
LOOP = Path(__file__).parents[1] / "load" / "torch_training.py"
# Half of the accelerator's data rate below.
NARROW = {"delay": "20ms", "connection_rate": "20MB", "total_rate": "20MB"}
TORCH_BYTES = 128 * KIB
TORCH_EPOCHS = 4
# 16 samples in 50 ms are 42 MB/s.
BATCH, COMPUTE_SECONDS, WORKERS = 16, 0.05, 4
SHARDS, REPLICAS = 8, 16
SCAN_EPOCHS = 5


def training(bench):
    """Three uses, each before the origin that it needs."""
    with fronted(bench, NARROW) as (origin, proxy):
        pytorch(bench, origin, proxy)
    with fronted(bench, WAY) as (origin, proxy):
        model(bench, origin, proxy)
        scan(bench, origin, proxy)


def pytorch(bench, origin, proxy):
    """Four shuffled epochs: from the origin itself, through a server without cache space, and through one
    with space for half."""
    count = 128 if bench.options.quickly else 640
    total = count * TORCH_BYTES
    origin.fill("samples for PyTorch", numbered("torch", count), TORCH_BYTES)
    ran = {"direct": loop(bench, proxy.port, BUCKET)}
    with kept(bench, origin, proxy, 0) as server:
        ran["none"], came = through(bench, server)
    bench.report.information("training-origin-none", came / total, "datasets", "no room for copies")
    with kept(bench, origin, proxy, total / 2) as server:
        server.store.command("trace", "start", "bench")
        ran["kept"], came = through(bench, server)
        capacity, file = server.end_recording()
        ratios = server.simulated(file, capacity, "lru", "optimum", field="upstream_bytes")
    note = "all reads over bytes of the dataset, computed of the same requests"
    bench.report.information("training-origin-lru", ratios["lru"] / total, "datasets", note)
    best = ratios["optimum"] / total
    bench.report.information("training-origin-optimum", best, "datasets", note)
    note = f"in {TORCH_EPOCHS} epochs, room for {capacity / total:.2f}"
    bench.report.at_most("training-origin-kept", came / total, "datasets", best * 1.02, note)
    settled_epochs(bench, ran)


def settled_epochs(bench, ran):
    """Seconds, and the part of them spent waiting, from the third epoch on."""
    names = {
        "direct": "from the origin itself", "none": "through a server without room",
        "kept": "with room for half"}
    for kind, name in names.items():
        settled = ran[kind][COUNTED_FROM - 1 :]
        seconds = statistics.mean(epoch["seconds"] for epoch in settled)
        stalled = sum(epoch["waited"] for epoch in settled) / sum(epoch["seconds"] for epoch in settled)
        bench.report.information(
            f"training-epoch-{kind}", seconds, "s", f"{name}; the first took {ran[kind][0]['seconds']:.2f}")
        bench.report.information(f"training-stall-{kind}", stalled * 100, "% waiting", name)


def loop(bench, port, bucket):
    """The results that the training loop prints for its epochs."""
    python = said([REPO / "tests/steps/python-env", "torch"]).strip()
    options = {"endpoint": f"http://127.0.0.1:{port}", "uri": f"s3://{bucket}/torch/", "epochs": TORCH_EPOCHS, "batch": BATCH,
               "compute": COMPUTE_SECONDS, "workers": WORKERS, "seed": bench.options.seed}
    # There are more workers than cores here: they wait for the origin.
    command = [python, "-W", "ignore::UserWarning", LOOP, json.dumps(options)]
    keys = {"AWS_ACCESS_KEY_ID": ROOT_KEY, "AWS_SECRET_ACCESS_KEY": ROOT_SECRET}
    return [json.loads(line) for line in said(command, os.environ | keys).splitlines()]


def said(command, environment=None):
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def through(bench, server):
    """The same through a server, and the bytes that came from its origin meanwhile."""
    before = server.store.server.metrics()
    epochs_of_it = loop(bench, server.store.server.port, BOUND)
    return epochs_of_it, growth(before, server.store.server.metrics())("mlgw_upstream_bytes_total")


def model(bench, origin, proxy):
    """Replicas start at once and each loads all shards of a model, one after the other."""
    shard_bytes = (2 if bench.options.quickly else 8) * MIB
    shards = origin.fill("shards of a model", numbered("model", SHARDS), shard_bytes)
    jobs = [Job(f"replica-{at}", shards) for at in range(REPLICAS)]
    signer, host = origin.signers()[0], f"127.0.0.1:{proxy.port}"
    direct = Reading(proxy.port, lambda name: signer.presign("GET", host, f"/{BUCKET}/{name}"), jobs).run()
    with kept(bench, origin, proxy, 4 * SHARDS * shard_bytes) as server:
        before = server.store.server.metrics()
        ours = server.read(*jobs)
        came = growth(before, server.store.server.metrics())("mlgw_upstream_bytes_total")
    middle = lambda reads: statistics.median(read.wait for read in reads) * 1000
    late = lambda reads: sorted(read.wait for read in reads)[int(len(reads) * 0.99)] * 1000
    for name, part in (("p50", middle), ("p99", late)):
        bench.report.information(
            f"model-{name}-direct", part(direct), "ms a shard", f"{REPLICAS} replicas at once")
        bench.report.information(f"model-{name}-here", part(ours), "ms a shard")
        bench.report.at_most(f"model-{name}", part(ours) / part(direct), "of direct", 0.5)
    bench.report.at_most(
        "model-origin", came / (SHARDS * shard_bytes), "models", 1.01, f"for {REPLICAS} replicas at once")


def scan(bench, origin, proxy):
    """A pipeline reads a lake of three times the dataset once, beside training with space for half of its
    dataset."""
    count = 100 if bench.options.quickly else 300
    names = origin.fill("objects of one job", numbered("one", count), ONE_BYTES)
    lake = origin.fill("objects of a lake", numbered("lake", 3 * count), ONE_BYTES)
    found = {}
    for kind in ("alone", "beside"):
        order = epochs(names, SCAN_EPOCHS, random.Random(bench.options.seed))
        jobs = [Job("trainer", order, connections=2)]
        if kind == "beside":
            jobs.append(Job("pipeline", lake, connections=2, after=(COUNTED_FROM - 1) * count))
        with kept(bench, origin, proxy, count * ONE_BYTES / 2) as server:
            reads, capacity, _ = server.recorded(*jobs)
        found[kind] = hit_ratio(settled(reads, count))
        found[f"lru-{kind}"] = lru_of_trainer(reads, capacity, count)
    for kind, share in found.items():
        bench.report.information(
            f"scan-{kind}", share, "found", "from the same reads" if "lru" in kind else "")
    bench.report.at_most("scan-loss", max(0.0, found["alone"] - found["beside"]), "fewer", 0.02)


def settled(reads, count):
    """The trainer's reads from the third epoch on."""
    return [read for read in reads if read.job == "trainer"][(COUNTED_FROM - 1) * count :]


def lru_of_trainer(reads, capacity, count):
    """The hits of these reads with LRU, with all reads in one cache."""
    sizes = lru(pairs(reads), capacity)
    of_trainer = [size for read, size in zip(reads, sizes) if read.job == "trainer"]
    counted = (COUNTED_FROM - 1) * count
    return sum(of_trainer[counted:]) / sum(read.size for read in settled(reads, count))
