"""The index of a log: where the records of a path lie, found from outside in a number of requests that does not grow.

    tail                               {"indexes": [[first, end, records], …]}; advisory, overwritten
    index/<first>-<end>                the records of the slots from `first` up to `end`, sorted by path hash, slot,
    place
        entry, fixed width             16 bytes path hash, u32 slot, u32 start and u32 stored length of the frame, u32
        raw
                                       length, u32 offset and u32 length in it, 8 bytes of the record hash, u8: 1 a
                                       result
        end                            u32 first, u32 end, 32 bytes SHA-256 of all before it (domain index/v0)

An index is made of every 32 slots, of every 256 out of eight of these, and so on: of n slots at most 7 of each size are
needed, and each record stands in one of each size. A closed log has one of the rest, too. All of it is derived and the
same whoever writes it. None of it is believed: a record that is found has the hash that the index names and stands at
the path; that there is none is said only after the bytes of the indexes were checked; a damaged or missing index is
replaced by the footers of its segments.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

import orjson

from decurion_crds.canonical import canonical, digest
from decurion_ledger.errors import LedgerError, LogCorrupt, NotFound
from decurion_ledger.layout import index_key, slot_key, tail_key
from decurion_ledger.patience import Clock, Patience, SystemClock, patiently
from decurion_ledger.segment import Located, entries_of, path_hash
from decurion_ledger.stores.port import Put, Store

logger = logging.getLogger(__name__)
T = TypeVar("T")

SLOTS = 32
"""Segments of the smallest index: so many footers are read beside the indexes, and those just written."""
FAN_IN = 8
_ENTRY = struct.Struct(">16sIIIIII8sB")
_END = struct.Struct(">II32s")
_ONCE = Patience(total=10.0, attempt=10.0)
_IN_A_THREAD = 20_000


class Span(NamedTuple):
    """An index: the slots it covers, and how many records."""

    first: int
    end: int
    records: int

    @property
    def bytes(self) -> int:
        """Bytes of all entries."""
        return self.records * _ENTRY.size


class Spot(NamedTuple):
    """Where a record lies. `hash` is its record hash, or the first bytes of it, `is_result` None if unknown."""

    slot: int
    start: int
    stored: int
    raw: int
    offset: int
    length: int
    hash: bytes
    is_result: bool | None

    @property
    def located(self) -> Located:
        return Located(self.start, self.start + self.stored, self.raw, self.offset, self.length, self.hash)


def spans(slots: int, *, closed: bool = False) -> Iterator[tuple[int, int]]:
    """The (first, end) of the indexes that a log of so many slots has."""
    first = 0
    while slots - first >= SLOTS:
        size = SLOTS
        while first % (size * FAN_IN) == 0 and first + size * FAN_IN <= slots:
            size *= FAN_IN
        yield first, first + size
        first += size
    if closed and first and first < slots:
        yield first, slots


class Indexer:
    """Keeps the index of one log, beside its writer. What fails is tried again later; the log does not depend on it."""

    def __init__(self, store: Store, run: str, *, clock: Clock | None = None) -> None:
        self._store = store
        self._run = run
        self._clock = clock or SystemClock()
        self._known: list[Span] | None = None
        self._task: asyncio.Task[None] | None = None

    def grown(self, slots: int) -> None:
        """The log has so many slots now. Begins to bring the index up to that when it is due."""
        if slots % SLOTS == 0 and self._task is None:
            self._task = asyncio.create_task(self._quietly(slots, closed=False))
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None

    async def closed(self, slots: int | None) -> None:
        """Complete the index of a log that is closed; short logs have none."""
        if slots is not None and slots >= SLOTS:
            await self.aclose()
            await self._quietly(slots, closed=True)

    async def aclose(self) -> None:
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _quietly(self, slots: int, *, closed: bool) -> None:
        try:
            await self.bring_up(slots, closed=closed)
        except LedgerError as error:
            logger.info("the index of run %s is not kept up for now: %s", self._run, error)

    async def bring_up(self, slots: int, *, closed: bool = False) -> list[Span]:
        """Write what the index of a log of so many slots lacks. Raises `LogCorrupt`, or the store's error."""
        if self._known is None:
            self._known = await self._ask_tail()
        known = {(span.first, span.end): span for span in self._known}
        found = []
        for first, end in spans(slots, closed=closed):
            found.append(known.get((first, end)) or await self._write(first, end))
        if found != self._known:
            content = canonical({"indexes": [list(span) for span in found]})
            await self._ask(lambda: self._store.put(tail_key(self._run), content))
            self._known = found
        return found

    async def _ask_tail(self) -> list[Span]:
        try:
            return parse_tail(await self._ask(lambda: self._store.get(tail_key(self._run))))
        except NotFound:
            return []

    async def _write(self, first: int, end: int) -> Span:
        entries = await self._entries(first, end)
        many = len(entries) > _IN_A_THREAD
        data = await asyncio.to_thread(_built, entries, first, end) if many else _built(entries, first, end)
        key = index_key(self._run, first, end)
        if await self._ask(lambda: self._store.put_new(key, data)) is Put.EXISTS:
            # what was there may be damaged, and the same bytes do no harm
            await self._ask(lambda: self._store.put(key, data))
        return Span(first, end, len(entries))

    async def _entries(self, first: int, end: int) -> list[bytes]:
        """The entries of the slots, in no order; out of smaller indexes where these are whole."""
        size = end - first
        if size == SLOTS or size % SLOTS:
            slots = await asyncio.gather(*(self._slot(slot) for slot in range(first, end)))
            return [entry for some in slots for entry in some]
        entries: list[bytes] = []
        for start in range(first, end, size // FAN_IN):
            part = (start, start + size // FAN_IN)
            try:
                data = await self._ask(partial(self._store.get, index_key(self._run, *part)))
                entries += parse_index(data, *part)
            except (NotFound, IndexDamaged):
                entries += await self._entries(*part)
        return entries

    async def _slot(self, slot: int) -> list[bytes]:
        key = slot_key(self._run, slot)
        try:
            data = await self._ask(lambda: self._store.get(key))
        except NotFound as e:
            raise LogCorrupt(key, "the slot is missing but later ones exist") from e
        return [_packed(name, slot, located, is_result) for name, located, is_result in entries_of(data, key)]

    async def _ask(self, request: Callable[[], Awaitable[T]]) -> T:
        return await patiently(request, patience=_ONCE, clock=self._clock)


class IndexDamaged(Exception):
    """The bytes are none of the index that is asked for. Never leaves the ledger: it can be made anew."""


def _packed(name: bytes, slot: int, at: Located, is_result: bool) -> bytes:
    stored = at.end - at.start
    return _ENTRY.pack(name, slot, at.start, stored, at.raw, at.offset, at.length, at.hash[:8], is_result)


def _built(entries: list[bytes], first: int, end: int) -> bytes:
    return _ended(b"".join(sorted(entries)), first, end)


def parse_tail(content: bytes) -> list[Span]:
    """The indexes that are there by what `tail` says; none when it cannot be read."""
    try:
        found = [Span(*map(int, span)) for span in orjson.loads(content)["indexes"]]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return []
    at = 0
    for span in found:
        if span.first != at or span.end <= at or span.records < 0:
            return []
        at = span.end
    return found


def parse_index(data: bytes, first: int, end: int) -> list[bytes]:
    """The entries of an index, checked. Raises `IndexDamaged`."""
    body = data[: -_END.size]
    if len(data) < _END.size or len(body) % _ENTRY.size or data != _ended(body, first, end):
        raise IndexDamaged
    return [body[at : at + _ENTRY.size] for at in range(0, len(body), _ENTRY.size)]


def _ended(body: bytes, first: int, end: int) -> bytes:
    return body + _END.pack(first, end, bytes.fromhex(digest("index/v0", body, _END.pack(first, end, b""))))


def window(span: Span, path: str) -> tuple[int, int]:
    """The bytes of an index in which the entries of `path` are looked for: path hashes are spread evenly."""
    share = int.from_bytes(path_hash(path)) / (1 << 128)
    slack = 2 * math.isqrt(span.records) + 32
    middle = int(share * span.records)
    return max(0, middle - slack) * _ENTRY.size, min(span.records, middle + slack) * _ENTRY.size


def spots_in(data: bytes, path: str, *, from_start: bool, to_end: bool) -> list[Spot] | None:
    """The spots of `path` in entries that follow one another; None when some may lie beside them."""
    name, count = path_hash(path), len(data) // _ENTRY.size

    def at(i: int) -> bytes:
        return data[i * _ENTRY.size : (i + 1) * _ENTRY.size]

    low = bisect_left(range(count), name, key=lambda i: at(i)[:16])
    high = bisect_left(range(count), name + b"\xff" * (_ENTRY.size - 16), lo=low, key=at)
    if (low == 0 and not from_start) or (high == count and not to_end):
        return None
    return [_spot(at(i)) for i in range(low, high)]


def _spot(entry: bytes) -> Spot:
    _, slot, start, stored, raw, offset, length, hash, is_result = _ENTRY.unpack(entry)
    return Spot(slot, start, stored, raw, offset, length, hash, bool(is_result))
