"""GET of small objects in the memory tier, alternating with the same GETs from the page cache."""

import proc
from load.wrk import wrk
from store import CONNECTIONS

TURNS = 3
# The memory tier of a machine with 20 GiB.
SETTINGS = {"memory.capacity": "2GiB"}
# Long enough that nearly all objects were read once.
WARM_SECONDS = 15
PAGES_WARM_SECONDS = 2


def memory(bench):
    """The CPU time of a GET, and its ratio to that without the memory tier. The server restarts for each
    turn."""
    cost = {"with": [], "without": []}
    for turn in range(TURNS):
        cost["without"].append(turn_of(bench, {}, PAGES_WARM_SECONDS, turn))
        cost["with"].append(turn_of(bench, SETTINGS, WARM_SECONDS, turn))
    shown = {kind: ", ".join(f"{one:.1f}" for one in turns) for kind, turns in cost.items()}
    hot, cached = min(cost["with"]), min(cost["without"])
    note = f"{hot:.1f} of {shown['with']}; without {cached:.1f} of {shown['without']} µs CPU"
    bench.report.at_most("get-4k-memory", hot / cached, "of get-4k", 1.0, note)


def turn_of(bench, settings, warm_seconds, turn):
    """CPU microseconds of a GET on a server that was just started and warmed up."""
    store, names = bench.small(settings)
    lines = store.targets_file("GET", names)
    load = lambda seconds, seed: wrk(store.server.host, lines, seconds, CONNECTIONS, seed=seed)
    with proc.kept_in_page_cache(store.folder):
        load(min(warm_seconds, bench.options.seconds * 2), bench.options.seed + turn)
        bench.report.say(f"get-4k-memory: turn {turn + 1} of {TURNS}, {settings or 'page cache'}")
        return bench.spent(lambda: load(bench.options.seconds, bench.options.seed + TURNS + turn)).cpu_micros
