"""The defaults of the S3 connector of PyTorch, as docs/OPERATIONS.md lists them."""

import s3torchconnector
from s3torchconnector import S3ClientConfig

from retry_table import RetryRow


def test_the_defaults_are_those_of_the_table():
    row = RetryRow("s3torchconnector")
    assert s3torchconnector.__version__.startswith(f"{row.version}.")
    assert row.repeats.startswith(f"{S3ClientConfig().max_attempts} attempts ")
