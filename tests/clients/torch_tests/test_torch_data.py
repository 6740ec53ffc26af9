"""PyTorch data sets over S3, read by DataLoader workers, and a model trained from them."""

import io

import pytest
import torch
from s3torchconnector import S3IterableDataset, S3MapDataset

from content import content, small_objects
from wire import Wire

WORKERS = 2


def store(server, bucket, objects):
    for key, body in objects.items():
        assert Wire(server).send("PUT", f"/{bucket}/{key}", body=body).status == 200


def key_and_body(item):
    return item.key, item.read()


def as_is(batch):
    return batch


def test_a_map_data_set_gives_every_object_by_index_to_workers(connector, aws, bucket):
    objects = dict(small_objects(aws.load.small_objects))
    store(aws, bucket, objects)
    dataset = S3MapDataset.from_prefix(f"s3://{bucket}/many/", transform=key_and_body, **connector)
    assert len(dataset) == len(objects)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=16, shuffle=True, num_workers=WORKERS, collate_fn=as_is
    )
    for _ in range(2):
        assert dict(item for batch in loader for item in batch) == objects


def test_an_iterable_data_set_is_shared_out_among_workers(connector, aws, bucket):
    objects = dict(small_objects(aws.load.small_objects))
    store(aws, bucket, objects)
    options = {"transform": key_and_body, "enable_sharding": True}
    dataset = S3IterableDataset.from_prefix(f"s3://{bucket}/", **options, **connector)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=WORKERS, collate_fn=as_is)
    items = [item for batch in loader for item in batch]
    assert len(items) == len(objects) and dict(items) == objects


def test_a_large_object_comes_back_byte_for_byte_in_order_and_by_seeking(connector, aws, bucket):
    body = content(aws.load.large_bytes, "torch")
    store(aws, bucket, {"large": body})
    reader = S3MapDataset.from_objects([f"s3://{bucket}/large"], **connector)[0]
    assert reader.read() == body
    reader.seek(len(body) - 77)
    assert reader.read(77) == body[-77:]


def test_an_empty_object_is_read_as_nothing(connector, aws, bucket):
    store(aws, bucket, {"empty": b""})
    assert S3MapDataset.from_objects([f"s3://{bucket}/empty"], **connector)[0].read() == b""


def sample(number):
    """A point and its label, which a linear model can learn."""
    torch.manual_seed(number)
    point = torch.randn(8)
    return point, (point.sum() > 0).float()


def load_tensors(item):
    return torch.load(io.BytesIO(item.read()), weights_only=True)


def test_a_small_model_learns_from_samples_in_the_bucket_in_two_epochs(connector, aws, bucket):
    samples = {}
    for number in range(aws.load.small_objects):
        buffer = io.BytesIO()
        torch.save(sample(number), buffer)
        samples[f"train/{number:04}.pt"] = buffer.getvalue()
    store(aws, bucket, samples)
    dataset = S3MapDataset.from_prefix(f"s3://{bucket}/train/", transform=load_tensors, **connector)
    loader = torch.utils.data.DataLoader(dataset, batch_size=10, shuffle=True, num_workers=WORKERS)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        total = 0.0
        for points, labels in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(points).squeeze(1), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert losses[1] < losses[0]


@pytest.mark.parametrize("length", [0, 1, 5 << 20])
def test_what_the_connector_writes_is_whole(connector, aws, bucket, length):
    from s3torchconnector import S3Checkpoint

    body = content(length, "written")
    with S3Checkpoint(**connector).writer(f"s3://{bucket}/written") as writer:
        writer.write(body)
    answer = Wire(aws).send("GET", f"/{bucket}/written")
    assert (answer.status, answer.body) == (200, body)
