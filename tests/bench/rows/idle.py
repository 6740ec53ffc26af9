"""An idle server with a million objects in it: memory and CPU."""

import time

import proc
from units import MIB


def idle(bench):
    """After a restart, when the scan for checkpoints that follows it is done: CPU over 30 s, then RSS."""
    store, _ = bench.million()
    pid, seconds = store.server.pid, bench.options.idle_seconds
    bench.rest()
    bench.report.say(f"idle: watching for {seconds} s")
    before = proc.cpu_seconds(pid)
    time.sleep(seconds)
    cpu = proc.cpu_seconds(pid) - before
    bench.report.at_most("idle-cpu", cpu / seconds * 100, "% of a core", 0.5)
    bench.report.at_most("idle-memory", proc.resident_bytes(pid) / MIB, "MiB RSS", 80)
