"""Background work that must not die unnoticed: loops that are started again, and actions with back-off.

Both watch the *task*, not the code inside it, so an exception that nobody foresaw is logged with its trace and answered
with back-off, without a catch-all anywhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from decurion_operator.errors import OperatorError, PoolError, PoolRefused
from decurion_operator.plan.run import Action, Trouble
from decurion_operator.queue import Backoff, Key

logger = logging.getLogger(__name__)


async def forever(name: str, start: Callable[[], Coroutine[Any, Any, None]], *, backoff: Backoff) -> None:
    """Run `start()` until it returns; start it again, with back-off, whenever it raises."""
    failures = 0
    while True:
        task = asyncio.ensure_future(start())
        try:
            await asyncio.wait({task})
        finally:
            if not task.done():
                task.cancel()
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        failures += 1
        delay = backoff.delay(failures)
        trace = None if isinstance(error, OperatorError) else error
        logger.warning("%s failed, starts again in %.1f s: %s", name, delay, error, exc_info=trace)
        await asyncio.sleep(delay)


@dataclass(slots=True)
class _Deed:
    task: asyncio.Task[None] | None = None
    failures: int = 0
    not_before: float = 0.0
    trouble: Trouble | None = None


@dataclass(slots=True)
class _Object:
    deeds: dict[Action, _Deed] = field(default_factory=dict)


class Deeds:
    """Actions on objects: at most one of a kind in flight for each object, repeated no sooner than its back-off allows.

    `changed(key)` is called when an action ends well, `again(key, seconds)` when it failed and may be tried again then.
    """

    def __init__(
        self, *, changed: Callable[[Key], None], again: Callable[[Key, float], None], backoff: Backoff
    ) -> None:
        self._changed = changed
        self._again = again
        self._backoff = backoff
        self._objects: dict[str, _Object] = {}

    def start(self, key: Key, uid: str, action: Action, work: Callable[[], Awaitable[None]]) -> bool:
        """Begin `action` unless it is in flight or its back-off lasts; says whether it began."""
        deed = self._objects.setdefault(uid, _Object()).deeds.setdefault(action, _Deed())
        now = asyncio.get_running_loop().time()
        if deed.task is not None:
            return False
        if now < deed.not_before:
            # The look that was planned for then may have been cleared by this one.
            self._again(key, deed.not_before - now)
            return False
        task = asyncio.ensure_future(_run(work))
        deed.task = task
        task.add_done_callback(lambda done: self._end(key, uid, action, deed, done))
        return True

    def in_flight(self, uid: str, action: Action) -> bool:
        deed = self._deed(uid, action)
        return deed is not None and deed.task is not None

    def trouble(self, uid: str) -> Mapping[Action, Trouble]:
        """The last failure of each action that has not succeeded since."""
        found = self._objects.get(uid)
        return {a: d.trouble for a, d in found.deeds.items() if d.trouble is not None} if found else {}

    def forget(self, uid: str) -> None:
        """The object is gone or finished: what is in flight for it ends, nothing is repeated."""
        found = self._objects.pop(uid, None)
        for deed in found.deeds.values() if found else ():
            if deed.task is not None:
                deed.task.cancel()

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget what has come to rest of objects that are not `wanted`, by uid."""
        for uid, known in tuple(self._objects.items()):
            if not wanted(uid) and all(d.task is None for d in known.deeds.values()):
                del self._objects[uid]

    async def aclose(self) -> None:
        tasks = [d.task for o in self._objects.values() for d in o.deeds.values() if d.task is not None]
        self._objects.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _deed(self, uid: str, action: Action) -> _Deed | None:
        found = self._objects.get(uid)
        return found.deeds.get(action) if found else None

    def _end(self, key: Key, uid: str, action: Action, deed: _Deed, task: asyncio.Task[None]) -> None:
        deed.task = None
        if task.cancelled() or self._deed(uid, action) is not deed:
            return
        error = task.exception()
        if error is None:
            deed.failures, deed.not_before, deed.trouble = 0, 0.0, None
            self._changed(key)
            return
        deed.failures += 1
        deed.trouble = _trouble(error)
        delay = self._backoff.delay(deed.failures)
        deed.not_before = asyncio.get_running_loop().time() + delay
        trace = None if isinstance(error, OperatorError) else error
        logger.warning("%s of %s %s/%s failed: %s", action, *key, error, exc_info=trace)
        # Once now, to show the trouble, and once when it may be tried again.
        self._changed(key)
        self._again(key, delay)


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def _trouble(error: BaseException) -> Trouble:
    if isinstance(error, PoolError):
        return Trouble(error.code, str(error), final=isinstance(error, PoolRefused))
    if isinstance(error, OperatorError):
        return Trouble(type(error).__name__, str(error))
    return Trouble("InternalError", "The operator failed at this run; its log says why, and it tries again.")
