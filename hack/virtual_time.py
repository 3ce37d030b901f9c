"""A loop whose clock jumps to the next thing that is due, for work that waits for nothing outside the process."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopClock:
    """The clock of the loop that is running, for what waits for a store."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Jump(selectors.DefaultSelector):
    """Lets time pass at once, but while threads are waited for: then it stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or (timeout > 0 and self.threads):
            return super().select(None)
        self.now += timeout
        return []


class _Loop(asyncio.SelectorEventLoop):
    """Its time begins with 0. Most turns of it have nothing to look for outside, so that nothing is asked there."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        self._jump.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self._jump.threads -= 1


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which sleeps without taking time. It must wait for no file or socket."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)
