"""The table of docs/OPERATIONS.md of what clients repeat by default, and how long they wait."""

import pathlib

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "OPERATIONS.md"
HEAD = "| client | repeats | time limits | endpoint |"


class RetryRow:
    """The row of a client: its version, what it repeats, its time limits, and its endpoints."""

    def __init__(self, client):
        lines = PAGE.read_text().splitlines()
        rows = lines[lines.index(HEAD) + 2 :]
        (row,) = [line for line in rows[: rows.index("")] if line.startswith(f"| {client} ")]
        cells = [cell.strip() for cell in row.strip("| ").split(" | ")]
        name, self.repeats, self.limits, self.endpoint = cells
        self.version = name.removeprefix(client).strip()
