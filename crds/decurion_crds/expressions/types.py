"""JSON Schemas as declarations for the type checker, and the types that it reveals as JSON Schemas."""

from __future__ import annotations

import ast
import builtins
import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decurion_crds.canonical import canonical
from decurion_crds.compiled import Schema
from decurion_crds.expressions.shapes import ANY, NULL, OPEN, branches, items_of, union, words

IMPORTS = """\
from typing import Any, Literal, NotRequired, TypedDict
from typing_extensions import reveal_type
"""
_TAKEN = frozenset({"Any", "Literal", "NotRequired", "TypedDict", "Date", "Unknown", "Never", "None", "True", "False"})
_SCALARS: Mapping[str, Schema] = {
    "str": {"type": "string"},
    "LiteralString": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "None": NULL,
}
EMPTY: Schema = {"type": "array"}
"""The schema of a list of which nothing is known, as of `[]`; told from others by identity."""
_PYTHON = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_DATE: Schema = {
    "title": "Date",
    "type": "object",
    "properties": {
        "year": {"type": "integer"},
        "month": {"type": "integer"},
        "day": {"type": "integer"},
        "ordinal": {"type": "integer"},
        "text": {"type": "string"},
    },
    "required": ["year", "month", "day", "ordinal", "text"],
    "additionalProperties": False,
}
_INSTEAD = {
    "set": "sorted(…)",
    "frozenset": "sorted(…)",
    "GeneratorType": "a list, in square brackets",
    "bytes": ".decode()",
    "complex": "its parts",
}


@dataclass(frozen=True, slots=True)
class Undeclared:
    """A type that is not sound to rely on, as the checker shows it."""

    shown: str


@dataclass(frozen=True, slots=True)
class NotJson:
    """The type of what is no JSON value, and what to write instead."""

    shown: str
    instead: str


