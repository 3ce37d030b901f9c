"""The product with one known fault each: what the simulator must find. Nothing of this is in the product."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from decurion_crds.canonical import Json
from decurion_ledger import LogWriter, Opened, Record, Signer, Store
from decurion_ledger.errors import Fenced, RunClosed, StoreError, StoreUnknown
from decurion_ledger.layout import slot_key
from decurion_ledger.log import Tail, fence
from decurion_ledger.patience import REPEATED, Patience
from decurion_ledger.record import RecordType
from decurion_ledger.segment import Header, Segment, parse, prepare, segment_hash
from decurion_ledger.slots import Slots
from decurion_ledger.stores import Put
from decurion_worker.journal import Journal
from decurion_worker.permits import Permit
from simulator.actors import Item, Runner
from simulator.network import Client
from simulator.simulation import Variant


class _Slots(Slots):
    """`slots` with another `decide`."""

    def __init__(self, slots: Slots) -> None:
        super().__init__(slots.store, slots.run, slots.clock, slots.waiting)


# ---------------------------------------------------------------------------- 412 read as lost


class TakenReadAsLost(LogWriter):
    """Whoever finds the slot taken believes that another driver was there, without looking at what stands in it."""

    def __init__(self, store: Store, run: str, **given: Any) -> None:
        super().__init__(_TakenNever(store), run, **given)  # type: ignore[arg-type]


@dataclass
class _TakenNever:
    """`store`, whose taken slots are reported as those of somebody else."""

    store: Store

    @property
    def uri(self) -> str:
        return self.store.uri

    async def put_new(self, key: str, data: bytes) -> Put:
        found = await self.store.put_new(key, data)
        if found is Put.EXISTS and "/log/" in key:
            raise Fenced("", int(key[-12:]), 0, 0, "somebody")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


# ---------------------------------------------------------------------------- next slot after a time-out


class NextSlotAfterTimeOut(LogWriter):
    """A slot whose write was not answered is given up, and the records go into the next one."""

    async def _commit_next(self) -> None:
        kept = list(self._pending.queue)
        patient, self._settings = self._settings, replace(self._settings, patience=Patience(total=0.0, attempt=10.0))
        try:
            await super()._commit_next()
        except StoreUnknown:
            self._pending.queue.clear()
            self._pending.queue.extend(kept)
            self._tail.next += 1
        finally:
            self._settings = patient


# ---------------------------------------------------------------------------- epochs


class _EqualEpochs(Tail):
    """Takes a fence of the same epoch, and knows an owner by it alone."""

    def _fence(self, record: Record, header: Header, where: str) -> None:
        self.epoch = min(self.epoch, record.envelope["epoch"] - 1)
        super()._fence(record, header, where)

    def absorb(self, segment: Segment) -> None:
        self._owner = segment.header
        super().absorb(segment)


class EpochNotBumped(LogWriter):
    """The epoch is chosen once, at the opening; whoever loses a slot with its fence tries the next with the same. A
    segment of the own epoch in the next slot is taken for a colleague's, and passed by.
    """

    def __init__(self, store: Store, run: str, **given: Any) -> None:
        super().__init__(store, run, **given)
        self._tail = _EqualEpochs(run)
        self._chosen: int | None = None

    async def _take(self, mine: Sequence[Record]) -> bool:
        if self._chosen is None:
            self._chosen = self._tail.epoch + 1

        def chosen(record: Record) -> Record:
            if record.type != RecordType.FENCE:
                return record
            return fence(self._chosen or 0, record.envelope["leader_epoch"], self._driver, self.certificate)

        mine = [chosen(record) for record in mine]
        tail = self._tail
        header, data = self._build([prepare(record) for record in mine], epoch=self._chosen)
        if await self._slots.decide(tail.next, data, patience=self._settings.opening, repeated=REPEATED) is not None:
            return False
        tail.absorb(Segment(header, tuple(mine), segment_hash(data)))
        return True

    async def _commit_next(self) -> None:
        kept = list(self._pending.queue)
        try:
            await super()._commit_next()
        except Fenced as error:
            if error.epoch != self._tail.epoch:
                raise
            segment = parse(await self._store.get(slot_key(self._tail.run, error.slot)), "")
            self._tail.absorb(segment)
            self._pending.queue.clear()
            self._pending.queue.extend(kept)


class LeaderEpochNotInFence(LogWriter):
    """A driver knows the epoch of its own leader, and the log none."""

    @classmethod
    async def open(cls, store: Store, run: str, *, leader_epoch: int, **given: Any) -> Opened:
        return await super().open(store, run, leader_epoch=0, **given)


# ---------------------------------------------------------------------------- acknowledgements


class AcknowledgedBeforeAnswer(LogWriter):
    """Records are acknowledged when they are on their way."""

    async def append_each(self, records: Sequence[Record]) -> list[int]:
        self._check_open()
        self._tasks = [*getattr(self, "_tasks", []), asyncio.ensure_future(super().append_each(records))]
        await asyncio.sleep(0.0)
        return [self._tail.next] * len(records)


class NoProbeAfterStall(LogWriter):
    """What the store has carried out is acknowledged, however long ago that was."""

    async def _find_free(self) -> None:
        return

    async def confirm_recent(self) -> None:
        return


class BatchRebuilt(LogWriter):
    """Each try of a slot takes what has arrived meanwhile as well; a slot taken by the own name is one's own."""

    async def _commit_next(self) -> None:
        own, waiting = self._nonce, self._pending.queue
        batch: list[Any] = []

        class Rebuilding(_Slots):
            async def decide(slots, slot: int, data: bytes, *, patience: Patience, **given: Any) -> bytes | None:
                once = Patience(total=0.0, attempt=patience.attempt)
                began = slots.clock.now()
                while True:
                    try:
                        other = await super().decide(slot, data, patience=once, **given)
                    except (StoreUnknown, StoreError):
                        if slots.clock.now() - began > patience.total:
                            raise
                        await slots.clock.pause(1.0)
                        batch.extend(waiting)
                        waiting.clear()
                        _, data = self._build(batch)
                        continue
                    if other is not None and parse(other, "").header.nonce == own:
                        return None
                    return other

        slots, self._slots = self._slots, Rebuilding(self._slots)
        batch.extend(waiting)
        taken = len(batch)
        try:
            await super()._commit_next()
        finally:
            self._slots = slots
        extra = len(batch) - taken
        if extra:
            slot = self._tail.next - 1
            self._tail.head = segment_hash(await self._store.get(slot_key(self._tail.run, slot)))
            self._pending.committed(extra, slot)


