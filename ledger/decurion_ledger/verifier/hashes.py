"""Value hashes, computed from a value and from its stored form."""

from __future__ import annotations

from typing import Any

import orjson

from decurion_ledger.verifier.form import canonical, sha, tree

_WIDE = 64 * 1024


def stored_hash(stored: Any) -> str:
    """The hash of a value in stored form: what a reference says of its list enters in place of it."""
    return sha("value/v1", canonical(_as_hashed(stored))).hex()


def value_hash(value: Any) -> str:
    return sha("value/v1", canonical(_fold(value))).hex()


def named_lists(stored: Any) -> list[tuple[str, int, str, int]]:
    """The wide lists that a stored form refers to: index, count, root and bytes of each."""
    found: list[tuple[str, int, str, int]] = []
    if isinstance(stored, list):
        for item in stored:
            found += named_lists(item)
    elif isinstance(stored, dict):
        held = stored.get("$list")
        if len(stored) == 1 and isinstance(held, dict) and "index" in held:
            found.append((held["index"], held["count"], held["root"], held["bytes"]))
        else:
            for member in stored.values():
                found += named_lists(member)
    return found


def _as_hashed(stored: Any) -> Any:
    if isinstance(stored, list):
        items = [_as_hashed(item) for item in stored]
        if len(orjson.dumps(items)) > _WIDE:
            return {"$list": "a list that should stand in chunks"}
        return items
    if isinstance(stored, dict):
        held = stored.get("$list")
        if len(stored) == 1 and isinstance(held, dict) and "index" in held:
            return {"$list": {"count": held["count"], "root": held["root"]}}
        return {name: _as_hashed(member) for name, member in stored.items()}
    return stored


def _fold(value: Any) -> Any:
    """`value` with its lists of more than 64 KiB replaced, deepest first, and its own `$list` objects marked."""
    if isinstance(value, list):
        items = [_fold(item) for item in value]
        if len(orjson.dumps(items)) <= _WIDE:
            return items
        leaves = [sha("value/v1", canonical(item)) for item in items]
        return {"$list": {"count": len(items), "root": tree("list/v1", leaves).hex()}}
    if isinstance(value, dict):
        members = {name: _fold(member) for name, member in value.items()}
        return {"$list": {"value": members["$list"]}} if members.keys() == {"$list"} else members
    return value
