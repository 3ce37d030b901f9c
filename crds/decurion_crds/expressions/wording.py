"""What the type checker says, in the words of the language: one sentence that says what is wrong and what to write.

Rules and messages are those of `ty`, the checker inside Monty. What is not known here is passed on as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from decurion_crds.compiled import Schema
from decurion_crds.expressions.check import Answer, Diagnostic
from decurion_crds.expressions.errors import Problem
from decurion_crds.expressions.rewrite import SourceMap
from decurion_crds.expressions.shapes import branches, is_nullable, mismatch, without_null, words
from decurion_crds.expressions.types import NotJson, Types, in_words, loosely
from decurion_crds.findings import Fix, did_you_mean, listed

_METHODS: Mapping[str, type] = {"string": str, "list": list, "object": dict, "integer": int, "number": float}
_ORDER = {"missing-typed-dict-key": 1, "invalid-return-type": 2}


class Mapped(Protocol):
    """A text whose way back to the author's is worked out only when it is needed."""

    @property
    def source_map(self) -> SourceMap: ...


@dataclass(frozen=True)
class Context:
    """What the words need to know of a task.

    `generated` is its text for the checker, `due` the schema that its value is to have, `mismatch_code` the code of a
    value that does not. `names` are visible.
    """

    types: Types
    source: Mapped
    generated: str
    mismatch_code: Literal["EXPR-TYPE", "OUTPUT-TYPE"] = "EXPR-TYPE"
    due: Schema | None = None
    names: Collection[str] = ()
    is_code: bool = False


def problems(answer: Answer, context: Context) -> list[Problem]:
    """One problem for each cause: what lies around another one is a consequence of it."""
    found: list[Problem] = []
    taken: list[Diagnostic] = []
    for diagnostic in sorted(answer.diagnostics, key=lambda d: _ORDER.get(d.rule, 0)):
        # A key that is missing follows from one that is misspelt, and from nothing else that is wrong with an object.
        causes = [t for t in taken if t.rule == "invalid-key"] if diagnostic.rule == "missing-typed-dict-key" else taken
        if any(_overlap(diagnostic, other) for other in causes):
            continue
        problem = _problem(diagnostic, context)
        if problem is not None:
            found.append(problem)
            taken.append(diagnostic)
    return sorted(found, key=lambda problem: (problem.line, problem.column))


def _overlap(a: Diagnostic, b: Diagnostic) -> bool:
    return (a.line, a.column) < (b.end_line, b.end_column) and (b.line, b.column) < (a.end_line, a.end_column)


def _problem(diagnostic: Diagnostic, context: Context) -> Problem | None:
    explain = _RULES.get(diagnostic.rule)
    said = explain(diagnostic, context) if explain else None
    if said is None:
        said = "EXPR-TYPE", diagnostic.message.replace("`", ""), None
    if said == _IGNORED:
        return None
    code, message, fix = said
    line, column = context.source.source_map.place(
        diagnostic.line, diagnostic.column, diagnostic.end_line, diagnostic.end_column
    )
    return Problem(code, message, line, column, fix)


_Said = tuple[str, str, Fix | None]
_IGNORED: _Said = ("", "", None)


def _node(diagnostic: Diagnostic, context: Context) -> ast.AST | None:
    return context.source.source_map.node(
        diagnostic.line, diagnostic.column, diagnostic.end_line, diagnostic.end_column
    )


def _subject(diagnostic: Diagnostic, context: Context) -> str:
    """What the author wrote for the value that a field, method or item is taken of; else for the whole place."""
    node = _node(diagnostic, context)
    if isinstance(node, ast.Call):
        node = node.func
    return context.source.source_map.segment(node.value if isinstance(node, ast.Attribute | ast.Subscript) else node)


def guard(subject: str) -> Problem:
    """What to say of a value that may be None where it must not be."""
    message = f"{subject} may be None here; write ({subject} or …), or … if {subject} is not None else …"
    if subject == "None":
        message = "None has no fields and cannot be computed with; write the value that is meant"
    return Problem("EXPR-NONE", message)


def unfit(path: str, reason: str) -> str:
    """What to say of a value that does not fit where it goes, with the path and reason of `shapes.mismatch`."""
    place = f"{path}: {reason}" if path else reason
    return f"the value does not fit: {place}; change the expression or the declaration"


def _guard(subject: str) -> _Said:
    return "EXPR-NONE", guard(subject).message, None


