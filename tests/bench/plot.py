#!/usr/bin/env python3
"""Draws the results of `training`, with and without the gateway, as SVG: bars that are readable on white and
on black.

usage: plot.py ROWS.json OUT.svg        rows as `tests/bench/run --only training --json ROWS.json` keeps them
"""

import json
import sys
from html import escape
from pathlib import Path

GREY, OURS, THEIRS = "#808080", "#e0457b", "#3d8bd4"
WIDTH, LEFT, RIGHT, TOP, LINE, GAP = 720, 210, 90, 34, 22, 30
HERE = "kept by the engine"
# The comparisons; for each bar its label and its row.
PANELS = [
    ("read from the origin in four epochs, room for half (datasets)",
     [("no copies", "training-origin-none"), ("LRU (computed)", "training-origin-lru"),
      (HERE, "training-origin-kept"), ("the best there can be", "training-origin-optimum")]),
    ("an epoch of PyTorch (s)",
     [("from the origin itself", "training-epoch-direct"), ("no copies", "training-epoch-none"),
      (HERE, "training-epoch-kept")]),
    ("of that, waiting for data (%)",
     [("from the origin itself", "training-stall-direct"), ("no copies", "training-stall-none"),
      (HERE, "training-stall-kept")]),
    ("a shard of a model that 16 replicas load at once, p99 (ms)",
     [("from the origin itself", "model-p99-direct"), ("through a bound bucket", "model-p99-here")]),
    ("found by training beside a scan, room for half (share of bytes)",
     [("LRU (computed)", "scan-lru-beside"), (HERE, "scan-beside")]),
]


def label(figure):
    """At least three digits, and all digits before the decimal point."""
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"


def svg(rows):
    """The SVG document, from measured values by row."""
    lines, y = [], TOP
    for title, bars in PANELS:
        lines.append(f'<text x="12" y="{y}" font-weight="bold">{escape(title)}</text>')
        most = max(rows[name] for _, name in bars)
        for words, name in bars:
            y += LINE
            length = rows[name] / most * (WIDTH - LEFT - RIGHT)
            colour = OURS if name.endswith(("-kept", "-here")) or name == "scan-beside" else THEIRS
            lines.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{escape(words)}</text>')
            lines.append(f'<rect x="{LEFT}" y="{y - 12}" width="{length:.1f}" height="15" fill="{colour}"/>')
            lines.append(f'<text x="{LEFT + length + 6:.1f}" y="{y}">{label(rows[name])}</text>')
        y += LINE + GAP
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - GAP}" font-family="sans-serif" '
            f'font-size="13" fill="{GREY}">')
    return "\n".join([head, *lines, "</svg>"]) + "\n"


def main():
    rows, out = sys.argv[1:]
    measured = {row["name"]: row["measured"] for row in json.loads(Path(rows).read_text())["rows"]}
    Path(out).write_text(svg(measured))


if __name__ == "__main__":
    main()
