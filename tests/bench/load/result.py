"""The result of a load."""

import time
from dataclasses import dataclass


@dataclass
class Load:
    """The result of a load: successful requests, seconds, latencies in microseconds; CPU seconds of the
    server, if measured."""

    requests: int
    seconds: float
    p50: float
    p99: float
    cpu: float = 0.0

    @staticmethod
    def of_waits(waits, seconds):
        """A result from single latencies in seconds."""
        ordered = sorted(waits)
        at = lambda part: ordered[int(len(ordered) * part)] * 1e6
        return Load(len(ordered), seconds, at(0.5), at(0.99))

    @staticmethod
    def counted(work):
        """A result from work that returns the amount it did, without single latencies."""
        begun = time.perf_counter()
        done = work()
        return Load(done, time.perf_counter() - begun, 0.0, 0.0)

    def __add__(self, later):
        """The results of two consecutive loads; the worse of both latencies."""
        return Load(self.requests + later.requests, self.seconds + later.seconds, max(self.p50, later.p50),
                    max(self.p99, later.p99), self.cpu + later.cpu)

    @property
    def cpu_micros(self):
        """CPU time of one request, in microseconds."""
        return self.cpu / self.requests * 1e6

    @property
    def rate(self):
        return self.requests / self.seconds

    def __str__(self):
        return f"{self.rate:,.0f}/s, p50 {self.p50:,.0f} µs, p99 {self.p99:,.0f} µs"