def _mixed(shown: str, context: Context) -> bool:
    """Whether a type of code is a mixture, as the checker sees it for all values of a dict; nothing follows from it."""
    return context.is_code and len([member for member in members(shown) if member != "None"]) > 1


def members(shown: str) -> list[str]:
    """The parts of a union that the checker shows."""
    try:
        node: ast.expr = ast.parse(shown.replace("*", ""), mode="eval").body
    except (SyntaxError, ValueError):
        return [shown]
    parts: list[str] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts.append(ast.unparse(node.right))
        node = node.left
    return [*parts, ast.unparse(node)]


def _unknown_key(diagnostic: Diagnostic, context: Context) -> _Said | None:
    if "can only be subscripted with a string literal key" in diagnostic.message:
        return "EXPR-TYPE", "an object is read by the name of a field that is written out; write one, as in x.id", None
    match = re.match(r'Unknown key "(.*?)" for TypedDict `(.*?)`(?: - did you mean "(.*)"\?)?', diagnostic.message)
    if not match:
        return None
    name, owner, meant = match.groups()
    schema = context.types.schema_of(owner, dicts=True)
    known = list(schema.get("properties", ())) if isinstance(schema, dict) else []
    meant = meant or did_you_mean(name, known)
    hint = f'did you mean "{meant}"?' if meant else f"it has {listed(known)}"
    code = context.mismatch_code if _is_dict_key(diagnostic, context) else "EXPR-FIELD"
    return code, f'{in_words(owner, context.types)} has no field "{name}"; {hint}', Fix(name, meant) if meant else None


def _is_dict_key(diagnostic: Diagnostic, context: Context) -> bool:
    lines = context.generated.split("\n")
    return diagnostic.end_line <= len(lines) and lines[diagnostic.end_line - 1][diagnostic.end_column - 1 :].startswith(
        ":"
    )


def _missing_key(diagnostic: Diagnostic, context: Context) -> _Said | None:
    match = re.match(r"Missing required key '(.*)' in TypedDict `(.*)` constructor", diagnostic.message)
    if not match:
        return None
    if context.source.source_map.is_joined(_node(diagnostic, context)):
        return _IGNORED
    return (
        context.mismatch_code,
        f'the field "{match[1]}" of {in_words(match[2], context.types)} is missing; add it',
        None,
    )


def _no_fields(diagnostic: Diagnostic, context: Context) -> _Said | None:
    match = re.match(r"Cannot subscript object of type `(.*)` with no `__getitem__` method", diagnostic.message)
    if not match:
        return None
    subject = _subject(diagnostic, context)
    if match[1] == "None":
        return _guard(subject)
    found = in_words(match[1], context.types)
    return "EXPR-FIELD", f"{subject} is {_a(found)}, which has no fields; read {subject} itself", None


def _no_attribute(diagnostic: Diagnostic, context: Context) -> _Said | None:
    union = re.match(r"Attribute `(.*)` is not defined on `(.*)` in union `(.*)`", diagnostic.message)
    if union:
        if _mixed(union[3], context):
            return _IGNORED
        if "None" in union[2]:
            return _guard(_subject(diagnostic, context))
    function = re.match(r"Function `(.*)` has no attribute `(.*)`", diagnostic.message)
    if function:
        return "EXPR-TYPE", f"{function[1]} is a function and has no {function[2]}; write {function[1]}(…)", None
    match = re.match(r"Object of type `(.*)` has no attribute `(.*)`", diagnostic.message)
    shown, name = (union[2], union[1]) if union else (match[1], match[2]) if match else ("", "")
    if not shown:
        return None
    if shown == "None":
        return _guard(_subject(diagnostic, context))
    found = in_words(shown, context.types)
    schema = context.types.schema_of(shown, dicts=True)
    if isinstance(schema, dict) and name in schema.get("properties", ()):
        if not context.is_code:
            return "EXPR-FIELD", f"{name} is a field and no method; remove the brackets behind it", None
        new = f'{_subject(diagnostic, context)}["{name}"]'
        node = _node(diagnostic, context)
        return "EXPR-FIELD", f"in code a field is read as {new}", Fix(context.source.source_map.segment(node), new)
    methods = [m for m in dir(_methods_of(schema)) if not m.startswith("_")]
    meant = did_you_mean(name, methods)
    hint = f"did you mean {meant}?" if meant else "remove it"
    return "EXPR-FIELD", f"{_a(found)} has no method {name}; {hint}", Fix(name, meant) if meant else None


