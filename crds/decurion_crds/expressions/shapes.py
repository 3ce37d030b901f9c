"""JSON Schemas as types: their branches, whether a value of one fits another, and what stands at a path.

Only what a type can say is looked at: kinds, fields, items, members of an enumeration. Bounds and patterns are left to
the validator. A schema is closed here by what it names: fields beyond its `properties` are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from decurion_crds.canonical import Json, canonical
from decurion_crds.compiled import Schema

ANY: Schema = {}
NULL: Schema = {"type": "null"}
OPEN: Schema = {"type": "object", "x-open": True}
"""An object that may have any fields, which fits every object."""
_KINDS = ("string", "integer", "number", "boolean", "null", "array", "object")
_PARTS = ("type", "properties", "required", "items", "prefixItems", "additionalProperties", "enum", "const")


def merged(schema: Any) -> Schema:
    """`schema` without `allOf`: its parts laid over one another. True is the schema of everything."""
    if not isinstance(schema, Mapping):
        return ANY
    if "allOf" not in schema:
        return dict(schema)
    out: Schema = {key: value for key, value in schema.items() if key != "allOf"}
    for part in map(merged, schema["allOf"]):
        for key, value in part.items():
            if key == "properties":
                out[key] = {**value, **out.get(key, {})}
            elif key == "required":
                out[key] = list(dict.fromkeys([*out.get(key, []), *value]))
            else:
                out.setdefault(key, value)
    return out


def branches(schema: Any) -> list[Schema]:
    """The alternatives of `schema`, each of at most one kind. `[{}]` when it says nothing that a type can say."""
    schema = merged(schema)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            rest = {key: value for key, value in schema.items() if key in _PARTS}
            parts = [merged({"allOf": [part, rest]}) if rest else part for part in schema[word]]
            return [branch for part in parts for branch in branches(part)]
    if "const" in schema or "enum" in schema:
        return _by_member(schema)
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [{**schema, "type": kind} for kind in kinds]
    if kinds is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else None
        return [{**schema, "type": kind}] if kind else [ANY]
    return [schema]


def _by_member(schema: Schema) -> list[Schema]:
    allowed = schema.get("type")
    allowed = [allowed] if isinstance(allowed, str) else allowed
    groups: dict[str, list[Json]] = {}
    for member in schema.get("enum", [schema.get("const")]):
        kind = kind_of(member)
        if allowed is None or kind in allowed or (kind == "integer" and "number" in allowed):
            groups.setdefault(kind if allowed is None or kind in allowed else "number", []).append(member)
    return [{"type": kind, "enum": members} for kind, members in groups.items()] or [ANY]


def kind_of(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def is_any(schema: Any) -> bool:
    return any(not branch.get("type") for branch in branches(schema))


def is_nullable(schema: Any) -> bool:
    """Whether null is among the values of `schema`, said in so many words."""
    return any(branch.get("type") == "null" for branch in branches(schema))


def nullable(schema: Schema) -> Schema:
    return schema if is_any(schema) or is_nullable(schema) else {"anyOf": [schema, NULL]}


def without_null(schema: Any) -> Schema:
    rest = [branch for branch in branches(schema) if branch.get("type") != "null"]
    return rest[0] if len(rest) == 1 else {"anyOf": rest}


def union(schemas: Sequence[Schema]) -> Schema:
    """The schema of what fits one of `schemas`; the same for any order, of which a type checker promises none."""
    by_text = {canonical(schema): schema for schema in schemas}
    distinct = [by_text[text] for text in sorted(by_text)]
    if {"type": "number"} in distinct:
        distinct = [schema for schema in distinct if schema != {"type": "integer"}]
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


_ONE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_MANY = ("properties", "patternProperties", "dependentSchemas")
_LIST = ("prefixItems", "anyOf", "oneOf", "allOf")


def settled(schema: Any) -> Any:
    """`schema` with the names of `required` sorted: the order in which an author wrote the fields says nothing."""
    if not isinstance(schema, Mapping):
        return schema
    out = dict(schema)
    for key in out.keys() & {*_ONE, *_MANY, *_LIST, "required"}:
        below = out[key]
        if key == "required":
            out[key] = sorted(below)
        elif key in _ONE:
            out[key] = settled(below)
        elif key in _MANY:
            out[key] = {name: settled(part) for name, part in below.items()}
        else:
            out[key] = [settled(part) for part in below]
    return out


def record(fields: Mapping[str, Schema], required: Sequence[str] | None = None) -> Schema:
    """An object of exactly these fields; all required unless said otherwise."""
    return {
        "type": "object",
        "properties": dict(fields),
        "required": sorted(fields if required is None else required),
        "additionalProperties": False,
    }


def items_of(array: Mapping[str, Any]) -> Schema:
    """The schema of any item of a branch of kind array."""
    first = [dict(part) if isinstance(part, Mapping) else ANY for part in array.get("prefixItems", [])]
    rest = array.get("items", ANY if not first else False)
    parts = first if rest is False else [*first, rest if isinstance(rest, Mapping) else ANY]
    return union([dict(part) for part in parts]) if parts else ANY


def field_of(obj: Mapping[str, Any], name: str) -> Schema | None:
    """The schema that reading `name` of a branch of kind object gives; nullable where it may be absent.

    None when there is no such field; of an object without named fields, what its members are.
    """
    properties = obj.get("properties", {})
    if name in properties:
        schema = properties[name]
        schema = dict(schema) if isinstance(schema, Mapping) else ANY
        return schema if name in obj.get("required", ()) else nullable(schema)
    if properties:
        return None
    rest = obj.get("additionalProperties", True)
    return nullable(dict(rest)) if isinstance(rest, Mapping) and rest else None if rest is False else ANY


def mismatch(source: Any, target: Any) -> tuple[str, str] | None:
    """Why a value of `source` need not fit `target`: (path, reason), or None when every one does.

    What `source` leaves open fits everything, as `Any` does for a type checker.
    """
    wanted = branches(target)
    for branch in branches(source):
        if not branch.get("type") or any(not want.get("type") for want in wanted):
            continue
        found = [_branch_mismatch(branch, want) for want in wanted]
        if None in found:
            continue
        same = [why for why, want in zip(found, wanted, strict=True) if want["type"] == branch["type"]]
        if len(same) == 1 and same[0] is not None:
            return same[0]
        return "", f"{words(branch)} where {words(target)} is due"
    return None


def _branch_mismatch(source: Schema, target: Schema) -> tuple[str, str] | None:
    kind = target["type"]
    if source["type"] != kind and (source["type"], kind) != ("integer", "number"):
        return "", f"{words(source)} where {words(target)} is due"
    if "enum" in target:
        members = {canonical(member) for member in target["enum"]}
        strange = [m for m in source.get("enum", ()) if canonical(m) not in members]
        if "enum" not in source or strange:
            return "", f"{words({'type': kind, 'enum': strange} if strange else source)} where {words(target)} is due"
    if kind == "array":
        below = mismatch(items_of(source), items_of(target))
        return (f"[]{_joined(below[0])}", below[1]) if below else None
    return _object_mismatch(source, target) if kind == "object" else None


def _object_mismatch(source: Schema, target: Schema) -> tuple[str, str] | None:
    have, want = source.get("properties", {}), target.get("properties", {})
    needed = target.get("required", ())
    if source.get("x-open"):
        return None
    if not have and want and needed and source.get("additionalProperties", True) is not False:
        return "", f"an object without declared fields where {words(target)} is due"
    for name in needed:
        if name not in have:
            return name, "missing"
    for name, schema in have.items():
        expected = want.get(name)
        if expected is None:
            rest = target.get("additionalProperties", True)
            if rest is False:
                return name, f"a field that {words(target)} does not have"
            expected = rest if isinstance(rest, Mapping) else ANY
        elif name in needed and name not in source.get("required", ()) and not is_nullable(expected):
            return name, "may be absent"
        below = mismatch(schema, nullable(expected) if name not in needed else expected)
        if below:
            return f"{name}{_joined(below[0])}", below[1]
    return None


def _joined(path: str) -> str:
    return path if not path or path.startswith("[") else f".{path}"


def words(schema: Any) -> str:
    """`schema` as a person says it: `list of Report`, `string or null`, `"a" or "b"`."""
    found = branches(schema)
    whole = [branch for branch in found if "enum" not in branch]
    named = [branch for branch in found if branch in whole or all(branch.get("type") != b.get("type") for b in whole)]
    parts = list(dict.fromkeys(_branch_words(branch) for branch in named))
    if len(parts) > 4:
        parts = [*parts[:3], "…"]
    return " or ".join(parts)


def _branch_words(branch: Schema) -> str:
    if "enum" in branch:
        members = [canonical(member).decode() for member in branch["enum"]]
        return " or ".join(members if len(members) < 5 else [*members[:4], "…"])
    kind = branch.get("type")
    if kind == "array":
        below = items_of(branch)
        return "list" if is_any(below) else f"list of {words(below)}"
    if kind == "object":
        title = branch.get("title")
        if title:
            return str(title)
        names = list(branch.get("properties", ()))
        return f"object {{{', '.join([*names[:4], *(['…'] if len(names) > 4 else [])])}}}" if names else "object"
    return str(kind or "any value")


def fields(schema: Any) -> Iterator[str]:
    """Every name of a field anywhere in `schema` that may be absent, or null: a node is given the one for the other."""
    for branch in branches(schema):
        if branch.get("type") == "array":
            yield from fields(items_of(branch))
        for name, below in branch.get("properties", {}).items():
            if name not in branch.get("required", ()) or is_nullable(below):
                yield name
            yield from fields(below)


def texts_alone(schema: Any) -> bool:
    """Whether every value of `schema` is a text."""
    return all(branch.get("type") == "string" for branch in branches(schema))


def holds_enum(schema: Any) -> bool:
    """Whether an enumeration is anywhere in `schema`."""
    for branch in branches(schema):
        if "enum" in branch and branch.get("type") in ("string", "integer"):
            return True
        if branch.get("type") == "array" and holds_enum(items_of(branch)):
            return True
        if any(holds_enum(below) for below in branch.get("properties", {}).values()):
            return True
    return False
