"""Bodies in the framings of S3: chunks with and without signatures, trailers, HTTP chunks around them."""

import hashlib

import wire as signing

CHUNK_BYTES = 4096


def pieces(body):
    return [body[first : first + CHUNK_BYTES] for first in range(0, len(body), CHUNK_BYTES)]


def aws_chunks(body, trailer):
    """Chunks without signatures, a last one of no bytes, then the trailer."""
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces(body))
    lines = "".join(f"{name}:{value}\r\n" for name, value in trailer.items())
    return framed + b"0\r\n" + lines.encode() + b"\r\n"


def http_chunked(data):
    """Transfer-Encoding: chunked with chunks that do not coincide with the inner ones."""
    parts = [data[first : first + 1000] for first in range(0, len(data), 1000)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def framed(wire, data):
    """A body without a length, as it is sent."""
    return data if wire.http2 else http_chunked(data)


def unsigned_trailer_headers(wire, target, algorithm, length, more):
    """The head of a body without a length: in chunks, or to the end of its stream in HTTP/2."""
    lines = [] if wire.http2 else [("Transfer-Encoding", "chunked")]
    lines += [("X-Amz-Decoded-Content-Length", str(length))]
    lines += [("X-Amz-Trailer", f"x-amz-checksum-{algorithm}"), *more]
    return wire.headers("PUT", target, lines, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER", chunked=True)


def signed_chunk_headers(wire, target, length, trailer):
    """A head with the exact Content-Length that `signed_chunks` will have."""
    framed = signed_chunks(
        [("Authorization", "Signature="), ("x-amz-date", signing.amz_date())], b"x" * length, trailer
    )
    lines = [("Content-Encoding", "aws-chunked"), ("X-Amz-Decoded-Content-Length", str(length))]
    lines += [("Content-Length", str(len(framed)))] + [("X-Amz-Trailer", name) for name in trailer]
    payload = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" + ("-TRAILER" if trailer else "")
    return wire.headers("PUT", target, lines, payload=payload)


def signed_chunks(headers, body, trailer, trailer_signature=None):
    """Chunks each signed over the one before, beginning with the head's signature."""
    date = next(value for name, value in headers if name == "x-amz-date")
    scope, previous, framed = signing.scope_of(date), signing.signature_of(headers), b""
    for piece in [*pieces(body), b""]:
        digest = hashlib.sha256(piece).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256-PAYLOAD", date, scope, previous, signing.EMPTY_SHA256, digest])
        previous = signing.sign(date, signing.REGION, text)
        framed += b"%x;chunk-signature=%s\r\n" % (len(piece), previous.encode())
        framed += piece + b"\r\n" if piece else b""
    if not trailer:
        return framed + b"\r\n"
    canonical = "".join(f"{name}:{value}\n" for name, value in trailer.items())
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256-TRAILER", date, scope, previous, digest])
    signature = trailer_signature or signing.sign(date, signing.REGION, text)
    lines = "".join(f"{name}:{value}\r\n" for name, value in trailer.items())
    return framed + f"{lines}x-amz-trailer-signature:{signature}\r\n\r\n".encode()
