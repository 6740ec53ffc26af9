"""Asserts that every row has a test in this folder."""

import pathlib
import re

ROWS = 25


def test_every_row_has_a_test_named_after_it():
    text = "".join(path.read_text() for path in pathlib.Path(__file__).parent.glob("test_rows_*.py"))
    tested = {int(number) for number in re.findall(r"^def test_row_(\d\d)_", text, re.MULTILINE)}
    assert tested == set(range(1, ROWS + 1))
