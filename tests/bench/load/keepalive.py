"""Requests over keep-alive connections from one thread, with the latency of each: writes each object exactly
once, stops on request. About 10 µs of client time per request."""

import select
import socket
import time
from array import array

ANSWER_SECONDS_MAX = 120


class AnswerError(Exception):
    """A response with an error status, or no response."""


class Connection:
    """One request at a time, prepared beforehand; the response has a body of known length."""

    def __init__(self, port, body_bytes=0):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.body_bytes, self.answer, self.since = body_bytes, b"", 0.0

    def fileno(self):
        return self.socket.fileno()

    def send(self, request, since=None):
        """Sends a request. `since` is the time at which its wait began, if that was earlier."""
        self.since = since or time.perf_counter()
        self.socket.sendall(request)

    def receive(self):
        """Reads available bytes; returns the latency in seconds once the response is complete, otherwise
        None."""
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
    """The time of each response (perf_counter) and its latency, in seconds."""

    def __init__(self):
        self.at, self.waits, self.seconds = array("d"), array("d"), 0.0


def exchange(port, requests, connections, seconds=None, until=None, on_answer=None, body_bytes=0):
    """Sends `requests`, one after the other on each connection, until there are none, the seconds are over,
    or `until` returns true; then waits for the requests in flight."""
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
