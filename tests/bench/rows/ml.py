"""Hits of the policy engine on generated workloads, compared with the optimum and reference caches, and its
flash writes."""

import json
import subprocess
from pathlib import Path

REPO = Path(__file__).parents[3]


def ml(bench):
    """Runs the goals; each line is a row."""
    command = [
        "cargo", "run", "--quiet", "--release", "--locked", "--package", "mlgw-lab",
        "--example", "goals", "--"]
    seeds = "2" if bench.options.quickly else "8"
    command += [seeds, str(bench.options.seed)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as goals:
        for line in goals.stdout:
            goal = json.loads(line)
            judge = bench.report.at_least if goal["at_least"] else bench.report.at_most
            judge(goal["goal"], goal["result"], "", goal["target"], goal["note"])
    if goals.returncode:
        bench.report.missed("ml", f"the goals ended with {goals.returncode}")
