"""The fate of a slot: what stands in it, found out by writing or by looking, and repeated until it is
known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from decurion_ledger.errors import (
    Blocked,
    Fenced,
    LogCorrupt,
    NotFound,
    RunDeleted,
    StoreError,
    StoreUnknown,
)
from decurion_ledger.layout import slot_key, tomb_key
from decurion_ledger.patience import REPEATED_WHEN_OPEN, Clock, Patience, patiently
from decurion_ledger.record import RecordType
from decurion_ledger.segment import parse
from decurion_ledger.stores.port import Put, Store


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of one run's log. `waiting` gets each failure that is repeated, and the seconds since the
    first try.
    """

    store: Store
    run: str
    clock: Clock
    waiting: Callable[[StoreError, float], None]

    async def decide(
        self,
        slot: int,
        data: bytes,
        *,
        patience: Patience,
        repeated: tuple[type[StoreError], ...] = REPEATED_WHEN_OPEN,
    ) -> bytes | None:
        """Send `data` to `slot` until the slot's content is known: None when it is `data`, else that of a
        rival.

        Raises `StoreUnknown` when patience is over, `Blocked` when somebody must remove the cause, `LogCorrupt`
        when the store denies what it said, or a store error that is not among `repeated`.
        """
        key = slot_key(self.run, slot)

        async def send() -> bytes | None:
            if await self.store.put_new(key, data) is Put.CREATED:
                return None
            try:
                found = await self.store.get(key)
            except NotFound as e:
                raise LogCorrupt(key, "the store says that the slot is taken but does not hold it") from e
            return None if found == data else found

        try:
            return await patiently(send, patience=patience, clock=self.clock, repeated=repeated, waiting=self.waiting)
        except Blocked:
            raise
        except repeated as e:
            raise StoreUnknown(self.run, slot, str(e)) from e

    async def find_free(self, slot: int, *, within: float, patience: Patience) -> float:
        """Return when `slot` was seen free by a request sent at most `within` seconds ago, and not because the run was
        closed and collected while this driver slept; when that was sent.

        Raises `Fenced` when it is taken, `RunDeleted`, `StoreUnknown` when patience is over, `Blocked` when somebody
        must remove the cause.
        """
        began = self.clock.now()
        while True:
            asked = self.clock.now()
            try:
                other, deleted = await patiently(
                    lambda: self._look(slot),
                    patience=patience,
                    clock=self.clock,
                    repeated=REPEATED_WHEN_OPEN,
                    waiting=self.waiting,
                )
            except Blocked:
                raise
            except StoreError as e:
                raise StoreUnknown(self.run, slot, str(e)) from e
            if other is not None:
                raise self.fenced_by(slot, other)
            if deleted:
                raise RunDeleted(self.run, self.store.uri)
            now = self.clock.now()
            if now - asked <= within:
                return asked
            if now - began > patience.total:
                raise StoreUnknown(self.run, slot, "the store answers too late")

    async def _look(self, slot: int) -> tuple[bytes | None, bool]:
        """What stands in `slot`, and whether the run has a tomb."""
        found, tomb = await asyncio.gather(
            self.store.get(slot_key(self.run, slot)), self.store.head(tomb_key(self.run)), return_exceptions=True
        )
        for answer in (found, tomb):
            if isinstance(answer, BaseException) and not isinstance(answer, NotFound):
                raise answer
        return found if isinstance(found, bytes) else None, not isinstance(tomb, BaseException)

    def fenced_by(self, slot: int, other: bytes) -> Fenced:
        """The error that says who wrote `other` into `slot`. Raises `LogCorrupt` when that was nobody who
        may.
        """
        key = slot_key(self.run, slot)
        segment = parse(other, key)
        for record in segment.records:
            if record.type == RecordType.FENCE:
                leader = record.envelope.get("leader_epoch", 0)
                return Fenced(self.run, slot, segment.header.epoch, leader, segment.header.driver)
        raise LogCorrupt(key, "another driver wrote here without a fence")
