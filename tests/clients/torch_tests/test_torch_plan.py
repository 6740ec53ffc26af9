"""The access plan of docs/POLICIES.md, followed by PyTorch's own sampler: the server predicts the next reads.
"""

import json
import pathlib
import re

import pytest
import torch

from content import content
from server import ACCESS_KEY, SECRET_KEY, Server
from wire import Wire

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs/POLICIES.md"
BYTES = 4096
KEYS = [f"train/{number:05d}.bin" for number in range(100)]
EPOCHS = 4


def example():
    """The plan as it stands in the documentation."""
    blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.S)
    (plan,) = [block for block in blocks if "sampler:" in block]
    return plan


def number(plan, field):
    return int(re.search(rf"^{field}: (\d+)", plan, re.M)[1])


@pytest.fixture
def gateway():
    """A server whose bucket `data` is backed by a bucket of an origin."""
    origin = Server().start()
    Wire(origin).send("PUT", "/lake")
    for key in KEYS:
        assert Wire(origin).send("PUT", f"/lake/{key}", body=content(BYTES, key)).status == 200
    upstream = {
        "endpoint": origin.endpoint,
        "bucket": "lake",
        "credentials": "static",
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
    }
    gateway = Server(settings={f"upstream.far.{name}": value for name, value in upstream.items()}).start()
    gateway.command("bucket", "bind", "data", "--upstream", "far", "--ttl", "1h")
    yield gateway
    gateway.stop()
    origin.stop()


class Objects(torch.utils.data.Dataset):
    """The keys in the order of a listing, each read with one GET by a process that declares its workload."""

    def __init__(self, server, workload):
        self.server, self.headers = server, [("x-mlgw-workload", workload)]

    def __len__(self):
        return len(KEYS)

    def __getitem__(self, index):
        answer = Wire(self.server).send("GET", f"/data/{KEYS[index]}", self.headers)
        assert answer.status == 200 and answer.body == content(BYTES, KEYS[index])
        return index


def epoch(server, workload, ranks, seed, of):
    """Runs all ranks in parallel."""
    dataset = Objects(server, workload)
    samplers = [
        torch.utils.data.DistributedSampler(dataset, num_replicas=ranks, rank=rank, seed=seed)
        for rank in range(ranks)
    ]
    for sampler in samplers:
        sampler.set_epoch(of)
    loaders = [torch.utils.data.DataLoader(dataset, batch_size=1, sampler=sampler) for sampler in samplers]
    for _ in zip(*loaders, strict=True):
        pass


def test_the_plan_of_the_documentation_is_what_the_sampler_of_torch_reads(gateway, tmp_path):
    plan = example()
    (tmp_path / "plan.yaml").write_text(plan)
    path = str(tmp_path / "plan.yaml")
    put = gateway.command("workload", "plan", "put", path, "--workload", "resnet50")
    assert put["keys"] == len(KEYS) and not put["trusted"]
    for of in range(EPOCHS):
        epoch(gateway, "resnet50", number(plan, "ranks"), number(plan, "seed"), of)
    shown = gateway.command("workload", "plan", "show", "resnet50")
    assert shown["trusted"], json.dumps(shown, indent=1)
    # 13 objects per rank: the padded rest is read twice.
    ranks = number(plan, "ranks")
    assert shown["reads"] == -(-len(KEYS) // ranks) * ranks
    assert shown["epoch"] in (EPOCHS - 1, EPOCHS), json.dumps(shown, indent=1)
    explained = gateway.command("policy", "explain", f"s3://data/{KEYS[7]}")
    assert explained["kept"]["planned"] == 1, json.dumps(explained, indent=1)


def test_a_plan_with_another_seed_is_not_trusted_and_harms_nobody(gateway, tmp_path):
    plan = example()
    wrong = plan.replace(f"seed: {number(plan, 'seed')}", "seed: 4711")
    (tmp_path / "plan.yaml").write_text(wrong)
    gateway.command("workload", "plan", "put", str(tmp_path / "plan.yaml"), "--workload", "resnet50")
    for of in range(2):
        epoch(gateway, "resnet50", number(plan, "ranks"), number(plan, "seed"), of)
    assert not gateway.command("workload", "plan", "show", "resnet50")["trusted"]
