"""Requests over keep-alive connections from one thread, each one's wait known: writes each thing exactly once, stops when
it is told to. About 10 µs of client a request."""

import select
import socket
import time
from array import array

ANSWER_SECONDS_MAX = 120


class AnswerError(Exception):
    """An answer that was none of success, or none at all."""


class Connection:
    """One request at a time, ready made; the answer has a body of a length that is known."""

    def __init__(self, port, body_bytes=0):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.body_bytes, self.answer, self.since = body_bytes, b"", 0.0

    def fileno(self):
        return self.socket.fileno()

    def send(self, request, since=None):
        """`since` is when its wait began, if that was before now."""
        self.since = since or time.perf_counter()
        self.socket.sendall(request)

    def receive(self):
        """Takes what came; the wait in seconds once the answer is whole, else nothing."""
        came = self.socket.recv(1 << 18)
        if not came:
            raise AnswerError("the server closed the connection")
        self.answer += came
        head = self.answer.find(b"\r\n\r\n")
        if head < 0 or len(self.answer) < head + 4 + self.body_bytes:
            return None
        if not self.answer.startswith(b"HTTP/1.1 200 "):
            raise AnswerError(f"the server answered {self.answer[:300]!r}")
        self.answer = b""
        return time.perf_counter() - self.since

    def close(self):
        self.socket.close()


class Waits:
    """When each answer came (perf_counter) and how long it was waited for, in seconds."""

    def __init__(self):
        self.at, self.waits, self.seconds = array("d"), array("d"), 0.0


def exchange(port, requests, connections, seconds=None, until=None, on_answer=None, body_bytes=0):
    """Sends `requests`, one after the other on each connection, until there are none, the seconds are over, or `until`
    says so; then waits for what is under way."""
    result, begun = Waits(), time.perf_counter()
    deadline = begun + seconds if seconds else float("inf")
    more = lambda: time.perf_counter() < deadline and not (until and until())
    poll, open_ones = select.epoll(), {}
    try:
        for _ in range(connections):
            connection = Connection(port, body_bytes)
            open_ones[connection.fileno()] = connection
            poll.register(connection, select.EPOLLIN)
        _run(poll, open_ones, iter(requests), more, result, on_answer)
    finally:
        poll.close()
        for connection in open_ones.values():
            connection.close()
    result.seconds = time.perf_counter() - begun
    return result


def _run(poll, open_ones, requests, more, result, on_answer):
    under_way = 0
    for connection in open_ones.values():
        request = next(requests, None)
        if request is not None:
            connection.send(request)
            under_way += 1
    while under_way:
        ready = poll.poll(ANSWER_SECONDS_MAX)
        if not ready:
            raise AnswerError(f"no answer within {ANSWER_SECONDS_MAX} s")
        go_on = more()
        for number, _ in ready:
            connection = open_ones[number]
            wait = connection.receive()
            if wait is None:
                continue
            result.waits.append(wait)
            result.at.append(time.perf_counter())
            if on_answer:
                on_answer()
            request = next(requests, None) if go_on else None
            if request is None:
                under_way -= 1
            else:
                connection.send(request)
