"""Jobs that read objects in parallel, each with an order, connections and a name of its own; and the result
of each read.

A job acts as one caller: its requests identify it by user agent and workload. Its reads begin in its order,
for any number of its connections; the kernel drops the bodies."""

import itertools
import socket
import threading
import time
from dataclasses import dataclass, field

from load.keepalive import AnswerError
from load.streams import expect, header, take_head
from units import MIB


@dataclass
class Job:
    """The objects that a job reads, in this order, and its pause after each read (seconds). The job begins
    after the first of all jobs has begun `after` reads."""

    name: str
    objects: list
    connections: int = 1
    pause: float = 0.0
    after: int = 0


@dataclass(frozen=True)
class Part:
    """A range that a job reads of an object, if it does not read all of it."""

    name: str
    first: int
    length: int


@dataclass
class Read:
    """A read: its job, its object (or part of one), whether it was a hit (in the cache of copies, and in any
    local tier), and the seconds until its last byte."""

    job: str
    object: str | Part
    size: int = 0
    is_hit: bool = False
    is_here: bool = False
    wait: float = 0.0


@dataclass
class Reading:
    """All jobs together. `target` makes the target of a request from an object's name."""

    port: int
    target: object
    jobs: list
    # In the order in which they began.
    reads: list = field(default_factory=list)

    def run(self):
        """Runs all jobs; returns all reads once the last job is done."""
        self.lock, self.begun, self.broken = threading.Condition(), 0, None
        ways = []
        for job in self.jobs:
            objects = iter(job.objects)
            ways += [
                threading.Thread(target=self._way, args=(job, objects), daemon=True)
                for _ in range(job.connections)]
        for way in ways:
            way.start()
        for way in ways:
            way.join()
        if self.broken:
            raise self.broken
        return self.reads

    def _way(self, job, objects):
        try:
            with self.lock:
                self.lock.wait_for(lambda: self.begun >= job.after or self.broken)
            with socket.create_connection(("127.0.0.1", self.port)) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while read := self._next(job, objects):
                    self._read(connection, read)
                    if job.pause:
                        time.sleep(job.pause)
        except Exception as error:
            with self.lock:
                self.broken = error
                self.lock.notify_all()

    def _next(self, job, objects):
        with self.lock:
            name = next(objects, None)
            if name is None or self.broken:
                return None
            read = Read(job.name, name)
            self.reads.append(read)
            if job is self.jobs[0]:
                self.begun += 1
                self.lock.notify_all()
            return read

    def _read(self, connection, read):
        name, part = (read.object.name, read.object) if isinstance(read.object, Part) else (read.object, None)
        lines = (f"Host: 127.0.0.1:{self.port}\r\nUser-Agent: {read.job}/1.0\r\n"
                 f"x-mlgw-workload: {read.job}\r\n")
        if part:
            lines += f"Range: bytes={part.first}-{part.first + part.length - 1}\r\n"
        begun = time.perf_counter()
        connection.sendall(f"GET {self.target(name)} HTTP/1.1\r\n{lines}\r\n".encode())
        head, rest = take_head(connection)
        expect(head, status=206 if part else 200)
        read.size = int(header(head, "content-length"))
        # An origin that is read directly does not send this header; objects shared in memory take no space of
        # the copies.
        read.is_hit = b"\r\nx-mlgw-cache: hit; tier=hot" in head
        read.is_here = b"\r\nx-mlgw-cache: hit" in head
        drop(connection, read.size - len(rest))
        read.wait = time.perf_counter() - begun


def drop(connection, left):
    """Receives this many bytes and drops them (MSG_TRUNC)."""
    buffer = bytearray(min(left, MIB) or 1)
    while left > 0:
        came = connection.recv_into(buffer, min(left, MIB), socket.MSG_TRUNC)
        if came == 0:
            raise AnswerError(f"{left} bytes of the body are missing")
        left -= came


def epochs(objects, count, chance=None):
    """The objects `count` times over: in their order, or shuffled anew each time."""
    passes = [list(objects) for _ in range(count)]
    for one in passes if chance else ():
        chance.shuffle(one)
    return list(itertools.chain.from_iterable(passes))


def hit_ratio(reads):
    """The fraction of bytes that were hits."""
    return sum(read.size for read in reads if read.is_hit) / max(1, sum(read.size for read in reads))
