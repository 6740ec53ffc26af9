#!/usr/bin/env python3
"""`make bench`: the costs of requests, objects and starts, compared with their targets. docs/PERFORMANCE.md
describes how each is measured.

Prints a line for each row as it becomes known, progress on standard error; exit status 1 if a row misses its
target by more than --slack times.
"""

import argparse
import signal
import subprocess
import sys
import traceback

from bench import Bench
from rows import GROUPS, named

# Sizes with --quickly: enough to see that everything works, too little for figures.
QUICK = {"objects": 20_000, "million": 50_000, "puts": 50_000, "commands": 200_000, "seconds": 3,
         "idle_seconds": 5, "gib": 0.25, "wiped_gib": 0.25, "pause_seconds": 10}


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument(
        "--only", default="", metavar="NAME[,NAME]",
        help=f"groups of rows, or the beginnings of their names: {', '.join(GROUPS)}")
    parser.add_argument("--dir", help="where data goes: a folder on a disk, not tmpfs; about 15 GiB")
    parser.add_argument("--json", metavar="FILE", help="keep the rows in a file, too")
    parser.add_argument("--quickly", action="store_true", help="small sizes, to try it")
    parser.add_argument(
        "--slack", type=float, default=1.0, help="how many times worse than its target a row may be")
    parser.add_argument("--seed", type=int, default=1)
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument("--objects", type=int, default=200_000, help="distinct objects to GET")
    sizes.add_argument("--million", type=int, default=1_000_000, help="objects of 1 KiB, in thousands")
    sizes.add_argument("--puts", type=int, default=500_000, help="the fewest requests of put-4k")
    sizes.add_argument(
        "--commands", type=int, default=5_000_000, help="commands that pass the catalogue's log")
    sizes.add_argument("--gib", type=float, default=1.0, help="size of the bodies that are called 1 GiB")
    sizes.add_argument("--seconds", type=int, default=10, help="of a reading load")
    sizes.add_argument("--idle-seconds", type=int, default=30)
    sizes.add_argument("--wiped-gib", type=float, default=2.0, help="bytes that a node fetches again")
    sizes.add_argument("--pause-seconds", type=int, default=60, help="time for which a node hangs")
    options = parser.parse_args()
    found = {name: named(name) for name in options.only.split(",") if name} or {"": list(GROUPS)}
    unknown = sorted(name for name, groups in found.items() if not groups)
    if unknown:
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    options.groups = [name for name in GROUPS if any(name in groups for groups in found.values())]
    for name, value in QUICK.items() if options.quickly else ():
        setattr(options, name, value)
    return options


def run(bench, names):
    """Runs each group; a group that breaks is a missed row, and the others continue."""
    for name in names:
        bench.report.say(f"--- {name}")
        try:
            GROUPS[name](bench)
        except Exception as error:
            traceback.print_exc()
            bench.report.missed(name, f"{type(error).__name__}: {error}")
            bench.abandon()


def main():
    options = arguments()
    version = subprocess.run([options.binary, "version"], check=True, capture_output=True, text=True)
    version = version.stdout.strip()
    # On SIGTERM, stops its server and removes its data as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    bench = Bench(options)
    try:
        run(bench, options.groups)
        bench.stop()
    finally:
        bench.close()
    if options.json:
        bench.report.save(options.json, {"version": version, "options": vars(options)})
    sys.exit(exit_status(bench.report.rows, options.slack))


def exit_status(rows, slack):
    """Prints the names of the missed rows; 1 if there are any, or no rows at all."""
    missed = [row.name for row in rows if row.missed(slack)]
    print(f"{len(rows) - len(missed)} of {len(rows)} rows within {slack:g}x of their targets"
          + (f"; missed: {', '.join(missed)}" if missed else ""))
    return 1 if missed or not rows else 0


if __name__ == "__main__":
    main()
