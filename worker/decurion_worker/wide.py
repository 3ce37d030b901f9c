"""Wide lists where values are read: left as references where that will do, loaded where it will not.

Nothing is loaded for a bare path, a length, a constant index, the items of a map, and for passing a list on through
`with`, `writes` and outputs. Any other use loads at most 32 MiB. Design: language page, "Wide values".
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from decurion_crds.canonical import Json, canonical
from decurion_crds.compiled import Expr, Schema
from decurion_crds.errors import MergeRefused, OutputMismatch
from decurion_crds.expressions.wide import stand_in
from decurion_crds.values import Validator, normalise
from decurion_crds.wide import ItemRef, ListRef, Merged, Unmerged, WideDict, has_refs, mark, refs_in
from decurion_ledger import Values

MAX_ITEM = 1024 * 1024
MAX_LIST = 1024 * 1024 * 1024
MAX_COUNT = 1_000_000


@functools.lru_cache(maxsize=4096)
def _steps(read: str) -> tuple[str, ...]:
    return tuple(read.split("."))


def touches(exprs: Mapping[str, Expr], env: Mapping[str, Json]) -> bool:
    """Whether one of the expressions reads something that stands elsewhere."""
    for expr in exprs.values():
        for read in expr.reads:
            value: Json = env
            for step in _steps(read):
                if not isinstance(value, dict):
                    break
                value = value.get(step)
            if has_refs(value):
                return True
    return False


async def resolved(values: Values, exprs: Mapping[str, Expr], env: Mapping[str, Json]) -> dict[str, Json]:
    """`env` as expressions that are no bare paths need it: lists in place, or what stands for them where length and
    constant items are all that is read. Raises `ValueTooWide`.
    """
    seen: dict[str, Json] = dict(env)
    light = _light(exprs.values())
    for read in sorted({read for expr in exprs.values() for read in expr.reads}):
        await _resolve(values, seen, _steps(read), light.get(read))
    return seen


async def handed_on(values: Values, exprs: Mapping[str, Expr], env: Mapping[str, Json]) -> dict[str, Json]:
    """`env` as bare paths need it: items of lists as they are, lists as references."""
    seen: dict[str, Json] = dict(env)
    for expr in exprs.values():
        if expr.path is not None:
            await _resolve(values, seen, expr.path, None, whole=False)
    return seen


def _light(exprs: Collection[Expr]) -> dict[str, tuple[int, ...]]:
    """Paths that nobody reads more of than their length and these items."""
    found: dict[str, set[int]] = {}
    for expr in exprs:
        for read, indexes in expr.light.items():
            found.setdefault(read, set()).update(indexes)
    heavy = {read for expr in exprs for read in expr.reads if read not in expr.light}
    return {
        read: tuple(sorted(indexes))
        for read, indexes in found.items()
        if not any(f"{other}.".startswith(f"{read}.") or f"{read}.".startswith(f"{other}.") for other in heavy)
    }


async def _resolve(
    values: Values, seen: dict[str, Json], steps: Sequence[str], light: tuple[int, ...] | None, *, whole: bool = True
) -> None:
    """Replace what `steps` lead to in `seen`, whose objects along the way are copied."""
    place = seen
    for i, step in enumerate(steps):
        value = place.get(step)
        if isinstance(value, ItemRef | Merged | Unmerged):
            value = place[step] = await values.near(value)
        if i == len(steps) - 1:
            if whole and has_refs(value):
                place[step] = await _read(values, value, light)
            elif has_refs(value):
                place[step] = await values.near(value)
            return
        if not isinstance(value, dict):
            return
        place[step] = place = dict(value)


async def _read(values: Values, value: Json, light: tuple[int, ...] | None) -> Json:
    if light is None or not isinstance(value, ListRef):
        return await values.load(value)
    within = [index for index in light if index < value.count]
    items = {index: await values.load(await values.item(ItemRef(value, index))) for index in within}
    return stand_in(value.count, items)


async def checked(values: Values, schema: Schema, value: Json) -> Json:
    """`value`, which holds references, in its declared types and checked against `schema`, lists chunk by chunk.

    Raises `OutputMismatch`, `ValueRefused`, and `ValueTooWide` where a schema speaks of a list as a whole.
    """
    value = await values.near(value)
    places: list[tuple[tuple[str, ...], ListRef, Schema]] = []
    for steps, ref in _lists(value, ()):
        below = _below(schema, steps)
        if below is None:
            return _plain(schema, await values.load(value))
        places.append((steps, ref, below))
    if len(places) != sum(1 for _ in refs_in(value)):
        return _plain(schema, await values.load(value))
    found = {steps: await _list(values, ref, below, steps) for steps, ref, below in places}
    hollow, rest = schema, value
    for steps in found:
        hollow, rest = _hollow(hollow, steps), _with(rest, steps, None)
    whole = _plain(hollow, rest)
    for steps, ref_or_list in found.items():
        whole = _with(whole, steps, ref_or_list)
    return mark(whole)


def _lists(value: Json, steps: tuple[str, ...]) -> list[tuple[tuple[str, ...], ListRef]]:
    if isinstance(value, ListRef):
        return [(steps, value)]
    if isinstance(value, WideDict):
        return [found for key, member in value.items() for found in _lists(member, (*steps, key))]
    return []


_PLAIN_KEYS = frozenset({"type", "items", "minItems", "maxItems", "description", "title", "examples", "default"})


def _below(schema: Any, steps: Sequence[str]) -> Schema | None:
    """What `schema` says of the list at `steps`; None where it says it in a way that needs the whole value."""
    for step in steps:
        if not isinstance(schema, Mapping) or schema.keys() & {"$ref", "anyOf", "oneOf", "allOf", "if", "not"}:
            return None
        schema = schema.get("properties", {}).get(step, schema.get("additionalProperties", {}))
        if schema is True:
            schema = {}
    if not isinstance(schema, Mapping) or not schema.keys() <= _PLAIN_KEYS:
        return None
    declared = schema.get("type", "array")
    return dict(schema) if declared == "array" or (isinstance(declared, list) and "array" in declared) else None


async def _list(values: Values, ref: ListRef, schema: Schema, steps: Sequence[str]) -> ListRef | list[Json]:
    where = "".join(f".{step}" for step in steps) or "it"
    for word, broken in (("minItems", ref.count < schema.get("minItems", 0)), ("maxItems", _above(ref, schema))):
        if broken:
            raise OutputMismatch([f"{where}: has {ref.count} items, and {word} is {schema[word]}"])
    items = schema.get("items", {})
    if items in ({}, True):
        return ref
    of_items = {"type": "array", "items": items}
    validator = Validator(of_items)

    async def change(chunk: list[Json]) -> list[Json]:
        normal: list[Json] = normalise([await values.load(item) for item in chunk], of_items)
        validator.check(normal)
        return normal

    return await values.rebuilt(ref, change)


def _above(ref: ListRef, schema: Schema) -> bool:
    return "maxItems" in schema and ref.count > schema["maxItems"]


def _plain(schema: Schema, value: Json) -> Json:
    normal = normalise(value, schema)
    Validator(schema).check(normal)
    return normal


def _hollow(schema: Schema, steps: Sequence[str]) -> Schema:
    """`schema` that allows anything at `steps`."""
    if not steps:
        return {}
    properties = dict(schema.get("properties", {}))
    step = steps[0]
    below = properties.get(step, schema.get("additionalProperties", {}))
    properties[step] = _hollow(below if isinstance(below, dict) else {}, steps[1:])
    return {**schema, "properties": properties}


def _with(value: Json, steps: Sequence[str], there: Json) -> Json:
    """`value` with `there` at `steps`; an empty list where that is None."""
    if not steps:
        return [] if there is None else there
    return {**value, steps[0]: _with(value[steps[0]], steps[1:], there)}


def size_fault(value: Json) -> str | None:
    """Why a value is beyond the limits of values, or None: lists of 1,000,000 items and 1 GiB."""
    for ref in refs_in(value):
        if isinstance(ref, ListRef) and (ref.count > MAX_COUNT or ref.bytes > MAX_LIST):
            size = f"{ref.count:,} items and {ref.bytes / 2**20:,.0f} MiB"
            return f"a list has {size}, more than the {MAX_COUNT:,} items and 1 GiB that one may have; split it"
    return None


def item_fault(items: Sequence[Json]) -> str | None:
    """Which item of a map is larger than 1 MiB, or None."""
    for number, item in enumerate(items):
        if not has_refs(item) and not isinstance(item, int | float | bool) and len(canonical(item)) > MAX_ITEM:
            return too_large(number)
    return None


def too_large(number: int) -> str:
    return f"item {number} is larger than 1 MiB; split it"


async def channel_hash(values: Values, value: Json) -> str:
    """The value hash of a channel; of why it has none, where its writes cannot be merged and nothing read it."""
    try:
        return values.name(await values.near(value))
    except MergeRefused as refused:
        return values.name({"refused": str(refused)})
