"""GET of 64 MiB from the page cache: CPU for a GiB."""

from load.result import Load
from load.streams import download, in_parallel
from units import GIB, MIB

BODY_BYTES = 64 * MIB
OBJECTS = 8
THREADS = 4


def large(bench):
    """Four connections read objects of 64 MiB in turn."""
    store = bench.open("read")
    names = [f"large/{at}" for at in range(OBJECTS)]
    store.fill("64 MiB objects", names, BODY_BYTES)
    store.restart()
    gib = bench.options.gib * 4
    requests = list(store.requests("GET", names)) * int(gib * GIB / BODY_BYTES / OBJECTS)
    run = lambda some: in_parallel(lambda one: download(store.server.port, one, BODY_BYTES), some, THREADS)
    run(requests[:OBJECTS])
    bench.report.say(f"reading {gib:g} GiB")
    load = bench.spent(lambda: Load.counted(lambda: len(run(requests))))
    rate = len(requests) * BODY_BYTES / GIB / load.seconds
    bench.report.at_most("get-64m", load.cpu / gib, "CPU s/GiB", 0.65, f"{rate:.2f} GiB/s")
