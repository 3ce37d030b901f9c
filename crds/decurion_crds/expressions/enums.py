"""Comparisons with a text that is no member of the enumeration it is compared with: never true, and a typing error.

Python's type checkers accept them, so the checker is asked for the type of what is compared.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from decurion_crds.compiled import Schema
from decurion_crds.expressions.check import Answer
from decurion_crds.expressions.errors import Problem
from decurion_crds.expressions.rewrite import Columns
from decurion_crds.expressions.shapes import branches
from decurion_crds.expressions.types import Types
from decurion_crds.expressions.wording import Mapped
from decurion_crds.findings import Fix, did_you_mean, listed


@dataclass(frozen=True, slots=True)
class Comparison:
    """Texts that something is compared with, and the place of the comparison in the text for the checker."""

    words: tuple[str, ...]
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Probe:
    """A text in which the checker reveals the type of what is compared, in the order of `comparisons`."""

    text: str
    comparisons: tuple[Comparison, ...]


def probe(text: str, *, is_code: bool) -> Probe | None:
    """The probe of a text for the checker; None when it compares nothing with constant texts."""
    mode: Literal["eval", "exec"] = "exec" if is_code else "eval"
    tree = ast.parse(text, mode=mode)
    columns = Columns(text)
    found: list[tuple[ast.Compare, int, Comparison]] = []
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.Compare):
            column = columns.characters(node.lineno, node.col_offset) + 1
            for side, words in _sides(node).items():
                found.append((node, side, Comparison(words, node.lineno, column)))
                _reveal(node, side)
    if not found:
        return None
    # Walks over the tree and over its text meet the same nodes in the same order.
    number = {id(node): i for i, node in enumerate(_compares(tree))}
    generated = ast.unparse(tree)
    written = _compares(ast.parse(generated, mode=mode))
    placed = []
    for node, side, comparison in found:
        operand = _operands(written[number[id(node)]])[side]
        placed.append(((operand.lineno, operand.col_offset), comparison))
    return Probe(generated, tuple(comparison for _, comparison in sorted(placed, key=lambda pair: pair[0])))


def strangers(probed: Probe, answer: Answer, types: Types, source: Mapped) -> list[Problem]:
    """One problem for each comparison with a text that is no member."""
    if len(answer.revealed) != len(probed.comparisons):
        return []
    found: list[Problem] = []
    for comparison, shown in zip(probed.comparisons, answer.revealed, strict=True):
        schema = types.schema_of(shown, dicts=True)
        members = _members(schema) if isinstance(schema, dict) else None
        if members is None:
            continue
        for word in comparison.words:
            if word not in members:
                meant = did_you_mean(word, members)
                hint = f'did you mean "{meant}"?' if meant else f"it is one of {listed(members, last='or')}"
                line, column = source.source_map.place(comparison.line, comparison.column)
                fix = Fix(word, meant) if meant else None
                found.append(Problem("EXPR-TYPE", f'this is never "{word}"; {hint}', line, column, fix))
    return found


def _members(schema: Schema) -> list[str] | None:
    """The texts that a value of `schema` can be; None when it can be anything else but null."""
    members: list[str] = []
    for branch in branches(schema):
        if branch.get("type") == "null":
            continue
        if branch.get("type") != "string" or "enum" not in branch:
            return None
        members += branch["enum"]
    return members or None


def _compares(tree: ast.AST) -> list[ast.Compare]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]


def _operands(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def _reveal(node: ast.Compare, side: int) -> None:
    operand = _operands(node)[side]
    call = ast.copy_location(
        ast.Call(func=ast.Name(id="reveal_type", ctx=ast.Load()), args=[operand], keywords=[]), operand
    )
    ast.fix_missing_locations(call)
    if side == 0:
        node.left = call
    else:
        node.comparators[side - 1] = call


def _sides(node: ast.Compare) -> dict[int, tuple[str, ...]]:
    """Operands that are compared with constant texts, by their number, and these texts."""
    sides: dict[int, tuple[str, ...]] = {}
    operands = _operands(node)
    for i, operator in enumerate(node.ops):
        left, right = operands[i], operands[i + 1]
        if isinstance(operator, ast.Eq | ast.NotEq):
            pairs = [(i, left, _texts([right])), (i + 1, right, _texts([left]))]
        elif isinstance(operator, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple | ast.Set):
            pairs = [(i, left, _texts(right.elts))]
        else:
            continue
        for side, operand, words in pairs:
            if words and not isinstance(operand, ast.Constant):
                sides[side] = (*sides.get(side, ()), *words)
    return sides


def _texts(nodes: Sequence[ast.expr]) -> tuple[str, ...]:
    found = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return tuple(found) if len(found) == len(nodes) else ()