# ---------------------------------------------------------------------------- the end, the store, permits


class ClosedIsRefused(LogWriter):
    """A log with a close record is not opened."""

    async def _complete(self, patience: Patience) -> None:
        if self._close is None:
            raise RunClosed(self._tail.run, self.slot)
        await super()._complete(patience)


@dataclass
class Unconditional:
    """A store that ignores `If-None-Match`, or a client that does not send it."""

    client: Client

    @property
    def uri(self) -> str:
        return self.client.uri

    async def put_new(self, key: str, data: bytes) -> Put:
        await self.client.put(key, data)
        return Put.CREATED

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


class PermitWithoutTerm(Journal):
    """An intent that is durable allows its call for ever."""

    async def intend(self, path: str, *, server: str, tool: str, arguments: Json) -> Permit | None:
        await super().intend(path, server=server, tool=tool, arguments=arguments)
        return Permit(self._clock, float("inf"))


class DoubtWithoutWaiting(Journal):
    """An effect that a lost runner intended is asked of a person at once."""

    async def find_out(self, path: str, *, timeout: float) -> Any:
        self._begun = float("-inf")
        return await super().find_out(path, timeout=timeout)


class CertificateOfAnEarlierLeader(LogWriter):
    """A driver goes on with the certificate of the first leader that appointed it."""

    @classmethod
    async def open(cls, store: Store, run: str, *, signer: Signer, **given: Any) -> Opened:
        return await super().open(store, run, signer=replace(signer, certify=lambda epoch: signer.certify(1)), **given)


class ReplayForgets(LogWriter):
    """The last result of the log is not replayed."""

    @classmethod
    async def open(cls, store: Store, run: str, **given: Any) -> Opened:
        opened = await super().open(store, run, **given)
        results = [i for i, (_, record) in enumerate(opened.records) if record.type == RecordType.COMMIT]
        kept = [one for i, one in enumerate(opened.records) if i not in results[-1:]]
        return replace(opened, records=kept)


def view_that_changes(runner: Runner, item: Item, done: dict[str, str]) -> dict[str, str]:
    """A node reads what its driver has now, in place of what it was given."""
    own = f"/b{item.branch}/"
    return done | {path: core for path, core in runner.driver.committed.items() if path.startswith(own)}


def branches_see_one_another(runner: Runner, item: Item, done: dict[str, str]) -> dict[str, str]:
    """A node is given all that is done."""
    return runner.driver.committed | done


async def collect_without_boundary(store: Store, **_: Any) -> None:
    """Runs that are over are deleted, and nothing is left in their place."""
    keys = [info.key async for info in store.list("runs/")]
    for key in sorted(keys, key=lambda key: key.endswith("/final")):
        await store.delete(key)


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("412 read as lost", writer=TakenReadAsLost),
        Variant("next slot after a time-out", writer=NextSlotAfterTimeOut),
        Variant("epoch not bumped", writer=EpochNotBumped),
        Variant("If-None-Match omitted", store=Unconditional),  # type: ignore[arg-type]
        Variant("acknowledgement before the PUT returned", writer=AcknowledgedBeforeAnswer),
        Variant("batch rebuilt on retry", writer=BatchRebuilt),
        Variant("collection without a boundary", collect=collect_without_boundary),
        Variant("leader epoch not in the fence", writer=LeaderEpochNotInFence),
        Variant("acknowledgement after a stall without a probe", writer=NoProbeAfterStall),
        Variant("permit without a term", journal=PermitWithoutTerm),
        Variant("doubt without waiting", journal=DoubtWithoutWaiting),
        Variant("open refuses a closed run", writer=ClosedIsRefused),
        Variant("certificate of an earlier leader", writer=CertificateOfAnEarlierLeader),
        Variant("a replay forgets", writer=ReplayForgets),
        Variant("a view that changes", view=view_that_changes),
        Variant("branches see one another", view=branches_see_one_another),
    )
}
