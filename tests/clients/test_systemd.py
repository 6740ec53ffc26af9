"""The unit and the configuration of deploy/systemd: systemd knows every setting of the unit, and the server
accepts its configurations. No systemd runs the unit here.
"""

import os
import pathlib
import subprocess

import pytest

DEPLOY = pathlib.Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "mlgw.service"
# The program in the unit, and its configuration.
PROGRAM = "/usr/local/bin/mlgw"
CONFIGURATION = "/etc/mlgw/mlgw.toml"


def complaints(folder, text):
    """Returns what systemd finds wrong in a unit with this text."""
    unit = folder / UNIT.name
    # The program of the unit has to exist.
    unit.write_text(text.replace(PROGRAM, os.environ["MLGW_BIN"]))
    checked = subprocess.run(
        ["systemd-analyze", "--man=no", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    # Units that are installed on this machine are verified too.
    lines = [line for line in checked.stderr.splitlines() if UNIT.name in line]
    return lines or [f"exit status {checked.returncode}: {checked.stderr}"] * (checked.returncode != 0)


def test_systemd_accepts_the_unit(tmp_path):
    assert complaints(tmp_path, UNIT.read_text()) == []


@pytest.mark.parametrize(
    "old, new",
    [
        ("ProtectClock=yes", "ProtectClok=yes"),
        ("ProtectClock=yes", "ProtectClock=perhaps"),
        ("TimeoutStopSec=90s", "TimeoutStopSec=90 minuets"),
        ("@system-service", "@system-servise"),
        (f"ExecStart={PROGRAM}", "ExecStart=/usr/local/bin/mlgv"),
    ],
)
def test_a_wrong_line_of_a_unit_is_found(tmp_path, old, new):
    text = UNIT.read_text()
    assert old in text
    assert complaints(tmp_path, text.replace(old, new)) != []


def test_the_commands_of_the_unit_are_those_of_the_server():
    started = [line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart")]
    commands = [line.split("=", 1)[1].split() for line in started]
    assert [command[:2] for command in commands] == [[PROGRAM, "config"], [PROGRAM, "serve"]]
    assert all(CONFIGURATION in command for command in commands)
    for _, *words in commands:
        arguments = [os.environ["MLGW_BIN"], *words, "--help"]
        shown = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("name", ["systemd/cluster.toml", "mlgw.toml"])
def test_the_server_accepts_the_configurations_for_the_unit(name):
    checked = subprocess.run(
        [os.environ["MLGW_BIN"], "config", "check", str(DEPLOY / name)],
        capture_output=True, text=True, check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_stop_takes_no_longer_than_systemd_waits():
    # s3.shutdown_delay 5s, drain_timeout 30s, the hand-over of leaderships 5s, and the syncs.
    (seconds,) = [line for line in UNIT.read_text().splitlines() if line.startswith("TimeoutStopSec=")]
    assert int(seconds.removeprefix("TimeoutStopSec=").removesuffix("s")) >= 5 + 30 + 5 + 30
