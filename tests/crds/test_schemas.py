"""What may stand where a schema is due, and the full schema that it stands for."""

from typing import Any

import pytest

from decurion_crds.errors import SchemaRefused
from decurion_crds.schemas import expand_fields, expand_schema, is_schema
from decurion_crds.v1alpha1 import MAX_SPEC_BYTES
from decurion_crds.values import Validator

FACT = {"type": "object", "required": ["value"], "properties": {"value": {"type": ["number", "null"]}}}
SHARED: dict[str, Any] = {
    "Fact": FACT,
    "Report": {"facts": {"type": "array", "items": "Fact"}, "note?": {"type": "string"}},
    "Local": {"$defs": {"Q": {"type": "string"}}, "type": "array", "items": {"$ref": "#/$defs/Q"}},
    "Alias": "Fact",
}
TITLED = {"title": "Fact"} | FACT
FACTS = {"type": "array", "items": TITLED}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@pytest.mark.parametrize(
    "written",
    ["Fact", {"type": "object"}, {"type": ["null"]}]
    + [{mark: []} for mark in ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")],
)
def test_what_is_a_schema(written: Any) -> None:
    assert is_schema(written)


@pytest.mark.parametrize("written", [{}, {"text": {"type": "string"}}, {"type": {"type": "string"}}, {"items": "Fact"}])
def test_what_is_the_short_form(written: Any) -> None:
    assert not is_schema(written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"type": "string"}, {"type": "string"}),
        ("Fact", TITLED),
        ("Alias", TITLED),
        ({"$ref": "#/schemas/Fact"}, TITLED),
        ({"$ref": "#/schemas/Fact", "description": "d"}, TITLED | {"description": "d"}),
        ({"$ref": "#/schemas/Fact", "minProperties": 1}, {"minProperties": 1, "allOf": [TITLED]}),
        ("Report", {"title": "Report"} | closed(["facts"], facts=FACTS, note={"type": "string"})),
        ("Local", {"title": "Local", "type": "array", "items": {"type": "string"}}),
        ({"summary": {"type": "string"}, "n?": "Fact"}, closed(["summary"], summary={"type": "string"}, n=TITLED)),
        ({"type": {"type": "string"}}, closed(["type"], type={"type": "string"})),
        ({}, closed([])),
        ({"anyOf": ["Fact", {"type": "null"}]}, {"anyOf": [TITLED, {"type": "null"}]}),
        ({"type": "object", "additionalProperties": "Fact"}, {"type": "object", "additionalProperties": TITLED}),
        ({"type": "object", "additionalProperties": False}, {"type": "object", "additionalProperties": False}),
        ({"enum": [{"type": "Fact", "x": "Fact"}]}, {"enum": [{"type": "Fact", "x": "Fact"}]}),
        ({"type": "string", "x-note": "Fact"}, {"type": "string", "x-note": "Fact"}),
    ],
)
def test_a_place_expands_to_one_schema_without_references(written: Any, expected: dict[str, Any]) -> None:
    schema = expand_schema(written, SHARED)
    assert schema == expected
    Validator(schema)


def test_the_fields_of_an_input_are_names_even_if_they_are_called_type() -> None:
    schema = expand_fields({"type": {"type": "string"}, "report?": "Fact"}, SHARED)
    assert schema == closed(["type"], type={"type": "string"}, report=TITLED)


@pytest.mark.parametrize(
    ("written", "path", "says"),
    [
        ("Fcat", "", 'there is no shared schema "Fcat"; did you mean "Fact"?'),
        ("Zzz", "", 'there is no shared schema "Zzz"; the shared schemas are Fact, Report, Local and Alias'),
        ({"n": "integer"}, "n", '"integer" is a type, and a schema is due; write {type: integer}'),
        ({"type": "strin"}, "", 'there is no type "strin"; did you mean "string"?'),
        ({"type": ["number", None]}, "", "in a type YAML reads null as no value; write 'null' in quotes"),
        ({"type": "object", "propertis": {}}, "", 'did you mean "properties"?'),
        ({"type": "string", "nullable": True}, "", "write type: [string, 'null']"),
        ({"type": "array", "items": {"a": {"type": "string"}}}, "items", "fields of an object stand below properties"),
        ({"type": "object", "properties": {"value": {}}, "required": ["vlaue"]}, "", 'did you mean "value"?'),
        ({"type": "string", "pattern": "(?=a)"}, "pattern", "without look-around"),
        ({"type": "string", "minLength": "x"}, "minLength", 'not of type "integer"'),
        ({"$ref": "https://example.test/s"}, "", "cannot be referred to"),
        ({"$ref": "#/$defs/X"}, "", 'there is no "X" in $defs'),
        ({"$ref": 5}, "", "$ref is a text"),
        ({"type": "string", "$schema": "http://json-schema.org/draft-07/schema#"}, "", "only JSON Schema 2020-12"),
        ({"a": 5}, "a", "a JSON Schema, or the name of a shared one, is due here"),
        ({"a": {"type": "string"}, "a?": {"type": "string"}}, "a?", 'there are "a" and "a?"'),
        ({"?": {"type": "string"}}, "?", "a field needs a name"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": "Nope"}}}, "properties.a.items", "Nope"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(written: Any, path: str, says: str) -> None:
    with pytest.raises(SchemaRefused) as refused:
        expand_schema(written, SHARED)
    assert refused.value.path == path
    assert says in refused.value.message


def test_a_mistake_in_a_shared_schema_is_placed_there() -> None:
    shared = {"Bad": {"type": "object", "properties": {"x": {"items": {"a": {}}}}}, "Over": {"b": "Bad"}}
    with pytest.raises(SchemaRefused) as refused:
        expand_schema({"x": "Over"}, shared)
    assert refused.value.path == "schemas.Bad.properties.x.items"


@pytest.mark.parametrize(
    "shared",
    [
        {"Tree": {"kids": {"type": "array", "items": "Tree"}}},
        {"Tree": {"kids": "Leaf"}, "Leaf": {"type": "array", "items": {"$ref": "#/schemas/Tree"}}},
        {"Tree": {"type": "array", "items": {"$ref": "#/$defs/T"}, "$defs": {"T": {"items": {"$ref": "#/$defs/T"}}}}},
    ],
)
def test_a_schema_that_contains_itself_is_refused(shared: dict[str, Any]) -> None:
    with pytest.raises(SchemaRefused, match="a schema cannot contain itself"):
        expand_schema("Tree", shared)


def test_schemas_that_multiply_are_bounded() -> None:
    shared: dict[str, Any] = {f"S{i}": {"a": f"S{i + 1}", "b": f"S{i + 1}"} for i in range(40)}
    shared["S40"] = {"type": "string"}
    with pytest.raises(SchemaRefused, match="more than 10,000 parts"):
        expand_schema("S0", shared)


def test_schemas_that_are_nested_through_one_another_are_bounded() -> None:
    shared: dict[str, Any] = {f"S{i}": {"type": "array", "items": f"S{i + 1}"} for i in range(2_000)}
    shared["S2000"] = {"type": "string"}
    assert len(str(shared)) < MAX_SPEC_BYTES
    with pytest.raises(SchemaRefused, match="nested deeper"):
        expand_schema("S0", shared)
