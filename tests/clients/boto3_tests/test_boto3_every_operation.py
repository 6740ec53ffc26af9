"""Every operation of botocore's S3 model, supported or not: an operation changes nothing but its target.

The model is the oracle. For each operation it gives the method, the path and the query, so that a new
sub-resource is tested as soon as botocore knows it.
"""

import dataclasses
import itertools
import random
import string

import botocore.session
import pytest

from wire import Wire, new_bucket

BODY = b"as it was"
KEY = "k"
MODEL = botocore.session.get_session().get_service_model("s3")
# Operations that may change the object or delete an empty bucket.
CHANGES = {"PutObject", "CopyObject", "DeleteObject", "DeleteObjects", "DeleteBucket", "PutObjectTagging"}
READS = ("GET", "HEAD")
METHODS = (*READS, "PUT", "POST", "DELETE")
SEED = 20261125


@dataclasses.dataclass(frozen=True)
class Shape:
    """The request of an operation: method, path and query."""

    name: str
    method: str
    level: str
    static: tuple
    members: tuple
    headers: tuple
    uri: str

    @classmethod
    def of(cls, name):
        operation = MODEL.operation_model(name)
        path, _, query = operation.http["requestUri"].partition("?")
        level = "object" if "{Key" in path else "bucket" if "{Bucket" in path else "service"
        members = operation.input_shape.members if operation.input_shape else {}
        required = operation.input_shape.required_members if operation.input_shape else []
        at = lambda place: tuple(
            member.serialization["name"]
            for key, member in members.items()
            if member.serialization.get("location") == place and (place != "header" or key in required)
        )
        return cls(
            name,
            operation.http["method"],
            level,
            tuple(filter(None, query.split("&"))),
            at("querystring"),
            at("header"),
            path,
        )


SHAPES = [Shape.of(name) for name in MODEL.operation_names]
STATIC = {name.partition("=")[0] for shape in SHAPES for name in shape.static}
# An operation is selected by sub-resources in its query, or by an upload's id; versions of one operation are
# not sub-resources.
SELECTORS = sorted((STATIC | {"uploadId"}) - {"list-type", "select-type"})
PARAMETERS = sorted({name for shape in SHAPES for name in shape.members} - {"uploadId"})


@pytest.fixture
def wire(http):
    return Wire(http)


@pytest.fixture(scope="module")
def full(http):
    """A bucket with one object, which no test may change."""
    bucket = new_bucket(http)
    assert Wire(http).send("PUT", f"/{bucket}/{KEY}", [("x-amz-meta-a", "b")], BODY).status == 200
    return bucket


@pytest.fixture(scope="module")
def hollow(http):
    """A bucket without an object, which a plain DELETE would delete."""
    return new_bucket(http)


def assert_untouched(wire, full, hollow, what):
    object_ = wire.send("GET", f"/{full}/{KEY}")
    assert (object_.status, object_.body, object_.header("x-amz-meta-a")) == (200, BODY, "b"), what
    assert object_.header("x-amz-tagging-count") is None, what
    assert wire.send("HEAD", f"/{hollow}").status == 200, what
    listed = wire.send("GET", f"/{full}")
    assert listed.text.count("<Key>") == 1, f"{what}: {listed}"


def path_of(level, full, hollow):
    return {"bucket": f"/{hollow}", "object": f"/{full}/{KEY}"}[level]


def ask(wire, method, path, query, headers=(), body=None):
    body = (b"<X/>" if method in ("PUT", "POST") else b"") if body is None else body
    target = f"{path}?{'&'.join(query)}" if query else path
    return wire.send(method, target, headers, body)


def filled(name):
    return name if "=" in name else f"{name}=1"


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_an_operation_does_what_it_is_or_nothing(wire, full, hollow, shape):
    """Sends the request as the model describes it, alone and with all of its parameters."""
    offered = shape.name in CHANGES
    for members in {(), shape.members}:
        query = [*shape.static, *map(filled, members)]
        if not query and not shape.headers:
            continue
        path = shape.uri if shape.level == "service" else path_of(shape.level, full, hollow)
        if offered and not (members or shape.static):
            continue
        headers = [(name, "1") for name in shape.headers if name.lower() != "content-md5"]
        answer = ask(wire, shape.method, path, query, headers)
        assert answer.status < 500 or answer.status == 501, f"{shape}: {answer}"
        if answer.status == 501:
            assert answer.code == "NotImplemented" or shape.method == "HEAD", f"{shape}: {answer}"
        assert_untouched(wire, full, hollow, f"{shape.name} ?{'&'.join(query)}: {answer}")


