"""What was measured: rows as they are printed and kept, and progress on standard error."""

import json
import math
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

PROGRESS_SECONDS = 5


def three_digits(value):
    """A figure as rows show and judge it: three significant digits, so that a hair is no miss."""
    return float(f"{value:.3g}")


@dataclass
class Row:
    """One line. Without a target it is information; without a measured value the row was missed for the reason noted."""

    name: str
    measured: float | None
    unit: str
    target: float | None
    at_least: bool
    note: str

    @property
    def ratio(self):
        """How many times worse than its target; 1 and less is met. None when there is nothing to compare."""
        if self.measured is None or self.target is None:
            return None
        measured, target = three_digits(self.measured), three_digits(self.target)
        worse, better = (target, measured) if self.at_least else (measured, target)
        if worse <= better:
            # Of what is below 0 no quotient says how good it is.
            return worse / better if worse >= 0 < better else 1.0
        return worse / better if better > 0 else math.inf

    def missed(self, slack=1.0):
        """Whether it is worse than its target by more than `slack` times."""
        if self.measured is None:
            return True
        return self.target is not None and self.ratio > slack

    @property
    def verdict(self):
        if self.measured is None:
            return "MISSED"
        if self.target is None:
            return ""
        if self.ratio <= 1:
            return "met"
        return f"{self.ratio:.2f}x" if math.isfinite(self.ratio) else "MISSED"

    def line(self):
        sign = "" if self.target is None else ("≥ " if self.at_least else "≤ ") + shown(self.target)
        return (f"{self.name:<26} {shown(self.measured):>12} {self.unit:<14} {sign:>12} {self.verdict:>8}  "
                f"{self.note}").rstrip()


def shown(value):
    """A figure with three significant digits, and thousands apart."""
    if value is None:
        return "-"
    value = three_digits(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:g}"


class Report:
    """Rows so far. Each is printed when it is known; `begun` is what times on progress lines count from."""

    def __init__(self):
        self.rows, self.begun = [], time.monotonic()

    def at_most(self, name, measured, unit, target, note=""):
        self._add(Row(name, measured, unit, target, False, note))

    def at_least(self, name, measured, unit, target, note=""):
        self._add(Row(name, measured, unit, target, True, note))

    def information(self, name, measured, unit, note=""):
        self._add(Row(name, measured, unit, None, False, note))

    def missed(self, name, why):
        """A row that has no figure."""
        self._add(Row(name, None, "", None, False, why))

    def _add(self, row):
        self.rows.append(row)
        print(row.line(), flush=True)

    def say(self, what):
        """A line of progress."""
        print(f"{time.monotonic() - self.begun:7.0f} s  {what}", file=sys.stderr, flush=True)

    def counter(self, what, total):
        """Says every few seconds how far something is; call it with what was done on top."""
        return Counter(self, what, total)

    def save(self, path, about):
        """All rows as JSON, with what is known of the machine and whatever `about` says."""
        finite = lambda ratio: ratio if ratio is not None and math.isfinite(ratio) else None
        rows = [asdict(row) | {"ratio": finite(row.ratio), "met": not row.missed()} for row in self.rows]
        machine = {"processor": processor(), "cores": os.cpu_count(), "kernel": platform.release()}
        document = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine} | about
        Path(path).write_text(json.dumps(document | {"rows": rows}, indent=2, ensure_ascii=False) + "\n")


class Counter:
    """Progress of something that is counted."""

    def __init__(self, report, what, total):
        self.report, self.what, self.total, self.done = report, what, total, 0
        self.begun = self.said = time.monotonic()
        report.say(f"{what}: {total:,}")

    def __call__(self, more=1):
        self.done += more
        now = time.monotonic()
        if now - self.said >= PROGRESS_SECONDS:
            self.said = now
            self.report.say(f"{self.what}: {self.done:,} of {self.total:,}, {self.done / (now - self.begun):,.0f}/s")


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
