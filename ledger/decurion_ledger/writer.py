"""The writer of a run's log: taking it over, appending by group commit, closing it.

Slot n is decided for ever by the first write that the store accepts there. A writer sends one segment at a
time and sends the same bytes to the same slot until it knows that slot's content:

    created                   ours
    exists, same bytes        ours: the answer to an earlier attempt was lost
    exists, other bytes       another driver has fenced us: acknowledge nothing more, for good
    409, 5xx, reset, silence  nothing is known: again, the same bytes at the same slot, until patience is over
    full, denied, gone        the same for a moment, for somebody must remove the cause; then the run is let go

Whoever opens a log replays it and writes a fence into the next free slot; the previous owner's next segment
meets it. Design: "Ledger and workspaces", rules 1 to 7.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from decurion_crds.canonical import Json
from decurion_ledger.attestation import envelope
from decurion_ledger.errors import (
    LedgerError,
    LogCorrupt,
    NotFound,
    RunClosed,
    RunDeleted,
    RunNotFound,
    StaleLeader,
    StoreError,
    WriterStopped,
)
from decurion_ledger.index import Indexer
from decurion_ledger.layout import final_key, provenance_key, slot_key
from decurion_ledger.log import Tail, fence
from decurion_ledger.patience import REPEATED, REPEATED_WHEN_OPEN, Clock, Patience, SystemClock, patiently
from decurion_ledger.pending import Pending
from decurion_ledger.reader import READING, is_deleted, read_segments
from decurion_ledger.record import Record
from decurion_ledger.segment import (
    Encoded,
    Header,
    Segment,
    build,
    prepare,
    segment_hash,
)
from decurion_ledger.signing import Certificate, Signer
from decurion_ledger.slots import Slots
from decurion_ledger.stores.port import Put, Store

Each: TypeAlias = Callable[[int, Record], Awaitable[None]]
"""Takes one record with its slot."""


class Observer(Protocol):
    """Who is told that commits do not get through, once per stall, and that they do again."""

    def on_stalled(self, run: str, reason: str) -> None: ...

    def on_recovered(self, run: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """How a writer waits. All in seconds.

    `patience` bounds the repeating of one segment, `opening` that of each request while the log is opened. A
    commit that took longer than `stall`, or that is the first for longer than `idle`, is acknowledged only after the
    next slot was found free and the run not collected: `idle` stays far below the hold of collections. One that
    fails for longer than `report_after` is reported as stalled. `interval` is the least time between the
    starts of two segments, so that a fast store does not cause a segment per record; the first record after a
    pause never waits.
    """

    patience: Patience = field(default_factory=Patience)
    opening: Patience = READING
    stall: float = 5.0
    idle: float = 3600.0
    report_after: float = 2.0
    interval: float = 0.0


@dataclass(frozen=True, slots=True)
class Opened:
    """A log that was opened. `records` are all of it, with their slots, genesis first, the own fence
    included; none when each was handed out on the way.

    `fences` is their number in the log, which is the run's attempt. Of a `closed` log the writer takes no
    records, and `epoch` and `leader_epoch` are those of the last owner.
    """

    writer: LogWriter
    records: list[tuple[int, Record]]
    epoch: int
    leader_epoch: int
    fences: int
    closed: bool


class LogWriter:
    """The one owner of a run's log, from its fence to the next. Made by `open`.

    `slot` and `head` are the number and hash of the last segment known to be in the log. All methods belong
    to one event loop.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        driver: str,
        nonce: str,
        settings: Settings,
        clock: Clock,
        observer: Observer | None,
        signer: Signer | None = None,
    ) -> None:
        self._store = store
        self._tail = Tail(run)
        self._slots = Slots(store, run, clock, self._waiting)
        self._driver = driver
        self._nonce = nonce
        self._signer = signer
        self.certificate: Certificate | None = None
        """That of the own key, which stands in the own fence."""
        self._settings = settings
        self._clock = clock
        self._observer = observer
        self._indexer = Indexer(store, run, clock=clock)
        self._pending = Pending()
        self._committer: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._started: float | None = None
        self._owned_at = clock.now()
        """A moment in which the log is known to have been this writer's, or its opening began."""
        self._stalled = False
        self._close: Record | None = None
        self._end: Callable[[], LedgerError] | None = None

    @classmethod
    async def open(
        cls,
        store: Store,
        run: str,
        *,
        leader_epoch: int,
        driver: str,
        genesis: Callable[[], Record] | None,
        take_over: bool = False,
        observer: Observer | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        nonce: str | None = None,
        signer: Signer | None = None,
        each: Each | None = None,
        admit: Callable[[], None] = lambda: None,
    ) -> Opened:
        """Replay the log of `run`; complete it if it is closed, else fence it for `driver`.

        An empty log is begun with `genesis()`; when another driver begins it first, its genesis stands. With
        `take_over` the leader epoch is raised above the log's. `nonce` tells this writer from every other
        one, also of the same driver; it is random unless given. `signer` signs each segment, and its certificate
        stands in the fence; without one the segments are unsigned. `each` is handed every record as it is read,
        so that nobody has to hold a long log whole. `admit` is called between the replay and the fence; what
        it raises is raised here, and the log stays as it is.

        Raises `RunNotFound` (no log and no genesis), `StaleLeader`, `LogCorrupt`, a store error while reading
        or `StoreUnknown` when the fate of the fence is unknown.
        """
        writer = cls(
            store,
            run,
            driver=driver,
            nonce=nonce or secrets.token_hex(8),
            settings=settings or Settings(),
            clock=clock or SystemClock(),
            observer=observer,
            signer=signer,
        )
        # looked up before the replay: a log that was final then must have its close record now
        final = await writer._has_final()
        records: list[tuple[int, Record]] = []

        async def keep(slot: int, record: Record) -> None:
            records.append((slot, record))

        each = each or keep
        begin: Record | None = None
        while True:
            await writer._replay(each)
            tail = writer._tail
            if tail.closed:
                await writer._complete(writer._settings.opening)
                break
            if final:
                raise LogCorrupt(final_key(run), f"the run was closed, but its log ends before slot {tail.next}")
            if tail.next == 0 and begin is None:
                if await is_deleted(store, run, patience=writer._settings.opening, clock=writer._clock):
                    raise RunDeleted(run, store.uri)
                if genesis is None:
                    raise RunNotFound(run, store.uri)
                begin = genesis()
            leader = _leader_epoch(tail, leader_epoch, take_over)
            admit()
            certificate = signer.certify(leader) if signer is not None else None
            writer.certificate = certificate
            mine = [fence(tail.epoch + 1, leader, driver, certificate)]
            if tail.next == 0 and begin is not None:
                mine.insert(0, begin)
            if await writer._take(mine):
                for record in mine:
                    await each(tail.next - 1, record)
                break
        return Opened(writer, records, tail.epoch, tail.leader_epoch, tail.fences, tail.closed)

    @property
    def slot(self) -> int:
        return self._tail.next - 1

    @property
    def head(self) -> str:
        return self._tail.head

    async def append(self, records: Sequence[Record]) -> int:
        """Add `records` in order; when this returns the slot of the last one, all of them are durable.

        What is appended while a segment is on its way goes into the next one, up to 5,000 records and 4 MiB a
        segment; longer appends are split. Nothing later is ever durable without everything earlier. A
        cancelled call does not take its records back: they may still be committed.

        Raises `Fenced`, `StoreUnknown`, `Blocked`, `RunClosed`, `WriterStopped` or `LogCorrupt`: nothing that was
        not acknowledged may be relied on, and the writer takes no more. Or `RecordTooLarge`: nothing of this call
        was taken.
        """
        slots = await self.append_each(records)
        return slots[-1] if slots else self.slot

    async def append_each(self, records: Sequence[Record]) -> list[int]:
        """As `append`; the slot of each record, in order."""
        self._check_open()
        encoded = [prepare(record) for record in records]
        if not encoded:
            return []
        first = self._pending.handed_in
        await self._enqueue(encoded)
        return self._pending.slots(first, len(encoded))

    def attested(self, statement: Json) -> dict[str, Json]:
        """The envelope of a statement about this log, signed as its segments are."""
        key = self._signer.key if self._signer is not None else None
        return envelope(statement, key=key, certificate=self.certificate)

    async def finish(self, close: Record) -> None:
        """Append the `close` record behind everything queued, then write the statement in it, if there is one, and
        `final`; the log takes no more records.

        Raises as `append` does, and `LogCorrupt` when the log's beginning is gone: some stores make a bucket that
        was deleted anew, and take a slot without those before it. `RunDeleted` when the run was closed so and collected
        while this process slept. A store error while `final` is written leaves a closed log: call again, or let the
        next `open` complete it.
        """
        if not self._tail.closed:
            self._check_open()
            await self._check_kept()
            self._close = close
            await self._enqueue([prepare(close)])
        await self._complete(self._settings.patience)
        await self._check_not_collected()
        await self._indexer.closed(self._tail.next)

    async def confirm(self) -> None:
        """Return when this writer still owned the log at some moment since the call.

        For a driver that was stopped or starved for more than 5 s: it acknowledges nothing before this
        returns. Raises `Fenced`, `StoreUnknown`, `Blocked`, or what ended the writer.
        """
        async with self._one_at_a_time:
            if self._end is not None:
                raise self._end()
            try:
                await self._find_free()
            except LedgerError as e:
                self._stop(e)
                raise
            self._recovered()

    async def confirm_recent(self) -> None:
        """Return when this writer owned the log at some moment of the last `stall` seconds, by asking the store only
        where nothing that was answered says so. What is done next, without waiting for anything, is done by an owner
        of that age. Raises as `confirm` does.
        """
        while self._clock.now() - self._owned_at > self._settings.stall:
            await self.confirm()

    async def aclose(self) -> None:
        """Stop without closing the log. A segment on its way may still arrive; its records stay
        unacknowledged.
        """
        if self._committer is not None:
            self._committer.cancel()
            await asyncio.gather(self._committer, return_exceptions=True)
            self._committer = None
        await self._indexer.aclose()
        self._stop(WriterStopped(self._tail.run, self._tail.next))

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end()
        if self._close is not None or self._tail.closed:
            raise RunClosed(self._tail.run, self.slot)

    def _enqueue(self, encoded: Sequence[Encoded]) -> asyncio.Future[int]:
        done = self._pending.add(encoded)
        if self._committer is None:
            self._committer = asyncio.create_task(self._commit_all())
        return done

    async def _commit_all(self) -> None:
        try:
            while self._pending.queue:
                await self._pace()
                async with self._one_at_a_time:
                    await self._commit_next()
        except LedgerError as e:
            self._stop(e)
        finally:
            self._committer = None
            if self._pending.waited_for:
                self._stop(WriterStopped(self._tail.run, self._tail.next))

    async def _pace(self) -> None:
        if self._settings.interval and self._started is not None:
            wait = self._started + self._settings.interval - self._clock.now()
            if wait > 0:
                await self._clock.pause(wait)

    async def _commit_next(self) -> None:
        tail = self._tail
        batch = self._pending.next_segment()
        header, data = self._build(batch)
        self._started = self._clock.now()
        other = await self._slots.decide(tail.next, data, patience=self._settings.patience)
        if other is not None:
            raise self._slots.fenced_by(tail.next, other)
        closing = self._close is not None and not self._pending.queue
        tail.absorb(Segment(header, (self._close,) if closing and self._close else (), segment_hash(data)))
        asked = await self._check_not_cleared(self._started)
        if not asked and self._clock.now() - self._started > self._settings.stall:
            await self._find_free()
        self._recovered()
        self._indexer.grown(tail.next)
        self._pending.committed(len(batch), header.slot)

    def _build(self, encoded: Sequence[Encoded], *, epoch: int | None = None) -> tuple[Header, bytes]:
        tail = self._tail
        return build(
            encoded,
            run=tail.run,
            slot=tail.next,
            epoch=tail.epoch if epoch is None else epoch,
            driver=self._driver,
            nonce=self._nonce,
            previous=tail.head,
            key=self._signer.key if self._signer is not None else None,
        )

    async def _check_not_cleared(self, started: float) -> bool:
        """A segment that was sent at `started` is in the log: so the log was this writer's then. But not after a long
        sleep, in which the slot may have been cleared with a whole run that had ended meanwhile: then the store is
        asked, and the answer is True.
        """
        if self._clock.now() - self._owned_at > self._settings.idle:
            await self._find_free()
            return True
        self._owned_at = started
        return False

    async def _find_free(self) -> None:
        settings = self._settings
        self._owned_at = await self._slots.find_free(self._tail.next, within=settings.stall, patience=settings.patience)

    def _waiting(self, failure: StoreError, elapsed: float) -> None:
        if elapsed >= self._settings.report_after and not self._stalled:
            self._stalled = True
            if self._observer is not None:
                self._observer.on_stalled(self._tail.run, str(failure))

    def _recovered(self) -> None:
        if self._stalled:
            self._stalled = False
            if self._observer is not None:
                self._observer.on_recovered(self._tail.run)

    def _stop(self, verdict: LedgerError) -> None:
        """Take no more, and tell everybody who waits; the first verdict stands."""
        if self._end is None:
            self._end = lambda: type(verdict)(*verdict.args)
        self._pending.fail(self._end)

    async def _check_kept(self) -> None:
        key = slot_key(self._tail.run, 0)
        try:
            await patiently(
                lambda: self._store.head(key),
                patience=self._settings.patience,
                clock=self._clock,
                repeated=REPEATED_WHEN_OPEN,
                waiting=self._waiting,
            )
        except NotFound as e:
            raise LogCorrupt(key, "the slot was written and is gone") from e

    async def _check_not_collected(self) -> None:
        """After a long sleep the run that was closed may be collected, and `final` was written into nothing."""
        if self._clock.now() - self._owned_at <= self._settings.idle:
            return
        if await is_deleted(self._store, self._tail.run, patience=self._settings.patience, clock=self._clock):
            raise RunDeleted(self._tail.run, self._store.uri)

    async def _has_final(self) -> bool:
        try:
            await patiently(
                lambda: self._store.head(final_key(self._tail.run)),
                patience=self._settings.opening,
                clock=self._clock,
            )
        except NotFound:
            return False
        return True

    async def _replay(self, each: Each) -> None:
        segments = read_segments(self._store, self._tail, patience=self._settings.opening, clock=self._clock)
        async with aclosing(segments):
            async for segment in segments:
                for record in segment.records:
                    await each(segment.header.slot, record)

    async def _take(self, mine: Sequence[Record]) -> bool:
        """Write the segment with the own fence into the next slot; False when another driver was there
        first.
        """
        tail = self._tail
        header, data = self._build([prepare(record) for record in mine], epoch=tail.epoch + 1)
        patience = self._settings.opening
        started = self._clock.now()
        if await self._slots.decide(tail.next, data, patience=patience, repeated=REPEATED) is not None:
            return False
        tail.absorb(Segment(header, tuple(mine), segment_hash(data)))
        await self._check_not_cleared(started)
        return True

    async def _complete(self, patience: Patience) -> None:
        run = self._tail.run
        if self._tail.provenance is not None:
            await self._write_last(provenance_key(run), self._tail.provenance, "it is not the close record's", patience)
        await self._write_last(
            final_key(run), self._tail.final(), "it does not name the last segment of this log", patience
        )

    async def _write_last(self, key: str, data: bytes, otherwise: str, patience: Patience) -> None:
        async def write() -> None:
            if await self._store.put_new(key, data) is Put.EXISTS and await self._store.get(key) != data:
                raise LogCorrupt(key, otherwise)

        await patiently(write, patience=patience, clock=self._clock, repeated=REPEATED_WHEN_OPEN, waiting=self._waiting)
        self._recovered()


def _leader_epoch(tail: Tail, given: int, take_over: bool) -> int:
    if take_over:
        return max(given, tail.highest + 1)
    if given < tail.highest:
        raise StaleLeader(tail.run, given, tail.highest)
    return given
