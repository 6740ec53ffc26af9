"""Large bodies at little cost to the client: read without a copy out of the kernel, written from one buffer.
"""

import re
import socket
from concurrent.futures import ThreadPoolExecutor

from load.keepalive import AnswerError
from units import MIB

PIECE_BYTES = MIB


def in_parallel(work, things, threads):
    """Runs `work` on each item, `threads` at a time; returns the results in order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, things))


def download(port, request, body_bytes):
    """Sends one GET and reads its response; the kernel drops the body (MSG_TRUNC)."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        head, begun = take_head(connection)
        buffer, left = bytearray(PIECE_BYTES), body_bytes - len(begun)
        expect(head, body_bytes)
        while left > 0:
            came = connection.recv_into(buffer, min(left, PIECE_BYTES), socket.MSG_TRUNC)
            if came == 0:
                raise AnswerError(f"{left} bytes of the body are missing")
            left -= came


def upload(port, head, body, times=1):
    """Sends one PUT whose body is `body` repeated `times` times; returns the response's head."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head)
        for _ in range(times):
            connection.sendall(body)
        answer, _ = take_head(connection)
    expect(answer)
    return answer


def header(answer, name):
    """The value of a header of a response's head."""
    found = re.search(rf"(?im)^{name}: *(.*?)\r?$", answer.decode())
    if not found:
        raise AnswerError(f"no {name} in {answer[:300]!r}")
    return found.group(1)


def take_head(connection):
    """The head of a response, and the part of its body that came with it."""
    came = b""
    while b"\r\n\r\n" not in came:
        more = connection.recv(65536)
        if not more:
            raise AnswerError(f"the answer ended in its head: {came[:300]!r}")
        came += more
    head, _, rest = came.partition(b"\r\n\r\n")
    return head, rest


def expect(head, body_bytes=None, status=200):
    """Raises AnswerError unless a response has that status, and that many bytes if given."""
    good = head.startswith(f"HTTP/1.1 {status} ".encode())
    if not good or (body_bytes is not None and int(header(head, "content-length")) != body_bytes):
        raise AnswerError(f"the server answered {head[:300]!r}")
