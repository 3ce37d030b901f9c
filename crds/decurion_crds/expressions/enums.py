"""Comparisons with a constant that is no member of the enumeration it is compared with: never true, a typing error.

Python's type checkers accept them, so the checker is asked for the type of what is compared.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from decurion_crds.canonical import Json, canonical
from decurion_crds.expressions.check import Answer
from decurion_crds.expressions.errors import Problem
from decurion_crds.expressions.rewrite import Columns
from decurion_crds.expressions.wording import Mapped
from decurion_crds.findings import Fix, did_you_mean, listed


@dataclass(frozen=True, slots=True)
class Comparison:
    """Constants that something is compared with, and the place of the comparison in the text for the checker.

    `inside` says that the constant is looked for among the items of what is revealed (`"a" in kinds`).
    """

    constants: tuple[Json, ...]
    inside: bool
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Probe:
    """A text in which the checker reveals the type of what is compared, in the order of `comparisons`."""

    text: str
    comparisons: tuple[Comparison, ...]


def probe(text: str, *, is_code: bool) -> Probe | None:
    """The probe of a text for the checker; None when it compares nothing with constants."""
    mode: Literal["eval", "exec"] = "exec" if is_code else "eval"
    tree = ast.parse(text, mode=mode)
    columns = Columns(text)
    found: list[tuple[ast.Compare, int, Comparison]] = []
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.Compare):
            column = columns.characters(node.lineno, node.col_offset) + 1
            for side, (constants, inside) in _sides(node).items():
                found.append((node, side, Comparison(constants, inside, node.lineno, column)))
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


def strangers(probed: Probe, answer: Answer, source: Mapped) -> list[Problem]:
    """One problem for each comparison with a constant that is no member."""
    if len(answer.revealed) != len(probed.comparisons):
        return []
    found: list[Problem] = []
    for comparison, shown in zip(probed.comparisons, answer.revealed, strict=True):
        members = _members(shown, inside=comparison.inside)
        for constant in comparison.constants if members is not None else ():
            if members is not None and constant not in members:
                line, column = source.source_map.place(comparison.line, comparison.column)
                found.append(_problem(constant, members, line, column, inside=comparison.inside))
    return found


def _problem(constant: Json, members: Sequence[Json], line: int, column: int, *, inside: bool) -> Problem:
    texts = [member for member in members if isinstance(member, str)]
    meant = did_you_mean(constant, texts) if isinstance(constant, str) else None
    plain = [member if isinstance(member, str) else _shown(member) for member in members]
    verb = "it holds" if inside else "it is one of"
    hint = f'did you mean "{meant}"?' if meant else f"{verb} {listed(plain, last='or')}"
    never = "this never holds" if inside else "this is never"
    fix = Fix(str(constant), meant) if meant else None
    return Problem("EXPR-TYPE", f"{never} {_shown(constant)}; {hint}", line, column, fix)


def _shown(constant: Json) -> str:
    return canonical(constant).decode()


def _members(shown: str, *, inside: bool) -> list[Json] | None:
    """What a value of the type that the checker shows can be, but None; `inside`, what its items can be.

    None when that is no list of constants.
    """
    try:
        node = ast.parse(shown.replace("*", ""), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if inside:
        if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in _HOLDERS):
            return None
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        found = [_of_union(part) for part in (parts[:1] if node.value.id == "dict" else parts)]
        if any(members is None for members in found):
            return None
        return [member for members in found for member in members or ()] or None
    return _of_union(node) or None


def _of_union(node: ast.expr) -> list[Json] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        left, right = _of_union(node.left), _of_union(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.Constant) and node.value is None:
        return []
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return [ast.literal_eval(argument) for argument in arguments]
    return None


_HOLDERS = ("list", "set", "frozenset", "tuple", "dict", "dict_keys")


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


def _sides(node: ast.Compare) -> dict[int, tuple[tuple[Json, ...], bool]]:
    """Operands that are compared with constants, by their number: these, and whether they are looked for inside."""
    sides: dict[int, tuple[tuple[Json, ...], bool]] = {}
    operands = _operands(node)
    for i, operator in enumerate(node.ops):
        left, right = operands[i], operands[i + 1]
        inside = False
        if isinstance(operator, ast.Eq | ast.NotEq):
            pairs = [(i, left, _constants([right])), (i + 1, right, _constants([left]))]
        elif isinstance(operator, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple | ast.Set):
            pairs = [(i, left, _constants(right.elts))]
        elif isinstance(operator, ast.In | ast.NotIn) and isinstance(right, ast.Dict):
            pairs = [(i, left, _constants(right.keys))]
        elif isinstance(operator, ast.In | ast.NotIn):
            pairs, inside = [(i + 1, right, _constants([left]))], True
        else:
            continue
        for side, operand, constants in pairs:
            before, was_inside = sides.get(side, ((), inside))
            if constants and not isinstance(operand, ast.Constant) and was_inside == inside:
                sides[side] = ((*before, *constants), inside)
    return sides


def _constants(nodes: Sequence[ast.expr | None]) -> tuple[Json, ...]:
    """The values of nodes that are constants, but None; nothing when one of them is none."""
    constants = [node for node in nodes if isinstance(node, ast.Constant)]
    values = tuple(node.value for node in constants if isinstance(node.value, str | int | float))
    return values if len(constants) == len(nodes) else ()
