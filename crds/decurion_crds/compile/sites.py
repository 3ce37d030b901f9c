"""The type of one expression: read off the schemas where it is a bare path, else by the checker."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from decurion_crds.compile.draft import Site
from decurion_crds.compile.report import Report
from decurion_crds.compile.rounds import Rounds, Typing
from decurion_crds.compiled import Schema
from decurion_crds.expressions.check import Answer, Task
from decurion_crds.expressions.enums import Probe, probe, strangers
from decurion_crds.expressions.errors import Problem, shifted
from decurion_crds.expressions.shapes import (
    ANY,
    branches,
    field_of,
    holds_enum,
    is_nullable,
    mismatch,
    union,
    without_null,
    words,
)
from decurion_crds.expressions.types import NotJson, Types
from decurion_crds.expressions.wording import Context, guard, item_hint, members, problems, unfit
from decurion_crds.findings import Fix, did_you_mean, listed

Names = Mapping[str, Schema | None]
"""What an expression sees: name → schema, None where an earlier finding leaves it unknown."""


@dataclass(frozen=True, slots=True)
class Due:
    """What an expression has to give, and the code of the finding when it does not."""

    schema: Schema
    code: Literal["EXPR-TYPE", "OUTPUT-TYPE"] = "EXPR-TYPE"


@dataclass(frozen=True, slots=True)
class Undetermined:
    """How a type is treated that cannot be inferred soundly: as a finding with this advice, or in silence."""

    advice: str | None = None
    severity: Literal["error", "warning"] = "error"


SILENT = Undetermined()


class SiteTyper:
    """Types expressions one by one. The result of each is a schema, or None when it is not known."""

    def __init__(self, types: Types, rounds: Rounds, report: Report) -> None:
        self.types = types
        self._rounds = rounds
        self._report = report

    def fits(self, site: Site, names: Names, due: Due) -> Typing[Schema | None]:
        """The type that is due, once it is known that the expression gives it."""
        if site.parsed.expr.path is not None:
            found = self._at_path(site, site.parsed.expr.path, names)
            self._check_fit(site, found, due)
            return due.schema
        yield from self._checked(site, names, due)
        return due.schema

    def infers(self, site: Site, names: Names, otherwise: Undetermined) -> Typing[Schema | None]:
        """The type of the expression."""
        if site.parsed.expr.path is not None:
            return self._at_path(site, site.parsed.expr.path, names)
        answer = yield from self._checked(site, names, None)
        if answer is None or not answer.revealed:
            return None
        return self._declared(site, answer.revealed[0], names, otherwise)

    def shows(self, site: Site, names: Names) -> Typing[None]:
        """Checks an expression of a text: any value will do that is not None."""
        if site.parsed.expr.path is not None:
            found = self._at_path(site, site.parsed.expr.path, names)
            if found is not None and is_nullable(found):
                self._tell(site, guard(site.parsed.expr.src))
            return
        answer = yield from self._checked(site, names, None)
        if answer is None or not answer.revealed:
            return
        shown = self.types.schema_of(answer.revealed[0], dicts=True)
        if isinstance(shown, NotJson):
            self._not_json(site, shown)
        elif "None" in members(answer.revealed[0]):
            self._tell(site, guard(site.parsed.expr.src))

    def _checked(self, site: Site, names: Names, due: Due | None) -> Typing[Answer | None]:
        """The checker's answer, or None when it is in the report that something is wrong."""
        hint = site.spot.path
        parameters = {
            name: self.types.annotation(ANY if schema is None else schema, name) for name, schema in names.items()
        }
        returns = self.types.annotation(due.schema, hint) if due is not None else None
        counted = any(schema is not None and holds_enum(schema) for schema in names.values())
        probed = probe(site.parsed.check, is_code=False) if counted else None
        compared = self._rounds.spawn(self._compared(site, probed, parameters)) if probed is not None else None
        answer: Answer = yield Task(site.parsed.check, parameters, returns)
        context = Context(
            types=self.types,
            source=site.parsed,
            generated=site.parsed.check,
            mismatch_code=due.code if due is not None else "EXPR-TYPE",
            due=due.schema if due is not None else None,
            names=tuple(names),
        )
        found = problems(answer, context)
        for problem in found:
            self._tell(site, problem)
        # What is never true narrows types to nothing: that is no cause of its own.
        strange = (yield compared) if compared is not None else False
        return None if found or strange else answer

    def _compared(self, site: Site, probed: Probe, parameters: Mapping[str, str]) -> Typing[bool]:
        """Whether something is compared with what it can never be."""
        answer: Answer = yield Task(probed.text, parameters)
        # The task itself reveals the type of the whole, as the last one.
        answer.revealed = answer.revealed[: len(probed.comparisons)]
        found = strangers(probed, answer, site.parsed)
        for problem in found:
            self._tell(site, problem)
        return bool(found)

    def _declared(self, site: Site, shown: str, names: Names, otherwise: Undetermined) -> Schema | None:
        found = self.types.schema_of(shown, dicts=not _builds_dict(site.parsed.tree))
        if isinstance(found, dict):
            return found
        if isinstance(found, NotJson):
            self._not_json(site, found)
        elif otherwise.advice is not None and None not in names.values():
            message = f"its type cannot be relied on (it is inferred as {found.shown}); {otherwise.advice}"
            self._report.add("TYPE-DECLARE", site.spot, message, severity=otherwise.severity)
        return None

    def _not_json(self, site: Site, found: NotJson) -> None:
        message = f"the value is a {found.shown}, which JSON does not have; write {found.instead}"
        self._tell(site, Problem("EXPR-TYPE", message))

    def _check_fit(self, site: Site, found: Schema | None, due: Due) -> None:
        why = mismatch(found, due.schema) if found is not None else None
        if found is None or why is None:
            return
        if is_nullable(found) and mismatch(without_null(found), due.schema) is None:
            self._tell(site, guard(site.parsed.expr.src))
        else:
            self._tell(site, Problem(due.code, unfit(*why)))

    def _at_path(self, site: Site, path: tuple[str, ...], names: Names) -> Schema | None:
        """The schema of what stands at a path. A step that is wrong is in the report."""
        schema = names[path[0]]
        for depth, name in enumerate(path[1:], 1):
            if schema is None:
                return None
            step = self._step(site, path[:depth], schema, name)
            if isinstance(step, Problem):
                self._tell(site, step)
                return None
            schema = step
        return schema

    def _step(self, site: Site, path: tuple[str, ...], schema: Schema, name: str) -> Schema | Problem:
        found: list[Schema] = []
        line, column = place_of_step(site, len(path))
        here = ".".join(path)
        for branch in branches(schema):
            kind = branch.get("type")
            if kind == "null":
                return guard(here)
            below = field_of(branch, name) if kind == "object" else ANY if kind is None else None
            if below is not None:
                found.append(below)
            elif kind == "object":
                known = list(branch.get("properties", ()))
                meant = did_you_mean(name, known)
                hint = f'did you mean "{meant}"?' if meant else f"it has {listed(known)}"
                fix = Fix(name, meant) if meant else None
                return Problem("EXPR-FIELD", f'{words(branch)} has no field "{name}"; {hint}', line, column, fix)
            else:
                hint = item_hint(name, here) if kind == "array" else f"read {here}"
                message = f'{here} is {words(branch)}, which has no field "{name}"; {hint}'
                return Problem("EXPR-FIELD", message, line, column)
        return union(found)

    def _tell(self, site: Site, problem: Problem) -> None:
        self._report.problem(shifted(problem, site.line, site.column), site.spot, site.scalar)


def place_of_step(site: Site, depth: int) -> tuple[int, int]:
    """Line and column of the `depth`-th field of a bare path."""
    path = site.parsed.expr.path or ()
    node: ast.expr = site.parsed.tree.body
    for _ in range(len(path) - 1 - depth):
        if isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
    return site.parsed.place_of_field(node)


def _builds_dict(tree: ast.AST) -> bool:
    """Whether an expression holds a dict display or a call of `dict`: the checker has one type for all its values."""
    return any(
        isinstance(node, ast.Dict) or (isinstance(node, ast.Name) and node.id == "dict") for node in ast.walk(tree)
    )
