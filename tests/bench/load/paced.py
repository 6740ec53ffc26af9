"""An open loop: requests at a given rate, independent of the responses. The latency of a request counts from
the time at which it was due, so it includes the wait for a free connection and for this client. The client
therefore runs with a higher priority where permitted: processor time that it lacks would be attributed to the
server."""

import os
import select
import time
from contextlib import contextmanager

from load.keepalive import ANSWER_SECONDS_MAX, AnswerError, Connection, Waits


CONNECTIONS_MAX = 256
PRIORITY = -15


@contextmanager
def preferred():
    """Raises the priority of this thread meanwhile, if permitted."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    except PermissionError:
        pass
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


class Paced:
    """A number of requests per second for a number of seconds, over as many connections as needed, up to a
    bound."""

    def __init__(self, port, per_second, seconds, body_bytes):
        self.port, self.body_bytes = port, body_bytes
        self.step, self.count = 1 / per_second, int(per_second * seconds)
        self.poll, self.open, self.idle = select.epoll(), {}, []
        self.result, self.sent = Waits(), 0

    def run(self, requests):
        """Sends the requests; returns every latency, once all are answered."""
        with preferred():
            self._run(requests)
        self.poll.close()
        for connection in self.open.values():
            connection.close()
        return self.result

    def _run(self, requests):
        begun = time.perf_counter()
        while len(self.result.waits) < self.count:
            due = begun + self.sent * self.step
            now = time.perf_counter()
            may_send = self.sent < self.count and (self.idle or len(self.open) < CONNECTIONS_MAX)
            if may_send and due <= now:
                self._send(next(requests), due)
            else:
                self._take(due - now if may_send else ANSWER_SECONDS_MAX)
        self.result.seconds = time.perf_counter() - begun

    def _send(self, request, due):
        connection = self.idle.pop() if self.idle else self._open()
        connection.send(request, due)
        self.sent += 1

    def _open(self):
        connection = Connection(self.port, self.body_bytes)
        self.open[connection.fileno()] = connection
        self.poll.register(connection, select.EPOLLIN)
        return connection

    def _take(self, seconds):
        # select() waits with a resolution of a microsecond, epoll alone only of a millisecond.
        ready, _, _ = select.select([self.poll], [], [], seconds)
        if not ready and seconds == ANSWER_SECONDS_MAX:
            raise AnswerError(f"no answer within {ANSWER_SECONDS_MAX} s")
        for number, _ in self.poll.poll(0) if ready else ():
            connection = self.open[number]
            wait = connection.receive()
            if wait is not None:
                self.result.waits.append(wait)
                self.result.at.append(time.perf_counter())
                self.idle.append(connection)
