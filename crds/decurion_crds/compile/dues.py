"""What the parts of a node have to give: its fields by its declared output, names by the input of its template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from decurion_crds.compile.draft import VALUE, NodeDraft
from decurion_crds.compile.report import Report, Spot, inputs_hint
from decurion_crds.compile.sites import Due
from decurion_crds.compile.workspaces import CONFLICTS_OUTPUT
from decurion_crds.compiled import Schema
from decurion_crds.expressions.shapes import (
    ANY,
    branches,
    is_any,
    mismatch,
    nullable,
    record,
    union,
    without_null,
    words,
)
from decurion_crds.expressions.wording import unfit
from decurion_crds.findings import Fix, did_you_mean, listed
from decurion_crds.v1alpha1 import MapBlock

INDEX: Schema = {"type": "integer"}
KEY: Schema = {"type": ["string", "integer"]}
FAILURES: Schema = {
    "type": "array",
    "items": record(
        {
            "index": {"type": "integer"},
            "key": KEY,
            "node": {"type": "string"},
            "class": {"type": "string"},
            "error": {"type": "string"},
        },
        ["index", "node", "class", "error"],
    ),
}


def field_dues(output: Schema, written: Iterable[str], spot: Spot, report: Report) -> dict[str, Due]:
    """What each of the fields `written` at `spot` has to give. Fields too many and too few are in the report."""
    names = list(written)
    if VALUE in names:
        return {VALUE: Due(output, "OUTPUT-TYPE")}
    parts = branches(without_null(output))
    objects = [branch for branch in parts if branch.get("type") in ("object", None)]
    if not objects:
        message = f"named fields make an object, and the output is {words(output)}; write {VALUE} for the whole result"
        report.add("OUTPUT-TYPE", spot, message)
        return {}
    if len(objects) > 1 or is_any(objects[0]):
        return {}
    properties, required = objects[0].get("properties", {}), objects[0].get("required", ())
    dues: dict[str, Due] = {}
    for name in names:
        below = properties.get(name, objects[0].get("additionalProperties", not properties))
        if below is False:
            _no_field(name, list(properties), spot.below(name).key(), report)
        elif isinstance(below, Mapping):
            schema = dict(below)
            dues[name] = Due(schema if name in required or name not in properties else nullable(schema), "OUTPUT-TYPE")
    for name in required:
        if name not in names:
            report.add("OUTPUT-TYPE", spot, f'the field "{name}" of the output is missing; add it')
    return dues


def _no_field(name: str, known: Sequence[str], spot: Spot, report: Report) -> None:
    meant = did_you_mean(name, known)
    hint = f'did you mean "{meant}"?' if meant else f"it has {listed(known)}"
    fix = Fix(name, meant) if meant else None
    report.add("OUTPUT-TYPE", spot, f'the output has no field "{name}"; {hint}', fix=fix)


def choice_dues(output: Schema, written: Iterable[str], spot: Spot, report: Report) -> dict[str, Due]:
    """What the choices of an llm node have to give: lists of texts, for text fields that the output declares."""
    properties = output.get("properties", {})
    dues: dict[str, Due] = {}
    for name in written:
        if name not in properties:
            _no_field(name, list(properties), spot.below(name).key(), report)
        elif properties[name].get("type") != "string":
            message = f'choices are for text fields, and "{name}" is {words(properties[name])}; declare type: string'
            report.add("OUTPUT-TYPE", spot.below(name), message)
        else:
            dues[name] = Due({"type": "array", "items": {"type": "string"}})
    return dues


def input_dues(template: Schema) -> dict[str, Schema]:
    """What each name of a template's input has to get; null where it may be absent."""
    required = template.get("required", ())
    return {
        name: schema if name in required else nullable(schema)
        for name, schema in template.get("properties", {}).items()
    }


def check_input(node: NodeDraft, template: Schema, report: Report) -> None:
    """That a map or graph gives its template the names that it declares, and no others."""
    if "properties" not in template or node.body is None:
        return
    block, runs = node.model.map, node.body.shown
    declared, required = list(template["properties"]), template.get("required", ())
    loads = node.model.load
    given = {name: node.spot.below("load" if name in loads else "with", name).key() for name in node.names}
    if block is not None:
        given = {block.as_: node.spot.below("map", "as"), **given}
    missing = [name for name in required if name not in given and (block is None or name != "index")]
    unknown = [name for name in given if name not in declared]
    for name, spot in given.items():
        if name in unknown:
            # One name too many and one too few are one name that is wrong.
            swapped = len(unknown) == len(missing) == 1
            meant = missing.pop() if swapped else did_you_mean(name, declared)
            hint = f'did you mean "{meant}"?' if meant else inputs_hint(name, declared)
            message = f'the {runs} has no input "{name}"; {hint}'
            report.add("FIELD-UNKNOWN", spot, message, fix=Fix(name, meant) if meant else None)
    for name in missing:
        message = f'the {runs} needs the input "{name}"; give it by with'
        report.add("FIELD-MISSING", node.spot.below("with"), message)
    index = template["properties"].get("index")
    if block is None or index is None or "index" in given:
        return
    if mismatch(INDEX, index) is not None:
        message = f"index is an integer, and the {runs} declares {words(index)}; change its input"
        report.add("EXPR-TYPE", node.body.spot, message)


def check_lines(line: Schema, item: Schema, spot: Spot, report: Report) -> None:
    """That the lines of a file fit the input of the template."""
    why = mismatch(line, item)
    if why is not None:
        report.add("EXPR-TYPE", spot, unfit(*why))


def map_output(items: Schema, block: MapBlock | None) -> Schema:
    fields: dict[str, Schema] = {
        "items": {"type": "array", "items": items},
        "failures": FAILURES,
        "total": {"type": "integer"},
    }
    if block is not None and block.workspace is not None and block.workspace.on_conflict == "collect":
        fields["conflicts"] = CONFLICTS_OUTPUT
    return record(fields)


def items_due(item: Schema) -> Due:
    return Due({"type": "array", "items": item})


def item_of(array: Schema | None) -> Schema | None:
    """The schema of the items of what a map runs over; None when it is not known, or no list."""
    if array is None:
        return None
    found = [branch.get("items", ANY) for branch in branches(array) if branch.get("type", "array") == "array"]
    return union([item if isinstance(item, dict) else ANY for item in found]) if found else None
