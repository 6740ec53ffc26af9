"""HTTP/1.1 as bytes on a socket, or HTTP/2, signed by hand, for tests of the wire format.

No client library is between a test and the server: a request consists of exactly the lines that the test
gives, and a response is kept with every header line and every interim response that came before it. The
signatures are implemented from AWS's description and share no code with the server.
"""

import dataclasses
import datetime
import hashlib
import hmac
import itertools
import os
import socket
import ssl
import urllib.parse

from server import ACCESS_KEY, REGION, SECRET_KEY

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"
SAFE = "-_.~"
TIMEOUT_SECONDS = 30


@dataclasses.dataclass
class Answer:
    status: int
    headers: list
    body: bytes
    interim: list

    def header(self, name):
        """The one value of a header, or None; a repeated header fails the test."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        assert len(values) < 2, f"{name} came {len(values)} times: {values}"
        return values[0] if values else None

    @property
    def text(self):
        return self.body.decode()

    @property
    def code(self):
        """The code of an S3 error."""
        return self.text.partition("<Code>")[2].partition("</Code>")[0]


class Connection:
    """A connection over which a test may send pieces at its own pace."""

    def __init__(self, server):
        server = server.turn()
        host, port = server.host.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if server.certificates:
            context = ssl.create_default_context(cafile=str(server.certificates.authority))
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self.reader = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.reader.close()
        self.socket.close()

    def write(self, data):
        self.socket.sendall(data)

    def read_head(self):
        line = self.reader.readline()
        assert line, "the server closed the connection without an answer"
        status = int(line.split()[1])
        headers = []
        while line := self.reader.readline().rstrip(b"\r\n"):
            name, _, value = line.decode("latin-1").partition(":")
            headers.append((name, value.strip()))
        return status, headers

    def read_answer(self, method):
        interim = []
        status, headers = self.read_head()
        while status < 200:
            interim.append(status)
            status, headers = self.read_head()
        return Answer(
            status, headers, self.read_body(method, status, dict((k.lower(), v) for k, v in headers)), interim
        )

    def read_body(self, method, status, headers):
        if method == "HEAD" or status in (204, 304):
            return b""
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.reader.readline(), 16):
                body += self.reader.read(size)
                self.reader.readline()
            self.reader.readline()
            return body
        return self.reader.read(int(headers["content-length"]))


def head_bytes(method, target, headers):
    lines = [f"{method} {target} HTTP/1.1"] + [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


class Wire:
    """Signs and sends requests to one server, each on a connection of its own."""

    def __init__(self, server, http2=False):
        self.server = server.turn()
        self.http2 = http2

    def headers(self, method, target, headers=(), body=b"", payload=None, chunked=False, host=None):
        """All header lines of a signed request; `target` is path and query as they will be sent."""
        payload = payload or hashlib.sha256(body).hexdigest()
        lines = [("Host", host or self.server.host)]
        if not chunked and (body or method in ("PUT", "POST")) and not has(headers, "content-length"):
            lines.append(("Content-Length", str(len(body))))
        lines += [("x-amz-date", amz_date()), ("x-amz-content-sha256", payload), *headers]
        path, _, query = target.partition("?")
        return lines + [("Authorization", authorization(method, path, query, lines, payload))]

    def send(self, method, target, headers=(), body=b"", payload=None, host=None):
        return self.send_raw(
            method, target, self.headers(method, target, headers, body, payload, host=host), body
        )

    def send_raw(self, method, target, headers, body=b""):
        """Sends exactly these header lines and bytes; over HTTP/2 only the header lines that it has."""
        if self.http2:
            # Not every environment that signs requests has the package for HTTP/2.
            import http2

            with http2.Connection(self.server) as connection:
                return Answer(*connection.exchange(method, target, headers, body), interim=[])
        with Connection(self.server) as connection:
            connection.write(head_bytes(method, target, headers) + body)
            return connection.read_answer(method)


_numbers = itertools.count(1)


def new_bucket(server):
    """Creates a bucket that no other test has."""
    name = f"bucket-{os.getpid()}-{next(_numbers)}"
    answer = Wire(server).send("PUT", f"/{name}")
    assert answer.status == 200, answer
    return name


def has(headers, name):
    return any(key.lower() == name for key, _ in headers)


def amz_date():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def quote(text, safe=SAFE):
    return urllib.parse.quote(text, safe=safe)


def canonical_query(query):
    """Parameters decoded, encoded again and sorted; one without `=` gets an empty value."""
    pairs = []
    for parameter in filter(None, query.split("&")):
        name, _, value = parameter.partition("=")
        decode = urllib.parse.unquote
        pairs.append((quote(decode(name)), quote(decode(value))))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def scope_of(date, region=REGION):
    return f"{date[:8]}/{region}/s3/aws4_request"


def signing_key(date, region=REGION, secret=SECRET_KEY):
    key = ("AWS4" + secret).encode()
    for word in (date[:8], region, "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    return key


def sign(date, region, text):
    return hmac.digest(signing_key(date, region), text.encode(), "sha256").hex()


def canonical_headers(lines):
    """The canonical block and the list of names: lower case, trimmed, inner blanks collapsed, sorted."""
    block = {}
    for name, value in lines:
        block.setdefault(name.lower(), []).append(" ".join(value.split()))
    names = sorted(block)
    return "".join(f"{name}:{','.join(block[name])}\n" for name in names), ";".join(names)


def authorization(method, path, query, lines, payload, region=REGION, comma=", "):
    """The Authorization header of Signature Version 4 over all given header lines."""
    date = next(value for name, value in lines if name.lower() == "x-amz-date")
    block, names = canonical_headers(lines)
    request = "\n".join([method, path, canonical_query(query), block, names, payload])
    scope = scope_of(date, region)
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(request.encode()).hexdigest()])
    fields = [
        f"Credential={ACCESS_KEY}/{scope}",
        f"SignedHeaders={names}",
        f"Signature={sign(date, region, text)}",
    ]
    return "AWS4-HMAC-SHA256 " + comma.join(fields)


def signature_of(headers):
    """The signature within the Authorization header: the seed of signed chunks."""
    value = next(value for name, value in headers if name == "Authorization")
    return value.rpartition("Signature=")[2]
