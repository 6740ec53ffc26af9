"""The S3 connector of PyTorch reads credentials and the endpoint from the environment."""

import pytest
from s3torchconnector import S3ClientConfig

from server import REGION


@pytest.fixture
def connector(aws):
    """Arguments that every class of the connector takes."""
    return {
        "region": REGION,
        "endpoint": aws.endpoint,
        "s3client_config": S3ClientConfig(force_path_style=True),
    }
