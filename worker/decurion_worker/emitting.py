"""The records of one item on their way from a runner to its driver."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from decurion_ledger import Record
from decurion_worker.journal import Journal
from decurion_worker.link import WorkItem

if TYPE_CHECKING:
    from decurion_worker.runner import Runner, RunState


class Emitter:
    """Emits one item's records, holding back while `window` of them are not durable yet."""

    def __init__(self, runner: Runner, run: RunState, item: WorkItem, *, window: int) -> None:
        self._runner = runner
        self._run = run
        self._item = item
        self._window = window
        self._sent: deque[int] = deque()

    def journal(self) -> Journal:
        item = self._item
        return Journal(
            self._run.context.values,
            item.run,
            earlier=item.notes,
            durable=self.durable,
            envelope={"lease": item.lease, "worker": self._runner.name},
            receipts=self._runner.receipts,
            terms=self._runner.terms,
        )

    async def durable(self, record: Record) -> None:
        """Emit a record and wait until it is durable. One that is refused revokes the item, which ends the wait."""
        await self._runner.durable(self._run, await self._runner.emit(self._run, self._item, record, False))

    async def settled(self) -> None:
        """Wait until all that was emitted is durable."""
        if self._sent:
            await self._runner.durable(self._run, self._sent[-1])

    async def __call__(self, record: Record, last: bool) -> None:
        while self._sent and self._sent[0] <= self._run.acked:
            self._sent.popleft()
        if len(self._sent) >= self._window:
            await self._runner.durable(self._run, self._sent[0])
        self._sent.append(await self._runner.emit(self._run, self._item, record, last))
