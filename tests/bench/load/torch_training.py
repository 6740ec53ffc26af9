"""A training loop of PyTorch over the S3 connector, run with the Python of the environment `torch`: reads a
bucket's objects in shuffled epochs, with a simulated accelerator that takes time for each batch (a pause, as
in MLPerf Storage).

usage: python torch_training.py '{"endpoint":…, "uri":…, "epochs":…, "batch":…, "compute":…, "workers":…,
"seed":…}'
Prints a line of JSON for each epoch: seconds, those spent waiting for data, and samples."""

import json
import sys
import time

import torch
from s3torchconnector import S3ClientConfig, S3MapDataset

REGION = "us-east-1"


def size_and_sum(item):
    """A sample: the size of its bytes as a tensor, and the mean of some of them in place of a model's work.
    """
    body = torch.frombuffer(bytearray(item.read()), dtype=torch.uint8)
    return len(body), body[::64].float().mean()


def train(loader, compute):
    """Runs one epoch."""
    samples, waited, begun = 0, 0.0, time.perf_counter()
    batches, asked = iter(loader), time.perf_counter()
    for sizes, means in batches:
        waited += time.perf_counter() - asked
        assert (sizes > 0).all() and torch.isfinite(means).all()
        samples += len(sizes)
        time.sleep(compute)
        asked = time.perf_counter()
    return {"seconds": time.perf_counter() - begun, "waited": waited, "samples": samples}


def main():
    options = json.loads(sys.argv[1])
    config = S3ClientConfig(force_path_style=True)
    dataset = S3MapDataset.from_prefix(
        options["uri"], region=REGION, endpoint=options["endpoint"], transform=size_and_sum,
        s3client_config=config)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=options["batch"], shuffle=True, num_workers=options["workers"],
        persistent_workers=True, generator=torch.Generator().manual_seed(options["seed"]))
    # Lists the bucket and starts the workers: no epoch is charged with that.
    len(dataset)
    for _ in range(options["epochs"]):
        print(json.dumps(train(loader, options["compute"])), flush=True)


if __name__ == "__main__":
    main()
