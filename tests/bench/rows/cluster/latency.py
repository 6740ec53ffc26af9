"""Latencies through the nodes that have no failure: the rate of the load, a p99 beside the usual one, and the
requests that failed."""

import math

from load.nodes import capacity
from server import ServerError
from store import CONNECTIONS

# Of what the nodes can do: beyond it a p99 is that of a queue.
LOAD_MAX = 0.4
CAPACITY_SECONDS, SHORT_SECONDS = 5, 2


def rate_of_load(bench, row, stores, mix, per_second):
    """Requests per second of a load whose p99 is judged: `per_second`, or the highest permitted part of what
    these nodes can do, if that is less. Reports the part."""
    bench.report.say(f"{row}: the rate that the nodes can serve")
    seconds = SHORT_SECONDS if bench.options.quickly else CAPACITY_SECONDS
    able = capacity(stores, mix, seconds, CONNECTIONS, bench.options.seed)
    rate = min(per_second, LOAD_MAX * able)
    note = f"{rate:,.0f} requests/s of {able:,.0f}, wanted {per_second:,}"
    bench.report.at_most(f"{row}-load", rate / able, "of capacity", LOAD_MAX, note)
    return rate


def report_p99(bench, row, usual, later, what, most):
    """A p99 divided by the usual one; both in seconds."""
    note = f"p99 {later * 1e3:.1f} ms {what}, before {usual * 1e3:.1f} ms"
    bench.report.at_most(row, ratio(usual, later), "of before", most, note)


def ratio(usual, later):
    """A p99 divided by the usual one."""
    if not math.isfinite(usual):
        raise ServerError("one in a hundred requests failed before anything else did")
    return later / usual


def report_errors(bench, row, requests):
    """Failed requests through nodes that run."""
    failures = sorted(sent.failure for sent in requests if sent.failure)
    note = ", ".join(f"{failures.count(failure)} of {failure}" for failure in dict.fromkeys(failures))
    bench.report.at_most(f"{row}-errors", len(failures), "requests", 0, note)