class Types:
    """The declarations of one compilation. A schema gets one name, however often it occurs."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._schemas: dict[str, Schema] = {"Date": _DATE}
        self._definitions: list[str] = []

    def definitions(self) -> str:
        """One declaration a line, for all schemas that were asked for so far."""
        return "".join(self._definitions)

    def annotation(self, schema: Any, hint: str) -> str:
        """The Python type of a value of `schema`. `hint` names the object type, when it has no title of its own."""
        parts = list(dict.fromkeys(self._branch(branch, hint) for branch in branches(schema)))
        return "Any" if "Any" in parts else " | ".join(parts)

    def _branch(self, branch: Schema, hint: str) -> str:
        kind = branch.get("type")
        if "enum" in branch and kind in ("string", "integer", "boolean"):
            return f"Literal[{', '.join(repr(member) for member in branch['enum'])}]"
        if kind == "array":
            return f"list[{self.annotation(items_of(branch), f'{hint}_item')}]"
        if kind == "object":
            return self._object(branch, hint)
        return _PYTHON.get(str(kind), "Any")

    def _object(self, branch: Schema, hint: str) -> str:
        properties = branch.get("properties", {})
        rest = branch.get("additionalProperties", True)
        if not properties and rest is not False:
            below = self.annotation(rest, f"{hint}_item") if isinstance(rest, Mapping) and rest else "Any"
            return f"dict[str, {below}]"
        key = canonical(branch)
        if key not in self._names:
            self._names[key] = name = self._free_name(str(branch.get("title") or hint))
            self._schemas[name] = branch
            members = [self._member(branch, key, below, hint) for key, below in properties.items()]
            self._definitions.append(f'{name} = TypedDict("{name}", {{{", ".join(members)}}})\n')
        return self._names[key]

    def _member(self, branch: Schema, name: str, below: Any, hint: str) -> str:
        kind = self.annotation(below, f"{hint}_{_identifier(name)}")
        if name not in branch.get("required", ()):
            kind = f"NotRequired[{kind if kind == 'Any' or 'None' in kind.split(' | ') else f'{kind} | None'}]"
        return f"{name!r}: {kind}"

    def _free_name(self, hint: str) -> str:
        base = name = _identifier(hint)[:1].upper() + _identifier(hint)[1:]
        number = 1
        while name in _TAKEN or name in self._schemas or keyword.iskeyword(name) or hasattr(builtins, name):
            number += 1
            name = f"{base}_{number}"
        return name

    def schema_of(self, shown: str, *, dicts: bool) -> Schema | Undeclared | NotJson:
        """The schema of a type that the checker shows. `dicts` says whether a dict type may be relied on."""
        try:
            node = ast.parse(shown.replace("*", ""), mode="eval").body
            found = self._of(node, dicts)
        except (SyntaxError, ValueError):
            return NotJson(shown, "a value, not a function") if shown.startswith("(") else Undeclared(shown)
        if isinstance(found, Undeclared) or found is EMPTY:
            return Undeclared(shown)
        return NotJson(shown, found.instead) if isinstance(found, NotJson) else found

    def _of(self, node: ast.expr, dicts: bool) -> Schema | Undeclared | NotJson:
        if isinstance(node, ast.Constant) and node.value is None:
            return NULL
        if isinstance(node, ast.Name):
            return self._of_name(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return _all([self._of(node.left, dicts), self._of(node.right, dicts)])
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            # Narrowing by truth shows as `list[Report] & ~AlwaysFalsy`; the schema stays that of the left side.
            return self._of(node.left, dicts) if isinstance(node.right, ast.UnaryOp) else Undeclared("")
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return self._of_generic(node.value.id, arguments, dicts)
        return Undeclared("")

    def _of_name(self, name: str) -> Schema | Undeclared | NotJson:
        if name in _SCALARS:
            return _SCALARS[name]
        if name in self._schemas:
            return self._schemas[name]
        if name in ("Any", "Unknown", "Never", "object"):
            return Undeclared(name)
        return NotJson(name, _INSTEAD.get(name, "a dict, a list, a string or a number"))

    def _of_generic(self, name: str, arguments: Sequence[ast.expr], dicts: bool) -> Schema | Undeclared | NotJson:
        if name == "Literal":
            return _literal([ast.literal_eval(argument) for argument in arguments])
        if name == "list" and ast.unparse(arguments[0]) == "Unknown":
            return EMPTY
        if name in ("list", "tuple"):
            items = [a for a in arguments if not (isinstance(a, ast.Constant) and a.value is Ellipsis)]
            found = _all([self._of(item, dicts) for item in items])
            return {"type": "array", "items": found} if isinstance(found, dict) else found
        if name == "dict":
            found = self._of(arguments[-1], dicts)
            if not dicts or not isinstance(found, dict):
                return found if isinstance(found, NotJson) else Undeclared("")
            return {"type": "object", "additionalProperties": found}
        return NotJson(name, _INSTEAD.get(name, "list(…)"))


def _all(found: Sequence[Schema | Undeclared | NotJson]) -> Schema | Undeclared | NotJson:
    refused = next((f for f in found if isinstance(f, NotJson)), None)
    if refused:
        return refused
    schemas = [f for f in found if isinstance(f, dict)]
    if any(schema.get("type") == "array" and schema is not EMPTY for schema in schemas):
        # `rows or []`: what an empty list holds is decided by the other side.
        schemas = [schema for schema in schemas if schema is not EMPTY]
    elif EMPTY in schemas:
        return Undeclared("")
    undeclared = next((f for f in found if isinstance(f, Undeclared)), None)
    return undeclared or union(schemas or [ANY])


def _literal(values: Sequence[object]) -> Schema | NotJson:
    """Strings keep their members; of other constants the kind is enough."""
    if any(isinstance(value, bytes) for value in values):
        return NotJson("Literal", "a string or a number")
    strings = sorted(value for value in values if isinstance(value, str))
    parts: list[Schema] = [{"type": "string", "enum": strings}] if strings else []
    if any(isinstance(value, bool) for value in values):
        parts.append({"type": "boolean"})
    if any(isinstance(value, int) and not isinstance(value, bool) for value in values):
        parts.append({"type": "integer"})
    return union(parts)


def in_words(shown: str, types: Types) -> str:
    """A type that the checker shows, in the words of schemas; as it is shown where there are none."""
    found = types.schema_of(shown, dicts=True)
    return words(found) if isinstance(found, dict) else shown


def loosely(shown: str, types: Types) -> Schema:
    """The schema of a type that the checker shows, where what is not sound to rely on fits everything.

    A dict is one of those: the checker sees one type for all values of a dict that was built step by step.
    """
    try:
        return _loose(ast.parse(shown.replace("*", ""), mode="eval").body, types)
    except (SyntaxError, ValueError):
        return ANY


def _loose(node: ast.expr, types: Types) -> Schema:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return union([_loose(node.left, types), _loose(node.right, types)])
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        if node.value.id == "list":
            return {"type": "array", "items": _loose(node.slice, types)}
        if node.value.id == "dict":
            return OPEN
    found = types.schema_of(ast.unparse(node), dicts=True)
    return found if isinstance(found, dict) else ANY


def _identifier(text: str) -> str:
    kept = "".join(c if c.isalnum() and c.isascii() else "_" for c in text)
    return kept if kept[:1].isalpha() else f"T{kept}"
