"""Records that were handed to a writer and are not durable yet, in order, with who waits for them.

Counts go on from the first record of the writer: a record is known by how many were handed in before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from decurion_ledger.errors import LedgerError
from decurion_ledger.segment import MAX_BYTES, MAX_RECORDS, Encoded


class _Waiter(NamedTuple):
    """Who waits for all records up to the count `through`."""

    through: int
    done: asyncio.Future[int]


class _Span(NamedTuple):
    """A committed segment: the counts before and after its records, and its slot."""

    begin: int
    through: int
    slot: int


class Pending:
    """What is on its way into a log."""

    def __init__(self) -> None:
        self.queue: deque[Encoded] = deque()
        """Records that are in no segment yet."""
        self._handed_in = 0
        self._committed = 0
        self._spans: deque[_Span] = deque()
        """Until whoever handed their records in has looked."""
        self._waiters: deque[_Waiter] = deque()

    @property
    def waited_for(self) -> bool:
        return bool(self._waiters)

    @property
    def handed_in(self) -> int:
        return self._handed_in

    def add(self, encoded: Sequence[Encoded]) -> asyncio.Future[int]:
        """Take records in; what is returned holds the slot of the last one once all of them are durable."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.queue += encoded
        self._handed_in += len(encoded)
        self._waiters.append(_Waiter(self._handed_in, done))
        return done

    def next_segment(self) -> list[Encoded]:
        """Take what fits one segment off the front."""
        taken: list[Encoded] = []
        size = 0
        while self.queue and len(taken) < MAX_RECORDS:
            size += len(self.queue[0].data) + 1
            if taken and size > MAX_BYTES:
                break
            taken.append(self.queue.popleft())
        return taken

    def committed(self, count: int, slot: int) -> None:
        """The segment with the next `count` records is durable in `slot`."""
        self._spans.append(_Span(self._committed, self._committed + count, slot))
        self._committed += count
        while self._waiters and self._waiters[0].through <= self._committed:
            done = self._waiters.popleft().done
            if not done.done():
                done.set_result(slot)

    def slots(self, first: int, count: int) -> list[int]:
        """The slots of `count` durable records that were handed in as number `first` and on; asked once, in order."""
        found: list[int] = []
        for span in self._spans:
            found += [span.slot] * (min(span.through, first + count) - max(span.begin, first))
        while self._spans and self._spans[0].through <= first + count:
            self._spans.popleft()
        return found

    def fail(self, why: Callable[[], LedgerError]) -> None:
        """Nothing of it will be durable: each who waits is told."""
        for waiter in self._waiters:
            if not waiter.done.done():
                waiter.done.set_exception(why())
        self._waiters.clear()
        self.queue.clear()
