"""Whether a log is what its anchors say that it was."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from decurion_ledger.stores.port import Store
from decurion_ledger.verifier.form import canonical, tree, unhex
from decurion_ledger.verifier.signatures import is_signed

_MEMBERS: Mapping[str, type] = {
    "format": int,
    "run": str,
    "slots": int,
    "head": str,
    "root": str,
    "closed": bool,
    "at": str,
}


@dataclass(frozen=True, slots=True)
class Anchors:
    """The store with the anchors, and the public keys, in hex, of who may write them."""

    store: Store
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is of a log: the hashes of its segments by slot, and whether it has its close record."""

    hashes: Mapping[int, bytes]
    closed: bool


async def check_anchors(anchors: Anchors, run: str, seen: Seen, tell: Callable[[str, str, str], None]) -> int:
    """Tell what does not fit; how many anchors there are."""
    count = 0
    async for key, name, data in _stored(anchors.store, run):
        count += 1
        where = f"{anchors.store.uri}/{key}"
        fault, said = checkpoint_of(data, run=run, keys=anchors.keys)
        if fault is None and name != f"{said['slots']:012d}":
            fault = "it is stored under the number of another one"
        if fault is not None:
            tell("ANCHOR", where, fault)
            continue
        contradiction = _contradiction(said, seen)
        if contradiction is not None:
            tell("ROLLED-BACK", where, f"at {said['at']} the log had {said['slots']} slots; {contradiction}")
    return count


def checkpoint_of(data: bytes | Any, *, run: str, keys: tuple[str, ...]) -> tuple[str | None, dict[str, Any]]:
    """What is wrong with an anchor, if anything, and the checkpoint in it. `data` are its bytes, or what they hold."""
    try:
        found = orjson.loads(data) if isinstance(data, bytes) else data
        said, key, signature = found["checkpoint"], found["key"], unhex(found["signature"])
        if isinstance(data, bytes) and canonical(found) != data:
            return "it is not in canonical form", {}
        if found.keys() != {"checkpoint", "key", "signature"}:
            return "it has other members", {}
        if {name: type(value) for name, value in said.items()} != _MEMBERS or said["slots"] < 1 or said["format"] != 1:
            return "it holds no checkpoint of format 1", {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return "it is no anchor", {}
    if said["run"] != run:
        return f"it is of run {said['run']}", {}
    if key not in keys:
        return f"it was written with the key {key}, which is none of those given", {}
    if not is_signed(key, "checkpoint/v0", canonical(said), signature):
        return f"it is not signed by the key {key} that it names", {}
    return None, said


def _contradiction(said: Mapping[str, Any], seen: Seen) -> str | None:
    slots = said["slots"]
    there = [seen.hashes[slot] for slot in range(slots) if slot in seen.hashes]
    if len(there) < slots:
        return f"now {len(there)} of them are there and whole"
    if there[-1].hex() != said["head"] or tree("final/v0", there).hex() != said["root"]:
        return "they were others than now"
    if said["closed"] and (len(seen.hashes) > slots or not seen.closed):
        return "it was closed then, and is not closed there now"
    return None


async def _stored(store: Store, run: str) -> AsyncIterator[tuple[str, str, bytes]]:
    prefix = f"anchors/{hashlib.sha256(run.encode()).hexdigest()[:2]}/{run}/"
    for key in sorted([info.key async for info in store.list(prefix)]):
        yield key, key.removeprefix(prefix), await store.get(key)
