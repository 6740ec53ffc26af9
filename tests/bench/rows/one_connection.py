"""One connection, compared with nginx that serves the same files in the same run: the two alternate, so that
other activity of the machine affects both."""

from statistics import median

from load.wrk import wrk

TURNS = 3


def one_connection(bench):
    """The median latency of GET 4 KiB, absolute and as a multiple of nginx's."""
    store, names = bench.small()
    ours = store.targets_file("GET", names)
    nginx, theirs = bench.nginx(names)
    with nginx:
        waits = take_turns(bench, (store.server.host, ours), (nginx.host, theirs))
    bench.report.at_most("one-connection", waits[0], "µs p50", 1000)
    bench.report.at_most(
        "one-connection-nginx", waits[0] / waits[1], "of nginx's", 1.5, f"nginx {waits[1]:.0f} µs")


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
