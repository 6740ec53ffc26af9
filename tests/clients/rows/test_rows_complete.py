"""Row 10: every form in which clients write CompleteMultipartUpload, and its repetition."""

import base64
import itertools

import pytest

from checksums import crc32

BODIES = [b"a" * (5 << 20), b"b" * 7]
NAMESPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def upload_of(wire, path):
    """Creates an upload of two parts; returns (upload id, ETags without quotes)."""
    upload = wire.send("POST", path + "?uploads").text.partition("<UploadId>")[2].partition("<")[0]
    etags = []
    for number, body in enumerate(BODIES, 1):
        part = wire.send("PUT", f"{path}?partNumber={number}&uploadId={upload}", body=body)
        assert part.status == 200, part
        etags.append(part.header("etag").strip('"'))
    return upload, etags


def number_first(number, etag):
    return f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"


def etag_first(number, etag):
    return f"<Part>\n\t<ETag>{etag}</ETag>\n\t<PartNumber> {number} </PartNumber>\n</Part>\n"


def with_empty_checksums(number, etag):
    sums = "<ChecksumCRC32></ChecksumCRC32><ChecksumSHA256/>"
    return f"<Part>{sums}<ETag>{etag}</ETag><PartNumber>{number}</PartNumber></Part>"


QUOTES = {
    "quoted": '"{}"',
    "bare": "{}",
    "quot": "&quot;{}&quot;",
    "number": "&#34;{}&#34;",
    "hex": "&#x22;{}&#x22;",
}
SHAPES = {"number-first": number_first, "etag-first": etag_first, "empty-checksums": with_empty_checksums}


@pytest.mark.parametrize("quotes", QUOTES)
def test_row_10_complete_understands_every_way_of_writing_it_and_can_be_repeated(wire, bucket, quotes):
    """Sends each combination to one upload: the first completes it, the others are repetitions."""
    path = f"/{bucket}/k"
    upload, etags = upload_of(wire, path)
    answers = set()
    prologs = ["", '<?xml version="1.0" encoding="UTF-8"?>\n']
    for shape, prolog, namespace in itertools.product(SHAPES.values(), prologs, ["", NAMESPACE]):
        parts = "".join(shape(number, QUOTES[quotes].format(etag)) for number, etag in enumerate(etags, 1))
        xml = f"{prolog}<CompleteMultipartUpload{namespace}>{parts}</CompleteMultipartUpload>"
        answer = wire.send("POST", f"{path}?uploadId={upload}", body=xml.encode())
        assert answer.status == 200 and "<CompleteMultipartUploadResult" in answer.text, (xml, answer)
        answers.add(answer.text.partition("<ETag>")[2].partition("</ETag>")[0])
    assert len(answers) == 1 and answers.pop().endswith(('-2"', "-2&quot;", "-2&#34;"))
    assert wire.send("GET", path).body == b"".join(BODIES)


def test_row_10_a_checksum_child_is_checked(wire, bucket):
    path, body = f"/{bucket}/k", b"the only part"
    right = base64.b64encode(crc32(body)).decode()
    started = wire.send("POST", path + "?uploads", [("x-amz-checksum-algorithm", "CRC32")])
    upload = started.text.partition("<UploadId>")[2].partition("<")[0]
    part = wire.send(
        "PUT", f"{path}?partNumber=1&uploadId={upload}", [("x-amz-checksum-crc32", right)], body
    )

    def complete(checksum):
        child = f"<ChecksumCRC32>{checksum}</ChecksumCRC32><PartNumber>1</PartNumber>"
        xml = f"<Part><ETag>{part.header('etag')}</ETag>{child}</Part>"
        xml = f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>"
        return wire.send("POST", f"{path}?uploadId={upload}", body=xml.encode())

    assert complete("AAAAAA==").code in ("InvalidPart", "BadDigest")
    assert wire.send("HEAD", path).status == 404
    assert complete(right).status == 200
    assert wire.send("GET", path).body == body


def test_row_10_a_body_that_is_not_xml_is_refused_by_name(wire, bucket):
    path = f"/{bucket}/k"
    upload, _ = upload_of(wire, path)
    for body in (b"", b"<CompleteMultipartUpload>", b"not xml", b"<CompleteMultipartUpload/>"):
        answer = wire.send("POST", f"{path}?uploadId={upload}", body=body)
        assert (answer.status, answer.code) == (400, "MalformedXML"), body
