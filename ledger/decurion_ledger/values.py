"""Values: the hash that names one, and where its bytes are kept.

A value is named by `vhash`, whatever its form: inline in a record's envelope or in a blob. Lists whose
canonical form exceeds 64 KiB enter the hash by count and Merkle root of their items' hashes, so that a wide
list can be hashed, checked and read piece by piece; such a list is kept in chunks (see `lists`) and read back
as a `ListRef`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import reprlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from decurion_crds.canonical import Json, canonical, digest, merkle_root
from decurion_crds.errors import MergeRefused
from decurion_crds.wide import (
    ItemRef,
    ListRef,
    Merged,
    Unmerged,
    WideDict,
    WideList,
    has_refs,
    mark,
    wide_bytes,
)
from decurion_ledger.blobs import keep_blob
from decurion_ledger.errors import BlobCorrupt, NotFound, NotJson, ValueMissing, ValueTooWide
from decurion_ledger.layout import blob_key
from decurion_ledger.lists import CHUNK, FOLDED, LIST_LIMIT, ListBuilder, decode, folded_ref, stored_ref, unfolded
from decurion_ledger.merges import merged
from decurion_ledger.patience import REPEATED_WHEN_OPEN, Clock, Patience, SystemClock, patiently
from decurion_ledger.stores.port import Store

INLINE_VALUE = 4 * 1024
INLINE_RECORD = 16 * 1024
LOAD_LIMIT = 32 * 1024 * 1024
"""Bytes of wide lists that are brought into memory for one evaluation."""
CACHE = 32 * 1024 * 1024
"""Bytes of chunks that one run keeps in memory."""
AT_ONCE = 16
"""Blobs that are sent or fetched at a time."""


class Form(NamedTuple):
    """One value: what enters its hash, what is stored of it, and the bytes of its plain canonical form."""

    folded: bytes
    stored: bytes
    size: int

    @property
    def hash(self) -> str:
        return digest("value/v1", self.folded)


class Kept(NamedTuple):
    """Values that are stored: their hashes, the envelope's `values`, and the values as they will be read back."""

    names: list[str]
    packed: dict[str, Any]
    values: list[Json]


def vhash(value: Json) -> str:
    """SHA-256, in hex, of `value` under the domain `value/v1`, wide lists folded.

    Deepest first, each list whose canonical form exceeds 64 KiB is replaced by `{"$list": {count, root}}`,
    `root` being the Merkle root (domain `list/v1`) over its items' value hashes. An object of the author's
    own whose only key is `$list` enters as `{"$list": {"value": …}}`, so no value has the hash of another.
    A `ListRef` has the hash of its list. Raises `NotJson`.
    """
    return form_of(value, {}).hash


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


def form_of(value: Json, blobs: dict[str, bytes]) -> Form:
    """The form of `value`; chunks of its wide lists, which must be stored before it is named, go to `blobs`.

    Raises `NotJson`.
    """
    if has_refs(value):
        return _wide_form(value, blobs)
    try:
        raw = value_bytes(value)
    except NotJson:
        marked = mark(value)
        if not has_refs(marked):
            raise
        return _wide_form(marked, blobs)
    if len(raw) <= LIST_LIMIT and b'"$list"' not in raw:
        return Form(raw, raw, len(raw))
    return _wide_form(value, blobs)


def _wide_form(value: Json, blobs: dict[str, bytes]) -> Form:
    if isinstance(value, ListRef):
        return Form(folded_ref(value), stored_ref(value), value.bytes)
    if isinstance(value, list | tuple):
        return _list_form(value, blobs)
    if isinstance(value, dict):
        return _object_form(value, blobs)
    raw = value_bytes(value)
    return Form(raw, raw, len(raw))


def _list_form(value: list[Json] | tuple[Json, ...], blobs: dict[str, bytes]) -> Form:
    forms = [form_of(item, blobs) for item in value]
    if sum(len(form.folded) for form in forms) + len(forms) + 1 <= LIST_LIMIT:
        folded = b"[" + b",".join(form.folded for form in forms) + b"]"
        stored = b"[" + b",".join(form.stored for form in forms) + b"]"
        return Form(folded, stored, sum(form.size for form in forms) + len(forms) + 1)
    builder = ListBuilder(blobs)
    for form in forms:
        builder.add(hash=bytes.fromhex(form.hash), stored=form.stored, size=form.size, folded=len(form.folded))
    return _wide_form(builder.finish(), blobs)


