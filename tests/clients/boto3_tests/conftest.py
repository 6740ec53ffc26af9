"""A boto3 client as its users get it: nothing set but the endpoint and the credentials."""

import boto3
import pytest


@pytest.fixture
def s3(aws):
    return boto3.session.Session().client("s3")
