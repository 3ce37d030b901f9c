"""The keys of runs with sensitive values: an object each beside the logs, which can be destroyed.

    keys/<hh>/<run>           {"by": which seal key, "family", "key": encrypted with it, "v": 1}
    keys/<hh>/<run>.erased    {"at"}: the key was destroyed, and none is made in its place

A run that takes results of another one has the same key, so that these keep their names and hashes: a family. What is
sensitive in one is so in all of them, and is erased in all at once. Keys are no part of a log: whoever copies, packs or
verifies a run needs none.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import orjson

from decurion_crds.canonical import canonical
from decurion_ledger.errors import KeyDamaged, KeyErased, KeyMissing, NotFound, RunNotFound, WrongSealKey
from decurion_ledger.layout import KEYS, run_prefix
from decurion_ledger.patience import Patience, SystemClock, patiently
from decurion_ledger.reader import READING
from decurion_ledger.sealing import Seal, SealKey
from decurion_ledger.stores.port import Put, Store, Versions

GONE = ".erased"
T = TypeVar("T")


def key_key(run: str) -> str:
    """Where the key of a run lies. Raises `BadRunId`."""
    return f"{KEYS}{run_prefix(run).removeprefix('runs/').rstrip('/')}"


async def key_of(store: Store, run: str, by: SealKey, *, patience: Patience = READING) -> Seal:
    """The key of `run`. Raises `KeyErased`, `KeyMissing`, `WrongSealKey`, or the store's error."""
    held = await _object(store, key_key(run), patience)
    if held is None:
        if await _object(store, key_key(run) + GONE, patience) is not None:
            raise KeyErased(run)
        raise KeyMissing(run, store.uri)
    if held["by"] != by.id:
        raise WrongSealKey(
            f"the key of run {run} was encrypted with the seal key {held['by']}, and {by.id} is given; give that one"
        )
    return by.unwrap(base64.b64decode(held["key"]), run)


async def make_key(
    store: Store, run: str, by: SealKey, *, seal: Seal | None = None, patience: Patience = READING
) -> Seal:
    """The key of a run that begins: `seal`, or a new one, once it is stored; the one that is there, if one is.

    Raises as `key_of`.
    """
    if await _object(store, key_key(run) + GONE, patience) is not None:
        raise KeyErased(run)
    seal = seal or Seal.generate()
    text = base64.b64encode(by.wrap(seal, run)).decode()
    content = canonical({"by": by.id, "family": seal.family, "key": text, "v": 1})
    put = await patiently(partial(store.put_new, key_key(run), content), patience=patience, clock=SystemClock())
    return seal if put is Put.CREATED else await key_of(store, run, by, patience=patience)


async def is_erased(store: Store, run: str) -> bool:
    """Whether the key of a run was destroyed."""
    return await _object(store, key_key(run) + GONE, READING) is not None


@dataclass(frozen=True, slots=True)
class Erasure:
    """The runs whose key was destroyed, or would be: one, and those that took results of it or that it took some of.
    `before` says that it was destroyed already.
    """

    runs: tuple[str, ...]
    before: bool = False


async def erase(store: Store, run: str, *, at: str, dry_run: bool = False) -> Erasure:
    """Destroy the key of a run, all versions of it: what it has encrypted can be read by nobody any more.

    A run of the same family that is open cannot go on. Raises `RunNotFound`, `KeyMissing` for a run without sensitive
    values, or the store's error: then do it again.
    """
    held = await _object(store, key_key(run), READING)
    if held is None:
        if await _object(store, key_key(run) + GONE, READING) is None:
            if not await _begun(store, run):
                raise RunNotFound(run, store.uri)
            raise KeyMissing(run, store.uri)
        if not dry_run:
            await _destroy(store, run)
        return Erasure((run,), before=True)
    family = [name async for name in _family(store, str(held["family"]))]
    if not dry_run:
        for name in family:
            await _ask(partial(store.put_new, key_key(name) + GONE, canonical({"at": at})))
            await _destroy(store, name)
    return Erasure(tuple(family))


async def drop_key(store: Store, run: str) -> None:
    """Remove what is there of the key of a run that is deleted whole."""
    await _destroy(store, run)
    await _ask(partial(store.delete, key_key(run) + GONE))


async def copy_key(source: Store, run: str, target: Store) -> bool:
    """Copy the key of a run, encrypted as it is; False where there is none. Raises a store's error."""
    try:
        content = await _ask(partial(source.get, key_key(run)))
    except NotFound:
        return False
    await _ask(partial(target.put_new, key_key(run), content))
    return True


async def _begun(store: Store, run: str) -> bool:
    """Whether the store has anything of a run."""
    async for _ in store.list(run_prefix(run)):
        return True
    return False


async def _destroy(store: Store, run: str) -> None:
    key = key_key(run)
    await _ask(partial(store.delete_versions if isinstance(store, Versions) else store.delete, key))


async def _family(store: Store, family: str) -> AsyncIterator[str]:
    async for info in store.list(KEYS):
        if info.key.endswith(GONE):
            continue
        held = await _object(store, info.key, READING)
        if held is not None and held.get("family") == family:
            yield info.key.rpartition("/")[2]


async def _ask(request: Callable[[], Awaitable[T]]) -> T:
    return await patiently(request, patience=READING, clock=SystemClock())


async def _object(store: Store, key: str, patience: Patience) -> dict[str, Any] | None:
    try:
        found = orjson.loads(await patiently(partial(store.get, key), patience=patience, clock=SystemClock()))
    except NotFound:
        return None
    except orjson.JSONDecodeError:
        raise KeyDamaged(key) from None
    if not isinstance(found, dict):
        raise KeyDamaged(key)
    return found
