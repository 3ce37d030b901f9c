"""The errors of expressions.

DecurionError
├── InputError
│   └── ExpressionRefused    an expression, text or source does not follow the language
└── ExpressionFailed         an expression that was accepted failed when it was evaluated
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from decurion_crds.errors import DecurionError, InputError
from decurion_crds.findings import Fix


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a source text. `line` and `column` count from 1 within that text."""

    code: str
    message: str
    line: int = 1
    column: int = 1
    fix: Fix | None = None


def shifted(problem: Problem, line: int, column: int) -> Problem:
    """`problem` of an expression that starts at `line` and `column` of a larger text, placed in that text."""
    first = problem.line == 1
    return replace(
        problem, line=problem.line + line - 1, column=problem.column + column - 1 if first else problem.column
    )


class ExpressionRefused(InputError):
    """A source text does not follow the language. `problems` has one entry for each cause, in the order of the text."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = tuple(problems)


class ExpressionFailed(DecurionError):
    """An expression or source failed when it was evaluated; trying again unchanged cannot help.

    `name` is the name under which the expression was handed in (`main` for code), `line` the line of the source of
    code.
    """

    def __init__(self, message: str, *, name: str = "", line: int | None = None) -> None:
        super().__init__(f"{name}: {message}" if name else message)
        self.name = name
        self.message = message
        self.line = line
