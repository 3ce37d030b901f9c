"""Repeating a request to a store until it is answered: the clock that is waited by, and how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from decurion_ledger.errors import Blocked, Conflict, StoreError, Unavailable

T = TypeVar("T")


class Clock(Protocol):
    """Time as the ledger needs it; a port, so that simulations decide how it passes."""

    def now(self) -> float:
        """Seconds since some fixed moment; only differences mean something."""

    async def pause(self, seconds: float) -> None:
        """Wait for about `seconds`."""


class SystemClock:
    """The machine's clock. It goes on while the machine or the process sleeps, so that a stall is seen as
    one.
    """

    def now(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    async def pause(self, seconds: float) -> None:
        """Waits between half and all of `seconds`, at random, so that many waiters do not come back at
        once.
        """
        await asyncio.sleep(seconds * random.uniform(0.5, 1.0))


@dataclass(frozen=True, slots=True)
class Patience:
    """`total` seconds of repeating, `blocked` while somebody must remove the cause: long enough for a permission that
    is being changed, too short to be mistaken for work. Pauses double from `first` to `longest` seconds; one attempt
    lasts at most `attempt`.
    """

    total: float = 300.0
    blocked: float = 2.0
    first: float = 0.05
    longest: float = 5.0
    attempt: float = 60.0


REPEATED: tuple[type[StoreError], ...] = (Unavailable, Conflict)
REPEATED_WHEN_OPEN: tuple[type[StoreError], ...] = (*REPEATED, Blocked)
"""What is repeated once a run is open; before, a person who waits is told at once."""


async def patiently(
    request: Callable[[], Awaitable[T]],
    *,
    patience: Patience,
    clock: Clock,
    repeated: tuple[type[StoreError], ...] = REPEATED,
    waiting: Callable[[StoreError, float], None] | None = None,
) -> T:
    """The answer to `request`, repeated while it fails with one of `repeated`.

    An attempt that exceeds `patience.attempt` counts as `Unavailable`. Before each pause `waiting` gets the
    failure and the seconds since the start. Raises the last failure when `patience.total` seconds are over, or
    `patience.blocked` of nothing but `Blocked`.
    """
    started = clock.now()
    blocked: float | None = None
    pause = patience.first
    while True:
        try:
            return await _one_attempt(request, patience.attempt)
        except repeated as failure:
            now = clock.now()
            elapsed = now - started
            if not isinstance(failure, Blocked):
                blocked = None
            elif blocked is None:
                blocked = now
            if elapsed + pause > patience.total or (blocked is not None and now - blocked + pause > patience.blocked):
                raise
            if waiting is not None:
                waiting(failure, elapsed)
        await clock.pause(pause)
        pause = min(pause * 2, patience.longest)


async def _one_attempt(request: Callable[[], Awaitable[T]], seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds) as limit:
            return await request()
    except TimeoutError as e:
        if not limit.expired():
            raise
        raise Unavailable("a request to the store", f"no answer within {seconds:g} s") from e