def _object_form(value: dict[str, Json], blobs: dict[str, bytes]) -> Form:
    forms = [(canonical(key), form_of(value[key], blobs)) for key in sorted(value)]
    folded = b"{" + b",".join(key + b":" + form.folded for key, form in forms) + b"}"
    stored = b"{" + b",".join(key + b":" + form.stored for key, form in forms) + b"}"
    size = sum(len(key) + 1 + form.size for key, form in forms) + max(1, len(forms)) + 1
    if value.keys() == {FOLDED}:
        start = len(b'{"$list":')
        folded, stored = (b'{"$list":{"value":' + raw[start:] + b"}" for raw in (folded, stored))
    return Form(folded, stored, size)


class Values:
    """The values of one run in one store.

    Writing and reading repeat for as long as `patience` says. A blob that this object has written, or found, is
    not sent again; chunks that were read are kept up to 32 MiB.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        patience: Patience | None = None,
        clock: Clock | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self._store = store
        self._run = run
        self._patience = patience or Patience()
        self._clock = clock or SystemClock()
        self._known: set[str] = set()
        self._chunks = _Cache(self._fetch)

    # ------------------------------------------------------------------ writing

    async def pack(self, values: Iterable[Json]) -> dict[str, Any]:
        """The envelope's `values` for these: `{vhash: {"inline": v} | {"tree": v} | {"blob": sha256, "bytes": n}}`.

        Up to 4 KiB a value and 16 KiB in all stand inline, in the order given; `tree` is the stored form of a
        value with wide lists in it. A blob of such a form also names the bytes of the plain (`size`) and of the
        folded form. Blobs, those of wide lists too, are durable when this returns. Raises `NotJson`, or the
        store's error when patience is over.
        """
        return (await self.keep(values)).packed

    async def keep(self, values: Iterable[Json]) -> Kept:
        """As `pack`, with hashes and values in the order of `values`: each value is hashed once."""
        kept = Kept([], {}, [])
        blobs: dict[str, bytes] = {}
        room = INLINE_RECORD
        for value in values:
            form = form_of(value, blobs)
            if form.stored is form.folded and len(form.stored) <= min(INLINE_VALUE, room):
                # Most values are small and hold no reference: nothing more is to be done for them.
                name = digest("value/v1", form.folded)
                kept.names.append(name)
                kept.values.append(value)
                if name not in kept.packed:
                    room -= len(form.stored)
                    kept.packed[name] = {"inline": value}
                continue
            name = form.hash
            plain = form.stored is form.folded and not has_refs(value)
            kept.names.append(name)
            kept.values.append(value if plain else decode(form.stored))
            if name in kept.packed:
                continue
            if len(form.stored) <= min(INLINE_VALUE, room):
                room -= len(form.stored)
                kept.packed[name] = {"inline": value} if plain else {"tree": orjson.loads(form.stored)}
            else:
                sha = hashlib.sha256(form.stored).hexdigest()
                kept.packed[name] = {"blob": sha, "bytes": len(form.stored)}
                if form.size != len(form.stored):
                    kept.packed[name] |= {"size": form.size, "folded": len(form.folded)}
                blobs[sha] = form.stored
        await self.write(blobs)
        return kept

    async def write(self, blobs: Mapping[str, bytes]) -> None:
        """Store blobs (sha256 → bytes) that are not known to be there."""
        left = [(sha, raw) for sha, raw in blobs.items() if sha not in self._known]
        for start in range(0, len(left), AT_ONCE):
            some = left[start : start + AT_ONCE]
            done = await asyncio.gather(*(self._write_one(sha, raw) for sha, raw in some), return_exceptions=True)
            for failure in done:
                if isinstance(failure, BaseException):
                    raise failure

    async def _write_one(self, sha: str, raw: bytes) -> None:
        await patiently(
            lambda: keep_blob(self._store, sha, raw, clock=self._clock, now=self._now),
            patience=self._patience,
            clock=self._clock,
            repeated=REPEATED_WHEN_OPEN,
        )
        self._known.add(sha)

    async def rebuilt(
        self, ref: ListRef, change: Callable[[list[Json]], Awaitable[list[Json]]]
    ) -> ListRef | list[Json]:
        """The list that `change` makes of `ref`, chunk by chunk; a plain list when it has become narrow.

        Memory is bounded by a chunk. What comes out the same is not stored again.
        """
        builder = ListBuilder()
        async for items in self.chunks(ref):
            await self.extend(builder, await change(items))
        return await self.finish(builder)

    async def extend(self, builder: ListBuilder, items: Iterable[Json]) -> None:
        """Add items, and store what is finished of the list."""
        for item in items:
            form = form_of(item, builder.blobs)
            builder.add(hash=bytes.fromhex(form.hash), stored=form.stored, size=form.size, folded=len(form.folded))
        await self.flush(builder)

    def identity(self, item: Json) -> bytes:
        """The same for equal items, and for no others."""
        return bytes.fromhex(form_of(item, {}).hash)

    async def flush(self, builder: ListBuilder) -> None:
        """Store what a builder has finished."""
        if builder.blobs:
            blobs, builder.blobs = builder.blobs, {}
            await self.write(blobs)

    async def finish(self, builder: ListBuilder) -> ListRef | list[Json]:
        """What was built: a reference, or the list itself when it is narrow. All of it is stored."""
        ref = builder.finish()
        await self.flush(builder)
        if builder.is_wide:
            return ref
        return mark([item async for items in self.chunks(ref) for item in items])  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ reading

    async def unpack(self, envelope: Mapping[str, Json], name: str) -> Json:
        """See the function `unpack`; repeats for as long as `patience` says."""
        return await patiently(lambda: unpack(self._store, envelope, name), patience=self._patience, clock=self._clock)

    async def load(self, value: Json, *, limit: int = LOAD_LIMIT) -> Json:
        """`value` with all its lists in memory. Raises `ValueTooWide` when they take more than `limit` bytes, and
        `MergeRefused`.
        """
        if not has_refs(value):
            return value
        if (size := wide_bytes(value)) > limit:
            raise ValueTooWide(size, limit)
        return await self._loaded(value)

    async def _loaded(self, value: Json) -> Json:
        match value:
            case ListRef():
                return [await self._loaded(item) async for items in self.chunks(value) for item in items]
            case ItemRef():
                return await self._loaded(await self.item(value))
            case Merged():
                return await self._loaded(await merged(self, value))
            case Unmerged():
                raise MergeRefused(value.why)
            case WideDict():
                return {key: await self._loaded(member) for key, member in value.items()}
            case WideList():
                return [await self._loaded(item) for item in value]
            case _:
                return value

    async def near(self, value: Json) -> Json:
        """`value` with its items of wide lists, and lists that are merged, as values of their own; wide lists stay
        references. Raises `MergeRefused`.
        """
        match value:
            case ItemRef():
                return await self.item(value)
            case Merged():
                return await merged(self, value)
            case Unmerged():
                raise MergeRefused(value.why)
            case WideDict():
                return mark({key: await self.near(member) for key, member in value.items()})
            case _:
                return value

    async def item(self, ref: ItemRef) -> Json:
        """One item, with references for wide lists in it."""
        chunks = await self._index(ref.list)
        entry = (await self._chunks.get(*chunks[ref.number // CHUNK]))[ref.number % CHUNK]
        return (await self._items([entry]))[0]

    async def chunks(self, ref: ListRef) -> AsyncIterator[list[Json]]:
        """The items of a list, chunk by chunk, with references for wide lists in them."""
        for sha, size in await self._index(ref):
            yield await self._items(await self._chunks.get(sha, size))

    async def largest(self, ref: ListRef) -> tuple[int, int]:
        """Number and stored bytes of the largest item that has a blob of its own; (0, 0) when none has."""
        found, number = (0, 0), 0
        for sha, size in await self._index(ref):
            for entry in await self._chunks.get(sha, size):
                if isinstance(entry, dict) and entry["bytes"] > found[1]:
                    found = (number, entry["bytes"])
                number += 1
        return found

    async def _index(self, ref: ListRef) -> list[tuple[str, int]]:
        found = await self._chunks.get(ref.index, 0)
        if not isinstance(found, dict) or (found["count"], found["root"]) != (ref.count, ref.root):
            raise BlobCorrupt(blob_key(ref.index), "it is not the index of the list that names it")
        return [(sha, size) for sha, size in found["chunks"]]

    async def _items(self, entries: list[Any]) -> list[Json]:
        """Items of chunk entries; those of more than 4 KiB are fetched."""
        far = [entry for entry in entries if isinstance(entry, dict)]
        raws: dict[str, Json] = {}
        for start in range(0, len(far), AT_ONCE):
            some = far[start : start + AT_ONCE]
            got = await asyncio.gather(*(self._fetch(entry["blob"], entry["bytes"]) for entry in some))
            raws.update((entry["blob"], decode(raw)) for entry, raw in zip(some, got, strict=True))
        return [raws[entry["blob"]] if isinstance(entry, dict) else entry[0] for entry in entries]

    async def _fetch(self, sha: str, size: int) -> bytes:
        return await patiently(lambda: _blob(self._store, sha, size), patience=self._patience, clock=self._clock)


class _Cache:
    """Chunks and indexes, parsed; the least recently used go first. One that several want is fetched once."""

    def __init__(self, fetch: Callable[[str, int], Any]) -> None:
        self._fetch = fetch
        self._held: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._bytes = 0
        self._coming: dict[str, asyncio.Task[Any]] = {}

    async def get(self, sha: str, size: int) -> Any:
        """The parsed blob; `size` 0 where only its hash is known."""
        held = self._held.get(sha)
        if held is not None:
            self._held.move_to_end(sha)
            return held[1]
        coming = self._coming.get(sha)
        if coming is None:
            coming = self._coming[sha] = asyncio.get_running_loop().create_task(self._take(sha, size))
            coming.add_done_callback(lambda _: self._coming.pop(sha, None))
        return await asyncio.shield(coming)

    async def _take(self, sha: str, size: int) -> Any:
        raw = await self._fetch(sha, size)
        parsed = orjson.loads(raw)
        if b'"$list"' in raw and isinstance(parsed, list):
            parsed = [[mark(unfolded(entry[0]))] if isinstance(entry, list) else entry for entry in parsed]
        self._held[sha] = (len(raw), parsed)
        self._bytes += len(raw)
        while self._bytes > CACHE and len(self._held) > 1:
            _, (gone, _) = self._held.popitem(last=False)
            self._bytes -= gone
        return parsed


async def pack(store: Store, run: str, values: Iterable[Json]) -> dict[str, Any]:
    """`Values(store, run).pack(values)`, for a writer of a single record."""
    return await Values(store, run).pack(values)


async def unpack(store: Store, envelope: Mapping[str, Json], name: str) -> Json:
    """The value with the hash `name` that this envelope holds, with references for its wide lists.

    Raises `ValueMissing` when it holds none, `BlobCorrupt` when its blob is missing or has other bytes, or
    the store's error.
    """
    held = (envelope.get("values") or {}).get(name)
    if held is None:
        raise ValueMissing(name)
    if "inline" in held:
        return held["inline"]
    if "tree" in held:
        return mark(unfolded(held["tree"]))
    return decode(await _blob(store, held["blob"], held["bytes"]))


async def _blob(store: Store, sha: str, size: int) -> bytes:
    """A blob's bytes; `size` 0 where only its hash is known. Raises `BlobCorrupt` or the store's error."""
    key = blob_key(sha)
    try:
        raw = await store.get(key)
    except NotFound as e:
        raise BlobCorrupt(key, "the blob is missing") from e
    if (size and len(raw) != size) or hashlib.sha256(raw).hexdigest() != sha:
        raise BlobCorrupt(key, "the blob does not have the length and SHA-256 that its record names")
    return raw


def root_of(hashes: Iterable[str]) -> str:
    """The root of a wide list whose items have these value hashes."""
    return merkle_root("list/v1", [bytes.fromhex(name) for name in hashes])


def _has_non_finite(value: Json) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_non_finite, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_non_finite, value))
    return False
