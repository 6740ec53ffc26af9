"""One connection, beside nginx that serves the same files in the same run: the two take turns, so that whatever else the
machine does meets both."""

import os
from pathlib import Path
from statistics import median

from load.nginx import Nginx
from load.wrk import wrk
from store import CONNECTIONS
from units import KIB

TURNS = 3
PROGRAM = "MLGW_NGINX"


def one_connection(bench):
    """The median wait of GET 4 KiB by itself and as a multiple of nginx's; nginx's CPU for comparison."""
    store, names = bench.small()
    ours = store.targets_file("GET", names)
    nginx = Nginx(os.environ.get(PROGRAM, "nginx"), Path(bench.folder) / "nginx")
    bench.report.say(f"writing {len(names):,} files for nginx")
    theirs = nginx.write(names, 4 * KIB)
    with nginx:
        waits = take_turns(bench, (store.server.host, ours), (nginx.host, theirs))
        bench.report.at_most("one-connection", waits[0], "µs p50", 1000)
        bench.report.at_most("one-connection-nginx", waits[0] / waits[1], "of nginx's", 1.5, f"nginx {waits[1]:.0f} µs")
        cpu_of_nginx(bench, nginx, theirs)


def take_turns(bench, *sides):
    """The median p50 of each side over some turns; the first turn warms up."""
    seconds = max(2, bench.options.seconds // 3)
    p50 = [[] for _ in sides]
    for turn in range(TURNS + 1):
        for side, (host, lines) in enumerate(sides):
            wait = wrk(host, lines, seconds, 1, seed=bench.options.seed + turn).p50
            if turn > 0:
                p50[side].append(wait)
        bench.report.say(f"one connection: turn {turn} of {TURNS}")
    return [median(waits) for waits in p50]


def cpu_of_nginx(bench, nginx, lines):
    wrk(nginx.host, lines, 1, CONNECTIONS)
    before = nginx.cpu_seconds()
    load = wrk(nginx.host, lines, bench.options.seconds // 2 + 1, CONNECTIONS)
    load.cpu = nginx.cpu_seconds() - before
    bench.report.information("get-4k-nginx", load.cpu_micros, "µs CPU", f"32 connections, {load}")
