"""One thread, one clock, one source of chance: processes whose every step is an event of the simulated world.

Each process is an event loop of its own, so that code written for asyncio runs in it unchanged. It can be killed and
stopped between any two steps, as a real one by SIGKILL and SIGSTOP: its timers and what it is sent wait meanwhile. All
loops share one queue of events, ordered by time and then by the order in which they were put, and nothing else decides
what comes next: one seed gives one history.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any


class World:
    """Time in seconds, and what is due. `trace` is the digest of all that was noted, `lines` the notes where asked."""

    def __init__(self, seed: int, *, told: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.closing = False
        self.lines: list[str] | None = [] if told else None
        self.processes: list[Process] = []
        self.steps = 0
        self._due: list[tuple[float, int, Process | None, asyncio.Handle | Callable[[], None]]] = []
        self._number = 0
        self._trace = hashlib.sha256()

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()

    def note(self, who: str, what: str) -> None:
        line = f"{self.now:.6f} {who} {what}"
        self._trace.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def at(self, when: float, work: Callable[[], None]) -> None:
        """Do `work` at `when`, outside every process."""
        self._put(when, None, work)

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        self._put(self.now + seconds, None, work)

    def put(self, when: float, process: Process, handle: asyncio.Handle) -> None:
        self._put(when, process, handle)

    def run(self, until: Callable[[], bool], *, deadline: float) -> bool:
        """Go on until `until()`; False when nothing is due any more, or the next event is behind `deadline`."""
        while not until():
            if not self._due or self._due[0][0] > deadline:
                return False
            when, _, process, work = heapq.heappop(self._due)
            self.now = max(self.now, when)
            self.steps += 1
            if process is None:
                assert not isinstance(work, asyncio.Handle)
                work()
            else:
                assert isinstance(work, asyncio.Handle)
                process.step(work)
        return True

    def close(self) -> None:
        """End all tasks, so that none is left to be thrown away in the middle."""
        self.closing = True
        for _ in range(50):
            pending = [task for process in self.processes for task in process.tasks if not task.done()]
            if not pending:
                break
            for process in self.processes:
                process.resume()
            for task in pending:
                task.cancel()
            self.run(lambda: False, deadline=self.now)
        self._due.clear()

    def _put(self, when: float, process: Process | None, work: asyncio.Handle | Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (max(when, self.now), self._number, process, work))


class Process(asyncio.AbstractEventLoop):
    """An operating-system process. Its clock goes a little wrong (`rate`), and goes on while it is stopped."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.paused = False
        self.rate = world.rng.uniform(0.99, 1.01)
        self.offset = world.rng.uniform(0.0, 1000.0)
        self.tasks: list[asyncio.Task[Any]] = []
        self._backlog: list[asyncio.Handle] = []
        world.processes.append(self)

    # ------------------------------------------------------------------ life

    @property
    def up(self) -> bool:
        return not (self.dead or self.paused)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.create_task(work)

    def kill(self) -> None:
        """SIGKILL: no step of it is made any more. What it has sent is on its way."""
        if not self.dead:
            self.world.note(self.name, "killed")
            self.dead = True

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after `seconds`."""
        if self.up:
            self.world.note(self.name, f"stopped for {seconds:.1f}")
            self.paused = True
            self.world.after(seconds, self._wake)

    def _wake(self) -> None:
        if self.paused and not self.dead and not self.world.closing:
            self.world.note(self.name, "woken")
            self.resume()

    def resume(self) -> None:
        self.paused = self.dead = False
        backlog, self._backlog = self._backlog, []
        for handle in backlog:
            self.world.put(self.world.now, self, handle)

    def step(self, handle: asyncio.Handle) -> None:
        if not self.up:
            self._backlog.append(handle)
        elif not handle.cancelled():
            asyncio._set_running_loop(self)
            try:
                handle._run()
            finally:
                asyncio._set_running_loop(None)

    # ------------------------------------------------------------------ what asyncio asks of a loop

    def time(self) -> float:
        return self.world.now * self.rate + self.offset

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.world.put(self.world.now, self, handle)
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.world.put((when - self.offset) / self.rate, self, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody awaited any more when its process was gone."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled handle is skipped when it comes up."""


class ProcessClock:
    """The clock of a process, as the ledger sees it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def now(self) -> float:
        return self._process.time()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._process.world.rng.uniform(0.5, 1.0))
