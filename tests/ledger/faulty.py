"""Stores that fail as real ones do, at a given request, and a clock that only moves when told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from enum import Enum

from decurion_ledger.errors import AccessDenied, Conflict, Unavailable
from decurion_ledger.stores import ObjectInfo, Put, Range, Store


class Fault(Enum):
    """What happens to one conditional write."""

    LOST_RESPONSE = "carried out, but the answer is lost"
    LOST_REQUEST = "never arrives"
    LATE = "the answer is lost, and it arrives when `deliver_late` is called"
    CONFLICT = "409: nothing was decided"
    BUSY = "503"
    DENIED = "403"


class Faulty:
    """`store`, with faults in its conditional writes.

    `plan` maps the end of a key (`log/000000000002`, `final`) to the faults of its first writes, in order. `written`
    is called after each write that was carried out and before its answer; `written_keys` are their keys, repetitions
    included. Each request gives way to other tasks, so that they can come between. `store` may be replaced in the
    middle of a test.
    """

    def __init__(
        self,
        store: Store,
        plan: Mapping[str, Iterable[Fault]] | None = None,
        written: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.uri = store.uri
        self.plan = {key: list(faults) for key, faults in (plan or {}).items()}
        self.written = written
        self.sent: list[tuple[str, bytes]] = []
        self.store = store
        self._late: list[tuple[str, bytes]] = []

    async def deliver_late(self) -> list[Put]:
        """Carry out the late writes now, in the order they were sent."""
        late, self._late = self._late, []
        return [await self.store.put_new(key, data) for key, data in late]

    async def put_new(self, key: str, data: bytes) -> Put:
        self.sent.append((key, data))
        faults = next((faults for end, faults in self.plan.items() if key.endswith(end)), [])
        fault = faults.pop(0) if faults else None
        if fault is Fault.CONFLICT:
            raise Conflict(f"PUT {key}", "ConditionalRequestConflict (409)")
        if fault is Fault.BUSY:
            raise Unavailable(f"PUT {key}", "SlowDown (503)")
        if fault is Fault.DENIED:
            raise AccessDenied(f"PUT {key}", "AccessDenied (403)")
        if fault is Fault.LATE:
            self._late.append((key, data))
        if fault in (Fault.LATE, Fault.LOST_REQUEST):
            raise Unavailable(f"PUT {key}", "connection reset")
        await asyncio.sleep(0)
        result = await self.store.put_new(key, data)
        await asyncio.sleep(0)
        if self.written is not None:
            await self.written(key)
        if fault is Fault.LOST_RESPONSE:
            raise Unavailable(f"PUT {key}", "connection reset")
        return result

    async def put(self, key: str, data: bytes) -> None:
        await self.store.put(key, data)

    async def get(self, key: str, range: Range | None = None) -> bytes:
        await asyncio.sleep(0)
        return await self.store.get(key, range)

    async def head(self, key: str) -> ObjectInfo:
        return await self.store.head(key)

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self.store.list(prefix, after)

    async def delete(self, key: str) -> None:
        await self.store.delete(key)

    async def aclose(self) -> None:
        await self.store.aclose()


class SteppedClock:
    """A clock that stands still but for pauses, which take no real time, and for `pass_time`."""

    def __init__(self) -> None:
        self._now = 1000.0
        self.pauses: list[float] = []

    def now(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        self._now += seconds

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._now += seconds
        await asyncio.sleep(0)
