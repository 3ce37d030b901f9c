"""Switches: which nodes stand in which case, and whether the cases are values that there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from decurion_crds.canonical import Json, canonical
from decurion_crds.compile.draft import NodeDraft, ScopeDraft
from decurion_crds.compile.report import Report, Spot
from decurion_crds.compiled import Schema
from decurion_crds.expressions.shapes import branches, is_any, kind_of, words
from decurion_crds.findings import Fix, did_you_mean, listed
from decurion_crds.v1alpha1 import SwitchBlock

Refusal: TypeAlias = tuple[str, Spot, str, Fix | None]
_SCALARS = ("string", "integer", "number", "boolean")
_UNFIT = {
    "with": "its value reads input, state and nodes itself",
    "output": "what it chooses is no value",
    "otherwise": "when it is skipped, so are the nodes of its cases",
    "writes": "let the nodes of its cases write",
    "retry": "its value is computed once",
}


def assign_cases(scope: ScopeDraft, report: Report) -> None:
    """Gives every node of a case its switch. A node that stands in several has the first of them."""
    for node in scope.nodes.values():
        if node.model.switch is not None:
            _check_fields(node, report)
            refused = [*_repeats(node, node.model.switch)]
            for arm, spot, names in _arms(node, node.model.switch):
                refused += _assign(scope, node, arm, spot, names)
            for code, spot, message, fix in refused:
                scope.doubtful = True
                report.add(code, spot, message, fix=fix)


def _arms(node: NodeDraft, block: SwitchBlock) -> Iterator[tuple[int, Spot, Sequence[str]]]:
    spot = node.spot.below("switch")
    for i, case in enumerate(block.cases):
        yield i, spot.below("cases").at(i).below("nodes"), case.nodes
    yield len(block.cases), spot.below("default"), block.default


def _check_fields(node: NodeDraft, report: Report) -> None:
    written = node.model.to_json()
    for name, why in _UNFIT.items():
        if name in written:
            report.add("FIELD-UNKNOWN", node.spot.below(name), f"a switch has no {name}: {why}; remove it")


def _repeats(node: NodeDraft, block: SwitchBlock) -> Iterator[Refusal]:
    seen: list[Json] = []
    for i, case in enumerate(block.cases):
        if any(_same(case.equals, other) for other in seen):
            spot = node.spot.below("switch", "cases").at(i).below("equals")
            message = f"{_shown(case.equals)} has a case above, so this one is never chosen; put its nodes there"
            yield "UNREACHABLE", spot, message, None
        seen.append(case.equals)


def _assign(scope: ScopeDraft, switch: NodeDraft, arm: int, names_at: Spot, names: Sequence[str]) -> Iterator[Refusal]:
    seen: set[str] = set()
    for i, name in enumerate(names):
        node, spot = scope.nodes.get(name), names_at.at(i)
        if node is None:
            known = [other for other in scope.nodes if other != switch.name]
            meant = did_you_mean(name, known)
            hint = f'did you mean "{meant}"?' if meant else f"the nodes here are {listed(known)}"
            fix = Fix(name, meant) if meant else None
            yield "REF-MISSING", spot, f'there is no node "{name}"; {hint}', fix
        elif name in seen:
            yield "DUPLICATE-NAME", spot, f"{name} stands here twice; remove one", None
        elif node.choice == switch.name:
            message = f"{name} stands in another case too, and runs for one; name it once, or write a second node"
            yield "DUPLICATE-NAME", spot, message, None
        elif node.choice is not None:
            message = (
                f"{name} stands in a case of {node.choice} too; name it in one switch, and put the other condition "
                "into its when"
            )
            yield "DUPLICATE-NAME", spot, message, None
        else:
            node.choice, node.arm, node.chosen_at = switch.name, arm, spot
        seen.add(name)


def check_cases(node: NodeDraft, value: Schema | None, report: Report) -> bool:
    """Whether the cases name every value of the switch. Cases that are no value of its type are in the report, and
    then nothing is said about what is left out.
    """
    block = node.model.switch
    if block is None or value is None or is_any(value):
        return False
    spot = node.spot.below("switch")
    kinds = [branch for branch in branches(value) if branch["type"] in _SCALARS]
    if not kinds:
        message = f"a switch compares texts, numbers and truth values, and this is {words(value)}; compute one of these"
        report.add("EXPR-TYPE", spot.below("value"), message)
        return True
    strange = [_case_problem(case.equals, value, kinds) for case in block.cases]
    for i, problem in enumerate(strange):
        if problem is not None:
            message, fix = problem
            report.add("EXPR-TYPE", spot.below("cases").at(i).below("equals"), message, fix=fix)
    if any(strange):
        return True
    if len(kinds) < len(branches(value)):
        return False
    members = [member for kind in kinds for member in _members(kind) or [None]]
    exhausted = all(any(_same(member, case.equals) for case in block.cases) for member in members)
    if exhausted and block.default:
        message = f"the cases name all that the value can be ({words(value)}), so default is never chosen; remove it"
        report.add("UNREACHABLE", spot.below("default"), message)
    return exhausted


def _case_problem(equals: Json, value: Schema, kinds: Sequence[Schema]) -> tuple[str, Fix | None] | None:
    """Why the value never equals a case, with the remedy."""
    fitting = [kind for kind in kinds if _of_kind(equals, str(kind["type"]))]
    never = f"this is never {_shown(equals)}"
    if not fitting:
        quotes = "put it into quotes" if any(kind["type"] == "string" for kind in kinds) else ""
        hint = quotes or ("write it without quotes" if isinstance(equals, str) else "write a case that it can be")
        return f"{never}: the value is {words(value)}; {hint}", None
    members: list[Json] = []
    for kind in fitting:
        own = _members(kind)
        if own is None or any(_same(member, equals) for member in own):
            return None
        members += own
    texts = [member for member in members if isinstance(member, str)]
    meant = did_you_mean(equals, texts) if isinstance(equals, str) else None
    hint = f'did you mean "{meant}"?' if meant else f"it is one of {listed(map(_plain, members), last='or')}"
    return f"{never}; {hint}", Fix(str(equals), meant) if meant else None


def _of_kind(equals: Json, kind: str) -> bool:
    own = kind_of(equals)
    return own == kind or (own == "integer" and kind == "number") or (kind == "integer" and _is_whole(equals))


def _is_whole(value: Json) -> bool:
    return isinstance(value, float) and value.is_integer()


def _members(kind: Schema) -> list[Json] | None:
    """All values of a branch; None when they are not listed."""
    if "enum" in kind:
        return list(kind["enum"])
    return [False, True] if kind["type"] == "boolean" else None


def _same(one: Json, other: Json) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _shown(value: Json) -> str:
    return canonical(value).decode()


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else _shown(value)
