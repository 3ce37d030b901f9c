"""From what an author writes where a schema is due to one self-contained JSON Schema (2020-12).

Three forms stand in such a place: a JSON Schema, the name of a shared schema (`Report`), and the short form
`name → schema` of an object without further fields, in which `name?` marks an optional one. Inside a schema a shared
name stands wherever a schema stands (`items: Report`), also as `{$ref: "#/schemas/Report"}`; one of another graph as
`{$ref: "graph:filings#/schemas/Report"}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jsonschema_rs

from decurion_crds.compiled import Schema
from decurion_crds.errors import SchemaRefused
from decurion_crds.findings import did_you_mean, listed
from decurion_crds.v1alpha1.base import JSON_TYPES

MAX_SUBSCHEMAS = 10_000
MAX_DEPTH = 100

Elsewhere: TypeAlias = Callable[[str], Mapping[str, Any]]
"""The shared schemas of another graph, by its name. Raises `SchemaRefused` when there is no such graph."""


def _nowhere(graph: str) -> Mapping[str, Any]:
    raise SchemaRefused(f'there is no TaskGraph "{graph}" here; copy the schema')


_NONE: Mapping[str, Any] = {}
_MARKS = ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")
_ONE = frozenset(
    [
        "items",
        "additionalProperties",
        "not",
        "contains",
        "propertyNames",
        "if",
        "then",
        "else",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
_MANY = frozenset({"properties", "patternProperties", "dependentSchemas"})
_LIST = frozenset({"prefixItems", "anyOf", "oneOf", "allOf"})
_NOTES = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
    ]
)
_PLAIN = frozenset(
    [
        "type",
        "enum",
        "const",
        "required",
        "dependentRequired",
        "format",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minContains",
        "maxContains",
        "minProperties",
        "maxProperties",
        "contentEncoding",
        "contentMediaType",
    ]
)
_KEYWORDS = _ONE | _MANY | _LIST | _NOTES | _PLAIN | {"$ref", "$defs", "$schema"}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF_HELP = (
    'write the name of a shared schema, "#/schemas/NAME" or "#/$defs/NAME", or "graph:GRAPH#/schemas/NAME" for that of '
    "another graph"
)
FOREIGN = re.compile(r"graph:(?P<graph>[^#]*)#/schemas/(?P<name>.*)", re.DOTALL)


def is_schema(written: Any) -> bool:
    """Whether what stands in a schema's place is a schema or a name, and not the short form `name → schema`."""
    if isinstance(written, str):
        return True
    return isinstance(written, Mapping) and (
        isinstance(written.get("type"), str | list) or any(mark in written for mark in _MARKS)
    )


def expand_schema(
    written: str | Mapping[str, Any], shared: Mapping[str, Any] = _NONE, elsewhere: Elsewhere = _nowhere
) -> Schema:
    """The schema that `written` stands for, in full: no `$ref`, no `$defs`, no shared name is left.

    `shared` are the `spec.schemas` of the resource, as written. A shared schema without a title of its own gets its
    name as title. Raises `SchemaRefused` for what is invalid, does not resolve, or refers to itself.
    """
    expander = _Expander(shared, elsewhere)
    schema = expander.place(written, "", ())
    return _checked(schema)


def expand_fields(
    fields: Mapping[str, Any], shared: Mapping[str, Any] = _NONE, elsewhere: Elsewhere = _nowhere
) -> Schema:
    """The object schema of `name → schema`, the form of `input`. `name?` is optional. Raises `SchemaRefused`."""
    schema = _Expander(shared, elsewhere).fields(fields, "", ())
    return _checked(schema)


def _checked(schema: Schema) -> Schema:
    """`schema`, after the validator's own check. Patterns must fit the linear regex engine, which has no
    look-around.
    """
    try:
        jsonschema_rs.Draft202012Validator(schema, pattern_options=jsonschema_rs.RegexOptions(), offline=True)
    except jsonschema_rs.ValidationError as error:
        where = ".".join(str(step) for step in error.instance_path)
        message = error.message.splitlines()[0][:300]
        if error.instance_path and error.instance_path[-1] == "pattern":
            message += " of the kind that is allowed; write it without look-around and back-references"
        raise SchemaRefused(message, path=where) from None
    return schema


