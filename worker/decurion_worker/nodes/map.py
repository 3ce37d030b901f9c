"""Opening a map: which items it has and what all its branches share. Its branches are work of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import orjson

from decurion_crds.canonical import Json
from decurion_crds.compiled import MapBlock
from decurion_crds.errors import DecurionError, OutputMismatch, ValueRefused
from decurion_crds.values import normalise
from decurion_crds.wide import ListRef
from decurion_ledger import branch_key
from decurion_ledger.errors import ValueTooWide
from decurion_ledger.lists import CHUNK
from decurion_worker import wide
from decurion_worker.context import Execution
from decurion_worker.errors import DuplicateKey, OutputBroken, SourceInvalid, ValueTooLarge


async def open_map(
    execution: Execution, block: MapBlock, env: Mapping[str, Json], base: Mapping[str, Json]
) -> dict[str, Json]:
    """`{"items": [...], "base": {...}}`, and `"keys"`, which name the branches in paths, where the map has a `key`.

    Items that come from a file or folder are read here, once: what the record holds is the copy that every later try
    uses. A wide list of items is checked and keyed chunk by chunk and stays where it is.

    Raises `SourceInvalid` for a bad line (with its number), `OutputBroken` and `ValueTooLarge` for items that are none,
    `DuplicateKey` for two items of one key.
    """
    if block.jsonl is not None:
        uri = (await execution.context.evaluate({"jsonl": block.jsonl}, env))["jsonl"]
        text = await execution.context.source(lambda sources: sources.read(uri))
        items: list[Json] | ListRef = _parse_lines(uri, text, execution, block)
    elif block.prefix is not None:
        items = await _listed(execution, block, env)
    else:
        assert block.items is not None
        found = (await execution.context.evaluate({"items": block.items}, env))["items"]
        items = await _checked_items(execution, block, found)
    await _check_sizes(execution, items)
    opened: dict[str, Json] = {"items": items, "base": dict(base)}
    if block.key is None and block.prefix is not None and isinstance(items, list):
        opened["keys"] = [item["key"] for item in items]
    elif block.key is not None:
        opened["keys"] = await _keys(execution, block, items, env)
    return opened


async def _listed(execution: Execution, block: MapBlock, env: Mapping[str, Json]) -> list[Json]:
    assert block.prefix is not None
    prefix = (await execution.context.evaluate({"prefix": block.prefix}, env))["prefix"]
    most = wide.MAX_COUNT + 1
    found = await execution.context.source(lambda sources: sources.list(prefix, glob=block.glob, most=most))
    if len(found) > wide.MAX_COUNT:
        fault = f"there are more than {wide.MAX_COUNT:,} such files below {prefix}; narrow the prefix or the glob"
        raise ValueTooLarge(execution.path, "map.itemsFrom", fault)
    return [one.to_json() for one in found]


async def _checked_items(execution: Execution, block: MapBlock, items: Json) -> list[Json] | ListRef:
    """`items` in their declared types. Raises `OutputBroken`: what is in the log must be a list for ever."""
    context = execution.context
    try:
        normal: list[Json] | ListRef = await context.checked(context.list_of(block.item_schema), items)
    except OutputMismatch as error:
        raise OutputBroken(execution.path, [f"items {problem}" for problem in error.problems]) from error
    except ValueRefused as error:
        raise OutputBroken(execution.path, [f"items {error}"]) from error
    except ValueTooWide as error:
        raise ValueTooLarge(execution.path, "map.items", str(error)) from error
    return normal


async def _check_sizes(execution: Execution, items: list[Json] | ListRef) -> None:
    """Raises `ValueTooLarge` for more items, or larger ones, than a map may have."""
    if isinstance(items, ListRef):
        number, size = await execution.context.values.largest(items)
        fault = wide.size_fault(items) or (wide.too_large(number) if size > wide.MAX_ITEM else None)
    else:
        fault = wide.item_fault(items)
        if fault is None and len(items) > wide.MAX_COUNT:
            fault = f"there are {len(items):,} items, more than {wide.MAX_COUNT:,}; map over parts of them"
    if fault is not None:
        raise ValueTooLarge(execution.path, "map.items", fault)


def _parse_lines(uri: str, text: bytes, execution: Execution, block: MapBlock) -> list[Json]:
    validator = execution.context.validator(block.item_schema)
    items = []
    for number, line in enumerate(text.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            item = normalise(orjson.loads(line), block.item_schema)
            validator.check(item)
        except (orjson.JSONDecodeError, ValueRefused, DecurionError) as error:
            raise SourceInvalid(uri, number, str(error)) from error
        items.append(item)
    return items


async def _keys(
    execution: Execution, block: MapBlock, items: list[Json] | ListRef, env: Mapping[str, Json]
) -> list[Json]:
    assert block.key is not None
    seen: dict[str, int] = {}
    keys: list[Json] = []
    exprs = {"key": block.key}
    async for chunk in _chunks(execution, items):
        scopes = [{**env, block.as_: item, "index": len(keys) + i} for i, item in enumerate(chunk)]
        found = await asyncio.gather(*(execution.context.evaluate(exprs, scope) for scope in scopes))
        for key in (values["key"] for values in found):
            if (before := seen.setdefault(branch_key(key), len(keys))) != len(keys):
                raise DuplicateKey(execution.path, key, before, len(keys))
            keys.append(key)
    return keys


async def _chunks(execution: Execution, items: list[Json] | ListRef) -> AsyncIterator[list[Json]]:
    if isinstance(items, ListRef):
        async for chunk in execution.context.values.chunks(items):
            yield chunk
    else:
        for start in range(0, len(items), CHUNK):
            yield items[start : start + CHUNK]
