"""Opening a map: which items it has and what all its branches share. Its branches are work of their own."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from decurion_crds.canonical import Json
from decurion_crds.compiled import MapBlock
from decurion_crds.errors import DecurionError, OutputMismatch, ValueRefused
from decurion_crds.values import Validator, normalise
from decurion_ledger import branch_key
from decurion_worker.context import Execution
from decurion_worker.errors import DuplicateKey, OutputBroken, SourceInvalid


async def open_map(
    execution: Execution, block: MapBlock, env: Mapping[str, Json], base: Mapping[str, Json]
) -> dict[str, Json]:
    """`{"items": [...], "base": {...}}`, and `"keys"`, which name the branches in paths, where the map has a `key`.

    Items that come from a file are read here, once: what the record holds is the copy that every later try uses.
    Raises `SourceInvalid` for a bad line (with its number), `DuplicateKey` for two items of one key.
    """
    if block.jsonl is not None:
        uri = (await execution.context.evaluator.expressions({"jsonl": block.jsonl}, env))["jsonl"]
        items = _parse_lines(uri, await execution.context.sources.read(uri), execution, block)
    else:
        assert block.items is not None
        items = (await execution.context.evaluator.expressions({"items": block.items}, env))["items"]
        items = _checked_items(execution, block, items)
    opened: dict[str, Json] = {"items": items, "base": dict(base)}
    if block.key is not None:
        opened["keys"] = await _keys(execution, block, items, env)
    return opened


def _checked_items(execution: Execution, block: MapBlock, items: Json) -> list[Json]:
    """`items` in their declared types. Raises `OutputBroken`: what is in the log must be a list for ever."""
    schema = {"type": "array", "items": block.item_schema}
    try:
        normal = normalise(items, schema)
        Validator(schema).check(normal)
    except OutputMismatch as error:
        raise OutputBroken(execution.path, [f"items {problem}" for problem in error.problems]) from error
    except ValueRefused as error:
        raise OutputBroken(execution.path, [f"items {error}"]) from error
    return list(normal)


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


async def _keys(execution: Execution, block: MapBlock, items: list[Json], env: Mapping[str, Json]) -> list[Json]:
    assert block.key is not None
    seen: dict[str, int] = {}
    keys = []
    for index, item in enumerate(items):
        scope = {**env, block.as_: item, "index": index}
        key = (await execution.context.evaluator.expressions({"key": block.key}, scope))["key"]
        if (before := seen.setdefault(branch_key(key), index)) != index:
            raise DuplicateKey(execution.path, key, before, index)
        keys.append(key)
    return keys
