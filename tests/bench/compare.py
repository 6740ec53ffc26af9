#!/usr/bin/env python3
"""Compares two builds row by row: the benchmark of each is run in turns on this machine, by the same scripts.

A row is worse if each run of the later build is worse than each run of the earlier one, and their medians
differ by more than the noise. Rows without a target show how the machine itself changed meanwhile, and are
not judged. A figure that a run of the later build lacks is worse. The exit status is 1 if a row is worse.

Each run is kept as JSON and not repeated: a comparison that was interrupted continues, and more turns are
added to those that exist.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from report import is_number, shown
from rows import GROUPS

RUN = Path(__file__).resolve().parent / "run"
TURNS, NOISE = 3, 0.05
BEFORE, AFTER = "before", "after"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, metavar="BINARY", help="the earlier build")
    parser.add_argument("--after", required=True, metavar="BINARY", help="the later build")
    parser.add_argument("--keep", required=True, metavar="FOLDER", help="where the runs are kept")
    parser.add_argument("--turns", type=int, default=TURNS, help="runs of each build")
    parser.add_argument("--noise", type=float, default=NOISE, help="difference of medians that is no change")
    parser.add_argument(
        "--only", default=",".join(name for name in GROUPS if not name.startswith("cluster-")),
        metavar="NAME[,NAME]", help="groups of rows; by default all of one server")
    parser.add_argument("further", nargs="*", metavar="-- OPTION", help="options of the benchmark")
    return parser.parse_args()


def rows_of(path):
    """The rows of a kept run by name."""
    return {row["name"]: row for row in json.loads(path.read_text())["rows"]}


def measure(options):
    """Runs what is not kept yet, the builds in turns; returns the rows of all runs by build."""
    folder, runs = Path(options.keep), {BEFORE: [], AFTER: []}
    folder.mkdir(parents=True, exist_ok=True)
    for turn in range(1, options.turns + 1):
        for build, binary in ((BEFORE, options.before), (AFTER, options.after)):
            kept = folder / f"{build}-{turn}.json"
            if not kept.exists():
                outside = os.environ | {"MLGW_BIN": str(Path(binary).resolve()), "ONLY": options.only}
                # Its exit status is that of the targets, which are not judged here.
                subprocess.run([RUN, "--json", str(kept.resolve()), *options.further], env=outside)
            if not kept.exists():
                raise SystemExit(f"the run {kept.name} has no result")
            runs[build].append(rows_of(kept))
    return runs


def compared(before, after, at_least, noise):
    """The ratio of the medians, where more is worse, and the verdict on the figures of one row: `worse`,
    `better` or `same`. The ratio is None if a figure is missing, or if a quotient means nothing."""
    if not before or not after or not all(map(is_number, [*before, *after])):
        return None, "worse" if not after or not all(map(is_number, after)) else "same"
    cost = (lambda value: -value) if at_least else (lambda value: value)
    before_costs, after_costs = [cost(value) for value in before], [cost(value) for value in after]
    ratio = quotient(median(before), median(after), at_least)
    differs = ratio is None or ratio > 1 + noise or ratio < 1 / (1 + noise)
    if differs and min(after_costs) > max(before_costs):
        return ratio, "worse"
    if differs and max(after_costs) < min(before_costs):
        return ratio, "better"
    return ratio, "same"


def quotient(before, after, at_least):
    """A later value divided by an earlier one, or the other way round if more is better."""
    lower, upper = (after, before) if at_least else (before, after)
    if lower == upper:
        return 1.0
    if lower < 0 or upper < 0:
        return None
    return upper / lower if lower > 0 else math.inf


def table(runs, noise):
    """The lines of the table, and the names of the rows that are worse."""
    lines, worse = ["| row | before | after | ratio | |", "| --- | --- | --- | --- | --- |"], []
    named = {name: row for of_build in runs.values() for rows in of_build for name, row in rows.items()}
    for name, row in named.items():
        figures = {build: [rows[name]["measured"] if name in rows else None for rows in of_build]
                   for build, of_build in runs.items()}
        ratio, verdict = compared(figures[BEFORE], figures[AFTER], row["at_least"], noise)
        # A group that broke in an earlier run has a row without a value there, and none in other runs.
        is_known = any(map(is_number, figures[BEFORE])) or any(name in rows for rows in runs[AFTER])
        is_judged = is_known and (row["target"] is not None or not all(map(is_number, figures[AFTER])))
        if is_judged and verdict == "worse":
            worse.append(name)
        cells = [f"`{name}`", *(listed(figures[build]) for build in (BEFORE, AFTER)),
                 "" if ratio is None else f"{ratio:.3f}", verdict if is_judged else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines, worse


def listed(figures):
    return ", ".join(map(shown, figures))


def main():
    options = arguments()
    lines, worse = table(measure(options), options.noise)
    print("\n".join(lines))
    print(f"\n{len(lines) - 2} rows, {options.turns} runs of each build; "
          + (f"worse: {', '.join(worse)}" if worse else "none is worse"))
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
