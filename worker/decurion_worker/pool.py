"""A driver with runners that follow its work: between a minimum and a maximum, by what waits and what runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from decurion_worker.driver import Driver
from decurion_worker.executors.port import Executor
from decurion_worker.supervised import supervised


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Bounds of a pool's runners, how many branches each holds, and after how many idle seconds spare ones end."""

    min_runners: int = 1
    max_runners: int = 1
    branches: int = 1024
    idle: float = 60.0


class Pool:
    """One driver, its executor, and the loop that scales it."""

    def __init__(self, driver: Driver, executor: Executor, settings: PoolSettings) -> None:
        self.driver = driver
        self._executor = executor
        self._settings = settings
        self._scaling: asyncio.Task[None] | None = None
        self._now_wanted = settings.min_runners

    async def start(self) -> None:
        await self.driver.start()
        await self._executor.start(self.driver)
        await self._executor.scale(self._settings.min_runners)
        if self._settings.max_runners > self._settings.min_runners:
            self._scaling = supervised(self._scale, "scale")

    async def stop(self) -> None:
        if self._scaling is not None:
            self._scaling.cancel()
            await asyncio.wait([self._scaling])
        await self._executor.stop()
        await self.driver.stop()

    async def _scale(self) -> None:
        """Grow at once, shrink after a while: a runner costs seconds to start and nothing to keep for a minute."""
        loop = asyncio.get_running_loop()
        needed_since = loop.time()
        while True:
            await self.driver.changes.wait(self.driver.changes.cursor, 1.0)
            wanted = self._wanted()
            if wanted >= self._now_wanted:
                needed_since = loop.time()
            if wanted > self._now_wanted or loop.time() - needed_since > self._settings.idle:
                self._now_wanted = wanted
                await self._executor.scale(wanted)

    def _wanted(self) -> int:
        needed = -(-(self.driver.pending + self.driver.load) // self._settings.branches)
        return max(self._settings.min_runners, min(self._settings.max_runners, needed))
