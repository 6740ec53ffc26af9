"""A boto3 client with default settings: nothing set but the endpoint and the credentials."""

import boto3
import pytest
import requests


@pytest.fixture
def s3(aws):
    return boto3.session.Session().client("s3")


@pytest.fixture
def web(aws):
    session = requests.Session()
    session.trust_env = False
    if aws.certificates:
        session.verify = str(aws.certificates.authority)
    return session
