"""Values on their way in and out: one spelling for one value, and a check against its schema.

The same value reaches evaluation from a manifest, a file, a model, Python or the ledger, spelled in as many ways. It is
brought to the form that its schema declares first, so that what is computed and hashed does not depend on the way.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import jsonschema_rs

from decurion_crds.canonical import Json
from decurion_crds.compiled import Schema
from decurion_crds.errors import OutputMismatch, SchemaRefused, ValueRefused

MAX_INTEGER = 2**53 - 1
"""Largest integer that every reader of JSON reads alike."""
MAX_DEPTH = 100
MAX_PROBLEMS = 20
MAX_PROBLEM_CHARS = 400

_INF = float("inf")
_ANY: Mapping[str, Any] = {}
_COMBINED = frozenset({"anyOf", "oneOf", "allOf", "then", "else"})


def normalise(value: object, schema: Mapping[str, Any] = _ANY) -> Json:
    """`value` as JSON, spelled as `schema` declares it; the schema is not checked otherwise.

    A number at `number` becomes a float, an integral one at `integer` an int; negative zero becomes zero. A member
    that is None is dropped unless it is required; a required one that is absent and may be null becomes None, so
    that absent and null are one. Tuples become lists, keys are sorted. Raises `ValueRefused` for NaN, infinities,
    integers beyond ±(2^53-1), lone surrogates, sets, bytes, keys that are no strings, other objects, and nesting
    deeper than 100 levels.
    """
    try:
        return _walk(value, schema, 0)
    except _Refused as refused:
        raise ValueRefused(_json_path(refused.steps[::-1]), refused.message) from None


class Validator:
    """A compiled schema. Formats are checked; patterns run on a linear engine; nothing is ever fetched."""

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        """Raises `SchemaRefused` when `schema` is invalid or refers to what is outside it."""
        try:
            self._compiled = jsonschema_rs.Draft202012Validator(
                schema if isinstance(schema, bool) else dict(schema),
                validate_formats=True,
                pattern_options=jsonschema_rs.RegexOptions(),
                offline=True,
            )
        except jsonschema_rs.ValidationError as error:
            raise SchemaRefused(error.message.splitlines()[0][:MAX_PROBLEM_CHARS]) from None

    def check(self, value: Json) -> None:
        """Raises `OutputMismatch` with the first twenty problems when `value` breaks the schema."""
        if self._compiled.is_valid(value):
            return
        errors = islice(self._compiled.iter_errors(value), MAX_PROBLEMS)
        raise OutputMismatch([f"{_json_path(error.instance_path)}: {_shortened(error.message)}" for error in errors])


class _Refused(Exception):
    """Carries the place from the inside out; `steps` is reversed at the top."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.steps: list[str | int] = []


def _walk(value: object, schema: Any, depth: int) -> Json:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)  # type: ignore[attr-defined]
    if kind is int or kind is float:
        return _number(value, schema)  # type: ignore[arg-type]
    if kind is dict:
        return _object(value, schema, depth)  # type: ignore[arg-type]
    if kind is list or kind is tuple:
        return _list(value, schema, depth)  # type: ignore[arg-type]
    if value is None or kind is bool:
        return value
    return _walk(_plain(value), schema, depth)


def _object(value: Mapping[Any, Any], schema: Any, depth: int) -> Json:
    if depth >= MAX_DEPTH:
        raise _Refused(f"it is nested deeper than {MAX_DEPTH} levels; flatten it")
    depth += 1
    if type(schema) is not dict:
        schema = _ANY
    elif not _COMBINED.isdisjoint(schema):
        schema = _merged(schema)
    properties = schema.get("properties", _ANY)
    required = schema.get("required", ())
    out: dict[str, Json] = {}
    key: Any = None
    try:
        for key in _in_order(value):
            item = value[key]
            if type(key) is not str or not key.isascii():
                key = _key(key)
            if item is None:
                if key in required:
                    out[key] = None
                continue
            if type(item) is str and item.isascii():
                out[key] = item
                continue
            below = properties.get(key)
            out[key] = _walk(item, _undeclared(schema) if below is None else below, depth)
    except _Refused as refused:
        refused.steps.append(key if type(key) is str else repr(key))
        raise
    filled = False
    for name in required:
        if name not in out and name in schema.get("_fill", required) and _nullable(properties.get(name, _ANY)):
            out[name] = None
            filled = True
    return dict(sorted(out.items())) if filled else out


def _in_order(value: Mapping[Any, Any]) -> Iterable[Any]:
    """Keys sorted, so that code sees one order wherever the value came from: an API server and the ledger sort too."""
    try:
        return sorted(value)
    except TypeError:  # keys of several types: one of them is refused below
        return value


def _list(value: Sequence[Any], schema: Any, depth: int) -> Json:
    if depth >= MAX_DEPTH:
        raise _Refused(f"it is nested deeper than {MAX_DEPTH} levels; flatten it")
    depth += 1
    if type(schema) is not dict:
        schema = _ANY
    elif not _COMBINED.isdisjoint(schema):
        schema = _merged(schema)
    items = schema.get("items", _ANY)
    first = schema.get("prefixItems", ())
    out: list[Json] = []
    i = 0
    try:
        for i, item in enumerate(value):
            if type(item) is str and item.isascii():
                out.append(item)
            else:
                out.append(_walk(item, first[i] if i < len(first) else items, depth))
    except _Refused as refused:
        refused.steps.append(i)
        raise
    return out


