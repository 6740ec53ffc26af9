"""Measured results: rows as they are printed and stored, and progress on standard error."""

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
    """A figure as rows show and judge it: three significant digits, so that a negligible difference is not a
    miss."""
    return float(f"{value:.3g}")


@dataclass
class Row:
    """One row. A row without a target is information. A row without a measured value was missed for the noted
    reason, and so was a row whose value or target is no finite number."""

    name: str
    measured: float | None
    unit: str
    target: float | None
    at_least: bool
    note: str

    @property
    def is_known(self):
        """True if the measured value, and the target if there is one, are numbers that can be compared: a
        division by an unknown value must not count as met."""
        return is_number(self.measured) and (self.target is None or is_number(self.target))

    @property
    def ratio(self):
        """Ratio of the measured value to its target, where more is worse; 1 and less is met. None if there is
        nothing to compare."""
        if not self.is_known or self.target is None:
            return None
        measured, target = three_digits(self.measured), three_digits(self.target)
        worse, better = (target, measured) if self.at_least else (measured, target)
        if worse <= better:
            # For values below 0 no quotient expresses the ratio.
            return worse / better if worse >= 0 < better else 1.0
        return worse / better if better > 0 else math.inf

    def missed(self, slack=1.0):
        """True if it is worse than its target by more than `slack` times."""
        if not self.is_known:
            return True
        return self.target is not None and self.ratio > slack

    @property
    def verdict(self):
        if not self.is_known:
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
    """A figure with three significant digits and thousands separators."""
    if value is None:
        return "-"
    if not is_number(value):
        return f"{value:g}"
    value = three_digits(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:g}"


def is_number(value):
    """True for a finite number."""
    return value is not None and math.isfinite(value)


class Report:
    """The rows so far. Each is printed when it is known; times on progress lines count from `begun`."""

    def __init__(self):
        self.rows, self.begun = [], time.monotonic()

    def at_most(self, name, measured, unit, target, note=""):
        self._add(Row(name, measured, unit, target, False, note))

    def at_least(self, name, measured, unit, target, note=""):
        self._add(Row(name, measured, unit, target, True, note))

    def information(self, name, measured, unit, note=""):
        self._add(Row(name, measured, unit, None, False, note))

    def missed(self, name, why):
        """Adds a row without a figure."""
        self._add(Row(name, None, "", None, False, why))

    def _add(self, row):
        self.rows.append(row)
        print(row.line(), flush=True)

    def say(self, what):
        """Prints a line of progress."""
        print(f"{time.monotonic() - self.begun:7.0f} s  {what}", file=sys.stderr, flush=True)

    def counter(self, what, total):
        """A counter that prints its progress every few seconds; call it with the amount done since the last
        call."""
        return Counter(self, what, total)

    def save(self, path, about):
        """Writes all rows as JSON, with a description of the machine and the contents of `about`. A value
        that is no finite number is null, as a missing one."""
        finite = lambda value: value if is_number(value) else None
        figures = lambda row: {"measured": finite(row.measured), "target": finite(row.target),
                               "ratio": finite(row.ratio), "met": not row.missed()}
        rows = [asdict(row) | figures(row) for row in self.rows]
        machine = {"processor": processor(), "cores": os.cpu_count(), "kernel": platform.release()}
        document = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine} | about
        Path(path).write_text(json.dumps(document | {"rows": rows}, indent=2, ensure_ascii=False) + "\n")


class Counter:
    """Progress of a counted task."""

    def __init__(self, report, what, total):
        self.report, self.what, self.total, self.done = report, what, total, 0
        self.begun = self.said = time.monotonic()
        report.say(f"{what}: {total:,}")

    def __call__(self, more=1):
        self.done += more
        now = time.monotonic()
        if now - self.said >= PROGRESS_SECONDS:
            self.said = now
            self.report.say(
                f"{self.what}: {self.done:,} of {self.total:,}, {self.done / (now - self.begun):,.0f}/s")


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
