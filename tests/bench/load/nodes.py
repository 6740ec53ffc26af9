"""An open loop over the nodes of a cluster: PUTs of new objects and GETs of old ones at a given rate, in a
thread of its own, over a fixed number of connections that each belong to one node.

It continues when a node fails: the requests to that node fail, and its share of the rate is not sent to
others. The latency of a request counts from the time at which it was due, as in load/paced.py.

A closed loop of the same requests, each sent when the one before it was answered, measures how many of them
the nodes can serve."""

import os
import random
import re
import select
import socket
import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass, replace

from load.keepalive import AnswerError
from load.paced import preferred
from store import BUCKET, NUMBER_BYTES

SEND_BUFFER_BYTES = 1 << 20
GLANCE_SECONDS = 0.1
FINISH_SECONDS_MAX = 60
WINDOWS = 5
CAPACITY_WARM_SECONDS = 1
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
LAST = re.compile(rb"(?i)\r\nconnection: *close")
REASON = re.compile(rb"<(?:Code|Reason)>(\w+)<")


@dataclass
class Mix:
    """The requests of a load: names of objects to read, number of PUTs in ten requests, the size of their
    bodies, and the prefix of their names."""

    reads: list
    puts_of_ten: int
    put_bytes: int
    prefix: str


@dataclass
class Sent:
    """A request to a node: its number, when it was due, when it was answered with success, and otherwise its
    failure. A request that waits has neither."""

    node: int
    method: str
    name: str
    number: int
    due: float
    done: float | None = None
    failure: str = ""

    @property
    def wait(self):
        """Seconds until it was answered; infinite if it was not."""
        return float("inf") if self.done is None else self.done - self.due