class _Expander:
    """One expansion: `left` bounds its size, the chain of shared names that is passed along finds recursion."""

    def __init__(self, shared: Mapping[str, Any], elsewhere: Elsewhere, left: int = MAX_SUBSCHEMAS) -> None:
        self._shared = shared
        self._elsewhere = elsewhere
        self._left = left

    def place(self, written: Any, path: str, chain: tuple[str, ...]) -> Schema:
        if is_schema(written):
            schema: Schema = self._schema(written, path, chain, _NONE, 0)
            return schema
        if isinstance(written, Mapping):
            return self.fields(written, path, chain)
        raise SchemaRefused("a JSON Schema, or the name of a shared one, is due here", path=path)

    def fields(self, fields: Mapping[str, Any], path: str, chain: tuple[str, ...]) -> Schema:
        properties: dict[str, Any] = {}
        required: list[str] = []
        for written, schema in fields.items():
            name = written.removesuffix("?")
            if not name or name in properties:
                problem = "a field needs a name" if not name else f'there are "{name}" and "{name}?"; keep one of them'
                raise SchemaRefused(problem, path=_below(path, written))
            properties[name] = self._schema(schema, _below(path, written), chain, _NONE, 0)
            if name == written:
                required.append(name)
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def _schema(self, written: Any, path: str, chain: tuple[str, ...], defs: Mapping[str, Any], depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise SchemaRefused(f"with shared schemas in place it has more than {MAX_SUBSCHEMAS:,} parts; simplify it")
        if depth > MAX_DEPTH:
            raise SchemaRefused(f"it is nested deeper than {MAX_DEPTH} levels; flatten it", path=path)
        if isinstance(written, bool):
            return written
        if isinstance(written, str):
            return self._named(written, path, chain, depth)
        if not isinstance(written, Mapping):
            raise SchemaRefused("a JSON Schema, or the name of a shared one, is due here", path=path)
        _check_keywords(written, path)
        defs = written["$defs"] if isinstance(written.get("$defs"), Mapping) else defs
        full = {
            key: self._keyword(key, value, _below(path, key), chain, defs, depth)
            for key, value in written.items()
            if key not in ("$ref", "$defs", "$schema")
        }
        if "$ref" not in written:
            return full
        target = self._reference(written["$ref"], path, chain, defs, depth)
        if isinstance(target, dict) and full.keys() <= _NOTES:
            return target | full
        return full | {"allOf": [target, *full.get("allOf", ())]}

    def _keyword(
        self, key: str, value: Any, path: str, chain: tuple[str, ...], defs: Mapping[str, Any], depth: int
    ) -> Any:
        if key in _ONE:
            return self._schema(value, path, chain, defs, depth + 1)
        if key in _MANY and isinstance(value, Mapping):
            return {
                name: self._schema(schema, _below(path, name), chain, defs, depth + 1) for name, schema in value.items()
            }
        if key in _LIST and isinstance(value, list):
            return [self._schema(schema, f"{path}[{i}]", chain, defs, depth + 1) for i, schema in enumerate(value)]
        return value

    def _named(self, name: str, path: str, chain: tuple[str, ...], depth: int) -> Any:
        if name not in self._shared:
            if name in JSON_TYPES:
                raise SchemaRefused(f'"{name}" is a type, and a schema is due; write {{type: {name}}}', path=path)
            meant = did_you_mean(name, self._shared)
            known = f'did you mean "{meant}"?' if meant else f"the shared schemas are {listed(self._shared)}"
            fix = (name, meant) if meant else None
            raise SchemaRefused(f'there is no shared schema "{name}"; {known}', path=path, suggestion=fix)
        if name in chain:
            circle = " → ".join((*chain[chain.index(name) :], name))
            raise SchemaRefused(f"a schema cannot contain itself ({circle}); write its levels one by one", path=path)
        written = self._shared[name]
        try:
            if is_schema(written):
                schema = self._schema(written, "", (*chain, name), _NONE, depth + 1)
            else:
                schema = self.place(written, "", (*chain, name))
        except SchemaRefused as refused:
            if refused.path.startswith("schemas."):
                raise
            where = _below(_below("schemas", name), refused.path)
            raise SchemaRefused(refused.message, path=where, suggestion=refused.suggestion) from None
        return {"title": name} | schema if isinstance(schema, dict) else schema

    def _reference(self, ref: Any, path: str, chain: tuple[str, ...], defs: Mapping[str, Any], depth: int) -> Any:
        if not isinstance(ref, str):
            raise SchemaRefused(f"$ref is a text; {_REF_HELP}", path=path)
        if ref.startswith("#/schemas/"):
            return self._named(ref.removeprefix("#/schemas/"), path, chain, depth)
        if ref.startswith("#/$defs/"):
            name = ref.removeprefix("#/$defs/")
            if name not in defs:
                raise SchemaRefused(f'there is no "{name}" in $defs; it has {listed(defs)}', path=path)
            if ref in chain:
                raise SchemaRefused(f"a schema cannot contain itself ({ref}); write its levels one by one", path=path)
            return self._schema(defs[name], path, (*chain, ref), defs, depth + 1)
        if ref in self._shared:
            return self._named(ref, path, chain, depth)
        if foreign := FOREIGN.fullmatch(ref):
            return self._foreign(ref, foreign["graph"], foreign["name"], path, chain, depth)
        raise SchemaRefused(f'"{ref[:200]}" cannot be referred to; {_REF_HELP}', path=path)

    def _foreign(self, ref: str, graph: str, name: str, path: str, chain: tuple[str, ...], depth: int) -> Any:
        """The shared schema of another graph, expanded among those of that graph."""
        if ref in chain:
            raise SchemaRefused(f"a schema cannot contain itself ({ref}); write its levels one by one", path=path)
        try:
            shared = self._elsewhere(graph)
        except SchemaRefused as refused:
            raise SchemaRefused(
                refused.message, path=path, suggestion=refused.suggestion, absent=refused.absent
            ) from None
        if name not in shared:
            meant = did_you_mean(name, shared)
            hint = f'did you mean "{meant}"?' if meant else f"its shared schemas are {listed(shared)}"
            fix = (name, meant) if meant else None
            message = f'the graph {graph} has no shared schema "{name}"; {hint}'
            raise SchemaRefused(message, path=path, suggestion=fix)
        other = _Expander(shared, self._elsewhere, self._left)
        across = (*(step for step in chain if FOREIGN.fullmatch(step)), ref)
        try:
            return other._named(name, path, across, depth)
        except SchemaRefused as refused:
            refused.graph = refused.graph or graph
            raise
        finally:
            self._left = other._left


def _check_keywords(written: Mapping[str, Any], path: str) -> None:
    for key in written:
        if key not in _KEYWORDS and not key.startswith("x-"):
            meant = did_you_mean(key, _KEYWORDS)
            if key == "nullable":
                hint = "write type: [string, 'null']"
            elif meant:
                hint = f'did you mean "{meant}"?'
            else:
                hint = "fields of an object stand below properties: {type: object, properties: {…}}"
            fix = (key, meant) if meant and key != "nullable" else None
            raise SchemaRefused(
                f'"{key}" is no keyword of JSON Schema 2020-12 that is supported; {hint}',
                path=path,
                suggestion=fix,
            )
    if written.get("$schema", _DIALECT).rstrip("#") != _DIALECT:
        raise SchemaRefused(f"only JSON Schema 2020-12 is supported; remove $schema or write {_DIALECT}", path=path)
    _check_type(written.get("type"), path)
    required, properties = written.get("required"), written.get("properties")
    if isinstance(required, list) and isinstance(properties, Mapping) and not written.keys() & {"allOf", "$ref"}:
        for name in required:
            if name not in properties:
                meant = did_you_mean(str(name), properties)
                hint = f'did you mean "{meant}"?' if meant else "declare it in properties"
                fix = (str(name), meant) if meant else None
                raise SchemaRefused(
                    f'required names "{name}", which is not in properties; {hint}', path=path, suggestion=fix
                )


def _check_type(declared: Any, path: str) -> None:
    for name in declared if isinstance(declared, list) else [declared] if declared is not None else []:
        if name is None:
            raise SchemaRefused("in a type YAML reads null as no value; write 'null' in quotes", path=path)
        if name not in JSON_TYPES:
            meant = did_you_mean(str(name), JSON_TYPES)
            hint = f'did you mean "{meant}"?' if meant else f"the types are {listed(JSON_TYPES)}"
            fix = (str(name), meant) if meant else None
            raise SchemaRefused(f'there is no type "{name}"; {hint}', path=path, suggestion=fix)


def _below(path: str, step: str) -> str:
    return f"{path}.{step}" if path and step else path or step
