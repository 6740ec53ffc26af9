"""The first steps of a new user: the lines printed by `mlgw serve` are pasted into a shell and into Python.
"""

import os
import pathlib
import subprocess
import sys
import time

import pytest

from server import Server

PRINTED_SECONDS_MAX = 30


@pytest.fixture
def fresh():
    """A server that makes its own root key and prints it."""
    server = Server(settings={"s3.print_credentials": "always"}, root_key_given=False)
    server.start()
    yield server
    server.stop()


def printed(server, starts):
    """Returns (the lines for a shell, the lines for Python) printed by the server's last start."""
    deadline = time.monotonic() + PRINTED_SECONDS_MAX
    while server.output().count("\nprint(") < starts:  # It serves before it prints them.
        assert time.monotonic() < deadline, server.output()
        time.sleep(0.02)
    lines = server.output().splitlines()
    exports = [line for line in lines if line.startswith("export ")][-4:]
    start = len(lines) - 1 - lines[::-1].index("import boto3")
    snippet = [line for line in lines[start:] if line.strip() and not line.startswith("export ")]
    stop = next(number for number, line in enumerate(snippet) if line.startswith("print("))
    return "\n".join(exports), "\n".join(snippet[: stop + 1])


def without_aws():
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


def test_the_printed_lines_work_as_pasted_and_outlive_a_restart(fresh):
    exports, snippet = printed(fresh, starts=1)
    python = [sys.executable, "-c", snippet]
    assert subprocess.check_output(python, env=without_aws()) == b"b'hello'\n"
    program = pathlib.Path(sys.executable).with_name("aws")
    shell = f"{exports}\n{sys.executable} {program} s3 cp s3://first/hello.txt -"
    assert subprocess.check_output(["bash", "-c", shell], env=without_aws()) == b"hello"
    fresh.end()
    fresh.start()
    assert printed(fresh, starts=2) == (exports, snippet)
    assert subprocess.check_output(["bash", "-c", shell], env=without_aws()) == b"hello"
    assert subprocess.check_output(python, env=without_aws()) == b"b'hello'\n"


def test_a_secret_is_not_printed_where_a_log_would_keep_it(http):
    assert "AWS_SECRET_ACCESS_KEY" not in http.output()


def test_a_second_server_on_one_directory_is_refused(http):
    command = [
        os.environ["MLGW_BIN"],
        "serve",
        "--data-dir",
        str(http.folder / "data"),
        "--listen",
        "127.0.0.1:0",
    ]
    done = subprocess.run(
        [*command, "--admin-listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 4 and "data" in done.stderr
