"""Runners as Ray actors, created and ended by their driver and never outliving it.

Ray ends actors whose owner died, and the driver owns its runners: a killed driver takes them along, a killed runner is
noticed by the first call to it. `max_task_retries=0` everywhere: a call is repeated by the link, which knows its
number, never by Ray. Runners keep positive CPU, so that an autoscaler sees the demand.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from decurion_ledger import open_store
from decurion_worker.driver import Driver
from decurion_worker.limits import raise_open_files
from decurion_worker.link import FromRunner, ToRunner
from decurion_worker.runner import Runner, RunnerSettings
from decurion_worker.sources import Sources

log = logging.getLogger(__name__)

NAMESPACE = "decurion"
RESTART = 1.0
"""Seconds before a runner that could not be started is tried again."""
PAUSE = 0.005
"""Seconds that an outbox gathers before each call between processes: a call costs about 1 ms on both sides."""


@dataclass(frozen=True, slots=True)
class RayRunnerSettings:
    """`cpus` is what one runner asks of Ray; `ledger` the URI that it opens for blobs and sources."""

    ledger: str
    cpus: float = 1.0
    runner: RunnerSettings = field(default_factory=RunnerSettings)


class _DriverHandle:
    """A driver actor as a runner sees it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def submit(self, runner: str, incarnation: str, seq: int, messages: Sequence[FromRunner]) -> bool:
        return bool(await self._actor.submit.remote(runner, incarnation, seq, messages))


class _RunnerHandle:
    """A runner actor as its driver sees it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def deliver(self, incarnation: str, seq: int, messages: Sequence[ToRunner]) -> bool:
        return bool(await self._actor.deliver.remote(incarnation, seq, messages))


class _RunnerActor:
    """One runner in a process of its own."""

    def __init__(self, driver: Any, incarnation: str, number: int, settings: RayRunnerSettings) -> None:
        self._name = f"ray-{socket.gethostname()}-{os.getpid()}-{number}"
        self._driver = driver
        self._incarnation = incarnation
        self._settings = settings
        self._runner: Runner | None = None

    async def name(self) -> str:
        return self._name

    async def start(self) -> None:
        settings = self._settings
        raise_open_files()
        self._runner = Runner(
            self._name,
            driver=_DriverHandle(self._driver),
            incarnation=self._incarnation,
            store=open_store(settings.ledger),
            sources=Sources(open_store, files=False, ledger=settings.ledger),
            settings=settings.runner,
            # The process goes with the runner: whatever its work left behind must not meet the next one.
            on_end=_leave,
            broken=(RayActorError,),
            pause=PAUSE,
        )
        await self._runner.start()

    async def deliver(self, incarnation: str, seq: int, messages: Sequence[ToRunner]) -> bool:
        if self._runner is None:
            return False
        return await self._runner.deliver(incarnation, seq, messages)


def _leave(name: str) -> None:
    asyncio.get_running_loop().call_later(0.2, os._exit, 0)


_OPTIONS: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1000}
RunnerActor: Any = ray.remote(**_OPTIONS)(_RunnerActor)


class RayExecutor:
    """`scale(n)` runner actors for the driver whose actor handle is `me`. Must be used inside that actor."""

    def __init__(self, me: Any, settings: RayRunnerSettings) -> None:
        self._me = me
        self._settings = settings
        self._driver: Driver | None = None
        self._actors: dict[str, Any] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        self._wanted = 0
        self._unnamed = 0

    async def start(self, driver: Driver) -> None:
        self._driver = driver
        driver.on_lost = self._lost

    async def scale(self, runners: int) -> None:
        self._wanted = runners
        for _ in range(runners - len(self._actors) - self._unnamed):
            self._unnamed += 1
            self._spawn(self._add())
        for name in list(self._actors)[max(runners, 0) :]:
            if self._driver is not None and self._driver.is_idle(name):
                self._driver.dismiss(name)
                self._kill(self._actors.pop(name))

    async def _add(self) -> None:
        """Start one runner. One that cannot be started is tried again after a pause."""
        driver = self._driver
        if driver is None:
            return
        number = next(self._numbers)
        actor = RunnerActor.options(num_cpus=self._settings.cpus).remote(
            self._me, driver.incarnation, number, self._settings
        )
        name = ""
        try:
            name = await actor.name.remote()
            self._actors[name] = actor
            driver.add_runner(name, _RunnerHandle(actor), broken=(RayActorError,))
        except RayError as error:
            log.warning("a runner did not start and is tried again: %s", error)
        finally:
            self._unnamed -= 1
        try:
            if name:
                await actor.start.remote()
                return
        except RayError as error:
            driver.lose_runner(name, f"it did not start: {error}")
            return
        await asyncio.sleep(RESTART)
        await self.scale(self._wanted)

    def _lost(self, name: str) -> None:
        actor = self._actors.pop(name, None)
        if actor is not None:
            self._kill(actor)
        self._spawn(self.scale(self._wanted))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    @staticmethod
    def _kill(actor: Any) -> None:
        ray.kill(actor, no_restart=True)

    async def stop(self) -> None:
        self._wanted = 0
        for actor in self._actors.values():
            self._kill(actor)
        self._actors.clear()
