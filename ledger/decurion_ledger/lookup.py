"""One record by its path, from outside: `tail` and `final`, then the indexes and the footers of what is newer, all at
once, then the record. See `index` for why nothing of this has to be believed.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import orjson

from decurion_ledger.errors import LogCorrupt, NotFound
from decurion_ledger.index import (
    SLOTS,
    IndexDamaged,
    Span,
    Spot,
    parse_index,
    parse_tail,
    spots_in,
    window,
)
from decurion_ledger.layout import final_key, index_key, slot_key, tail_key
from decurion_ledger.patience import SystemClock, patiently
from decurion_ledger.reader import READING, not_there, read_log
from decurion_ledger.record import Record, RecordType
from decurion_ledger.segment import extract, footer_bytes, locate, parse
from decurion_ledger.stores.port import Range, Store

_FOOTER_GUESS = 8 * 1024
_SHORT = 8
_AHEAD = SLOTS + 8
"""Slots behind the last index that are asked for at once; while an index is being written there are some more than 32.
"""


async def find(store: Store, run: str, path: str) -> Record | None:
    """The result at `path`, or the last event there when it has none; None when the path is not in the log.

    However long the log is: two requests, then at most 64 at once, mostly of some KiB, and one for the record. The
    record is the one that the store returned; that nobody changed it is what `verify` shows. Raises `RunNotFound`,
    `RunDeleted`, `LogCorrupt`, or the store's error.
    """
    return await _Lookup(store, run, path).find()


async def find_all(store: Store, run: str, *paths: str) -> list[tuple[int, Record]]:
    """All records at these paths with their slots, in order; none when the paths are not in the log.

    The indexes are read whole and checked, so that nothing is left out: 49 bytes for each record of the log. Raises as
    `find`.
    """
    lookups = [_Lookup(store, run, path) for path in paths]
    spots = [(spot, lookup) for lookup in lookups for spot in await lookup.spots()]
    spots.sort(key=lambda one: _order(one[0]))
    found: list[tuple[int, Record]] = []
    for at in range(0, len(spots), _AHEAD):
        some = spots[at : at + _AHEAD]
        records = await asyncio.gather(*(lookup.record(spot) for spot, lookup in some))
        found += zip([spot.slot for spot, _ in some], records, strict=True)
    return found


def _best(spots: list[Spot]) -> list[Spot]:
    """Those that have to be read for the answer: the result, or what may be one, and the last event."""
    ordered = sorted(spots, key=_order)
    unknown = [spot for spot in ordered if spot.is_result is not False]
    return unknown if any(spot.is_result for spot in ordered) else [*unknown, *ordered[-1:]]


async def ends(store: Store, run: str) -> tuple[Record, Record | None]:
    """The first record of a run, and its close record; None of one that has not ended. Two segments are read where
    `final` names the last one, else all of them. Raises `RunNotFound`, `RunDeleted`, `LogCorrupt` or the store's error.
    """
    slots = await slots_of(store, run)
    if slots is None:
        return await _read_through(store, run)
    data = await asyncio.gather(*(_get(store, slot_key(run, slot)) for slot in (0, slots - 1)))
    first, last = (
        parse(one, slot_key(run, slot)).records if one is not None else ()
        for slot, one in zip((0, slots - 1), data, strict=True)
    )
    if not first or not last or last[-1].type != RecordType.CLOSE:
        raise LogCorrupt(final_key(run), "it names a log that does not begin, or does not end, as it says")
    return first[0], last[-1]


async def _read_through(store: Store, run: str) -> tuple[Record, Record | None]:
    first = last = None
    async with aclosing(read_log(store, run)) as log:
        async for _, last in log:
            first = first or last
    if first is None or last is None:
        raise await not_there(store, run)
    return first, last if last.type == RecordType.CLOSE else None


async def slots_of(store: Store, run: str) -> int | None:
    """How many slots a closed log has, by its `final`; None of an open one, and where that cannot be read."""
    final = await _get(store, final_key(run))
    try:
        return int(orjson.loads(final)["slot"]) + 1 if final is not None else None
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


async def _get(store: Store, key: str, range: Range | None = None) -> bytes | None:
    try:
        return await patiently(lambda: store.get(key, range), patience=READING, clock=SystemClock())
    except NotFound:
        return None


def _order(spot: Spot) -> tuple[int, int, int]:
    return spot.slot, spot.start, spot.offset


class _Lookup:
    def __init__(self, store: Store, run: str, path: str) -> None:
        self._store = store
        self._run = run
        self._path = path

    async def find(self) -> Record | None:
        indexes, last = await self._known()
        start = indexes[-1].end if indexes else 0
        indexed, newer = await asyncio.gather(
            asyncio.gather(*(self._in_index(span) for span in indexes)), self._in_footers(start, last)
        )
        result = next((spot for spots in indexed for spot in spots or () if spot.is_result), None)
        if result is not None:
            try:
                return await self.record(result)
            except LogCorrupt:
                pass  # of index or segment, one is damaged: below it is found out which
        events = [await self.record(spot) for spot in newer]
        found = next((record for record in events if record.core is not None), None)
        if found is not None:
            return found
        whole = [spot for some in await asyncio.gather(*map(self._whole, indexes)) for spot in some]
        old = [await self.record(spot) for spot in _best(whole)]
        return next(
            (record for record in old if record.core is not None), (events or old)[-1] if events or old else None
        )

    async def spots(self) -> list[Spot]:
        """All spots of the path, the indexes read whole."""
        indexes, last = await self._known()
        start = indexes[-1].end if indexes else 0
        older, newer = await asyncio.gather(asyncio.gather(*map(self._whole, indexes)), self._in_footers(start, last))
        return [*(spot for some in older for spot in some), *newer]

    async def _known(self) -> tuple[list[Span], int | None]:
        """The indexes that are there by what is said, and the slots of a closed log."""
        tail, last = await asyncio.gather(_get(self._store, tail_key(self._run)), slots_of(self._store, self._run))
        indexes = parse_tail(tail) if tail is not None else []
        return ([] if last is not None and indexes and indexes[-1].end > last else indexes), last

    async def _in_index(self, span: Span) -> list[Spot] | None:
        """The spots in one index; None when they cannot be told."""
        begin, end = window(span, self._path)
        data = await _get(self._store, index_key(self._run, span.first, span.end), (begin, end))
        if data is None or len(data) != end - begin:
            return None
        return spots_in(data, self._path, from_start=begin == 0, to_end=end == span.bytes)

    async def _whole(self, span: Span) -> list[Spot]:
        """The spots in one index, all of which is checked; out of its segments where it is damaged."""
        data = await _get(self._store, index_key(self._run, span.first, span.end))
        try:
            if data is None:
                raise IndexDamaged
            entries = parse_index(data, span.first, span.end)
        except IndexDamaged:
            return await self._in_footers(span.first, span.end)
        return spots_in(b"".join(entries), self._path, from_start=True, to_end=True) or []

    async def _in_footers(self, start: int, end: int | None) -> list[Spot]:
        """The spots in the footers from a slot on, to the end of the log where that is not known."""
        found: list[Spot] = []
        at, ahead = start, _AHEAD if start else _SHORT
        while end is None or at < end:
            some = range(at, at + ahead if end is None else min(end, at + _AHEAD))
            ahead = min(2 * ahead, _AHEAD)
            for spots in await asyncio.gather(*map(self._in_footer, some)):
                if spots is None and end is not None:
                    raise LogCorrupt(slot_key(self._run, at), "the slot is missing but later ones exist")
                if spots is None:
                    if at == 0:
                        raise await not_there(self._store, self._run)
                    return found
                found += spots
                at += 1
        return found

    async def _in_footer(self, slot: int) -> list[Spot] | None:
        key = slot_key(self._run, slot)
        footer = await _get(self._store, key, (-_FOOTER_GUESS, None))
        if footer is None:
            return None
        size = footer_bytes(footer, key)
        if size > len(footer):
            footer = await _get(self._store, key, (-size, None)) or b""
        return [
            Spot(slot, at.start, at.end - at.start, at.raw, at.offset, at.length, at.hash, None)
            for at in locate(footer, self._path, key)
        ]

    async def record(self, spot: Spot) -> Record:
        key = slot_key(self._run, spot.slot)
        frame = await _get(self._store, key, (spot.start, spot.start + spot.stored))
        if frame is None:
            raise LogCorrupt(key, "the slot is missing, but an index names it")
        record = extract(frame, spot.located, key)
        if record.path != self._path:
            raise LogCorrupt(key, f"an index leads to {record.path} instead of {self._path}")
        return record
