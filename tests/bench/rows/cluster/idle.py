"""Three idle nodes with eight groups for objects and the system group: CPU and memory of each."""

import time

import proc
from cluster import new_cluster
from units import MIB

SETTINGS = {"catalogue.object_groups": 8}
CPU_MAX, MEMORY_MAX = 1.0, 120


def cluster_idle(bench):
    """CPU over 30 s, then RSS; the node with the most counts."""
    with new_cluster(bench, settings=SETTINGS) as cluster:
        groups, seconds = len(cluster.groups()), bench.options.idle_seconds
        cluster.rest()
        bench.report.say(f"cluster-idle: watching for {seconds} s")
        before = [proc.cpu_seconds(pid) for pid in cluster.pids()]
        time.sleep(seconds)
        spent = [proc.cpu_seconds(pid) - begun for pid, begun in zip(cluster.pids(), before)]
        resident = [proc.resident_bytes(pid) / MIB for pid in cluster.pids()]
    shares = [cpu / seconds * 100 for cpu in spent]
    note = f"{groups} groups; nodes {', '.join(f'{share:.2f}' for share in shares)}"
    bench.report.at_most("cluster-idle-cpu", max(shares), "% of a core", CPU_MAX, note)
    note = f"nodes {', '.join(f'{memory:.0f}' for memory in resident)}"
    bench.report.at_most("cluster-idle-memory", max(resident), "MiB RSS", MEMORY_MAX, note)
