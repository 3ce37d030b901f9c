"""Findings as they are gathered: each with its path by names and, if the resource came from a file, its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from decurion_crds.errors import SchemaRefused
from decurion_crds.expressions.errors import Problem
from decurion_crds.findings import Finding, Fix, Severity, listed
from decurion_crds.v1alpha1 import Place
from decurion_crds.v1alpha1.parse import KEY

_NONE: Mapping[str, Positions | None] = {}


class Positions(Protocol):
    """Where a value of the resource was written: file, line and column, from 1; None when it came from no file.

    With `offset`, the place of that character inside a scalar. `loader.Document.locate` is one.
    """

    def __call__(self, place: Place, offset: int | None = None, /) -> tuple[str, int, int] | None: ...


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a resource, by keys and indices, and the same by names.

    `graph` is the name of the TaskGraph where it is another than the one that is compiled.
    """

    place: Place
    path: str
    graph: str = ""

    def below(self, *steps: str) -> Spot:
        spot = self
        for step in steps:
            plain = step.replace("-", "_").removesuffix("?").isidentifier()
            joined = f"{spot.path}.{step}" if spot.path else step
            spot = Spot((*spot.place, step), joined if plain else f'{spot.path}["{step}"]', self.graph)
        return spot

    def beside(self, step: str) -> Spot:
        """Another field of the object in which this field stands."""
        return Spot(self.place[:-1], self.path.rpartition(".")[0], self.graph).below(step)

    def key(self) -> Spot:
        """The name itself of what stands here, instead of its value."""
        return Spot((*self.place, KEY), self.path, self.graph)

    def item(self, index: int, name: str) -> Spot:
        """The item of a list that goes by `name`."""
        return Spot((*self.place, index), f"{self.path}.{name}", self.graph)

    def at(self, index: int) -> Spot:
        """The item of a list whose items have no names."""
        return Spot((*self.place, index), f"{self.path}[{index}]", self.graph)


class Report:
    """Collects findings; the same one twice counts once."""

    def __init__(self, positions: Positions | None, others: Mapping[str, Positions | None] = _NONE) -> None:
        self._positions = {"": positions, **others}
        self._findings: dict[tuple[str, str, str, str], Finding] = {}
        self._instead: dict[str, Spot] = {}

    def stand_for(self, graph: str, spot: Spot) -> None:
        """What is found in a graph that nobody wrote is told at `spot`, which is why it is there."""
        self._instead.setdefault(graph, self._instead.get(spot.graph, spot))

    @property
    def findings(self) -> list[Finding]:
        """In the order of the file where there is one, else in the order in which they were found.

        Those of other graphs come behind.
        """
        found = sorted(self._findings.values(), key=lambda f: f.graph or "")
        if self._positions[""] is None:
            return found
        return sorted(found, key=lambda f: (f.graph or "", f.line or 0, f.column or 0))

    @property
    def failed(self) -> bool:
        return any(finding.severity == "error" for finding in self._findings.values())

    def add(
        self,
        code: str,
        spot: Spot,
        message: str,
        *,
        fix: Fix | None = None,
        severity: Severity = "error",
        offset: int | None = None,
        absent: str | None = None,
    ) -> None:
        """`absent` is kind and name of the resource that does not exist, where that is what is wrong."""
        if spot.graph in self._instead:
            spot, fix, offset = self._instead[spot.graph], None, None
        positions = self._positions[spot.graph]
        file, line, column = (positions(spot.place, offset) if positions else None) or (None, None, None)
        finding = Finding(code, spot.path, message, severity, file, line, column, fix, spot.graph or None, absent)
        self._findings.setdefault((spot.graph, code, spot.path, message), finding)

    def _owner(self, graph: str | None, spot: Spot) -> str:
        return spot.graph if graph is None else graph if graph in self._positions else ""

    def problem(self, problem: Problem, spot: Spot, scalar: str) -> None:
        """A problem that is placed inside the scalar at `spot`."""
        offset = index_in(scalar, problem.line, problem.column)
        self.add(problem.code, spot, problem.message, fix=problem.fix, offset=offset)

    def schema(self, refused: SchemaRefused, spot: Spot) -> None:
        """A refused schema; what is wrong in a shared one is told there, and once."""
        path = refused.path
        if path.startswith("schemas."):
            spot, path = Spot(("spec",), "", self._owner(refused.graph, spot)), path
        place = spot.below(*path.split(".")) if path else spot
        fix = Fix(*refused.suggestion) if refused.suggestion else None
        code = "SCHEMA" if refused.absent is None else "REF-MISSING"
        self.add(code, place, refused.message, fix=fix, absent=refused.absent)


def index_in(text: str, line: int, column: int) -> int:
    """Index of the character at a line and column, from 1, of `text`; that of its end when there is none."""
    lines = text.split("\n")
    before = sum(len(part) + 1 for part in lines[: line - 1])
    return min(before + column - 1, len(text))


def inputs_hint(name: str, declared: Sequence[str]) -> str:
    """What to do about a name that is given to a template, and is none of its inputs."""
    if declared:
        return f"its input has {listed(declared)}"
    return f"it takes none; declare it there, as in input: {{{name}: …}}"
