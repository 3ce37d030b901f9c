"""The type checker: many expressions and sources in one go, in a worker process that runs none of them."""

from __future__ import annotations

import bisect
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pydantic_monty as monty

from decurion_crds.errors import DecurionError
from decurion_crds.expressions import prelude
from decurion_crds.expressions.code import MAIN
from decurion_crds.expressions.session import SETTLED_CLOCK, SETTLED_SEED, os_policy
from decurion_crds.expressions.types import IMPORTS

SECONDS = 30.0
"""Longest time of one check."""
_ERRORS = ("major", "critical", "blocker")
MAX_CHECKS = 200
"""Checks after which the worker's memory of earlier ones is dropped."""


class CheckFailed(DecurionError):
    """The checker gave no answer. It says nothing about the text that was checked."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What the checker says of one place. Lines and columns count from 1, in the text of the task."""

    rule: str
    message: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Task:
    """One text to check.

    An expression (`lines` of one entry) is checked against the type `returns`, or its type is revealed when that is
    None. A source (`is_code`) is the lines of a function `main` with its header, as `ParsedCode.render` gives it.
    `parameters` are the names it sees and their types.
    """

    text: str
    parameters: Mapping[str, str]
    returns: str | None = None
    is_code: bool = False


@dataclass(slots=True)
class Answer:
    """What is wrong with a task, in the order of its text, and the types that were revealed in it, in that order."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    revealed: list[str] = field(default_factory=list)


class Checker:
    """A context manager around one worker process. It may be shared between threads; checks run one after another."""

    def __init__(self) -> None:
        self._pool = monty.Monty(min_processes=1, max_processes=1, request_timeout=SECONDS)
        self._session: monty.MontySession | None = None
        self._uses = 0
        self._lock = threading.Lock()
        self.checks = 0
        """Modules that were checked so far."""

    def __enter__(self) -> Self:
        self._pool.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._close()
            self._pool.__exit__(kind, error, traceback)

    def check(self, tasks: Sequence[Task], definitions: str) -> list[Answer]:
        """One answer for each task. `definitions` declares the types that tasks name.

        Raises `CheckFailed` when there is no answer, such as for types that take too long.
        """
        if not tasks:
            return []
        module = _Module(tasks, definitions)
        answers = [Answer() for _ in tasks]
        for row in sorted(self._rows(module.text), key=_row_place):
            module.sort_in(row, answers)
        return answers

    def not_supported(self, source: str) -> str | None:
        """Why the interpreter does not take `source`, which defines a function, or None when it does."""
        with self._lock:
            try:
                self._open().feed_run(source, skip_type_check=True)
            except monty.MontyRuntimeError as error:
                return str(error).removeprefix("NotImplementedError: ")
            except monty.MontySyntaxError as error:
                return str(error)
            except monty.MontyError as error:
                self._close()
                raise CheckFailed(f"the interpreter gave no answer: {error}") from None
        return None

    def _rows(self, text: str) -> list[Mapping[str, Any]]:
        with self._lock:
            self.checks += 1
            try:
                self._open().feed_run(text)
            except monty.MontyTypingError as error:
                rows: list[Mapping[str, Any]] = json.loads(error.display())
                return rows
            except monty.MontyError as error:
                self._close()
                raise CheckFailed(f"the type checker gave no answer: {error}") from None
        raise CheckFailed("the type checker did not report the type it was asked for")

    def _open(self) -> monty.MontySession:
        if self._session is not None and self._uses >= MAX_CHECKS:
            self._close()
        if self._session is None:
            session = self._pool.checkout(
                type_check=True,
                type_check_stubs=f"{IMPORTS}{prelude.CHECK}",
                # Of the formats with spans the only one that leaves out fixes: placing one in a text that is not
                # ASCII ends the worker (pydantic-monty 1.4).
                type_check_format="gitlab",
                os_policy=os_policy(SETTLED_SEED, SETTLED_CLOCK),
                limits=monty.ResourceLimits(max_feed_duration_secs=SECONDS),
            )
            session.__enter__()
            self._session = session
            self._uses = 0
        self._uses += 1
        return self._session

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)


class _Module:
    """The text that holds all tasks, and the way back from its rows.

    Its last line reveals a type, which is reported as an error: so that nothing of the text is ever run.
    """

    def __init__(self, tasks: Sequence[Task], definitions: str) -> None:
        self._tasks = tasks
        head = f"{IMPORTS}{definitions}"
        self._starts: list[int] = []
        parts = [head]
        row = head.count("\n") + 1
        for number, task in enumerate(tasks):
            text = _function(number, task)
            self._starts.append(row)
            parts.append(text)
            row += text.count("\n")
        self._end = row
        parts.append("reveal_type(0)\n")
        self.text = "".join(parts)

    def sort_in(self, row: Mapping[str, Any], answers: Sequence[Answer]) -> None:
        line, column, end_line, end_column = _row_place(row)
        number = bisect.bisect_right(self._starts, line) - 1
        if number < 0 or line >= self._end:
            if line < self._end:
                raise CheckFailed(f"the type checker refuses a declaration: {row['description']}")
            return
        task, start = self._tasks[number], self._starts[number]
        rule = str(row["check_name"])
        message = str(row["description"]).removeprefix(f"{rule}: ")
        if rule == "revealed-type":
            answers[number].revealed.append(message.removeprefix("Revealed type: ").strip("`"))
            return
        if row["severity"] not in _ERRORS:
            return
        shift = 0 if task.is_code else len(_lead(task))
        first = start - 1 if task.is_code else start
        answers[number].diagnostics.append(
            Diagnostic(rule, message, line - first, column - shift, end_line - first, end_column - shift)
        )


def _lead(task: Task) -> str:
    # The expression is no argument of reveal_type, which would give it a type to be due: `object`.
    return "    _ = " if task.returns is None else "    return "


def _function(number: int, task: Task) -> str:
    parameters = ", ".join(f"{name}: {kind}" for name, kind in task.parameters.items())
    header = f"def {MAIN}_{number}({parameters}) -> {task.returns or 'object'}:\n"
    if task.is_code:
        return f"{header}{task.text.partition(chr(10))[2]}\n"
    tail = "    return reveal_type(_)\n" if task.returns is None else ""
    return f"{header}{_lead(task)}{task.text}\n{tail}"


def _row_place(row: Mapping[str, Any]) -> tuple[int, int, int, int]:
    positions = row["location"]["positions"]
    begin, end = positions["begin"], positions["end"]
    return begin["line"], begin["column"], end["line"], end["column"]