def _methods_of(schema: object) -> type:
    kinds = {branch.get("type") for branch in branches(schema)} if isinstance(schema, dict) else set()
    return {"string": str, "array": list, "object": dict}.get(str(kinds.pop()), int) if len(kinds) == 1 else object


def _operator(diagnostic: Diagnostic, context: Context) -> _Said | None:
    message = diagnostic.message
    two = re.match(r"Operator `(.*)` is not supported between objects of type `(.*)` and `(.*)`", message)
    same = re.match(r"Operator `(.*)` is not supported between two objects of type `(.*)`", message)
    one = re.match(r"Unary operator `(.*)` is not supported for object of type `(.*)`", message)
    match = two or same or one
    if not match:
        return None
    operator, shown = match[1], [match[2], match[3] if two else match[2]]
    if any(_mixed(side, context) for side in shown):
        return _IGNORED
    operands = [context.source.source_map.segment(operand) for operand in _operands(_node(diagnostic, context))]
    for side, operand in zip(shown, operands, strict=False):
        if "None" in members(side):
            return _guard(operand)
    kinds = list(dict.fromkeys(_a(in_words(side, context.types)) for side in shown))
    what = f"two of the kind {kinds[0]}" if same else " and ".join(kinds)
    return "EXPR-TYPE", f"{operator} cannot be used on {what}; convert one of them", None


def _operands(node: ast.AST | None) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Compare):
        return [node.left, node.comparators[0]]
    if isinstance(node, ast.AugAssign):
        return [node.target, node.value]
    return [node.operand] if isinstance(node, ast.UnaryOp) else []


def _argument(diagnostic: Diagnostic, context: Context) -> _Said | None:
    message = diagnostic.message
    item = re.match(
        r"Method `__getitem__` of type .* cannot be called with key of type `(.*)` on object of type `(.*)`", message
    )
    if item:
        return _key(item[1], item[2], context.source.source_map.segment(_node(diagnostic, context)), context)
    field = re.match(
        r'Invalid argument to key "(.*)" with declared type `(.*)` on TypedDict `(.*)`: value of type `(.*)`', message
    )
    if field:
        return _field_type(field[1], field[2], field[4], diagnostic, context)
    call = re.match(r"Argument to (?:bound method|function|method) `(.*?)` is incorrect: (.*)", message)
    if not call:
        return None
    found = re.search(r"found `(.*)`$", call[2]) or re.match(r"Argument type `(.*?)` does not satisfy", call[2])
    shown = found[1] if found else ""
    if shown and _mixed(shown, context):
        return _IGNORED
    if "None" in members(shown):
        return _guard(context.source.source_map.segment(_node(diagnostic, context)))
    what = _a(in_words(shown, context.types)) if shown else "this"
    return "EXPR-TYPE", f"{call[1]}() does not take {what}; convert it, or use another function", None


def item_hint(name: str, subject: str) -> str:
    """What to write where a field is read of a list."""
    if name in ("length", "size", "count"):
        return f"write len({subject})"
    return f"read the field of its items: [x.{name} for x in {subject}]"


def _key(key: str, shown: str, subject: str, context: Context) -> _Said:
    found = in_words(shown, context.types)
    name = re.fullmatch(r'Literal\["(.*)"\]', key)
    if name and found.startswith("list"):
        hint = item_hint(name[1], subject)
        return "EXPR-FIELD", f'{subject} is a {found}, which has no field "{name[1]}"; {hint}', None
    if key.startswith("slice["):
        return "EXPR-TYPE", f"the bounds of a part of {subject} are integers; write int(…) around what is none", None
    what = f'"{name[1]}"' if name else _a(in_words(key, context.types))
    return "EXPR-FIELD", f"{subject} is {_a(found)}, of which {what} cannot be read; read {subject} itself", None


def _field_type(name: str, declared: str, shown: str, diagnostic: Diagnostic, context: Context) -> _Said:
    due, found = loosely(declared, context.types), loosely(shown, context.types)
    if context.is_code and mismatch(found, due) is None:
        return _IGNORED
    if is_nullable(found) and mismatch(without_null(found), due) is None:
        return _guard(context.source.source_map.segment(_node(diagnostic, context)))
    message = f'the field "{name}" is {_a(words(due))}, and this is {_a(in_words(shown, context.types))}'
    message += f"; {conversion(due)}"
    return context.mismatch_code, message, None