@pytest.mark.parametrize("level", ["bucket", "object"])
@pytest.mark.parametrize("method", METHODS)
def test_what_selects_an_operation_anywhere_is_never_passed_over(wire, full, hollow, method, level):
    """Sends each name alone, with a value, percent-encoded, and beside the parameter that every SDK adds."""
    path = path_of(level, full, hollow)
    plain = {"GET": BODY if level == "object" else b"<ListBucketResult"}.get(method)
    for name in SELECTORS:
        encoded = f"%{ord(name[0]):02x}{name[1:]}"
        for query in ([name], [f"{name}=1"], [encoded], ["x-id=Any", name, "x-amz-meta-a=1"]):
            answer = ask(wire, method, path, query)
            assert answer.status != 500, f"{method} {level} {query}: {answer}"
            if method in READS and answer.status == 200:
                assert method != "HEAD" and plain not in answer.body, f"{method} {level} {query}: {answer}"
        if method not in READS:
            assert_untouched(wire, full, hollow, f"{method} {level} {name}")


@pytest.mark.parametrize("level", ["bucket", "object"])
@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_a_parameter_of_another_operation_is_refused_where_something_would_change(
    wire, full, hollow, method, level
):
    """Sends half of a pair of parameters, or a parameter of a listing."""
    path = path_of(level, full, hollow)
    taken = {"DELETE": {"versionId"}}.get(method, set()) if level == "object" else set()
    for name in PARAMETERS:
        # These override headers of a response, and have no effect here.
        if name.startswith("response-") or name in taken:
            continue
        answer = ask(wire, method, path, [f"{name}=1"])
        assert answer.status in (400, 405, 412), f"{method} {level} {name}: {answer}"
        assert_untouched(wire, full, hollow, f"{method} {level} {name}: {answer}")
    assert ask(wire, method, path, ["partNumber=1"]).status == 400 or (method, level) == ("POST", "object")


def random_names(count):
    choose = random.Random(SEED)
    letters = string.ascii_letters + "-"
    names = ("".join(choose.choices(letters, k=choose.randint(2, 14))) for _ in itertools.count())
    strange = (name for name in names if name not in SELECTORS and name.lower()[:2] != "x-")
    return list(itertools.islice(strange, count))


@pytest.mark.parametrize("level", ["bucket", "object"])
def test_a_name_that_nobody_knows_is_refused_on_writes_and_ignored_on_reads(wire, full, hollow, level):
    print("seed", SEED)
    path = path_of(level, full, hollow)
    for name in [*random_names(20), "Acl", "TAGGING", "acl ", "acl%00"]:
        for method in ("PUT", "DELETE"):
            answer = ask(wire, method, path, [name.replace(" ", "%20")])
            assert (answer.status, answer.code) == (400, "InvalidArgument"), f"{method} {name}: {answer}"
        assert wire.send("GET", f"{path}?{name.replace(' ', '%20')}").status == 200, name
    assert_untouched(wire, full, hollow, level)


def test_header_of_a_query_makes_no_object_of_a_copy(wire, full, hollow):
    source = f"x-amz-copy-source=%2F{full}%2F{KEY}"
    answer = ask(wire, "PUT", f"/{full}/{KEY}", [source])
    assert (answer.status, answer.code) == (400, "InvalidArgument"), answer
    assert_untouched(wire, full, hollow, "a copy's source in the query")


@pytest.mark.parametrize("header", ["x-mlgw-workloads", "x-mlgw-cache", "x-mlgw-tier"])
def test_a_header_of_ours_that_is_none_is_refused(wire, full, hollow, header):
    answer = wire.send("PUT", f"/{full}/{KEY}", [(header, "1")], b"other")
    assert (answer.status, answer.code) == (501, "NotImplemented") and header in answer.text
    assert_untouched(wire, full, hollow, header)
