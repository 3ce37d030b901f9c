"""Runners as plain objects on the driver's own loop: the laptop's executor, and the reference for the others."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Coroutine
from datetime import datetime

from decurion_crds.expressions import Evaluator
from decurion_worker.driver import Driver
from decurion_worker.limits import raise_open_files
from decurion_worker.runner import Runner, RunnerSettings
from decurion_worker.wall_clock import utc_now


class LocalExecutor:
    """`scale(n)` runners in this process. A runner that ends is replaced. `evaluator` is what each of them opens, `now`
    their wall clock.
    """

    def __init__(
        self,
        settings: RunnerSettings | None = None,
        *,
        evaluator: Callable[[int], Evaluator] = Evaluator,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._now = now
        self._settings = settings or RunnerSettings()
        self._evaluator = evaluator
        self._runners: dict[str, Runner] = {}
        self._numbers = itertools.count()
        self._wanted = 0
        self._driver: Driver | None = None
        self._busy: set[asyncio.Task[None]] = set()

    async def start(self, driver: Driver) -> None:
        raise_open_files()
        self._driver = driver
        driver.on_lost = self._lost

    async def scale(self, runners: int) -> None:
        self._wanted = runners
        while len(self._runners) < self._wanted:
            await self._add()
        driver = self._driver
        for name in list(self._runners):
            if driver is not None and len(self._runners) > self._wanted and driver.is_idle(name):
                driver.dismiss(name)
                await self._runners.pop(name).stop()

    async def _add(self) -> None:
        driver = self._driver
        if driver is None:
            return
        name = f"local-{socket.gethostname()}-{os.getpid()}-{next(self._numbers)}"
        runner = Runner(
            name,
            driver=driver,
            incarnation=driver.incarnation,
            store=driver.store,
            sources=driver.sources,
            settings=self._settings,
            on_end=lambda ended: driver.lose_runner(ended, "it ended"),
            evaluator=self._evaluator,
            now=self._now,
        )
        self._runners[name] = runner
        driver.add_runner(name, runner)
        await runner.start()

    def _lost(self, name: str) -> None:
        runner = self._runners.pop(name, None)
        self._spawn(self._replace(runner))

    async def _replace(self, runner: Runner | None) -> None:
        if runner is not None:
            await runner.stop()
        await self.scale(self._wanted)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def stop(self) -> None:
        self._wanted = 0
        # A runner that is being started, or replaced, is seen through: half an interpreter cannot be ended.
        await asyncio.gather(*self._busy, return_exceptions=True)
        for name, runner in list(self._runners.items()):
            if self._driver is not None:
                self._driver.dismiss(name)
            await runner.stop()
        self._runners.clear()
