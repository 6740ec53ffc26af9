"""Checkpoints of PyTorch in S3: one file each, and distributed ones of several ranks."""

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from s3torchconnector import S3Checkpoint
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter

from server import REGION, free_port

RANKS = 2


def state(seed, width=512):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, width)).sum().backward()
    optimizer.step()
    return model, optimizer


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_checkpoint_comes_back_weight_for_weight(connector, aws, bucket):
    # float32: a square layer of this width has the large size of this scheme.
    width = int((aws.load.large_bytes / 4) ** 0.5)
    weights = {"large": torch.randn(width, width), "model": state(1)[0].state_dict()}
    checkpoint = S3Checkpoint(**connector)
    with checkpoint.writer(f"s3://{bucket}/epoch-0.pt") as writer:
        torch.save(weights, writer)
    with checkpoint.reader(f"s3://{bucket}/epoch-0.pt") as reader:
        loaded = torch.load(reader, weights_only=True)
    assert torch.equal(loaded["large"], weights["large"]) and same(loaded["model"], weights["model"])


def test_a_checkpoint_can_be_replaced_by_the_next(connector, bucket):
    checkpoint = S3Checkpoint(**connector)
    for seed in range(3):
        with checkpoint.writer(f"s3://{bucket}/latest.pt") as writer:
            torch.save(state(seed)[0].state_dict(), writer)
    with checkpoint.reader(f"s3://{bucket}/latest.pt") as reader:
        assert same(torch.load(reader, weights_only=True), state(2)[0].state_dict())


def test_a_distributed_checkpoint_comes_back_in_one_process(aws, bucket):
    model, optimizer = state(1)
    saved = {"model": model.state_dict(), "step": torch.tensor(7)}
    path = f"s3://{bucket}/dcp/step-7"
    dcp.save(saved, storage_writer=S3StorageWriter(region=REGION, path=path), no_dist=True)
    loaded = {"model": state(2)[0].state_dict(), "step": torch.tensor(0)}
    dcp.load(loaded, storage_reader=S3StorageReader(region=REGION, path=path), no_dist=True)
    assert same(loaded["model"], saved["model"]) and loaded["step"] == 7


def work_of_rank(rank, port, path):
    """Saves a tensor of each rank, then loads all into other tensors and compares."""
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    weights = {f"rank-{rank}": torch.full((1000, 300), float(rank + 1)), "shared": torch.arange(100_000.0)}
    dcp.save(weights, storage_writer=S3StorageWriter(region=REGION, path=path))
    loaded = {f"rank-{rank}": torch.zeros(1000, 300), "shared": torch.zeros(100_000)}
    dcp.load(loaded, storage_reader=S3StorageReader(region=REGION, path=path))
    torch.distributed.destroy_process_group()
    assert same(loaded, weights)


def test_a_distributed_checkpoint_of_two_ranks_comes_back(aws, bucket):
    arguments = (free_port(), f"s3://{bucket}/dcp/ranks")
    torch.multiprocessing.spawn(work_of_rank, args=arguments, nprocs=RANKS, join=True)
