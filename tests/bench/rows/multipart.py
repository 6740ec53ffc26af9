"""A multipart PUT of 1 GiB with an unsigned payload: CPU for a GiB, with MD5 ETags and with the client's
checksum alone; compared with a program that only writes as much to a file."""

import os
import time
import zlib
from base64 import b64encode
from dataclasses import dataclass, field

import proc
from load.result import Load
from load.streams import header, in_parallel, upload
from server import ServerError
from store import BUCKET, RequestError
from units import GIB, MIB

PART_BYTES = 16 * MIB
THREADS = 4
SYNC_BYTES = 32 * MIB


def multipart(bench):
    """MD5 ETags are the default; `s3.etag` = "fast" leaves the checksum that the client sent (CRC32, as boto3
    does)."""
    store = bench.open("read")
    plain(bench)
    measure(bench, store, "multipart-md5", 2.2, crc=False)
    try:
        store = bench.open("read", {"s3.etag": "fast"})
        measure(bench, store, "multipart-fast", 1.0, crc=True)
    except (ServerError, RequestError) as error:
        bench.report.missed("multipart-fast", f"not offered: {error}")


def plain(bench):
    """The kernel's part of the cost."""
    piece, path = os.urandom(SYNC_BYTES), bench.folder / "plain"
    proc.have_page_cache_ready(bench.folder, int(bench.options.gib * GIB))
    begun = time.process_time()
    with open(path, "wb", buffering=0) as file:
        for _ in range(int(bench.options.gib * GIB / SYNC_BYTES)):
            file.write(piece)
            os.fdatasync(file.fileno())
    cpu = time.process_time() - begun
    path.unlink()
    bench.report.information(
        "write-plain", cpu / bench.options.gib, "CPU s/GiB", f"a sync every {SYNC_BYTES // MIB} MiB")


def measure(bench, store, name, target, crc):
    gib = bench.options.gib
    body = os.urandom(PART_BYTES)
    checksum = b64encode(zlib.crc32(body).to_bytes(4, "big")).decode() if crc else None
    sender = Sender(store, body, checksum, int(gib * GIB / PART_BYTES))
    bench.report.say(f"{name}: writing {gib:g} GiB")
    proc.have_page_cache_ready(bench.folder, int(gib * GIB))
    load = bench.spent(lambda: Load.counted(sender.send))
    bench.report.at_most(name, load.cpu / gib, "CPU s/GiB", target, f"{gib / load.seconds:.2f} GiB/s")
    store.call("DELETE", sender.path)


@dataclass
class Sender:
    """One object in identical parts, with a CRC32 of each in its headers or without."""

    store: object
    body: bytes
    checksum: str | None
    parts: int
    path: str = f"/{BUCKET}/multipart"
    headers: dict = field(default_factory=dict)

    def send(self):
        """Sends the whole object; returns the number of parts."""
        algorithm = {"x-amz-checksum-algorithm": "CRC32"} if self.checksum else {}
        self.headers = {"x-amz-checksum-crc32": self.checksum} if self.checksum else {}
        _, answer = self.store.call("POST", self.path, [("uploads", "")], headers=algorithm)
        upload_id = answer.decode().split("<UploadId>")[1].split("</UploadId>")[0]
        requests = [self.head(number, upload_id) for number in range(1, self.parts + 1)]
        answers = in_parallel(lambda head: upload(self.store.server.port, head, self.body), requests, THREADS)
        self.complete(upload_id, [header(answer, "etag") for answer in answers])
        return len(answers)

    def head(self, number, upload_id):
        server, signer = self.store.server, self.store.signers()[number % 3]
        query = [("partNumber", str(number)), ("uploadId", upload_id)]
        target = signer.presign("PUT", server.host, self.path, query, self.headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return (f"PUT {target} HTTP/1.1\r\nHost: {server.host}\r\nContent-Length: {len(self.body)}\r\n"
                f"{lines}\r\n").encode()

    def complete(self, upload_id, etags):
        checksum = f"<ChecksumCRC32>{self.checksum}</ChecksumCRC32>" if self.checksum else ""
        parts = "".join(f"<Part><PartNumber>{at}</PartNumber><ETag>{etag}</ETag>{checksum}</Part>"
                        for at, etag in enumerate(etags, 1))
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        _, answer = self.store.call("POST", self.path, [("uploadId", upload_id)], body)
        if b"<ETag>" not in answer:
            raise RequestError(f"CompleteMultipartUpload answered {answer[:300]!r}")
