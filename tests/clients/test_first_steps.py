"""The first steps of a new user: the lines printed by `mlgw serve` are pasted into a shell and into Python,
and those printed by `make cluster` into a shell.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from server import Server

PRINTED_SECONDS_MAX = 30
REPO = pathlib.Path(__file__).parents[2]
# Three nodes start, two of them after they have joined, and get votes.
CLUSTER_SECONDS_MAX = 180
PASTED_SECONDS_MAX = 180
# The last lines that `make cluster` prints.
CLUSTER_PRINTED = "Ctrl-C here stops"


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


class ClusterStep:
    """A running `make cluster` without its build, in a clone with the built binary, on a loopback address of
    its own."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "tests" / "steps").mkdir(parents=True)
        for name in ["tests/steps/cluster", "tests/steps/lib.sh", "README.md", "LICENSE"]:
            shutil.copy(REPO / name, folder / name)
        (folder / "mlgw").symlink_to(os.environ["MLGW_BIN"])
        high, middle, low = os.getpid().to_bytes(4, "big")[1:]
        settings = {"MLGW_LOOPBACK": f"127.{192 | high & 31}.{middle}.{low}"}
        known = ["MLGW_CACHE", "MLGW_BIN"]
        settings |= {
            name: value
            for name, value in os.environ.items()
            if name in known or not name.startswith(("MLGW_", "AWS_"))
        }
        self.environment = settings
        with open(folder / "output", "wb") as output:
            self.process = subprocess.Popen(
                ["bash", "tests/steps/cluster"], cwd=folder, env=settings, stdout=output, stderr=output
            )

    def output(self):
        return (self.folder / "output").read_text()

    def printed(self):
        """Returns what it has printed, when all of that is there."""
        deadline = time.monotonic() + CLUSTER_SECONDS_MAX
        while CLUSTER_PRINTED not in self.output():
            assert self.process.poll() is None and time.monotonic() < deadline, self.output()
            time.sleep(0.1)
        return self.output()

    def run(self, script):
        """Runs lines in a shell, as pasted there; nothing of them runs afterwards."""
        script = f"set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}\n"
        return subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.environment, timeout=PASTED_SECONDS_MAX,
            capture_output=True, text=True, check=False,
        )

    def stop(self):
        """Stops it as Ctrl-C does."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(CLUSTER_SECONDS_MAX)


@pytest.fixture
def cluster_step(tmp_path):
    step = ClusterStep(tmp_path)
    yield step
    if step.process.poll() is None:
        step.stop()


def test_the_printed_lines_of_a_cluster_lose_a_node_and_start_it_again(cluster_step):
    lines = cluster_step.printed().splitlines()
    exports = [line for line in lines if line.startswith("export ")]
    assert len(exports) == 4, lines
    begin = next(number for number, line in enumerate(lines) if line.startswith("In another shell"))
    pasted = [line for line in lines[begin:] if line.startswith("    ")]
    # Instead of a person, a loop watches until the node serves and the status has no finding.
    (watch,) = [number for number, line in enumerate(pasted) if line.startswith("    watch -n 1 ")]
    status, read = pasted[watch].removeprefix("    watch -n 1 "), pasted[watch + 1].split("#")[0]
    pasted[watch] = "\n".join(
        f"until {command} >watched 2>&1; do sleep 0.2; done" for command in [read.strip(), status]
    )
    done = cluster_step.run("\n".join(exports + pasted) + "\nwait $!")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{cluster_step.output()}"
    assert done.stdout.count((REPO / "README.md").read_text()) == 2, done.stdout
    assert (REPO / "LICENSE").read_text() in done.stdout
    assert "node 3 has ended" in cluster_step.output()
    assert (cluster_step.folder / "watched").read_text().count("  storage  active  ") == 3
    assert cluster_step.stop() == 130, cluster_step.output()
    assert "node 1 has ended" not in cluster_step.output(), "the other nodes went on"
