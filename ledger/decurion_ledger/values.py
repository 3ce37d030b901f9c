"""Values: the hash that names one, and where its bytes are kept.

A value is named by `vhash` (see `forms`), whatever its form: inline in a record's envelope or in a blob. Lists whose
canonical form exceeds 64 KiB enter the hash by count and Merkle root of their items' hashes, so that a wide
list can be hashed, checked and read piece by piece; such a list is kept in chunks (see `lists`) and read back
as a `ListRef`.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from decurion_crds.canonical import Json, merkle_root
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
    refs_in,
    wide_bytes,
)
from decurion_ledger.blobs import keep_blob
from decurion_ledger.errors import BlobCorrupt, KeyMissing, NotFound, ValueMissing, ValueSealed, ValueTooWide
from decurion_ledger.forms import form_of
from decurion_ledger.layout import blob_key
from decurion_ledger.lists import CHUNK, ListBuilder, decode, unfolded
from decurion_ledger.merges import merged
from decurion_ledger.patience import REPEATED_WHEN_OPEN, Clock, Patience, SystemClock, patiently
from decurion_ledger.sealing import Seal, as_text, is_sealed, of_text
from decurion_ledger.stores.port import Store

INLINE_VALUE = 4 * 1024
INLINE_RECORD = 16 * 1024
LOAD_LIMIT = 32 * 1024 * 1024
"""Bytes of wide lists that are brought into memory for one evaluation."""
CACHE = 32 * 1024 * 1024
"""Bytes of chunks that one run keeps in memory."""
AT_ONCE = 16
"""Blobs that are sent or fetched at a time."""


class Kept(NamedTuple):
    """Values that are stored: their hashes, the envelope's `values`, and the values as they will be read back."""

    names: list[str]
    packed: dict[str, Any]
    values: list[Json]


class Values:
    """The values of one run in one store.

    Writing and reading repeat for as long as `patience` says. A blob that this object has written, or found, is
    not sent again; chunks that were read are kept up to 32 MiB. `seal` is that of the run, where it has one: what is
    encrypted with it is read as anything else, and written by `sealing()`.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        patience: Patience | None = None,
        clock: Clock | None = None,
        now: Callable[[], float] = time.time,
        seal: Seal | None = None,
    ) -> None:
        self._now = now
        self._key = seal
        self._seal: Seal | None = None
        self._store = store
        self._run = run
        self._patience = patience or Patience()
        self._clock = clock or SystemClock()
        self._known: set[str] = set()
        self._chunks = _Cache(self._fetch)

    def sealing(self, wanted: bool = True) -> Values:
        """The same values, of which what is written is encrypted with the run's key, or is not. Raises `KeyMissing`."""
        if wanted and self._key is None:
            raise KeyMissing(self._run, self._store.uri)
        found = copy.copy(self)
        found._seal = self._key if wanted else None
        return found

    @property
    def is_sealing(self) -> bool:
        """Whether what is written is encrypted."""
        return self._seal is not None

    # ------------------------------------------------------------------ writing

    def name(self, value: Json) -> str:
        """The name of `value` in records: its hash, or what the run's key makes of it. Raises `NotJson`."""
        return form_of(value, {}, self._seal).hash

    def builder(self) -> ListBuilder:
        """For one list, whose items are given to `extend`."""
        return ListBuilder(seal=self._seal)

    async def pack(self, values: Iterable[Json]) -> dict[str, Any]:
        """The envelope's `values` for these: `{vhash: {"inline": v} | {"tree": v} | {"blob": sha256, "bytes": n}}`;
        encrypted `{name: {"sealed": text} | {"blob": …, "bytes": n, "sealed": true}}`, with `lists` where it has some.

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
            form = form_of(value, blobs, self._seal)
            if self._seal is not None:
                room -= self._keep_sealed(kept, form.hash, form.stored, blobs, room)
                continue
            if form.stored is form.folded and len(form.stored) <= min(INLINE_VALUE, room):
                # Most values are small and hold no reference: nothing more is to be done for them.
                name = form.hash
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

    def _keep_sealed(self, kept: Kept, name: str, stored: bytes, blobs: dict[str, bytes], room: int) -> int:
        """Keep a value encrypted; the bytes that it takes of the record."""
        assert self._seal is not None
        value = decode(stored)
        kept.names.append(name)
        kept.values.append(value)
        if name in kept.packed:
            return 0
        closed = self._seal.close(stored)
        text, taken = as_text(closed), 0
        if len(text) <= min(INLINE_VALUE, room):
            kept.packed[name], taken = {"sealed": text}, len(text)
        else:
            sha = hashlib.sha256(closed).hexdigest()
            kept.packed[name], blobs[sha] = {"blob": sha, "bytes": len(closed), "sealed": True}, closed
        if lists := sorted({ref.index for ref in refs_in(value) if isinstance(ref, ListRef)}):
            # Whoever has no key must find what is needed.
            kept.packed[name]["lists"] = lists
        return taken

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
        builder = self.builder()
        async for items in self.chunks(ref):
            await self.extend(builder, await change(items))
        return await self.finish(builder)

    async def extend(self, builder: ListBuilder, items: Iterable[Json]) -> None:
        """Add items, and store what is finished of the list."""
        for item in items:
            form = form_of(item, builder.blobs, builder.seal)
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
        return await patiently(
            lambda: unpack(self._store, envelope, name, self._key), patience=self._patience, clock=self._clock
        )

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
        raw = await patiently(lambda: _blob(self._store, sha, size), patience=self._patience, clock=self._clock)
        return _opened(raw, self._key, sha) if is_sealed(raw) else raw


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


async def unpack(store: Store, envelope: Mapping[str, Json], name: str, seal: Seal | None = None) -> Json:
    """The value with the hash `name` that this envelope holds, with references for its wide lists.

    Raises `ValueSealed` when it is encrypted and `seal` is not there, `ValueMissing` when it holds none,
    `BlobCorrupt` when its blob is missing or has other bytes, or the store's error.
    """
    held = (envelope.get("values") or {}).get(name)
    if held is None:
        raise ValueMissing(name)
    if "inline" in held:
        return held["inline"]
    if "tree" in held:
        return mark(unfolded(held["tree"]))
    if "sealed" in held and seal is None:
        raise ValueSealed(name)
    if isinstance(held.get("sealed"), str):
        return decode(_opened(of_text(held["sealed"]), seal, name))
    raw = await _blob(store, held["blob"], held["bytes"])
    return decode(_opened(raw, seal, held["blob"]) if "sealed" in held else raw)


def _opened(raw: bytes, seal: Seal | None, name: str) -> bytes:
    if seal is None:
        raise ValueSealed(name)
    return seal.open(raw, name)


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