def _number(value: int | float, schema: Any) -> int | float:
    if value != value or value == _INF or value == -_INF:
        raise _Refused(f"{value} is no JSON number; write None, and make the field nullable")
    declared = schema.get("type") if type(schema) is dict else None
    if declared != "number" and declared != "integer":
        declared = _number_type(schema)
    if type(value) is float:
        if declared != "integer" or not value.is_integer():
            return value or 0.0
        value = int(value)
    if not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise _Refused("an integer beyond ±(2^53-1) is read differently by different readers; write it as a text")
    return float(value) if declared == "number" else value


def _number_type(schema: Any) -> str | None:
    """`number` or `integer` where the schema allows one of them, also in its branches; `number` wins."""
    found = set(_number_types(schema))
    return "number" if "number" in found else "integer" if found else None


def _number_types(schema: Any) -> Iterable[str]:
    if type(schema) is not dict:
        return
    declared = schema.get("type")
    if declared is not None:
        yield from {"number", "integer"}.intersection([declared] if isinstance(declared, str) else declared)
        return
    members = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else ()
    for member in members:
        if type(member) is int or type(member) is float:
            yield "integer" if type(member) is int else "number"
    for word in _COMBINED:
        if word in schema:
            branches = schema[word] if isinstance(schema[word], list) else [schema[word]]
            for branch in branches:
                yield from _number_types(branch)


def _merged(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What all branches of `schema` say of members and items, as one schema without branches at its top.

    A member required in one branch is kept when None; only one required in every case (`_fill`) is filled in.
    """
    properties: dict[str, list[Any]] = {}
    required: set[str] = set()
    always: set[str] = set()
    rest: dict[str, list[Any]] = {"items": [], "additionalProperties": []}
    first: list[Any] = []

    def add(part: Any, sure: bool) -> None:
        nonlocal first
        if type(part) is not dict:
            return
        for name, below in part.get("properties", _ANY).items():
            properties.setdefault(name, []).append(below)
        required.update(part.get("required", ()))
        if sure:
            always.update(part.get("required", ()))
        for word, found in rest.items():
            if type(part.get(word)) is dict:
                found.append(part[word])
        first = first or part.get("prefixItems", [])
        for word in _COMBINED:
            if word in part:
                branches = part[word] if isinstance(part[word], list) else [part[word]]
                certain = sure and (word == "allOf" or (len(branches) == 1 and word in ("anyOf", "oneOf")))
                for branch in branches:
                    add(branch, certain)

    add(schema, True)
    merged: dict[str, Any] = {word: _either(found) for word, found in rest.items() if found}
    merged["properties"] = {name: _either(found) for name, found in properties.items()}
    return merged | {"required": sorted(required), "_fill": sorted(always), "prefixItems": first}


def _either(schemas: Sequence[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


def _undeclared(schema: Any) -> Any:
    """The schema of a member that `properties` does not name. Patterns are not tried: such members keep their
    spelling.
    """
    return _ANY if "patternProperties" in schema else schema.get("additionalProperties", _ANY)


def _nullable(schema: Any) -> bool:
    if type(schema) is not dict:
        return False
    declared = schema.get("type")
    if declared is not None:
        return declared == "null" or (isinstance(declared, list) and "null" in declared)
    if "enum" in schema:
        return None in schema["enum"]
    return any(_nullable(branch) for word in ("anyOf", "oneOf") for branch in schema.get(word, ()))


def _text(value: Any) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _Refused(
            f"character {error.start} of the text is half a surrogate pair; write the whole character"
        ) from None
    return str(value)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return _text(str(key))
    raise _Refused(f"a key of an object is a text, and this one is {_kind(key)}; write str(key)")


def _plain(value: Any) -> Json:
    """The JSON form of an instance of a subclass; raises for what has none."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return list(value)
    raise _Refused(f"{_kind(value)} is no JSON value; {_instead(value)}")


def _instead(value: Any) -> str:
    if isinstance(value, set | frozenset):
        return "write sorted(x), or list(x) where it has an order"
    if isinstance(value, bytes | bytearray | memoryview):
        return "write x.decode()"
    if isinstance(value, datetime.date | datetime.time):
        return "write x.isoformat()"
    if isinstance(value, decimal.Decimal):
        return "write float(x), or str(x) to keep every digit"
    return "return texts, numbers, booleans, None, lists and dicts"


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _json_path(steps: Sequence[str | int]) -> str:
    text = "$"
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if step.isidentifier() else f'["{step}"]'
    return text.encode(errors="backslashreplace").decode()


def _shortened(message: str) -> str:
    """The end says what was expected, the beginning quotes the value: cut in the middle."""
    if len(message) <= MAX_PROBLEM_CHARS:
        return message
    half = MAX_PROBLEM_CHARS // 2
    return f"{message[:half]} … {message[-half:]}"


__all__ = ["MAX_INTEGER", "OutputMismatch", "Schema", "Validator", "ValueRefused", "normalise"]
