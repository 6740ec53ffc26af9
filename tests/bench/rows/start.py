"""Starting with a million objects: after a clean stop, and after kill -9 during writes. Data is read from the
disk: the data directory is dropped from the page cache before."""

import threading

import proc
from load.keepalive import AnswerError, exchange
from store import CONNECTIONS
from units import KIB, MIB

READ_MIB = 64


def start(bench):
    """CPU and bytes read until /readyz answers."""
    store, names = bench.million()
    store.server.stop()
    measure(bench, store, "start-clean", 2.0, 0)
    log_bytes = kill_amid_writes(bench, store, names)
    measure(bench, store, "start-killed", 5.0, log_bytes)


def measure(bench, store, name, cpu_seconds_max, log_bytes):
    proc.drop_from_page_cache(store.folder)
    store.server.start()
    pid = store.server.pid
    cpu, read = proc.cpu_seconds(pid), proc.read_bytes(pid)
    note = f"{log_bytes / MIB:.0f} MiB of log not purged" if log_bytes else ""
    bench.report.at_most(f"{name}-cpu", cpu, "CPU s", cpu_seconds_max, note)
    bench.report.at_most(f"{name}-read", read / MIB, "MiB read", READ_MIB + log_bytes / MIB, note)


def kill_amid_writes(bench, store, names):
    """Overwrites a large part of the objects at 32 connections and kills the server meanwhile; returns the
    bytes of its log then."""
    enough = threading.Event()
    wanted = min(len(names) - CONNECTIONS, bench.options.puts // 2)
    count = bench.report.counter("overwriting before kill -9", wanted)

    def counted():
        count()
        if count.done >= wanted:
            enough.set()

    requests = store.puts(names * 4, KIB)
    writer = threading.Thread(target=until_it_ends, args=(store.server.port, requests, counted))
    writer.start()
    while not enough.wait(0.1) and writer.is_alive():
        pass
    log_bytes = store.server.metrics().sum("mlgw_raft_log_bytes")
    if not writer.is_alive():
        raise AnswerError("the writer ended before the server was killed")
    store.server.kill()
    writer.join()
    return log_bytes


def until_it_ends(port, requests, on_answer):
    try:
        exchange(port, requests, CONNECTIONS, on_answer=on_answer)
    except (AnswerError, OSError):
        pass
