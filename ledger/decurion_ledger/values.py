"""Values: the hash that names one, and where its bytes are kept.

A value is named by `vhash`, whatever its form: inline in a record's envelope or in a blob. Lists whose
canonical form exceeds 64 KiB enter the hash by count and Merkle root of their items' hashes, so that a wide
list can be hashed, checked and read piece by piece.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from decurion_crds.canonical import Json, canonical, digest, merkle_root
from decurion_ledger.errors import BlobCorrupt, NotFound, NotJson, ValueMissing
from decurion_ledger.layout import blob_key
from decurion_ledger.patience import Clock, Patience, SystemClock, patiently
from decurion_ledger.stores.port import Store

LIST_LIMIT = 64 * 1024
INLINE_VALUE = 4 * 1024
INLINE_RECORD = 16 * 1024

_FOLDED = "$list"


def vhash(value: Json) -> str:
    """SHA-256, in hex, of `value` under the domain `value/v1`, wide lists folded.

    Deepest first, each list whose canonical form exceeds 64 KiB is replaced by `{"$list": {count, root}}`,
    `root` being the Merkle root (domain `list/v1`) over its items' value hashes. An object of the author's
    own whose only key is `$list` enters as `{"$list": {"value": …}}`, so no value has the hash of another.
    Raises `NotJson`.
    """
    return digest("value/v1", _folded(value, value_bytes(value)))


def value_bytes(value: Json) -> bytes:
    """The canonical bytes of `value`. Raises `NotJson` for what JSON cannot hold, NaN and infinities
    included.
    """
    try:
        raw = canonical(value)
    except TypeError as e:
        raise NotJson(reprlib.repr(value), f"the ledger keeps JSON values only ({e})") from e
    # orjson writes NaN and infinities as null: only a text with a null can hide one
    if b"null" in raw and _has_non_finite(value):
        raise NotJson(reprlib.repr(value), "NaN and infinities are no JSON numbers, return null or a text instead")
    return raw


class Values:
    """The values of one run in one store.

    Writing repeats for as long as `patience` says. A blob that this object has written, or found, is not sent
    again.
    """

    def __init__(self, store: Store, run: str, *, patience: Patience | None = None, clock: Clock | None = None) -> None:
        self._store = store
        self._run = run
        self._patience = patience or Patience()
        self._clock = clock or SystemClock()
        self._known: set[str] = set()

    async def pack(self, values: Iterable[Json]) -> dict[str, Any]:
        """The envelope's `values` for these: `{vhash: {"inline": v} | {"blob": sha256, "bytes": n}}`.

        Up to 4 KiB a value and 16 KiB in all stand inline, in the order given. Blobs are durable when this
        returns. Raises `NotJson`, or the store's error when patience is over.
        """
        return (await self.keep(values))[1]

    async def keep(self, values: Iterable[Json]) -> tuple[list[str], dict[str, Any]]:
        """As `pack`, with the value hashes in the order of `values`: each value is hashed once."""
        names: list[str] = []
        packed: dict[str, Any] = {}
        blobs: dict[str, bytes] = {}
        room = INLINE_RECORD
        for value in values:
            raw = value_bytes(value)
            name = digest("value/v1", _folded(value, raw))
            names.append(name)
            if name in packed:
                continue
            if len(raw) <= min(INLINE_VALUE, room):
                room -= len(raw)
                packed[name] = {"inline": value}
            else:
                sha = hashlib.sha256(raw).hexdigest()
                packed[name] = {"blob": sha, "bytes": len(raw)}
                blobs[sha] = raw
        if blobs:
            await self._write({sha: raw for sha, raw in blobs.items() if sha not in self._known})
        return names, packed

    async def unpack(self, envelope: Mapping[str, Json], name: str) -> Json:
        """See the function `unpack`; repeats for as long as `patience` says."""
        return await patiently(lambda: unpack(self._store, envelope, name), patience=self._patience, clock=self._clock)

    async def _write(self, blobs: Mapping[str, bytes]) -> None:
        done = await asyncio.gather(*map(self._write_one, blobs, blobs.values()), return_exceptions=True)
        for failure in done:
            if isinstance(failure, BaseException):
                raise failure

    async def _write_one(self, sha: str, raw: bytes) -> None:
        key = blob_key(sha)
        await patiently(lambda: self._store.put_new(key, raw), patience=self._patience, clock=self._clock)
        self._known.add(sha)


async def pack(store: Store, run: str, values: Iterable[Json]) -> dict[str, Any]:
    """`Values(store, run).pack(values)`, for a writer of a single record."""
    return await Values(store, run).pack(values)


async def unpack(store: Store, envelope: Mapping[str, Json], name: str) -> Json:
    """The value with the hash `name` that this envelope holds.

    Raises `ValueMissing` when it holds none, `BlobCorrupt` when its blob is missing or has other bytes, or
    the store's error.
    """
    held = (envelope.get("values") or {}).get(name)
    if held is None:
        raise ValueMissing(name)
    if "inline" in held:
        return held["inline"]
    key = blob_key(held["blob"])
    try:
        raw = await store.get(key)
    except NotFound as e:
        raise BlobCorrupt(key, "the blob is missing") from e
    if len(raw) != held["bytes"] or hashlib.sha256(raw).hexdigest() != held["blob"]:
        raise BlobCorrupt(key, "the blob does not have the length and SHA-256 that its record names")
    return orjson.loads(raw)


def _folded(value: Json, raw: bytes) -> bytes:
    """The canonical bytes of `value` with its wide lists folded; `raw` are its canonical bytes as it is."""
    if len(raw) <= LIST_LIMIT and b'"$list"' not in raw:
        return raw
    if isinstance(value, list | tuple):
        parts = [_folded(item, canonical(item)) for item in value]
        if sum(map(len, parts)) + len(parts) + 1 <= LIST_LIMIT:
            return b"[" + b",".join(parts) + b"]"
        leaves = [bytes.fromhex(digest("value/v1", part)) for part in parts]
        return canonical({_FOLDED: {"count": len(parts), "root": merkle_root("list/v1", leaves)}})
    if isinstance(value, dict):
        members = [canonical(k) + b":" + _folded(value[k], canonical(value[k])) for k in sorted(value)]
        joined = b"{" + b",".join(members) + b"}"
        return joined if value.keys() != {_FOLDED} else b'{"$list":{"value":' + joined[len(b'{"$list":') :] + b"}"
    return raw


def _has_non_finite(value: Json) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_non_finite, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_non_finite, value))
    return False
