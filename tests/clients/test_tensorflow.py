"""TensorFlow with the S3 file system of tensorflow-io.

That file system reads its settings once per process, so each test is a process of its own, which runs one
function of tensorflow_work.py.
"""

import pathlib
import subprocess
import sys

import pytest

WORK = pathlib.Path(__file__).with_name("tensorflow_work.py")


@pytest.fixture
def work(server, bucket):
    environment = server.environment() | {
        "S3_ENDPOINT": server.endpoint,
        "S3_USE_HTTPS": "1" if server.certificates else "0",
        "S3_VERIFY_SSL": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if server.certificates:
        environment["S3_CA_FILE"] = str(server.certificates.authority)

    def run(name):
        command = [
            sys.executable,
            WORK,
            name,
            bucket,
            str(server.load.large_bytes),
            str(server.load.small_objects),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]

    return run


def test_a_large_file_comes_back_byte_for_byte(work):
    work("large_file")


def test_many_small_files_come_back_and_are_listed_renamed_and_removed(work):
    work("small_files")


def test_record_files_feed_a_data_set_and_a_model_learns_from_it(work):
    work("records")


def test_a_model_saved_to_the_bucket_comes_back_weight_for_weight(work):
    work("checkpoint")
