"""The table of faults names tests that exist, and claims nothing without one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "faults.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[list[str]]:
    """Cells of every line of a table that has a column for tests."""
    found: list[list[str]] = []
    columns = 0
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            columns = 0
        elif not columns:
            columns = len(cells) if cells[-1] == "test" else -1
        elif columns > 0 and not set(line) <= {"|", "-"}:
            found.append(cells)
    return found


def test_every_line_names_a_test_or_says_that_there_is_none() -> None:
    assert len(rows()) >= 40
    for what, holds, test in rows():
        assert _TEST.search(test) or holds.startswith(("*not built yet:", "*no test:")), what


def test_every_test_that_is_named_exists() -> None:
    named = _TEST.findall(TABLE.read_text())
    assert len(named) >= 40
    for file, test in named:
        source = (ROOT / file).read_text()
        assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE), f"{file} has no {test}"


def test_every_test_of_the_matrix_is_in_the_table() -> None:
    text = TABLE.read_text()
    files = [*(ROOT / "tests/worker").glob("test_crash*.py"), *(ROOT / "tests/system").glob("test_fault_matrix*.py")]
    for file in files:
        for test in re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(), re.MULTILINE):
            assert test in text, f"{file.name}::{test} is in no line of docs/faults.md"
