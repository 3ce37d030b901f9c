"""Leave to make a call that must not be made twice, and what is left where nobody hears how it ended. Design 04,
"Effects".

An intent that is durable is a permit for its call, with a term that begins when the intent was *sent*. Of a driver
that was fenced nothing becomes durable any more, so once term, lease and the tool's own time-out have passed since
somebody else took the log, no call of an earlier owner can go out or still be on its way. The lease is in the sum as a
margin: for clocks that do not go alike, and for what lies between the check and the first byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

from decurion_ledger import Record, RecordType, Store, decode, encode
from decurion_ledger.errors import LedgerError, NotFound
from decurion_ledger.layout import receipt_key
from decurion_ledger.patience import Clock, Patience, SystemClock, patiently

RECEIPT = Patience(total=10.0, attempt=5.0)
"""How long the leaving of a receipt is tried: whoever leaves one is about to end."""


@dataclass(frozen=True, slots=True)
class Terms:
    """In seconds: how long after its sending an intent allows its call, and the lease of items."""

    permit: float = 15.0
    lease: float = 30.0

    def doubt(self, timeout: float) -> float:
        """How long nobody can know whether a call went out that an earlier owner had intended, `timeout` being how long
        one call may take.
        """
        return self.permit + self.lease + timeout


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to let one call go out before the moment `until` of `clock`, which goes on while the process sleeps."""

    clock: Clock
    until: float

    @property
    def holds(self) -> bool:
        return self.clock.now() < self.until


class Receipts:
    """What came of calls whose settlement did not become durable: an object each, written once, for whoever goes on
    with the item. Those of one runner; they are left at the best of its ability, and are no part of the log.
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._leaving: set[asyncio.Task[None]] = set()

    def leave(self, run: str, lease: str, settled: Awaitable[Record]) -> None:
        """Begin to store the settlement that `settled` makes, which nobody acknowledges any more."""
        task = asyncio.get_running_loop().create_task(self._leave(run, lease, settled))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def find(self, run: str, lease: str, effect: str) -> Record | None:
        """The settlement that the holder of `lease` left of the effect with this key. Raises the store's error."""
        key = receipt_key(run, lease, effect)
        try:
            stored = await patiently(lambda: self._store.get(key), patience=Patience(total=60.0), clock=self._clock)
        except NotFound:
            return None
        record = decode(stored, key)
        mine = record.type == RecordType.EFFECT_SETTLED and record.envelope.get("effect") == effect
        return record if mine else None

    async def aclose(self) -> None:
        """Wait for what is being stored, no longer than each is tried."""
        if self._leaving:
            await asyncio.wait(list(self._leaving))

    async def _leave(self, run: str, lease: str, settled: Awaitable[Record]) -> None:
        try:
            record = await settled
            key = receipt_key(run, lease, record.envelope["effect"])
            await patiently(lambda: self._store.put_new(key, encode(record)), patience=RECEIPT, clock=self._clock)
        except LedgerError:
            # The effect stays in doubt, as it would without receipts.
            return