class Connection:
    """A connection to a node, with at most one request in progress."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A body fits, so that no node delays the requests to others.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.sent, self.answer = None, b""

    def fileno(self):
        return self.socket.fileno()

    def send(self, sent, request):
        self.sent, self.answer = sent, b""
        self.socket.sendall(request)

    def receive(self):
        """Reads available bytes; returns the request once its response is complete, otherwise None. Raises
        OSError if the connection has ended, or ends with the response."""
        came = self.socket.recv(1 << 18)
        if not came or self.sent is None:
            raise ConnectionError("the node closed the connection")
        self.answer += came
        head = self.answer.find(b"\r\n\r\n")
        length = LENGTH.search(self.answer, 0, max(head, 0) + 2)
        if head < 0 or len(self.answer) < head + 4 + (int(length.group(1)) if length else 0):
            return None
        sent, self.sent = self.sent, None
        if self.answer.startswith(b"HTTP/1.1 200 "):
            sent.done = time.perf_counter()
        else:
            sent.failure = b" ".join([self.answer[9:12], *REASON.findall(self.answer)]).decode()
        if LAST.search(self.answer, 0, head + 2):
            raise ConnectionError("it was the last response")
        return sent


class Lane:
    """The connections to one node, and the requests that wait for one of them."""

    def __init__(self, store, connections):
        self.port, self.host, self.signers = store.server.port, store.server.host, store.signers()
        self.connections = connections
        self.idle, self.open, self.waiting, self.has_ended = [], {}, deque(), False

    def free(self):
        """Number of requests that can be sent at once."""
        return len(self.idle) + self.connections - len(self.open)


class NodesLoad:
    """Runs while the context is entered; afterwards `requests` has every request, each answered or failed.
    `stores` are the nodes by id. Without `per_second` it is a closed loop."""

    def __init__(self, stores, mix, per_second, connections, seed):
        self.mix, self.step, self.requests = mix, 1 / per_second if per_second else None, []
        self.random, self.body = random.Random(seed), os.urandom(mix.put_bytes - NUMBER_BYTES)
        self.lanes = {}
        for at, (node, store) in enumerate(stores.items()):
            share = connections // len(stores) + (at < connections % len(stores))
            self.lanes[node] = Lane(store, share)
        self.over, self.broken, self.poll = threading.Event(), None, select.epoll()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.poll.close()
        if self.broken:
            raise self.broken

    def body_of(self, sent):
        """The body of a PUT: all of them differ."""
        return sent.number.to_bytes(NUMBER_BYTES, "big") + self.body

    def acknowledged(self):
        """The PUTs that were answered with success."""
        return [sent for sent in self.requests if sent.method == "PUT" and sent.done is not None]

    def _run(self):
        try:
            with preferred():
                if self.step is None:
                    self._keep_busy()
                else:
                    self._keep_pace()
                self._finish()
        except Exception as error:
            self.broken = error
        for lane in self.lanes.values():
            for connection in lane.open.values():
                connection.socket.close()

    def _keep_busy(self):
        while not self.over.is_set():
            for node, lane in self.lanes.items():
                for _ in range(0 if lane.has_ended else lane.free()):
                    lane.waiting.append(self._next(node, time.perf_counter()))
                    self._send(lane)
            self._take(GLANCE_SECONDS)

    def _keep_pace(self):
        begun, order, count = time.perf_counter(), list(self.lanes), 0
        while not self.over.is_set():
            due = begun + count * self.step
            now = time.perf_counter()
            if due > now:
                self._take(min(due - now, GLANCE_SECONDS))
                continue
            lane = self.lanes[order[count % len(order)]]
            count += 1
            if not lane.has_ended:
                lane.waiting.append(self._next(order[(count - 1) % len(order)], due))
                self._send(lane)

    def _next(self, node, due):
        is_put, number = self.random.randrange(10) < self.mix.puts_of_ten, len(self.requests)
        name = f"{self.mix.prefix}/{number:07d}" if is_put else self.random.choice(self.mix.reads)
        sent = Sent(node, "PUT" if is_put else "GET", name, number, due)
        self.requests.append(sent)
        return sent

    def _finish(self):
        """Waits for the requests in progress; those without an answer have failed."""
        deadline = time.perf_counter() + FINISH_SECONDS_MAX
        is_waiting = lambda lane: lane.waiting or len(lane.idle) < len(lane.open)
        while any(map(is_waiting, self.lanes.values())) and time.perf_counter() < deadline:
            self._take(GLANCE_SECONDS)
        for sent in self.requests:
            if sent.done is None and not sent.failure:
                sent.failure = "no answer"

    def _send(self, lane):
        """Sends waiting requests over free connections."""
        while lane.waiting and (lane.idle or len(lane.open) < lane.connections):
            connection = lane.idle.pop() if lane.idle else self._open(lane)
            if connection is None:
                return
            sent = lane.waiting.popleft()
            try:
                connection.send(sent, self._request(lane, sent))
            except OSError as error:
                self._close(lane, connection, error)

    def _open(self, lane):
        """A new connection; None if the node accepts none, with which all its requests have failed."""
        try:
            connection = Connection(lane.port)
        except OSError as error:
            lane.has_ended = True
            while lane.waiting:
                lane.waiting.popleft().failure = str(error)
            return None
        lane.open[connection.fileno()] = connection
        self.poll.register(connection, select.EPOLLIN)
        return connection

    def _close(self, lane, connection, error):
        if connection.sent:
            connection.sent.failure = str(error) or type(error).__name__
        self.poll.unregister(connection)
        del lane.open[connection.fileno()]
        if connection in lane.idle:
            lane.idle.remove(connection)
        connection.socket.close()

    def _request(self, lane, sent):
        signer = lane.signers[sent.number % len(lane.signers)]
        target = signer.presign(sent.method, lane.host, f"/{BUCKET}/{sent.name}")
        head = f"{sent.method} {target} HTTP/1.1\r\nHost: {lane.host}\r\n"
        if sent.method == "GET":
            return f"{head}\r\n".encode()
        body = self.body_of(sent)
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def _take(self, seconds):
        # select() waits with a resolution of a microsecond, epoll alone only of a millisecond.
        ready, _, _ = select.select([self.poll], [], [], seconds)
        for number, _ in self.poll.poll(0) if ready else ():
            lane = next(lane for lane in self.lanes.values() if number in lane.open)
            connection = lane.open[number]
            try:
                if connection.receive() is not None:
                    lane.idle.append(connection)
            except OSError as error:
                self._close(lane, connection, error)
            self._send(lane)


def capacity(stores, mix, seconds, connections, seed):
    """Requests of a mix that these nodes answer in a second, in a closed loop over these connections. The
    client, which has a higher priority, takes processor time from them: they could do more without it."""
    closed = replace(mix, prefix=f"{mix.prefix}-capacity")
    with NodesLoad(stores, closed, None, connections, seed) as load:
        time.sleep(CAPACITY_WARM_SECONDS)
        begun = time.perf_counter()
        time.sleep(seconds)
        ended = time.perf_counter()
    failed = [sent.failure for sent in load.requests if sent.failure]
    if failed:
        raise AnswerError(f"{len(failed)} requests of the closed loop failed: {failed[0]}")
    answered = sum(begun <= sent.done < ended for sent in load.requests)
    if not answered:
        raise AnswerError(f"no request of the closed loop was answered within {seconds} s")
    return answered / (ended - begun)


def p99(requests, begin, end):
    """Seconds: the median over five windows of equal length of the p99 of the requests that were due in each.
    """
    found, length = [], (end - begin) / WINDOWS
    for at in range(WINDOWS):
        first = begin + at * length
        waits = sorted(sent.wait for sent in requests if first <= sent.due < first + length)
        found.append(waits[int(len(waits) * 0.99)] if waits else float("inf"))
    return statistics.median(found)


def longest_pause(requests, begin, end):
    """The longest time in that period in which no PUT of these requests was acknowledged."""
    times = sorted(sent.done for sent in requests
                   if sent.method == "PUT" and sent.done is not None and begin <= sent.done <= end)
    return max(after - before for before, after in zip([begin, *times], [*times, end]))
