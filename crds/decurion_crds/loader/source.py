"""The text of one document and where things stand in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a value starts and ends: lines and columns count from 1 in the file; the end is behind the last character.

    `style` is that of a scalar: `'`, `"`, `|`, `>`, or empty for a plain one and for what is no scalar.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    style: str = ""


class Source:
    """The text of one document, whose first line is line `first_line` of `file`."""

    def __init__(self, file: str, text: str, first_line: int = 1) -> None:
        self.file = file
        self.text = text
        self._first_line = first_line
        self._lines = text.split("\n")

    @property
    def first(self) -> Spot:
        return Spot(self._first_line, 1, self._first_line, 1)

    def spot_of(self, start: Any, end: Any = None) -> Spot:
        """The spot of a pair of libyaml's marks (which count from 0 in the document)."""
        if start is None:
            return self.first
        end = end or start
        return Spot(start.line + self._first_line, start.column + 1, end.line + self._first_line, end.column + 1)

    def scalar_spot(self, event: Any) -> Spot:
        """The spot of a scalar, without the tag or anchor before it."""
        spot = self.spot_of(event.start_mark, event.end_mark)
        style = event.style or ""
        return Spot(spot.line, spot.column, spot.end_line, spot.end_column, style)

    def line(self, number: int) -> str:
        """A line of the file, without its end; empty when there is none."""
        i = number - self._first_line
        return self._lines[i].rstrip("\r") if 0 <= i < len(self._lines) else ""

    def between(self, spot: Spot) -> str:
        """What is written at a spot; of several lines the first."""
        end = spot.end_column - 1 if spot.end_line == spot.line else None
        return self.line(spot.line)[spot.column - 1 : end]

    def behind(self, spot: Spot) -> str:
        """What stands behind a spot on its last line."""
        return self.line(spot.end_line)[spot.end_column - 1 :]

    def inside(self, spot: Spot, value: str, offset: int) -> tuple[int, int]:
        """Line and column of the character `offset` of the scalar `value` at `spot`; its start where that is
        unknown.
        """
        if spot.style in ("|", ">"):
            return self._in_block(spot, value, offset)
        if spot.line != spot.end_line:
            return spot.line, spot.column
        start = spot.column - 1 + len(spot.style)
        line = self.line(spot.line)
        if line[start : start + len(value)] == value:
            return spot.line, start + offset + 1
        if spot.style != '"':
            return spot.line, spot.column
        for _ in range(offset):
            escape = line[start : start + 2]
            start += 1 if not escape.startswith("\\") else {"x": 4, "u": 6, "U": 10}.get(escape[1:], 2)
        return spot.line, start + 1

    def _in_block(self, spot: Spot, value: str, offset: int) -> tuple[int, int]:
        before = value[:offset]
        number, column = before.count("\n"), offset - (before.rfind("\n") + 1)
        lines = value.split("\n")
        if spot.style == ">" and any(" " in line for line in lines):
            return spot.line, spot.column
        first = next((i for i, line in enumerate(lines) if line.strip()), 0)
        written = self.line(spot.line + 1 + first)
        indent = len(written) - len(written.lstrip(" ")) - (len(lines[first]) - len(lines[first].lstrip(" ")))
        if self.line(spot.line + 1 + number)[indent:] != lines[number]:
            return spot.line, spot.column
        return spot.line + 1 + number, max(indent, 0) + column + 1
