"""Reading a log from outside: all of it in order, records whose slots are known, the runs of a store."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from decurion_ledger.errors import LogCorrupt, NotFound, RunDeleted, RunNotFound
from decurion_ledger.layout import RUNS, run_of, slot_key, tomb_key
from decurion_ledger.log import Tail
from decurion_ledger.patience import Clock, Patience, SystemClock, patiently
from decurion_ledger.record import Record
from decurion_ledger.segment import Lookup, Segment, parse
from decurion_ledger.stores.port import Store

READ_AHEAD = 8
READING = Patience(total=15.0)


async def read_segments(
    store: Store, tail: Tail, *, patience: Patience = READING, clock: Clock | None = None
) -> AsyncGenerator[Segment, None]:
    """The segments from `tail.next` on, each absorbed by `tail` before it is handed out; none is not an
    error.

    Reads up to 8 slots ahead. Raises `LogCorrupt` for a gap or a segment that breaks the log, or the store's
    error.
    """
    clock = clock or SystemClock()
    ahead: deque[asyncio.Task[bytes | None]] = deque()
    try:
        while True:
            while len(ahead) < READ_AHEAD:
                slot = tail.next + len(ahead)
                ahead.append(asyncio.create_task(_read_slot(store, tail.run, slot, patience, clock)))
            data = await ahead.popleft()
            if data is None and any([await task is not None for task in ahead]):
                # the slot may have been filled between its request and the later ones
                data = await _read_slot(store, tail.run, tail.next, patience, clock)
                if data is None:
                    raise LogCorrupt(slot_key(tail.run, tail.next), "the slot is missing but later ones exist")
            if data is None:
                return
            segment = parse(data, slot_key(tail.run, tail.next))
            tail.absorb(segment)
            yield segment
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)


async def read_log(store: Store, run: str, *, clock: Clock | None = None) -> AsyncGenerator[tuple[int, Record], None]:
    """The records of a run with their slots, in order. Raises `RunNotFound`, `LogCorrupt` or the store's
    error.
    """
    tail = Tail(run)
    async with aclosing(read_segments(store, tail, clock=clock)) as segments:
        async for segment in segments:
            for record in segment.records:
                yield segment.header.slot, record
    if tail.next == 0:
        raise await not_there(store, run, clock=clock)


async def not_there(store: Store, run: str, *, clock: Clock | None = None) -> RunNotFound | RunDeleted:
    """The error that says why a run has no log."""
    return RunDeleted(run, store.uri) if await is_deleted(store, run, clock=clock) else RunNotFound(run, store.uri)


async def is_deleted(store: Store, run: str, *, patience: Patience = READING, clock: Clock | None = None) -> bool:
    """Whether the run was deleted, or is about to be."""
    try:
        await patiently(lambda: store.head(tomb_key(run)), patience=patience, clock=clock or SystemClock())
    except NotFound:
        return False
    return True


class SlotReader:
    """Reads records of one run whose slots are known; segments are kept up to `cache` bytes, frames included."""

    def __init__(self, store: Store, run: str, *, cache: int = 24 * 1024 * 1024, patience: Patience = READING) -> None:
        self._store = store
        self._run = run
        self._cache = cache
        self._patience = patience
        self._held: OrderedDict[int, Lookup] = OrderedDict()

    async def record(self, slot: int, path: str) -> Record:
        """The record at `path` in `slot`. Raises `LogCorrupt` when it is not there, or the store's error."""
        found = (await self._segment(slot)).record(path)
        if found is None:
            raise LogCorrupt(slot_key(self._run, slot), f"it does not hold the record at {path}")
        return found

    async def _segment(self, slot: int) -> Lookup:
        held = self._held.get(slot)
        if held is not None:
            self._held.move_to_end(slot)
            return held
        data = await _read_slot(self._store, self._run, slot, self._patience, SystemClock())
        if data is None:
            raise LogCorrupt(slot_key(self._run, slot), "the slot is missing but later ones exist")
        held = self._held[slot] = Lookup(data, slot_key(self._run, slot))
        while len(self._held) > 1 and sum(one.size for one in self._held.values()) > self._cache:
            self._held.popitem(last=False)
        return held


async def list_runs(store: Store) -> list[str]:
    """The ids of all runs with an object in the store, sorted."""
    found = set()
    async for info in store.list(RUNS):
        run = run_of(info.key)
        if run is not None:
            found.add(run)
    return sorted(found)


async def _read_slot(store: Store, run: str, slot: int, patience: Patience, clock: Clock) -> bytes | None:
    key = slot_key(run, slot)
    try:
        return await patiently(lambda: store.get(key), patience=patience, clock=clock)
    except NotFound:
        return None
