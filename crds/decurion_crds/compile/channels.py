"""Channels and their merge rules: what a rule needs of the type and of the writers, and which rules fit a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decurion_crds.compile.draft import ChannelDraft, ScopeDraft
from decurion_crds.compile.order import writers
from decurion_crds.compile.report import Report, Spot
from decurion_crds.compiled import Schema
from decurion_crds.expressions.shapes import branches, items_of
from decurion_crds.findings import Fix, did_you_mean, listed
from decurion_crds.merging import INITIAL, LISTS, NUMBERS
from decurion_crds.v1alpha1 import Channel, Merge

_MADE = {
    "append": "joins lists; declare type: array",
    "union": "joins lists; declare type: array",
    "mergeByKey": "joins lists of objects; declare type: array",
    "sum": "adds numbers; declare type: number or type: integer",
    "min": "compares numbers; declare type: number or type: integer",
    "max": "compares numbers; declare type: number or type: integer",
}
_KEYS = ("string", "integer", "number", "boolean")


def channel_draft(channel: Channel, schema: Schema, spot: Spot, report: Report) -> ChannelDraft:
    """A channel whose rule fits its type; what does not is in the report, and the channel of any type."""
    rule = channel.merge.rule
    fault = _type_fault(schema, channel.merge)
    if fault is not None:
        place, message = fault
        report.add("SCHEMA", spot.below(*place), message)
        schema = {}
    initial = INITIAL.get(rule) if channel.initial is None else channel.initial
    return ChannelDraft(channel.name, spot, schema, channel.merge, initial)


def _type_fault(schema: Schema, merge: Merge) -> tuple[Sequence[str], str] | None:
    """What keeps a rule from working on values of a type: where it stands in the channel, and the sentence."""
    parts = branches(schema)
    if merge.rule in LISTS and not all(part.get("type") == "array" for part in parts):
        return ("schema",), f"merge: {merge.rule} {_MADE[merge.rule]}"
    if merge.rule in NUMBERS and not all(part.get("type") in ("number", "integer") for part in parts):
        return ("schema",), f"merge: {merge.rule} {_MADE[merge.rule]}"
    if merge.rule == "sum" and any("enum" in part for part in parts):
        return ("schema",), "merge: sum gives other numbers than those that enum allows; remove enum"
    if merge.rule == "mergeByKey":
        return _key_fault([branch for part in parts for branch in branches(items_of(part))], merge.key or "")
    return None


def _key_fault(items: Sequence[Schema], key: str) -> tuple[Sequence[str], str] | None:
    if not all(item.get("type") == "object" and item.get("properties") for item in items):
        return ("schema",), "merge: mergeByKey joins lists of objects; declare items: {type: object, properties: …}"
    for item in items:
        fields: dict[str, Any] = item["properties"]
        if key not in fields:
            meant = did_you_mean(key, fields)
            hint = f'did you mean "{meant}"?' if meant else f"they have {listed(sorted(fields))}"
            return ("merge", "key"), f'the items have no field "{key}"; {hint}'
        if key not in item.get("required", ()):
            return ("merge", "key"), f"an item may have no {key}; name it in required of the items, or take another key"
        if not all(part.get("type") in _KEYS for part in branches(fields[key])):
            return ("merge", "key"), f"{key} is no text, number or truth value, so it names no item; take another key"
    return None


def check_orders(scope: ScopeDraft, report: Report) -> None:
    """What `order` of a merge rule names must write the channel, and once. A `finally` has the channels of its scope to
    read, and writes none.
    """
    if scope.outer is not None:
        return
    for channel in scope.channels.values():
        known = writers(scope, channel.name)
        seen: set[str] = set()
        for i, name in enumerate(channel.merge.order):
            spot = channel.spot.below("merge", "order").at(i)
            if name in seen:
                report.add("DUPLICATE-NAME", spot, f'"{name}" stands in order twice; remove one of them')
            elif name not in known:
                meant = did_you_mean(name, known)
                hint = f'did you mean "{meant}"?' if meant else f"its writers are {listed(known)}"
                fix = Fix(name, meant) if meant else None
                message = f'no node "{name}" writes {channel.name}; {hint}'
                report.add("REF-MISSING", spot, message, fix=fix)
            seen.add(name)


def fitting_rules(schema: Schema) -> tuple[str, ...]:
    """The rules other than replace that the values of a type may be merged by, without a key."""
    kinds = {part.get("type") for part in branches(schema)}
    if kinds == {"array"}:
        return ("append", "union")
    if kinds <= {"number", "integer"}:
        return ("min", "max") if any("enum" in part for part in branches(schema)) else ("sum", "min", "max")
    return ()
