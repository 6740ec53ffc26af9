"""An open loop: requests at a given pace, whatever the answers do. A request's wait counts from when it was due, so time
that it spent waiting for a free connection, or for this client, is part of it. So the client runs before others where it may:
what it does not get of the processor would pass for the server's."""

import os
import select
import time
from contextlib import contextmanager

from load.keepalive import ANSWER_SECONDS_MAX, AnswerError, Connection, Waits


CONNECTIONS_MAX = 256
PRIORITY = -15


@contextmanager
def preferred():
    """This thread runs before others meanwhile, if it is allowed to."""
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
    """So many requests a second for so many seconds, over as many connections as it takes, up to a bound."""

    def __init__(self, port, per_second, seconds, body_bytes):
        self.port, self.body_bytes = port, body_bytes
        self.step, self.count = 1 / per_second, int(per_second * seconds)
        self.poll, self.open, self.idle = select.epoll(), {}, []
        self.result, self.sent = Waits(), 0

    def run(self, requests):
        """Every wait, once all are answered."""
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
        # select() waits to the microsecond, epoll by itself only to the millisecond.
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
