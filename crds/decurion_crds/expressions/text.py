"""Texts with `{{ expression }}`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

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


def parse_text(src: str, names: Collection[str]) -> ParsedText:
    """Splits a text at its `{{ expression }}`; brackets and strings inside an expression may hold `}}`.

    Raises `ExpressionRefused` with the problems of all its expressions, placed in the text.
    """
    parts: list[str | Placed] = []
    problems: list[Problem] = []
    for literal, start, end in _split(src):
        if literal:
            parts.append(literal)
        if start is None:
            continue
        line, column = place_at(src, start)
        if end is None:
            message = "this {{ has no }}; close it, or write {{ '{{' }} for two braces"
            problems.append(Problem("EXPR-SYNTAX", message, line, max(1, column - 2)))
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


def _split(src: str) -> Iterator[tuple[str, int | None, int | None]]:
    """Literal text, then start and end of the expression that follows it; None where there is none, or no end."""
    at = 0
    while True:
        opening = src.find("{{", at)
        if opening < 0:
            yield src[at:], None, None
            return
        end = _end(src, opening + 2)
        yield src[at:opening], opening + 2, end
        if end is None:
            return
        at = end + 2


def _end(src: str, at: int) -> int | None:
    """Index of the `}}` that closes an expression which starts at `at`."""
    level = 0
    for token in _TOKEN.finditer(src, at):
        sign = token[0]
        if sign in "([{":
            level += 1
        elif sign in ")]}":
            if level == 0:
                return token.start() if src.startswith("}}", token.start()) else None
            level -= 1
    return None