_CONVERSIONS = {
    "string": "write str(…) around it",
    "integer": "write int(…) around it, or round(…)",
    "number": "write float(…) around it",
    "boolean": "write a comparison, such as … == …",
    "array": "write a list, such as […]",
    "object": "write an object with its fields",
    "null": "write None",
}


def conversion(due: Schema) -> str:
    """What to write where a value of another type stands."""
    kinds = [branch.get("type") for branch in branches(without_null(due) if is_nullable(due) else due)]
    if any("enum" in branch for branch in branches(due)):
        return f"write {words(due)}"
    return _CONVERSIONS.get(str(kinds[0]), "write a value of that type") if len(kinds) == 1 else "write one of these"


def _returned(diagnostic: Diagnostic, context: Context) -> _Said | None:
    match = re.match(r"Return type does not match returned value: expected `(.*)`, found `(.*)`", diagnostic.message)
    if not match or context.due is None:
        return None
    if match[2] == "None" and context.is_code and not is_nullable(context.due):
        return context.mismatch_code, "the last line is the result, and it gives nothing; write the value there", None
    exact = context.types.schema_of(match[2], dicts=True)
    if isinstance(exact, NotJson):
        return "EXPR-TYPE", f"the value is {_a(exact.shown)}, which JSON does not have; write {exact.instead}", None
    found = loosely(match[2], context.types)
    why = mismatch(found, context.due)
    if why is None:
        # Lists of records that differ in what the other may hold: the checker is stricter than JSON.
        return _IGNORED
    if is_nullable(found) and not is_nullable(context.due) and mismatch(without_null(found), context.due) is None:
        return _guard(context.source.source_map.segment(_node(diagnostic, context)))
    return context.mismatch_code, unfit(*why), None


def _not_iterable(diagnostic: Diagnostic, context: Context) -> _Said | None:
    match = re.match(r"Object of type `(.*)` (?:may not be|is not) iterable", diagnostic.message)
    if not match:
        return None
    if _mixed(match[1], context):
        return _IGNORED
    subject = context.source.source_map.segment(_node(diagnostic, context))
    if "None" in members(match[1]):
        return _guard(subject)
    return "EXPR-TYPE", f"{subject} is {_a(in_words(match[1], context.types))}, which has no items; write a list", None


def _no_overload(diagnostic: Diagnostic, context: Context) -> _Said | None:
    match = re.search(r"`(.*?)`", diagnostic.message)
    if not match:
        return None
    name = match[1]
    message = (
        f"{name}() does not take these values; guard what may be None, as in {name}(x for x in … if x is not None)"
    )
    return "EXPR-TYPE", message, None


def _not_callable(diagnostic: Diagnostic, context: Context) -> _Said | None:
    match = re.match(r"Object of type `(.*)` is not callable", diagnostic.message)
    if not match:
        return None
    node = _node(diagnostic, context)
    subject = context.source.source_map.segment(node.func if isinstance(node, ast.Call) else node)
    found = in_words(match[1], context.types)
    return "EXPR-TYPE", f"{subject} is {_a(found)} and cannot be called; remove the brackets", None


def _unknown_name(diagnostic: Diagnostic, context: Context) -> _Said | None:
    match = re.match(r"Name `(.*)` used when not defined", diagnostic.message)
    if not match:
        return None
    meant = did_you_mean(match[1], context.names)
    hint = f"did you mean {meant}?" if meant else f"code sees {', '.join(sorted(context.names)) or 'no names'}"
    return "EXPR-NAME", f"{match[1]} is not known here; {hint}", Fix(match[1], meant) if meant else None


def _a(kind: str) -> str:
    """`a string`, `an integer`; other phrases as they are."""
    plain = re.fullmatch(r"(string|integer|number|boolean|list|object)( .*)?", kind)
    return f"{'an' if kind[0] in 'aeio' else 'a'} {kind}" if plain else kind


_RULES: Mapping[str, Callable[[Diagnostic, Context], _Said | None]] = {
    "call-non-callable": _not_callable,
    "invalid-argument-type": _argument,
    "invalid-key": _unknown_key,
    "invalid-return-type": _returned,
    "missing-typed-dict-key": _missing_key,
    "no-matching-overload": _no_overload,
    "not-iterable": _not_iterable,
    "not-subscriptable": _no_fields,
    "unresolved-attribute": _no_attribute,
    "unresolved-reference": _unknown_name,
    "unsupported-operator": _operator,
}
