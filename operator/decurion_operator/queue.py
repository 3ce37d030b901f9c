"""The keyed work queue: what has to be looked at, one key at a time, latest wins.

`WorkQueue` is a plain data structure with a clock of the caller's; `Dispatcher` drives it on an event loop.

* A key is worked by at most one reconcile at a time. What happens to it meanwhile makes it due again, once.
* Ready keys are taken round robin over namespaces, so one namespace with thousands of keys delays the others by at
  most one key each.
* A failed key comes back after a back-off with jitter; any event makes it due at once.
* A key may ask to be looked at later; the earliest such time counts, and a reconcile in between clears it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from decurion_operator.errors import OperatorError

logger = logging.getLogger(__name__)


class Key(NamedTuple):
    """The name of one object, or of a piece of work that belongs to one."""

    kind: str
    namespace: str
    name: str


class Backoff:
    """Delays after failures: `base`, doubled for each failure in a row, at most `cap` seconds, times 0.5 to 1."""

    def __init__(self, *, base: float, cap: float, rng: random.Random | None = None) -> None:
        self._base = base
        self._cap = cap
        self._rng = rng or random.Random()

    def delay(self, failures: int) -> float:
        """Seconds to wait after the `failures`-th failure in a row (1 is the first)."""
        # 2**30 s is beyond any cap; the bound keeps the power from overflowing a float.
        raw = min(self._cap, self._base * 2.0 ** min(failures - 1, 30))
        return raw * (0.5 + self._rng.random() / 2)


class WorkQueue:
    """Which keys are ready, delayed or active. Not thread-safe; times are seconds of the caller's clock."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._ready: OrderedDict[str, deque[Key]] = OrderedDict()
        self._waiting: set[Key] = set()
        self._active: set[Key] = set()
        self._dirty: set[Key] = set()
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._failures: dict[Key, int] = {}

    @property
    def depth(self) -> int:
        """How many keys are ready to be taken."""
        return len(self._waiting)

    @property
    def active(self) -> int:
        return len(self._active)

    def add(self, key: Key) -> None:
        """Make `key` due now."""
        if key in self._active:
            self._dirty.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.setdefault(key.namespace, deque()).append(key)

    def add_at(self, key: Key, when: float) -> None:
        """Make `key` due at `when`, unless it is due earlier."""
        if self._due.get(key, float("inf")) > when:
            self._due[key] = when
            heapq.heappush(self._heap, (when, key))

    def next_due(self) -> float | None:
        """When the next delayed key becomes ready."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> Key | None:
        """The next ready key, now active; None when there is none."""
        while (due := self.next_due()) is not None and due <= now:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            self.add(key)
        if not self._ready:
            return None
        namespace, keys = next(iter(self._ready.items()))
        key = keys.popleft()
        self._ready.move_to_end(namespace)
        if not keys:
            del self._ready[namespace]
        self._waiting.discard(key)
        self._due.pop(key, None)
        self._active.add(key)
        return key

    def done(self, key: Key, *, now: float, wake: float | None = None, failed: bool = False) -> float | None:
        """End the work on `key`. `wake`: seconds until it wants to be looked at again.

        Returns the delay of the back-off when `failed`.
        """
        self._active.discard(key)
        delay = None
        if failed:
            self._failures[key] = self._failures.get(key, 0) + 1
            delay = self._backoff.delay(self._failures[key])
            self.add_at(key, now + delay)
        else:
            self._failures.pop(key, None)
            if wake is not None:
                self.add_at(key, now + wake)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)
        return delay


class Observer(Protocol):
    """What a dispatcher tells about its work."""

    def reconciled(self, key: Key, seconds: float, error: str | None) -> None: ...


class Dispatcher:
    """Runs `reconcile(key)` for every key that is due, at most `concurrency` at once.

    `reconcile` returns the seconds after which it wants to see the key again, or None. An exception of any kind is
    logged, counted and answered with back-off: one object that cannot be handled never stops the others.
    """

    def __init__(
        self,
        reconcile: Callable[[Key], Awaitable[float | None]],
        *,
        backoff: Backoff,
        concurrency: int,
        observer: Observer,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._reconcile = reconcile
        self._queue = WorkQueue(backoff)
        self._concurrency = concurrency
        self._observer = observer
        self._clock = clock or asyncio.get_running_loop().time
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[float | None]] = set()

    @property
    def depth(self) -> int:
        return self._queue.depth

    @property
    def idle(self) -> bool:
        """Nothing is ready and nothing is being worked on; delayed keys may wait."""
        return not self._queue.depth and not self._queue.active

    def add(self, key: Key) -> None:
        self._queue.add(key)
        self._changed.set()

    def add_in(self, key: Key, seconds: float) -> None:
        self._queue.add_at(key, self._clock() + seconds)
        self._changed.set()

    async def run(self) -> None:
        """Work until cancelled; reconciles in progress are then waited for by `drain`."""
        while True:
            self._changed.clear()
            while len(self._tasks) < self._concurrency and (key := self._queue.take(self._clock())) is not None:
                self._start(key)
            due = self._queue.next_due()
            timeout = None if due is None or len(self._tasks) >= self._concurrency else due - self._clock()
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def drain(self, seconds: float) -> None:
        """Wait for reconciles in progress, at most `seconds`, then cancel what is left."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
            for task in late:
                task.cancel()

    def _start(self, key: Key) -> None:
        began = self._clock()
        task = asyncio.ensure_future(self._reconcile(key))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finish(key, began, done))

    def _finish(self, key: Key, began: float, task: asyncio.Task[float | None]) -> None:
        self._tasks.discard(task)
        now = self._clock()
        error = None if task.cancelled() else task.exception()
        if error is None:
            wake = None if task.cancelled() else task.result()
            self._queue.done(key, now=now, wake=wake)
        else:
            delay = self._queue.done(key, now=now, failed=True)
            # The message of an OperatorError is made for readers; of anything else the trace is needed.
            trace = None if isinstance(error, OperatorError) else error
            logger.warning("reconcile of %s %s/%s failed, next try in %.1f s: %s", *key, delay, error, exc_info=trace)
        self._observer.reconciled(key, now - began, type(error).__name__ if error else None)
        self._changed.set()
