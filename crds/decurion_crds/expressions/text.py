"""Texts with `{{ expression }}`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from decurion_crds.compiled import Text
from decurion_crds.expressions.errors import ExpressionRefused, Problem, shifted
from decurion_crds.expressions.syntax import Parsed, parse_expression

_TOKEN = re.compile(
    r"""'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|[\[({]|[\])}]""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Placed:
    """An accepted expression and where it starts in the text: line and column, from 1."""

    parsed: Parsed
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class ParsedText:
    """An accepted text, and its expressions in order."""

    text: Text
    expressions: tuple[Placed, ...]


Delimiters: TypeAlias = tuple[str, str]
BRACES: Delimiters = ("{{", "}}")


def parse_text(src: str, names: Collection[str], delimiters: Delimiters = BRACES) -> ParsedText:
    """Splits a text at its `{{ expression }}`, or at other `delimiters`; brackets and strings inside an expression may
    hold what closes it.

    Raises `ExpressionRefused` with the problems of all its expressions, placed in the text.
    """
    parts: list[str | Placed] = []
    problems: list[Problem] = []
    opening, closing = delimiters
    for literal, start, end in _split(src, opening, closing):
        if literal:
            parts.append(literal)
        if start is None:
            continue
        line, column = place_at(src, start)
        if end is None:
            literally = "two braces" if delimiters == BRACES else "the sign itself"
            message = (
                f"this {opening} has no {closing}; close it, or write {opening} '{opening}' {closing} for {literally}"
            )
            problems.append(Problem("EXPR-SYNTAX", message, line, max(1, column - len(opening))))
            continue
        inner = src[start:end]
        lead = len(inner) - len(inner.lstrip())
        line, column = place_at(src, start + lead)
        try:
            parts.append(Placed(parse_expression(inner.strip(), names), line, column))
        except ExpressionRefused as refused:
            problems += [shifted(problem, line, column) for problem in refused.problems]
    if problems:
        raise ExpressionRefused(problems)
    return ParsedText(
        text=Text(parts=tuple(part.parsed.expr if isinstance(part, Placed) else part for part in parts)),
        expressions=tuple(part for part in parts if isinstance(part, Placed)),
    )


def place_at(text: str, index: int) -> tuple[int, int]:
    """Line and column, from 1, of a character of `text`."""
    return text.count("\n", 0, index) + 1, index - (text.rfind("\n", 0, index) + 1) + 1


def _split(src: str, opening: str, closing: str) -> Iterator[tuple[str, int | None, int | None]]:
    """Literal text, then start and end of the expression that follows it; None where there is none, or no end."""
    at = 0
    while True:
        found = src.find(opening, at)
        if found < 0:
            yield src[at:], None, None
            return
        start = found + len(opening)
        end = _end(src, start, closing)
        yield src[at:found], start, end
        if end is None:
            return
        at = end + len(closing)


def _end(src: str, at: int, closing: str) -> int | None:
    """Index of the `closing` that ends an expression which starts at `at`: the first outside brackets and strings."""
    level = 0
    while True:
        token = _TOKEN.search(src, at)
        end = src.find(closing, at) if level == 0 else -1
        if end >= 0 and (token is None or end <= token.start()):
            return end
        if token is None or (level == 0 and token[0] in ")]}"):
            return None
        level += 1 if token[0] in "([{" else -1 if token[0] in ")]}" else 0
        at = token.end()
