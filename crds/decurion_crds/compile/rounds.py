"""Typing in rounds: what waits for a type waits, and all that can be checked is checked in one go.

Each thing to type is a generator. It yields a `Cell` to wait for another one's result, or a `Task` for the checker's
answer. A round runs all generators as far as they get, then checks what has gathered. So a graph of three hundred
expressions takes as many checks as its longest chain of inferred types is long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from decurion_crds.expressions.check import Answer, Checker, Task

T = TypeVar("T")
Typing: TypeAlias = "Generator[Cell[Any] | Task, Any, T]"


@dataclass(eq=False, slots=True)
class Cell(Generic[T]):
    """The result of a generator, once there is one."""

    done: bool = False
    value: T | None = None
    waiting: list[_Run] = field(default_factory=list)

    def get(self) -> T | None:
        if not self.done:
            raise RuntimeError("the result is not there yet; yield the cell to wait for it")
        return self.value


@dataclass(eq=False, slots=True)
class _Run:
    generator: Generator[Cell[Any] | Task, Any, Any]
    cell: Cell[Any]


class Rounds:
    """Runs generators. `definitions` gives the declarations that tasks name, at the time of a check."""

    def __init__(self, checker: Checker, definitions: Callable[[], str]) -> None:
        self._checker = checker
        self._definitions = definitions
        self._ready: deque[tuple[_Run, object]] = deque()
        self._tasks: list[tuple[_Run, Task]] = []
        self._blocked: dict[_Run, Cell[Any]] = {}

    def spawn(self, generator: Typing[T]) -> Cell[T]:
        """A cell for the result of `generator`, which begins with the next round."""
        cell: Cell[T] = Cell()
        self._ready.append((_Run(generator, cell), None))
        return cell

    def run(self) -> None:
        """Goes on until nothing is left. What waits in a circle gets None, which is told as a cycle elsewhere."""
        while True:
            while self._ready:
                run, value = self._ready.popleft()
                self._step(run, value)
            if self._tasks:
                self._check()
            elif self._blocked:
                cell = next(iter(self._blocked.values()))
                self._settle(cell, None)
            else:
                return

    def _check(self) -> None:
        waiting, self._tasks = self._tasks, []
        answers = self._checker.check([task for _, task in waiting], self._definitions())
        for (run, _), answer in zip(waiting, answers, strict=True):
            self._ready.append((run, answer))

    def _step(self, run: _Run, value: Answer | object) -> None:
        try:
            want = run.generator.send(value)
        except StopIteration as stop:
            if not run.cell.done:
                self._settle(run.cell, stop.value)
            return
        if isinstance(want, Task):
            self._tasks.append((run, want))
        elif want.done:
            self._ready.append((run, want.value))
        else:
            want.waiting.append(run)
            self._blocked[run] = want

    def _settle(self, cell: Cell[Any], value: object) -> None:
        cell.done, cell.value = True, value
        for run in cell.waiting:
            del self._blocked[run]
            self._ready.append((run, value))
        cell.waiting.clear()
